"""Runs on CPU ranks that decide as on GPUs: which degrees, modes and kernels, and on what costs."""

from types import SimpleNamespace

import pytest
import torch

from arachne.cost.cluster_files import machine_cluster
from arachne.runtime import split_attention
from arachne.runtime.attention_kernels import kernel_named
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import cluster_choice, measure, session
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest


def kernel_on_gpu(name, query, *, is_masked):
    """Refuses what there is no kernel for on a GPU, and gives the CPU's."""
    told = SimpleNamespace(
        device=torch.device("cuda", 0),
        element_size=query.element_size,
        shape=query.shape,
        dtype=query.dtype,
    )
    kernel_named(name, told, is_masked=is_masked)  # pyright: ignore[reportArgumentType]
    return kernel_named(name, query, is_masked=is_masked)


def trained_as_on_gpus(world: World, config: RunConfig) -> tuple[list[float], set[int]]:
    """Losses, and the degrees that plans may use."""
    split_attention.kernel_named = kernel_on_gpu
    session.is_on_gpus = lambda _: True
    guessed = machine_cluster(
        world.size, like="h100", ranks_per_node=len(world.ranks_here), memory_bytes=80e9
    )
    cluster_choice.guessed_cluster = measure.guessed_cluster = lambda _: guessed
    with tiny_session(world, config) as (opened, heard):
        train(opened, heard.listener, resume=False)
        return heard.losses, set(opened.degrees)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("dtype", "head_size", "most"), [("float32", 16, 2), ("bfloat16", 12, 2), ("bfloat16", 16, 4)]
)
def test_a_run_on_more_gpus_than_heads_trains_whatever_its_numbers(
    clips, tmp_path, dtype, head_size, most
):
    config = tiny_config(clips, tmp_path / "run", steps=2, dtype=dtype)
    config = with_manifest(changed(config, "model", head_size=head_size))
    for losses, degrees in run_ranks(4, trained_as_on_gpus, (config,), timeout_s=60.0):
        assert len(losses) == 2
        assert max(degrees) == most
