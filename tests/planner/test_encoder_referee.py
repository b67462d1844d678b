"""Plans of tiny steps with encoders beside the shortest there are, found by trying everything.

The slow test runs 600 of each kind, or those that ARACHNE_INSTANCES names (`0:150`).
"""

from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from statistics import fmean

import pytest

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import allowed_degrees
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder
from arachne.core.errors import InfeasibleError
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import LaunchCosts, PlanningProblem
from arachne.planner.tree import plan_arachne
from tests.planner.dag_problems import EncoderCosts, check_dag, dag_problem, encoded
from tests.planner.instances import instances
from tests.planner.problems import batch_of
from tests.planner.trying_everything import shortest_s

_TOKENS = 5
IMAGE, VIDEO = "96x64x1", "96x64x33"  # 24 and 216 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCosts(LaunchCosts):
    """Seconds of training by shape and degree, of encoders by shape; encoders run on one GPU.

    Attributes:
        train_s: One clip of a shape at each degree.
        encode_s: One clip of a shape in each encoder.
        clip_bytes: Memory of a clip of a shape that trains, shared by its GPUs; 100 fit on each.
        launch_s_each: Of each launch, a fourth of it of an encoder's.
        hop_s: Handoff to GPUs of which not all encoded.
        speeds: Of each GPU beside the fastest.
    """

    train_s: dict[Bucket, dict[int, float]]
    encode_s: dict[Bucket, dict[Encoder, float]]
    clip_bytes: dict[Bucket, float]
    launch_s_each: float
    hop_s: float
    speeds: tuple[float, ...]

    @property
    def memory_bytes(self) -> float:
        return 100.0

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        slowest = min(self.speeds[gpu] for gpu in gpus)
        if cascade.module == "dit":
            each_s = self.train_s[cascade.bucket][len(gpus)]
            return (self.launch_s_each + each_s * cascade.num_clips) / slowest
        each_s = self.encode_s[cascade.bucket][cascade.module]
        return (self.launch_s_each / 4.0 + each_s * cascade.num_clips) / slowest

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        if cascade.module != "dit":
            return 1.0 if len(gpus) == 1 else 1000.0
        return self.clip_bytes[cascade.bucket] * cascade.num_clips / len(gpus)

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        return self.launch_bytes(cascade, gpus) <= self.memory_bytes

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        return 0.0 if set(to_gpus) <= set(from_gpus) else self.hop_s

    def gpu_speed(self, gpu: int) -> float:
        return self.speeds[gpu]


def tiny_problem(
    seed: int, *, stack_tokens: int, worlds: tuple[int, ...] = (1, 2, 3, 4)
) -> PlanningProblem:
    """One to three clips on one to four GPUs, some partly cached; sometimes the next step's too."""
    rng = Random(seed)
    num_gpus = rng.choice(worlds)
    shapes = [Bucket(width=16 * (i + 1), height=16, frames=1) for i in range(rng.randint(1, 3))]
    needs: list[tuple[Encoder, ...]] = [(), ("vae",), ("text",), ("vae", "text")]

    def batch(step: int, num_clips: int) -> Batch:
        return Batch(
            step=step,
            clips=tuple(
                BatchClip(
                    name=f"{step}-{slot}.mp4",
                    bucket=rng.choice(shapes),
                    num_tokens=_TOKENS,
                    to_encode=rng.choice(needs[: 3 if num_gpus > 2 else 4]),
                )
                for slot in range(num_clips)
            ),
        )

    def train_s() -> dict[int, float]:
        work_s, loss = rng.uniform(0.5, 10.0), rng.uniform(0.0, 0.4)
        return {
            degree: work_s / degree * (1.0 + loss * (degree - 1) * rng.uniform(0.5, 1.5))
            for degree in range(1, num_gpus + 1)
        }

    is_even = rng.random() < 0.6
    return PlanningProblem(
        batch=batch(0, rng.randint(1, 3 if num_gpus < 4 else 2)),
        next_batch=batch(1, rng.randint(1, 2)) if rng.random() < 0.35 else None,
        num_gpus=num_gpus,
        degrees=allowed_degrees(num_gpus, num_gpus),
        costs=ShapeCosts(
            train_s={shape: train_s() for shape in shapes},
            encode_s={s: {"text": rng.uniform(0, 0.5), "vae": rng.uniform(0, 5)} for s in shapes},
            clip_bytes={shape: rng.choice((1.0, 50.0, 100.0, 101.0, 150.0)) for shape in shapes},
            launch_s_each=rng.choice((0.0, 0.1, 1.0)),
            hop_s=rng.choice((0.0, 0.1, 1.0)),
            speeds=tuple(1.0 if is_even else rng.choice((1.0, 0.8, 0.5)) for _ in range(num_gpus)),
        ),
        stack_tokens=stack_tokens,
        iterations=2000,
    )


@pytest.mark.parametrize(("stack_tokens", "worst"), [(0, 1.03), (2 * _TOKENS, 1.06)])
@pytest.mark.parametrize(
    "seeds",
    [
        range(25),
        pytest.param(instances(600), marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_plans_of_tiny_steps_are_as_short_as_any(seeds: range, stack_tokens: int, worst: float):
    ratios: list[float] = []
    for seed in seeds:
        problem = tiny_problem(seed, stack_tokens=stack_tokens)
        optimum_s = shortest_s(problem)
        try:
            bound_s = lower_bound_s(problem)
        except InfeasibleError:
            assert optimum_s == float("inf"), seed
            continue
        plan = plan_arachne(problem)
        check_dag(plan, problem)
        assert bound_s <= optimum_s <= plan.makespan_s * (1.0 + 1e-9), seed
        ratios.append(plan.makespan_s / optimum_s)

    assert exp(fmean(map(log, ratios))) <= 1.005
    assert max(ratios) <= worst, ratios.index(max(ratios))


@pytest.mark.parametrize(
    "seeds",
    [range(12), pytest.param(instances(200), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_in_an_odd_world_encoders_and_training_use_blocks_from_both_ends(seeds: range):
    ratios: list[float] = []
    for seed in seeds:
        problem = tiny_problem(seed, stack_tokens=0, worlds=(5,))
        problem = replace(problem, next_batch=None)  # trying everything takes too long with it
        try:
            plan = plan_arachne(problem)
        except InfeasibleError:
            continue
        check_dag(plan, problem)
        ratios.append(plan.makespan_s / shortest_s(problem))
    assert exp(fmean(map(log, ratios))) <= 1.005
    assert max(ratios) <= 1.03, ratios.index(max(ratios))


def test_trying_everything_finds_a_plan_worked_out_by_hand():
    # GPU 0 encodes the video for 54 s, GPU 1 trains both images, then both train the video; where
    # handing over takes long, the video stays where it was encoded.
    batch = encoded(batch_of(VIDEO, IMAGE, IMAGE), ("vae",), (), ())

    assert shortest_s(dag_problem(batch, 2, EncoderCosts())) == 54.0 + 108.0
    assert shortest_s(dag_problem(batch, 2, EncoderCosts(hop_s=1000.0))) == 54.0 + 216.0


def test_trying_everything_stacks_clips_where_that_saves_a_launch():
    costs = EncoderCosts(launch_s_each=100.0)
    batch = batch_of(IMAGE, IMAGE, IMAGE)

    assert shortest_s(dag_problem(batch, 1, costs, stack_tokens=48)) == 200.0 + 3 * 24.0
    assert shortest_s(dag_problem(batch, 1, costs)) == 300.0 + 3 * 24.0
