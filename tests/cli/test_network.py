"""A run reaches nobody but its own ranks, and listens where nobody else reaches it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from traced import why_no_strace

from arachne.cli.run_dir import write_resolved
from tests.cli.test_train import ENVIRONMENT
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

_ADDRESS = re.compile(r'(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)"')


@pytest.mark.slow
@pytest.mark.distributed
def test_training_connects_to_and_listens_on_this_machine_alone(tmp_path: Path):
    if reason := why_no_strace():
        pytest.skip(reason)
    config = tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run", steps=2, dtype="float32")
    write_resolved(changed(config, "run", ranks=2), tmp_path / "run.toml")
    calls = "trace=connect,bind,sendto,sendmsg,sendmmsg"
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", calls, "-o", str(tmp_path / "calls")]
    ended = subprocess.run(
        [*strace, sys.executable, "-m", "arachne", "train", str(tmp_path / "run.toml")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = _ADDRESS.findall((tmp_path / "calls").read_text())
    assert len(found) > 2, "its ranks meet somewhere"
    assert {address for address in found if address not in ("127.0.0.1", "::1")} == set()
