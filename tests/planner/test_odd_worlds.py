"""Worlds of other sizes than 2^k and 3·2^k: what is left over at the end is used too."""

from dataclasses import replace

import pytest

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import aligned_blocks, allowed_degrees, plan_blocks
from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.cost.cluster_files import load_cluster
from arachne.cost.model import CostModel
from arachne.planner.exact import plan_exact
from arachne.planner.fcp import plan_fcp
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import plan_arachne

WAN = family_named("wan")


def equal_clips(
    num_gpus: int, num_clips: int, *, shape: str = "1280x720x49", speeds: tuple[float, ...] = ()
) -> PlanningProblem:
    bucket = Bucket.parse(shape)
    cluster = replace(
        load_cluster("h200x8"), num_nodes=1, gpus_per_node=num_gpus, nics_per_node=0, speeds=speeds
    )
    tokens = WAN.geometry.num_tokens(bucket)
    names = (f"{index}.mp4" for index in range(num_clips))
    return PlanningProblem(
        batch=Batch(
            step=0,
            clips=tuple(BatchClip(name=name, bucket=bucket, num_tokens=tokens) for name in names),
        ),
        num_gpus=num_gpus,
        degrees=allowed_degrees(num_gpus, num_gpus),
        costs=CostModel(model=WAN.presets["wan-1.3b"], cluster=cluster, element_bytes=2),
        stack_tokens=0,
        iterations=2000,
    )


@pytest.mark.parametrize(("num_gpus", "num_clips", "most"), [(7, 7, 1.0), (5, 4, 0.94)])
def test_groups_that_fill_an_odd_world_are_found(num_gpus: int, num_clips: int, most: float):
    problem = equal_clips(num_gpus, num_clips)
    assert plan_arachne(problem).makespan_s <= most * plan_fcp(problem).makespan_s * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("num_clips", "speeds"),
    [
        (2, (1.0, 0.8, 0.5, 1.0, 0.5)),
        (2, (1.0, 1.0, 0.5, 0.5, 0.8, 0.8, 0.8)),
        (3, (1.0, 1.0, 0.5, 1.0, 0.5, 0.8, 0.8)),
    ],
)
def test_on_uneven_gpus_all_ways_to_part_a_world_are_tried(
    num_clips: int, speeds: tuple[float, ...]
):
    problem = equal_clips(len(speeds), num_clips, speeds=speeds)
    verdict = plan_exact(problem, time_limit_s=20.0)
    assert verdict.is_proved
    assert plan_arachne(problem).makespan_s <= verdict.plan.makespan_s * (1.0 + 1e-9)


def test_with_encoders_blocks_are_aligned_alone():
    problem = equal_clips(7, 2)
    clips = tuple(replace(clip, to_encode=("text",)) for clip in problem.batch.clips)
    encoding = replace(problem, batch=replace(problem.batch, clips=clips))
    assert problem.blocks == plan_blocks(7, problem.degrees)
    assert encoding.blocks == aligned_blocks(7, problem.degrees) != problem.blocks


def test_the_referee_sees_plans_that_mix_ladders():
    problem = replace(equal_clips(7, 7), iterations=0)
    verdict = plan_exact(problem, time_limit_s=20.0)
    assert verdict.is_proved
    assert verdict.plan.makespan_s <= plan_fcp(problem).makespan_s * (1.0 + 1e-9)
