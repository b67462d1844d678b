"""No damaged checkpoint is loaded, whatever the damage; and files made to harm are only refused."""

import random
import shutil
import time
from pathlib import Path

import pytest

from arachne.trainer.checkpoint_reader import newest
from tests.trainer.damaged_checkpoints import (
    NEWEST,
    SHAPES,
    STEPS,
    damage_newest,
    write_checkpoints,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole")
    write_checkpoints(run_dir)
    return run_dir


def check_one(whole: Path, run_dir: Path, seed: int) -> None:
    shutil.copytree(whole, run_dir)
    what = damage_newest(run_dir, random.Random(seed))
    told: list[str] = []
    begin_s = time.monotonic()
    found = newest(run_dir, told.append)
    assert time.monotonic() - begin_s < 5.0, what
    assert found.name == f"step-{STEPS[-2]:06d}", (seed, what)
    assert len(told) == 1, (what, told)
    (line,) = told
    assert NEWEST in line, (what, line)
    is_of_another_step = "is of step" in line and "or else give it that name" in line
    names_the_file = "shard-0" in line or "index.json" in line
    names_what_is_lost = any(name in line for name in SHAPES) or "all parameters" in line
    assert is_of_another_step or (names_the_file and names_what_is_lost), (what, line)
    shutil.rmtree(run_dir)


def test_damage_of_every_kind_is_found_and_named(whole, tmp_path):
    for seed in range(60):
        check_one(whole, tmp_path / str(seed), seed)


@pytest.mark.slow
def test_a_thousand_damages_are_found_and_named(whole, tmp_path):
    for seed in range(1000, 2000):
        check_one(whole, tmp_path / str(seed), seed)
