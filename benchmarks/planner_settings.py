"""The published setting that planners are measured in: costs, clip mixes, worlds."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster, Device, Link
from arachne.planner.budget import iterations_within
from arachne.planner.problem import LaunchCosts, PlanningProblem

TOKENS_PER_GPU = 20_480
BYTES_PER_TOKEN = 4.48e6
QUADRATIC_MS, LINEAR_MS = 5.128e-6, 0.18396
NUM_LAYERS, HIDDEN_SIZE = 32, 4096
GB_PER_S = {1: math.inf, 2: 119.5, 4: 104.0, 8: 96.5, 16: 10.3, 32: 5.9, 64: 4.9}
GPUS_PER_NODE = 8

MIXES: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "t2v": (
        (1560, 3600, 7800, 14040, 18000, 20280, 32760, 75600),
        (0.20, 0.15, 0.20, 0.12, 0.10, 0.08, 0.10, 0.05),
    ),
    "img_heavy": (
        (256, 1024, 1560, 3600, 7800, 32760, 75600),
        (0.3, 0.2, 0.2, 0.1, 0.1, 0.07, 0.03),
    ),
    "long": ((7800, 32760, 75600, 151200), (0.35, 0.35, 0.25, 0.05)),
}
"""Tokens of a clip, and how likely each is."""

CLIPS_PER_GPU = (2, 4)
LAUNCH_MS = (30, 200)

FIRST_S = 0.05
"""Planning time of a first plan."""


def budget_s(num_gpus: int) -> float:
    """Planning time of a final plan."""
    return 1.0 if num_gpus <= 64 else 4.0


def gb_per_s(degree: int) -> float:
    """Published bandwidth; between two powers of two that of the larger one (peers use those)."""
    return next((rate for known, rate in GB_PER_S.items() if known >= degree), GB_PER_S[64])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexSpCosts(LaunchCosts):
    """FlexSP's cost model, in seconds: k clips of s tokens on p GPUs.

    β + k · ((5.128e-6·s² + 0.18396·s) / p + 8·L·h·s·2 / 2^20 / p / bandwidth(p)) ms

    `bandwidth_factor` multiplies all bandwidths.
    """

    launch_overhead_s: float
    bandwidth_factor: float = 1.0

    @property
    def memory_bytes(self) -> float:
        """The token cap in bytes."""
        return TOKENS_PER_GPU * BYTES_PER_TOKEN

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds of a launch."""
        tokens, degree = cascade.num_tokens, len(gpus)
        compute_ms = (QUADRATIC_MS * tokens * tokens + LINEAR_MS * tokens) / degree
        moved_mib = 8 * NUM_LAYERS * HIDDEN_SIZE * tokens * 2 / 2**20 / degree
        clip_ms = compute_ms + moved_mib / (gb_per_s(degree) * self.bandwidth_factor)
        return self.launch_overhead_s + cascade.num_clips * clip_ms / 1e3

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Bytes on each GPU."""
        return cascade.num_clips * cascade.num_tokens / len(gpus) * BYTES_PER_TOKEN

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        """Whether the token cap is kept."""
        return cascade.num_clips * cascade.num_tokens <= TOKENS_PER_GPU * len(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Batches of one kind on one cluster."""

    mix: str
    launch_ms: int
    num_gpus: int
    clips_per_gpu: int
    num_batches: int
    iterations: int
    has_peers: bool = False
    bandwidth_factor: float = 1.0

    @property
    def name(self) -> str:
        """Key in the JSON file."""
        bandwidth = "" if self.bandwidth_factor == 1.0 else f"/{self.bandwidth_factor:g}bandwidth"
        return (
            f"{self.mix}/{self.launch_ms}ms/{self.num_gpus}gpus/{self.clips_per_gpu}clips"
            f"{bandwidth}"
        )

    def problems(self) -> Iterator[PlanningProblem]:
        """One problem per batch; drawn from the setting's name, so the same in every run."""
        tokens, weights = MIXES[self.mix]
        costs = FlexSpCosts(
            launch_overhead_s=self.launch_ms / 1e3, bandwidth_factor=self.bandwidth_factor
        )
        largest = 16 if self.num_gpus > 64 else self.num_gpus
        for seed in range(self.num_batches):
            rng = random.Random(f"{self.mix}/{self.num_gpus}/{self.clips_per_gpu}/{seed}")
            drawn = rng.choices(tokens, weights, k=self.clips_per_gpu * self.num_gpus)
            yield problem_of(drawn, self.num_gpus, largest, costs, self.iterations)


