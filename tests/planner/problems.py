"""Problems for the planning tests: batches of a small Wan on clusters of any size."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import allowed_degrees
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.cost.cluster_files import load_cluster
from arachne.cost.model import CostModel
from arachne.planner.problem import LaunchCosts, PlanningProblem

WAN = family_named("wan")

SMALL = ModelShape(
    family="wan",
    num_layers=3,
    num_heads=4,
    head_size=64,
    ffn_size=1024,
    latent_channels=48,
    text_size=64,
    text_tokens=16,
)

BUCKETS = ("96x64x1", "96x64x33", "160x96x17", "160x96x33", "224x96x33", "224x96x1", "224x96x81")

WORLDS = (*range(1, 14), 16, 24)


def batch_of(*buckets: str, step: int = 0) -> Batch:
    shapes = [Bucket.parse(text) for text in buckets]
    return Batch(
        step=step,
        clips=tuple(
            BatchClip(name=f"{slot}.mp4", bucket=b, num_tokens=WAN.geometry.num_tokens(b))
            for slot, b in enumerate(shapes)
        ),
    )


def cluster_of(num_gpus: int, gpus_per_node: int | None = None) -> Cluster:
    per_node = gpus_per_node or num_gpus
    return replace(
        load_cluster("cpux1"), num_nodes=num_gpus // per_node, gpus_per_node=per_node, name="test"
    )


def costs_of(num_gpus: int, memory_bytes: float = 8e9) -> CostModel:
    cluster = cluster_of(num_gpus)
    device = replace(cluster.device, memory_bytes=memory_bytes)
    return CostModel(model=SMALL, cluster=replace(cluster, device=device), element_bytes=4)


def problem_of(
    batch: Batch,
    num_gpus: int,
    *,
    stack_tokens: int = 1024,
    iterations: int = 100,
    seed: int = 0,
    memory_bytes: float = 8e9,
    max_degree: int | None = None,
) -> PlanningProblem:
    return PlanningProblem(
        batch=batch,
        num_gpus=num_gpus,
        degrees=allowed_degrees(num_gpus, max_degree or num_gpus),
        costs=costs_of(num_gpus, memory_bytes),
        stack_tokens=stack_tokens,
        seed=seed,
        iterations=iterations,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCosts(LaunchCosts):
    """Costs by tokens alone: degree p divides them, and everything up to `max_tokens` fits."""

    second_per_token: float = 1.0
    launch_s_each: float = 0.0
    max_tokens_per_gpu: float = float("inf")

    @property
    def memory_bytes(self) -> float:
        return 80e9

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        tokens = cascade.num_tokens * cascade.num_clips
        return self.launch_s_each + self.second_per_token * tokens / len(gpus)

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        return 1e9 * cascade.num_tokens * cascade.num_clips / len(gpus)

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        tokens = cascade.num_tokens * cascade.num_clips
        return tokens <= self.max_tokens_per_gpu * len(gpus)


batches = st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=14).map(
    lambda buckets: batch_of(*buckets)
)
worlds = st.sampled_from(WORLDS)
stack_limits = st.sampled_from([0, 256, 1024, 4096])
