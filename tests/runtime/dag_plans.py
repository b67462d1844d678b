"""Random plans with encoders, as the planner and the mapper make them; two steps in a row."""

from dataclasses import replace
from random import Random

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import planner_named
from tests.planner.dag_problems import ENCODERS, EncoderCosts
from tests.planner.problems import BUCKETS, batch_of, cluster_of

_PLANNERS = ("arachne", "arachne", "static_degree_longest_first", "static_sp")


def two_steps(
    rng: Random, world_size: int, *, iterations: int = 20
) -> tuple[PlacedPlan, PlacedPlan]:
    """A step that encodes for itself, for the next one or for both, and the next one."""
    kind = rng.choice(("own", "ahead", "both"))
    first = batch_of(*rng.choices(BUCKETS, k=rng.randint(1, 8)))
    second = batch_of(*rng.choices(BUCKETS, k=rng.randint(1, 8)), step=1)
    own = first if kind == "ahead" else _with_needs(rng, first)
    ahead = None if kind == "own" else _with_needs(rng, second)
    costs = EncoderCosts(
        vae_second_per_token=rng.choice((0.05, 0.25, 1.0)),
        text_s=rng.choice((0.0, 4.0, 50.0)),
        hop_s=rng.choice((0.0, 5.0, 200.0)),
        vae_degrees=rng.choice(((1,), (1, 2), (1, 2, 4, 8))) if world_size > 1 else (1,),
    )
    stack_tokens, planner = rng.choice((0, 1024, 4096)), rng.choice(_PLANNERS)

    def planned(batch: Batch, next_batch: Batch | None) -> PlacedPlan:
        problem = PlanningProblem(
            batch=batch,
            next_batch=next_batch,
            num_gpus=world_size,
            degrees=allowed_degrees(world_size, world_size),
            costs=costs,
            stack_tokens=stack_tokens,
            iterations=iterations,
        )
        plan = planner_named(planner)(problem)
        placed = place(plan, cluster_of(world_size), batch.step)
        check_placed_plan(placed, batch, world_size, next_batch=next_batch)
        return placed

    return planned(own, ahead), planned(second, None)


def _with_needs(rng: Random, batch: Batch) -> Batch:
    clips = tuple(replace(clip, to_encode=rng.choice(ENCODERS)) for clip in batch.clips)
    return replace(batch, clips=clips)
