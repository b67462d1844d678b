"""Plans with encoders on clusters of several nodes, and costs that know where results are."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Module
from arachne.core.cluster import Cluster
from arachne.core.launch_inputs import input_launches
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.plan import Launch, Plan
from arachne.cost.cluster_files import load_cluster

SHAPES = {"832x480x81": 32760, "832x480x17": 7800, "832x480x1": 1560}


@dataclass(frozen=True, kw_only=True)
class NodeCosts:
    """Seconds that depend on nodes, NICs and speeds, with results of a megabyte a token."""

    cluster: Cluster

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        token_s = {"text": 1e-6, "vae": 1e-5, "dit": 1e-4}[cascade.module]
        slowest = min(self.cluster.speed_of(gpu) for gpu in gpus)
        tokens = cascade.num_tokens * cascade.num_clips
        compute_s = 0.01 + tokens * token_s / len(gpus) / slowest
        return compute_s + self.communicate_s(cascade, gpus)

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        if len(gpus) == 1:
            return 0.0
        moved_bytes = 4e6 * cascade.num_tokens * cascade.num_clips / len(gpus)
        return moved_bytes / self.cluster.link_within(gpus).bandwidth_bytes_per_s

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        without = tuple(gpu for gpu in to_gpus if gpu not in from_gpus)
        if not without:
            return 0.0
        links = [self.cluster.link_within((from_gpus[0], gpu)) for gpu in without]
        slowest = max(links, key=lambda link: link.latency_s)
        moved_bytes = 1e6 * cascade.num_tokens * cascade.num_clips
        return slowest.latency_s + moved_bytes / slowest.bandwidth_bytes_per_s

    def mode(self, cascade: Cascade, gpus: tuple[int, ...]) -> LaunchMode:
        return WHOLE

    def gradient_reduce_s(self) -> float:
        return 0.3

    def optimizer_s(self) -> float:
        return 0.1

    def parameter_gather_s(self) -> float:
        return 0.2


def nodes(num_nodes: int, gpus_per_node: int = 4, *, nics: int = 0) -> Cluster:
    return replace(
        load_cluster("h100x1"),
        name="test",
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        nics_per_node=nics,
    )


def uncached_batch(*shapes: str, step: int = 0) -> Batch:
    return Batch(
        step=step,
        clips=tuple(
            BatchClip(
                name=f"{slot}.mp4",
                bucket=Bucket.parse(shape),
                num_tokens=SHAPES[shape],
                to_encode=("text", "vae"),
            )
            for slot, shape in enumerate(shapes)
        ),
    )


def cascade_of(batch: Batch, module: Module, *slots: int) -> Cascade:
    clip = batch.clips[slots[0]]
    return Cascade(module=module, slots=slots, bucket=clip.bucket, num_tokens=clip.num_tokens)


def scheduled(
    costs: NodeCosts, placements: Iterable[tuple[Cascade, tuple[int, ...]]], phase: int = 0
) -> Plan:
    """Each launch as soon as its GPUs are free and its encoders' results have come."""
    listed = list(placements)
    inputs = input_launches([cascade for cascade, _ in listed])
    free_s = [0.0] * costs.cluster.num_gpus
    launches: list[Launch] = []
    for (cascade, gpus), needed in zip(listed, inputs, strict=True):
        encoders = [launches[index] for index in needed]
        arrivals_s = [e.end_s + costs.handoff_s(e.cascade, e.gpus, gpus) for e in encoders]
        launch = Launch(
            cascade=cascade,
            gpus=gpus,
            start_s=max(*(free_s[gpu] for gpu in gpus), *arrivals_s, 0.0),
            duration_s=costs.launch_s(cascade, gpus),
            phase=phase,
        )
        for gpu in gpus:
            free_s[gpu] = launch.end_s
        launches.append(launch)
    launches.sort(key=lambda launch: (launch.start_s, launch.gpus))
    return Plan(planner="test", num_gpus=costs.cluster.num_gpus, launches=tuple(launches))


def random_batch(rng: Random) -> Batch:
    return uncached_batch(*rng.choices(list(SHAPES), k=rng.randint(1, 12)))


def random_plan(rng: Random, batch: Batch, costs: NodeCosts) -> Plan:
    """Encoders on any GPU, then training on blocks of any degree that divides the world."""
    num_gpus = costs.cluster.num_gpus
    degrees = [degree for degree in (1, 2, 3, 4, 6, 8, 16) if num_gpus % degree == 0]
    encoders = [
        (cascade_of(batch, module, slot), (rng.randrange(num_gpus),))
        for slot in range(len(batch.clips))
        for module in ("text", "vae")
    ]
    rng.shuffle(encoders)
    trained: list[tuple[Cascade, tuple[int, ...]]] = []
    for slot in range(len(batch.clips)):
        degree = rng.choice(degrees)
        first = rng.randrange(num_gpus // degree) * degree
        trained.append((cascade_of(batch, "dit", slot), tuple(range(first, first + degree))))
    rng.shuffle(trained)
    return scheduled(costs, encoders + trained)
