"""A fair sample of what `benchmarks/durability.py` counts, and that it notices what is lost."""

import json
import os
import random
import shutil

import durability
import pytest
import survival_kills
from survival import PARTS
from survival_disks import full_saves, why_no_own_disk
from survival_saves import SAVED_STEPS, disturbed, prepared, refused_calls, syscalls
from survival_soak import grown_ranks
from survival_tally import Tally, tally_of
from traced import traced, why_no_strace

from arachne.trainer import checkpoint

SEED = 1


@pytest.fixture(scope="module")
def strace() -> None:
    """Skips where nothing can be traced."""
    if reason := why_no_strace():
        pytest.skip(reason)


@pytest.mark.usefixtures("strace")
def test_only_the_calls_of_the_traced_function_count():
    for _ in range(8):
        assert traced(os.getppid).calls == {"getppid": 1, "exit_group": 1}


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("part", [syscalls, refused_calls])
def test_a_save_that_is_killed_or_refused_at_some_system_calls_loses_nothing(part, tmp_path):
    tally = Tally()
    part(tmp_path, 12, random.Random(SEED), tally)
    assert not tally.failures
    assert (tally.tried, tally.good) == (12, 12)
    assert tally.others["calls"] > 100


@pytest.mark.usefixtures("strace")
def test_a_save_that_deletes_before_it_renames_is_noticed(tmp_path, monkeypatch):
    whole = prepared(tmp_path)
    monkeypatch.setattr(checkpoint, "_set_aside", shutil.rmtree)
    options = ("-e", "trace=rename", "-e", "inject=rename:signal=KILL:when=1")
    ended, faults = disturbed(whole, tmp_path, SAVED_STEPS[1], options)
    assert ended.is_killed
    assert faults == ["the newest is of step 20"]


def test_a_disk_that_is_full_after_some_pages_loses_nothing(tmp_path):
    if reason := why_no_own_disk(tmp_path):
        pytest.skip(reason)
    tally = Tally()
    full_saves(tmp_path, 6, random.Random(SEED), tally)
    assert not tally.failures
    assert tally.tried == 6


@pytest.mark.distributed
@pytest.mark.timeout(400)
def test_a_killed_rank_is_named_and_its_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(survival_kills, "WORLD_SIZES", (2,))
    tally = Tally()
    survival_kills.kills(tmp_path, 1, random.Random(SEED), tally)
    assert not tally.failures
    assert tally.others == {"named": 1, "resumed": 1, "ended_in_time": 1}


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(PARTS))
def test_more_of_each_part(name, tmp_path, request):
    tally = Tally()
    few = {"slow_steps": 100, "soak": 60, "exact_soak": 60}.get(name, 5 * PARTS[name].quick or 4)
    cases = min(request.config.getoption("--cases") or few, PARTS[name].full)
    PARTS[name].work(tmp_path, cases, random.Random(SEED), tally)
    assert tally.is_good, tally.failures


def test_the_figures_have_one_key_for_each_kind_and_count_all_its_parts(tmp_path, monkeypatch):
    def work(root, cases, rng, tally):
        tally.others["median_share_of_a_step"] = 0.01
        for case in range(cases):
            tally.count("case", ["lost"] if case == 0 else [])

    for name, part in PARTS.items():
        monkeypatch.setitem(PARTS, name, type(part)(work=work, quick=2, full=3, figure=part.figure))
    file = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["durability.py", "--quick", "--json", str(file)])
    assert durability.main() == 1, "something was lost"
    found = json.loads(file.read_text())
    parts = found.pop("parts")
    assert list(parts) == list(PARTS)
    assert parts["kills"]["failures"] == ["case: lost"]
    assert found == {
        "kills": {"tried": 6, "resumed": 3},
        "damaged": {"tried": 2, "silent": 1},
        "enospc": {"tried": 8, "whole": 4},
        "sigterm": {"tried": 2, "committed": 1},
        "hangs": {"tried": 2, "named": 1},
        "save_stall_share": 0.01,
    }
    again = ["durability.py", "--parts", "kills", "--cases", "1", "--add", "--json", str(file)]
    monkeypatch.setattr("sys.argv", again)
    durability.main()
    assert json.loads(file.read_text())["kills"] == {"tried": 7, "resumed": 3}


def test_ranks_that_hold_more_and_more_are_noticed_and_none_that_is_judged_as_well(tmp_path):
    def note(pid: int, held: list[int]) -> None:
        (tmp_path / f"{pid}.json").write_text(json.dumps([{"descriptors": each} for each in held]))

    note(1, 20 * [3])
    (tmp_path / "2.part").write_text("[{")
    assert grown_ranks(tmp_path) == ["no rank lived long enough to be judged"]
    note(3, [9, *(30 * [4, 6])])
    assert grown_ranks(tmp_path) == []
    note(4, [4 + step // 10 for step in range(60)])
    assert grown_ranks(tmp_path) == ["descriptors: 4, then 9 after 55 steps"]


def test_a_tally_goes_on_from_its_figures():
    tally = Tally()
    tally.add("named")
    tally.count("a case", [], seconds=2.0)
    again = tally_of(tally.figures)
    again.count("another", ["lost"], seconds=1.0)
    again.add("named")
    assert again.figures == {
        "tried": 2,
        "good": 1,
        "slowest_s": 2.0,
        "named": 2,
        "failures": ["another: lost"],
    }
    assert not again.is_good
    assert not Tally().is_good, "nothing was tried"
