"""`arachne train` under torchrun, in which a rank runs out of memory where the others wait."""

import subprocess
from pathlib import Path

import pytest

from arachne.cli.run_dir import write_resolved
from arachne.core.strict_json import from_json
from arachne.reporting.run_files import read_metrics
from arachne.trainer.checkpoint_reader import newest, verified
from arachne.trainer.memory_reports import MEMORY_REPORTS, MemoryReport
from tests.cli.test_train import ENVIRONMENT, TORCHRUN
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

FULL_STEP, STEPS = 4, 6

PROGRAM = f"""
import os
import sys

import torch

from arachne.cli.main import main
from arachne.trainer import step

run_launches = step.run_launches


def with_full_memory(plan, *, recorder, **others):
    if plan.step == {FULL_STEP}:
        count = recorder.progress.issued
        operations = []

        def issued(operation, ranks):
            operations.append(operation)
            if len(operations) == 4:
                raise torch.OutOfMemoryError("planted")
            count(operation, ranks)

        recorder.progress.issued = issued
    run_launches(plan, recorder=recorder, **others)


if __name__ == "__main__":
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        step.run_launches = with_full_memory
    sys.exit(main(sys.argv[1:]))
"""
"""The command; memory of rank 1 is full in a launch of one step, until it is started again."""


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_torchrun_starts_the_ranks_again_and_they_go_on_with_a_raised_estimate(tmp_path):
    config = tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run", steps=STEPS)
    config = changed(changed(config, "planner", name="static_sp"), "checkpoint", every=1, keep=0)
    write_resolved(config, tmp_path / "run.toml")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = ["--max-restarts", "1", str(program), "train", str(tmp_path / "run.toml")]
    command = [*TORCHRUN[:-3], *own]
    ended = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ended.returncode == 0, ended.stderr
    said = {line for line in ended.stderr.splitlines() if line.startswith("arachne: ")}
    (path,) = Path(config.run.dir).glob(MEMORY_REPORTS)
    report = from_json(path.read_bytes(), MemoryReport, what=path.name)
    (line,) = said
    assert f"step {FULL_STEP + 1}: rank 1 is out of memory in launch {report.launch}" in line
    assert (report.step, report.rank, report.num_entered) == (FULL_STEP, 1, 3)
    assert [row.step for row in read_metrics(tmp_path / "run").train] == list(range(STEPS))
    assert verified(newest(tmp_path / "run", on_skip=print)).state.step == STEPS