def problem_of(
    tokens: Sequence[int],
    num_gpus: int,
    largest_degree: int,
    costs: FlexSpCosts,
    iterations: int,
) -> PlanningProblem:
    """A batch of clips of these lengths; a length is a shape."""
    clips = tuple(
        BatchClip(
            name=f"{slot}.mp4", bucket=Bucket(width=count, height=1, frames=1), num_tokens=count
        )
        for slot, count in enumerate(tokens)
    )
    return PlanningProblem(
        batch=Batch(step=0, clips=clips),
        num_gpus=num_gpus,
        degrees=tuple(degree for degree in GB_PER_S if degree <= largest_degree),
        costs=costs,
        stack_tokens=TOKENS_PER_GPU,
        iterations=iterations,
    )


def iterations_on(num_gpus: int, clips_per_gpu: int, seconds: float) -> int:
    """Search steps for so much planning time.

    With these costs and degrees up to 16, planning without any step was measured to take no more
    than 0.01 + 1.5e-4·clips s: 0.64 s on 1,024 GPUs with four clips each.
    """
    num_clips = clips_per_gpu * num_gpus
    return iterations_within(seconds, num_gpus, num_clips, fixed_s=0.01 + 1.5e-4 * num_clips)


def settings_of(*, is_quick: bool) -> list[Setting]:
    """What is run: all settings, or a fair sample of them."""
    worlds = {8: 1, 64: 1} if is_quick else {8: 3, 16: 3, 32: 3, 64: 3, 256: 1, 1024: 1}
    return [
        Setting(
            mix=mix,
            launch_ms=launch_ms,
            num_gpus=num_gpus,
            clips_per_gpu=clips_per_gpu,
            num_batches=num_batches,
            iterations=iterations_on(num_gpus, clips_per_gpu, budget_s(num_gpus)),
            has_peers=num_gpus <= (8 if is_quick else 64),
        )
        for num_gpus, num_batches in worlds.items()
        for clips_per_gpu in CLIPS_PER_GPU
        for mix in MIXES
        for launch_ms in LAUNCH_MS
    ]


def sensitivity_settings(*, is_quick: bool) -> list[Setting]:
    """Other bandwidths and launch costs than those published."""
    num_gpus = 8 if is_quick else 32
    seconds = 0.3 if is_quick else budget_s(num_gpus)
    return [
        Setting(
            mix=mix,
            launch_ms=launch_ms,
            num_gpus=num_gpus,
            clips_per_gpu=clips_per_gpu,
            num_batches=1,
            iterations=iterations_on(num_gpus, clips_per_gpu, seconds),
            bandwidth_factor=factor,
        )
        for clips_per_gpu in CLIPS_PER_GPU
        for mix in MIXES
        for launch_ms in ((10, 100) if is_quick else (10, 30, 100))
        for factor in ((0.7, 1.3) if is_quick else (0.7, 1.0, 1.3))
    ]


def first_settings(num_gpus: int) -> list[Setting]:
    """All mixes with little time to plan."""
    return [
        Setting(
            mix=mix,
            launch_ms=launch_ms,
            num_gpus=num_gpus,
            clips_per_gpu=clips_per_gpu,
            num_batches=1,
            iterations=iterations_on(num_gpus, clips_per_gpu, FIRST_S),
        )
        for clips_per_gpu in CLIPS_PER_GPU
        for mix in MIXES
        for launch_ms in LAUNCH_MS
    ]


def small_problem(seed: int) -> PlanningProblem:
    """A few clips of a mix on 2 to 8 GPUs, at least one of which can hold the longest."""
    rng = random.Random(f"small/{seed}")
    while True:
        tokens, weights = MIXES[rng.choice(list(MIXES))]
        num_gpus = rng.randint(2, 8)
        drawn = rng.choices(tokens, weights, k=rng.randint(2, 14))
        largest = max(degree for degree in GB_PER_S if degree <= num_gpus)
        if max(drawn) <= TOKENS_PER_GPU * largest:
            costs = FlexSpCosts(launch_overhead_s=rng.choice((10, 30, 100, 200)) / 1e3)
            return problem_of(drawn, num_gpus, largest, costs, 4_000)


def cluster_of(num_gpus: int) -> Cluster:
    """Nodes of eight to place plans on; its rates are not looked at, the plans' seconds hold."""
    per_node = math.gcd(num_gpus, GPUS_PER_NODE)
    link = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    device = Device(
        name="placed on",
        matmul_flops_per_s=1.0,
        attention_flops_per_s=1.0,
        half_rate_tokens=0.0,
        launch_s=0.0,
        layer_s=0.0,
        memory_bytes=TOKENS_PER_GPU * BYTES_PER_TOKEN,
        memory_bytes_per_s=1.0,
    )
    return Cluster(
        name="benchmark",
        num_nodes=num_gpus // per_node,
        gpus_per_node=per_node,
        device=device,
        intra_node=link,
        inter_node=link,
    )
