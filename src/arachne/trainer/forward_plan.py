"""Plans of launches that only run forward, for validation losses and sample videos."""

from arachne.core.batch import Batch
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import from_json, to_json
from arachne.cost.model import CostModel
from arachne.runtime.messages import text_of_first
from arachne.trainer.agreement import do_together
from arachne.trainer.cluster_choice import FALLBACK_PLANNER
from arachne.trainer.planning import plan_batch, run_request
from arachne.trainer.session import Session


def forward_plan(session: Session, costs: CostModel, batch: Batch) -> PlacedPlan:
    """Rank 0's plan of some clips, on every rank, by the planner that takes milliseconds.

    Launches are planned as if they trained: forward alone is the same share of each.

    Raises:
        InfeasibleError: On every rank, if a clip fits nowhere on the cluster.
    """
    world, everyone = session.world, session.groups.world

    def planned() -> str:
        if world.rank != 0:
            return ""
        return to_json(plan_batch(run_request(session.config, batch, costs, FALLBACK_PLANNER)))

    text = do_together(world, everyone, planned)
    shared = text_of_first(text, everyone, world.device)
    return from_json(shared, PlacedPlan, what="plan of launches that run forward")
