"""Random valid placed plans over a few tiny clips."""

from hypothesis import strategies as st

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import allowed_degrees, plan_blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.families import WAN
from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan

# 2 to 36 tokens: some clips have fewer tokens than a launch has ranks.
BUCKETS = (
    Bucket(width=32, height=16, frames=1),
    Bucket(width=48, height=48, frames=5),
    Bucket(width=64, height=48, frames=9),
    Bucket(width=16, height=48, frames=5),
)


def batch_of(buckets: list[Bucket], step: int = 0) -> Batch:
    clips = tuple(
        BatchClip(name=f"clip {slot}", bucket=b, num_tokens=WAN.geometry.num_tokens(b))
        for slot, b in enumerate(buckets)
    )
    return Batch(step=step, clips=clips)


@st.composite
def batches_and_plans(draw: st.DrawFn, world_size: int) -> tuple[Batch, PlacedPlan]:
    """A batch, and a plan with any allowed degree, block, mode, order and stacking for it."""
    batch = batch_of(draw(st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=5)))
    degrees = allowed_degrees(world_size, world_size)
    of_degree = plan_blocks(world_size, degrees)
    slots_left = list(range(len(batch.clips)))
    free_s = [0.0] * world_size
    launches: list[PlacedLaunch] = []
    while slots_left:
        first = draw(st.sampled_from(slots_left))
        alike = [s for s in slots_left if batch.clips[s].bucket == batch.clips[first].bucket]
        slots = sorted(draw(st.sets(st.sampled_from(alike), min_size=1, max_size=2)))
        ranks = draw(st.sampled_from(of_degree[draw(st.sampled_from(degrees))]))
        start_s = max(free_s[rank] for rank in ranks)
        duration_s = draw(st.floats(0.01, 2.0))
        for rank in ranks:
            free_s[rank] = start_s + duration_s
        cascade = Cascade(
            module="dit",
            slots=tuple(slots),
            bucket=batch.clips[first].bucket,
            num_tokens=batch.clips[first].num_tokens,
        )
        rings = [ring for ring in range(1, len(ranks) + 1) if len(ranks) % ring == 0]
        mode = LaunchMode(
            ring=draw(st.sampled_from(rings)), recompute_layers=draw(st.integers(0, 2))
        )
        launches.append(
            PlacedLaunch(
                cascade=cascade, ranks=ranks, start_s=start_s, duration_s=duration_s, mode=mode
            )
        )
        slots_left = [s for s in slots_left if s not in slots]
    launches.sort(key=lambda launch: (launch.start_s, launch.ranks))
    plan = PlacedPlan(
        step=batch.step, planner="random", world_size=world_size, launches=tuple(launches)
    )
    return batch, plan
