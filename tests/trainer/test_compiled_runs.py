"""Runs whose blocks are compiled: they train as blocks as they are do, and resume bit for bit."""

import shutil
from pathlib import Path

import pytest

from arachne.runtime.launcher import run_ranks
from arachne.trainer.config import RunConfig
from tests.trainer.test_exact_resume import Part, moved, part_of_a_run
from tests.trainer.tiny_runs import changed, tiny_config, with_manifest

pytestmark = [
    pytest.mark.slow,  # a compiler takes minutes
    pytest.mark.timeout(2400),
    pytest.mark.distributed,
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiled blocks need g++"),
    pytest.mark.filterwarnings("ignore"),  # the compiler imports and looks at much that is outdated
]

STEPS, RESUMED_AT = 3, 1
PATIENCE_S = 1200.0


def part(config: RunConfig, world_size: int, *, resume: bool = False) -> list[Part]:
    args = (config, {"resume": resume})
    return run_ranks(world_size, part_of_a_run, args, timeout_s=PATIENCE_S)


@pytest.fixture(scope="module")
def compiled_before(tmp_path_factory) -> Path:
    """Where compiled graphs are kept, so that each is compiled once."""
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize(("world_size", "planner"), [(1, "arachne"), (2, "static_sp")])
def test_a_resumed_run_with_compiled_blocks_goes_on_bit_for_bit(
    clips, tmp_path, compiled_before, monkeypatch, world_size, planner
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled_before))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # each rank compiles by itself
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=STEPS, dtype="float32"))
    config = changed(config, "planner", name=planner, timeout_s=PATIENCE_S)
    config = changed(config, "checkpoint", every=1, keep=0)
    compiled = changed(config, "model", compile=True)
    whole = part(compiled, world_size)
    again = moved(compiled, tmp_path / "again")
    shutil.copytree(tmp_path / "run", again.run.dir)
    for step in range(RESUMED_AT + 1, STEPS + 1):
        shutil.rmtree(Path(again.run.dir) / "checkpoints" / f"step-{step:06d}")
    resumed = part(again, world_size, resume=True)
    for each in (whole, resumed):
        assert any("compiling the blocks" in line for line in each[0].said)
    plain = part(with_manifest(moved(config, tmp_path / "plain")), world_size)
    for before, after, as_it_is in zip(whole, resumed, plain, strict=True):
        assert after.plans == before.plans[RESUMED_AT:]
        assert after.losses == before.losses[RESUMED_AT:]
        assert after.parameters == before.parameters[RESUMED_AT:]
        assert before.losses == pytest.approx(as_it_is.losses, rel=1e-5)
