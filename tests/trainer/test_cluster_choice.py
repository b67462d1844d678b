"""Which nodes a run is planned for, by its cluster's name and its machines."""

import pytest

from arachne.core.errors import ConfigError
from arachne.core.placed_plan import PlacedPlan
from arachne.runtime.launcher import run_ranks
from arachne.runtime.machines import Machines
from arachne.runtime.world import World
from arachne.trainer.cluster_choice import check_cluster
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from tests.trainer.tiny_runs import tiny_config, tiny_session, with_manifest


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("auto", (3,)),
        ("auto", (4, 4)),
        ("h100", (16,)),  # two nodes, tried out on one machine
        ("h100x16", (16,)),
        ("h100", (4, 8)),
        ("h100x16", (8, 8)),
        ("h100x16+a100-80gx8", (8, 16)),
    ],
)
def test_what_can_be_planned_for_is_let_pass(name, sizes):
    check_cluster(name, Machines(sizes=sizes))


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        (
            "auto",
            (1, 1, 2),
            "cluster.name 'auto' measures nodes of one size, but there are machines of 1 and 2 "
            "ranks; start as many on each, or name a cluster file",
        ),
        (
            "h100x16",
            (4, 12),
            "cluster.name 'h100x16' has 2 nodes of 8 GPUs, but the run has machines of 4 and 12 "
            "ranks; leave out x16, or start 8 ranks on each machine",
        ),
        (
            "h100x16+a100-80gx8",
            (12, 12),
            "cluster.name 'h100x16+a100-80gx8' has 3 nodes of 8 GPUs, but the run has machines of "
            "12 ranks; start 8 ranks on each machine",
        ),
        (
            "h100x16",
            (8,),
            "cluster.name 'h100x16' has 16 GPUs, but the run has 8 ranks; leave out x16, or start "
            "as many ranks",
        ),
        (
            "h100x8+a100-80gx8",
            (8,),
            "cluster.name 'h100x8+a100-80gx8' has 16 GPUs, but the run has 8 ranks; start as many "
            "ranks",
        ),
    ],
)
def test_what_cannot_is_refused_in_a_line(name, sizes, words):
    with pytest.raises(ConfigError) as refused:
        check_cluster(name, Machines(sizes=sizes))
    assert str(refused.value) == words


def trained_on_machines(
    world: World, config: RunConfig, sizes: tuple[int, ...]
) -> tuple[list[PlacedPlan], list[str], str]:
    object.__setattr__(world, "machines", Machines(sizes=sizes))
    with tiny_session(world, config) as (session, heard):
        finished = train(session, heard.listener, resume=False)
        nodes = f"{finished.cluster.num_nodes} x {finished.cluster.gpus_per_node}"
        return [report.plan for report in heard.reports], heard.said, nodes


@pytest.mark.distributed
def test_unequal_machines_train_and_it_is_said_what_they_are_planned_for_as(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=2, dtype="float32"))
    by_rank = run_ranks(3, trained_on_machines, (config, (1, 2)))
    plans, said, nodes = by_rank[0]
    assert nodes == "3 x 1"
    assert said.count("machines of 1 and 2 ranks are planned for as 3 nodes of 1 GPU") == 1
    assert len(plans) == 2
    assert all(found[0] == plans for found in by_rank)
