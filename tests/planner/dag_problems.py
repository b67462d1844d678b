"""Problems with encoders for the planning tests, hand-made and random."""

from dataclasses import dataclass, replace
from random import Random

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees
from arachne.core.cascade import Cascade, Encoder
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Launch, Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.problem import Planner, PlanningProblem
from tests.planner.problems import BUCKETS, WORLDS, TableCosts, batch_of, cluster_of

ENCODERS: tuple[tuple[Encoder, ...], ...] = ((), ("vae",), ("text",), ("vae", "text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCosts(TableCosts):
    """Training by tokens as in `TableCosts`; encoders take seconds a token or a clip.

    Attributes:
        vae_second_per_token: A vae cascade's, shared by its GPUs.
        vae_degrees: Degrees at which a vae cascade fits.
        text_s: Of one caption, on one GPU.
        hop_s: Handoff to GPUs of which not all encoded.
        speeds: Of each GPU beside the fastest; () is 1 for all.
    """

    vae_second_per_token: float = 0.25
    vae_degrees: tuple[int, ...] = (1,)
    text_s: float = 4.0
    hop_s: float = 0.0
    speeds: tuple[float, ...] = ()

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        slowest = min(self.gpu_speed(gpu) for gpu in gpus)
        if cascade.module == "text":
            return self.text_s * cascade.num_clips / slowest
        if cascade.module == "vae":
            tokens = cascade.num_tokens * cascade.num_clips
            return self.vae_second_per_token * tokens / len(gpus) / slowest
        return TableCosts.launch_s(self, cascade, gpus) / slowest

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        if cascade.module == "text":
            return len(gpus) == 1
        if cascade.module == "vae":
            return len(gpus) in self.vae_degrees
        return TableCosts.fits(self, cascade, gpus)

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        return 0.0 if set(to_gpus) <= set(from_gpus) else self.hop_s

    def gpu_speed(self, gpu: int) -> float:
        return self.speeds[gpu] if self.speeds else 1.0


def encoded(batch: Batch, *to_encode: tuple[Encoder, ...]) -> Batch:
    """The batch with what each clip needs; a single entry stands for all clips."""
    needs = to_encode * len(batch.clips) if len(to_encode) == 1 else to_encode
    clips = zip(batch.clips, needs, strict=True)
    return replace(batch, clips=tuple(replace(clip, to_encode=needed) for clip, needed in clips))


def dag_problem(
    batch: Batch,
    num_gpus: int,
    costs: EncoderCosts,
    *,
    next_batch: Batch | None = None,
    iterations: int = 300,
    stack_tokens: int = 0,
) -> PlanningProblem:
    return PlanningProblem(
        batch=batch,
        next_batch=next_batch,
        num_gpus=num_gpus,
        degrees=allowed_degrees(num_gpus, num_gpus),
        costs=costs,
        iterations=iterations,
        stack_tokens=stack_tokens,
    )


def random_dag_problem(rng: Random, *, iterations: int = 30) -> PlanningProblem:
    """Any world; encoders for this step, for the next one, or for both; a few may fit nowhere."""
    num_gpus = rng.choice(WORLDS)
    kind = rng.choice(("own", "ahead", "both"))
    batch = batch_of(*rng.choices(BUCKETS, k=rng.randint(0, 14)))
    following = batch_of(*rng.choices(BUCKETS, k=rng.randint(0, 14)), step=1)
    return PlanningProblem(
        batch=batch if kind == "ahead" else _with_random_needs(rng, batch),
        next_batch=None if kind == "own" else _with_random_needs(rng, following),
        num_gpus=num_gpus,
        degrees=allowed_degrees(num_gpus, rng.choice((1, 2, 4, num_gpus))),
        costs=_random_costs(rng, num_gpus),
        stack_tokens=rng.choice((0, 256, 1024, 4096)),
        seed=rng.randrange(4),
        iterations=iterations,
    )


def _with_random_needs(rng: Random, batch: Batch) -> Batch:
    return replace(
        batch,
        clips=tuple(replace(clip, to_encode=rng.choice(ENCODERS)) for clip in batch.clips),
    )


def _random_costs(rng: Random, num_gpus: int) -> EncoderCosts:
    slow = rng.choice(((), (0,), range(num_gpus // 2), range(0, num_gpus, 3)))
    return EncoderCosts(
        second_per_token=rng.choice((1.0, 1.0, 1.0, 1e-30)),
        launch_s_each=rng.choice((0.0, 20.0, 300.0)),
        max_tokens_per_gpu=rng.choice((float("inf"), float("inf"), 900.0)),
        vae_second_per_token=rng.choice((0.05, 0.25, 1.0)),
        vae_degrees=rng.choice(((1,), (1, 2), (2,), (1, 2, 4, 8))),
        text_s=rng.choice((0.0, 4.0, 50.0)),
        hop_s=rng.choice((0.0, 5.0, 200.0)),
        speeds=tuple(0.5 if gpu in slow else 1.0 for gpu in range(num_gpus)) if slow else (),
    )


def check_dag(plan: Plan, problem: PlanningProblem) -> None:
    """The rules of placed plans, and those that only a problem's costs can tell."""
    num_gpus = problem.num_gpus
    placed = place(plan, cluster_of(num_gpus), problem.batch.step)
    check_placed_plan(placed, problem.batch, num_gpus, next_batch=problem.next_batch)
    _check_costs(plan, problem)
    _check_handoffs(plan, problem)


def _check_costs(plan: Plan, problem: PlanningProblem) -> None:
    for launch in plan.launches:
        cascade = launch.cascade
        assert problem.costs.fits(cascade, launch.gpus)
        assert launch.duration_s == problem.duration_s(cascade, launch.gpus)
        assert launch.degree in problem.degrees
        stacked_tokens = cascade.num_clips * cascade.num_tokens
        assert cascade.num_clips == 1 or stacked_tokens <= problem.stack_tokens


def _check_handoffs(plan: Plan, problem: PlanningProblem) -> None:
    """Training starts when everything that it needs has arrived, to the last bit."""
    made: dict[tuple[str, int], Launch] = {
        (launch.cascade.module, slot): launch
        for launch in plan.launches
        if launch.cascade.module != "dit" and not launch.cascade.steps_ahead
        for slot in launch.cascade.slots
    }
    for launch in plan.launches:
        if launch.cascade.module == "dit":
            for slot in launch.cascade.slots:
                for module in problem.batch.clips[slot].to_encode:
                    encoder = made[module, slot]
                    handoff_s = problem.costs.handoff_s(encoder.cascade, encoder.gpus, launch.gpus)
                    assert launch.start_s >= encoder.end_s + handoff_s


def planned(planner: Planner, problem: PlanningProblem) -> Plan | None:
    """The plan; None if the planner refuses, with a message that names a clip."""
    try:
        return planner(problem)
    except InfeasibleError as error:
        if "clip '" not in str(error):
            raise
        return None
