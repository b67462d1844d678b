"""What a rank does can be read from its file by any other process."""

import os
import resource
import time
from pathlib import Path

import pytest

from arachne.core.errors import ConfigError
from arachne.runtime.progress import NOT_JUDGED, ProgressFile, RankProgress, read_progress
from tests.runtime.rank_groups import recorder_alone


def watched_alone(folder: Path):
    recorder = recorder_alone()
    recorder.progress = ProgressFile(folder / "p", is_async=False)
    return recorder, lambda: read_progress(folder / "p", 0)


def test_a_rank_without_a_file_has_not_started(tmp_path: Path):
    assert read_progress(tmp_path / "nothing", 3) == RankProgress(rank=3)
    assert RankProgress(rank=3).activity in NOT_JUDGED


def test_a_new_file_says_start_and_holds_the_process(tmp_path: Path):
    _, read = watched_alone(tmp_path)
    seen = read()
    assert (seen.activity, seen.step, seen.launch, seen.pid) == ("start", None, None, os.getpid())
    assert not list(tmp_path.glob("*.part"))


def test_a_file_over_the_limit_on_sizes_is_refused_with_the_limit_and_the_way_to_raise_it(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"may write files of 100,000 bytes.*ulimit -f"):
            ProgressFile(tmp_path / "p", is_async=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "p").exists()


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file or directory; make room, or set TMPDIR"):
        ProgressFile(tmp_path / "nothing" / "p", is_async=False)


def test_the_room_that_it_takes_is_its_own_from_the_start(tmp_path: Path):
    watched_alone(tmp_path)
    found = (tmp_path / "p").stat()
    assert found.st_blocks * 512 >= found.st_size


def test_it_says_what_the_recorder_records_at_the_moment_it_happens(tmp_path: Path):
    recorder, read = watched_alone(tmp_path)
    recorder.progress.begin_step(4, {2: "words"})
    with recorder.launch(2):
        seen = read()
        assert (seen.step, seen.launch, seen.activity, seen.is_waiting) == (4, 2, "compute", False)
        assert seen.launch_texts == {2: "words"}
        with recorder.collective("all_to_all", (0, 3), 8, "float32"):
            seen = read()
            assert (seen.launch, seen.activity, seen.is_waiting) == (2, "communicate", True)
            assert (seen.operation, seen.group) == ("all_to_all", (0, 3))
            assert seen.num_entered == {(0, 3): 1}
        assert (read().activity, read().is_waiting) == ("compute", False)
    with recorder.doing("load"):
        assert (read().activity, read().launch) == ("load", None)
    assert read().activity == "between"


@pytest.mark.parametrize("activity", ["validate", "checkpoint", "sample"])
def test_what_is_done_beside_steps_is_said_until_the_next_step(tmp_path: Path, activity: str):
    recorder, read = watched_alone(tmp_path)
    recorder.progress.change(activity)
    recorder.progress.begin_step(4, {}, activity)
    with recorder.launch(2):
        assert read().activity == "compute"
    assert (read().activity, read().step) == (activity, 4)
    recorder.progress.begin_step(5, {})
    assert read().activity == "between"


def test_collectives_are_counted_by_group(tmp_path: Path):
    recorder, read = watched_alone(tmp_path)
    for ranks in ((0, 1), (0, 1, 2, 3), (0, 1)):
        recorder.issued("exchange", ranks, 1, "float32")
    assert read().num_entered == {(0, 1): 2, (0, 1, 2, 3): 1}
    assert read().group == (0, 1)


def test_every_change_is_dated(tmp_path: Path):
    recorder, read = watched_alone(tmp_path)
    before_s = time.monotonic()
    with recorder.doing("optimizer"):
        begun_s = read().changed_at_s
        assert before_s <= begun_s <= time.monotonic()
    assert read().changed_at_s > begun_s


def test_launches_with_too_many_words_are_left_out_and_the_next_step_has_its_own(tmp_path: Path):
    recorder, read = watched_alone(tmp_path)
    recorder.progress.begin_step(1, {0: "w" * (1 << 19)})
    assert (read().step, read().launch_texts) == (1, {})
    recorder.progress.begin_step(2, {0: "a clip"})
    assert (read().step, read().launch_texts) == (2, {0: "a clip"})
