"""Strategies against each other on the same ranks, batches, stacking and runtime, interleaved."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedPlan
from arachne.trainer.measure import shared_trace
from arachne.trainer.memory_reports import told_if_stranded
from arachne.trainer.planning import plan_batch
from arachne.trainer.preparation import Progress
from arachne.trainer.schedule import learning_rate
from arachne.trainer.session import Session
from arachne.trainer.step import run_step


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """Medians over the raced steps, by planner.

    Attributes:
        steps: Which steps' batches were raced.
        step_s: Measured seconds of a step, from its vote to the last parameter that was shared.
        modelled_step_s: What the cost model promised for the same.
        idle_ratio: Measured.
    """

    steps: tuple[int, ...]
    step_s: dict[str, float]
    modelled_step_s: dict[str, float]
    idle_ratio: dict[str, float]


def heterogeneous_steps(session: Session, *, first: int, count: int, span: float) -> list[int]:
    """The first `count` steps whose longest clip has at least `span` times its shortest's tokens.

    Looks at 100 steps per wanted one; fewer come back if the data has no more.
    """
    found: list[int] = []
    for step in range(first, first + 100 * count):
        tokens = [clip.num_tokens for clip in session.step_batch(step).batch.clips]
        if max(tokens) >= span * min(tokens):
            found.append(step)
            if len(found) == count:
                break
    return found


def race(
    session: Session,
    cluster: Cluster,
    planners: Sequence[str],
    steps: Sequence[int],
    progress: Progress,
) -> RaceResult:
    """Run every step's batch under every planner, as real training steps that are not saved.

    The order of the planners rotates from step to step, so that none always goes first. Every rank
    calls it.
    """
    costs = session.costs(cluster)
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in planners}
    for turn, step in enumerate(steps):
        chosen = session.step_batch(step)
        arrays = {item: session.prepared.train.read(item) for item in set(chosen.items)}
        shift = turn % len(planners)
        for planner in (*planners[shift:], *planners[:shift]):
            plan = _plan(session, cluster, step, planner)
            with told_if_stranded(session.world, session.run_dir, costs, chosen.batch, plan):
                outcome = run_step(
                    session, chosen, plan, read=arrays.__getitem__, lr=_lr(session, step)
                )
            trace = shared_trace(session, outcome.log)
            modelled_s = plan.makespan_s + costs.step_overhead_s()
            measured[planner].append((trace.iteration_s, modelled_s, trace.idle_ratio))
        progress("racing strategies", turn + 1, len(steps))

    def medians(index: int) -> dict[str, float]:
        return {name: median(row[index] for row in rows) for name, rows in measured.items()}

    return RaceResult(
        steps=tuple(steps), step_s=medians(0), modelled_step_s=medians(1), idle_ratio=medians(2)
    )


def _lr(session: Session, step: int) -> float:
    return learning_rate(session.config.optimizer, step, session.config.run.steps)


def _plan(session: Session, cluster: Cluster, step: int, planner: str) -> PlacedPlan:
    """Planned on every rank alike; the vote before the step compares."""
    return plan_batch(session.plan_request(step, cluster, planner))
