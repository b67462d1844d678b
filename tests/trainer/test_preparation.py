"""Preparing a dataset on one to three ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arachne.core.errors import DataError
from arachne.core.ledger import Ledger
from arachne.data import cache
from arachne.data.manifest import read_manifest, write_manifest
from arachne.models.codec import DctCodec
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import preparation
from arachne.trainer.config import RunConfig
from arachne.trainer.preparation import begun_ledger, prepare, workshop_of
from tests.trainer.tiny_runs import (
    NUM_CLIPS,
    changed,
    tiny_config,
    with_manifest,
    write_captions,
)

Result = tuple[Ledger, list[str], list[str], int]


def _quiet(what: str, done: int, total: int) -> None:
    """No bar."""


def prepared_on(world: World, config: RunConfig) -> Result:
    """Ledger, names that train, names that are held out, arrays that this rank stored."""
    stored: list[str] = []
    put = cache.LatentCache.put

    def counted(self: Any, key: str, array: Any, **options: Any) -> None:
        stored.append(key)
        put(self, key, array, **options)

    cache.LatentCache.put = counted
    manifest = Path(config.run.dir) / "ledger.parquet"
    result = prepare(
        world,
        config,
        begun_ledger(world, config, manifest=manifest, progress=_quiet),
        video_encoder=video_encoder_named("dct"),
        text_encoder=text_encoder_named("hashed", 4),
        progress=_quiet,
    )
    for data in (result.train, result.held_out):
        for item in range(len(data.rows)):
            data.read(item)
    names = [[row.clip.name for row in data.rows] for data in (result.train, result.held_out)]
    return result.ledger, *names, len(stored)


@pytest.mark.distributed
def test_ranks_share_the_encoding_and_a_second_run_encodes_nothing(own_clips, tmp_path):
    config = with_manifest(tiny_config(own_clips, tmp_path / "first"))
    first = run_ranks(3, prepared_on, (config,))
    second = run_ranks(2, prepared_on, (changed(config, "run", dir=str(tmp_path / "second")),))

    ledgers = [ledger for ledger, *_ in first + second]
    assert all(ledger == ledgers[0] for ledger in ledgers)
    assert len(ledgers[0].usable) == NUM_CLIPS
    assert sum(stored for *_, stored in first) == 2 * NUM_CLIPS + 1, "and no words"
    assert [stored for *_, stored in second] == [0, 0]


@pytest.mark.distributed
def test_letterboxed_clips_are_read_as_they_were_prepared(own_clips, tmp_path):
    cropped = with_manifest(tiny_config(own_clips, tmp_path / "run"))
    config = changed(cropped, "data", fit="letterbox")
    ((ledger, _, _, stored),) = run_ranks(1, prepared_on, (config,))
    assert (len(ledger.usable), stored) == (NUM_CLIPS, 2 * NUM_CLIPS + 1)


@pytest.mark.distributed
def test_a_rank_that_comes_late_makes_what_is_left_and_nothing_twice(own_clips, tmp_path):
    config = with_manifest(tiny_config(own_clips, tmp_path / "run"))
    results = run_ranks(2, _prepared_with_a_late_rank, (config,))
    assert sum(stored for *_, stored in results) == 2 * NUM_CLIPS + 1


def _prepared_with_a_late_rank(world: World, config: RunConfig) -> Result:
    """Rank 1 begins only after rank 0 has filled a part of the cache."""
    make_arrays = preparation.make_arrays

    def announced(workshop: Any, pieces: Any, tell: Any) -> None:
        if world.rank == 1:
            world.store.wait(["rank 0 has begun"])

        def told(event: Any) -> None:
            tell(event)
            world.store.set("rank 0 has begun", "yes")

        make_arrays(workshop, pieces, told)

    preparation.make_arrays = announced
    return prepared_on(world, config)


@pytest.mark.distributed
def test_a_clip_that_was_rejected_while_preparing_is_rejected_in_every_later_run(
    own_clips, tmp_path
):
    config = with_manifest(tiny_config(own_clips, tmp_path / "run"))
    ledger = read_manifest(Path(config.run.dir) / "ledger.parquet")
    workshop = workshop_of(config, video_encoder_named("dct"), text_encoder_named("hashed", 4))
    key, _ = workshop.store.keys_of(ledger.rows[0])
    workshop.store.rejections.add(key, "decoding it took longer than 1 s")
    for found, train, _, _ in run_ranks(2, prepared_on, (config,)):
        assert len(train) == NUM_CLIPS - 1
        assert found.rows[0].reason == "decoding it took longer than 1 s"


@pytest.mark.distributed
def test_a_clip_that_cannot_be_decoded_is_rejected_on_all_ranks_and_the_rest_goes_on(
    own_clips, tmp_path
):
    config = with_manifest(tiny_config(own_clips, tmp_path / "run"))
    # Damaged after the inspection, as a file is that only decoding finds out about.
    (own_clips / "b.mp4").write_bytes(b"no video at all")
    results = run_ranks(2, prepared_on, (config,))

    for ledger, train, _, _ in results:
        assert "b.mp4" not in train
        assert len(train) == NUM_CLIPS - 1
        (row,) = [row for row in ledger.rows if row.status == "rejected"]
        assert row.clip.name == "b.mp4"
        assert "changed since it was inspected" in row.reason
    assert read_manifest(Path(config.run.dir) / "ledger.parquet") == results[0][0]


def test_a_manifest_that_stands_is_taken_as_it_is(own_clips, tmp_path):
    config = with_manifest(tiny_config(own_clips, tmp_path / "run"))
    path = Path(config.run.dir) / "ledger.parquet"
    ledger = read_manifest(path)
    write_manifest(replace(ledger, rows=ledger.rows[:2]), path)

    ((found, train, _, _),) = run_ranks(1, prepared_on, (config,))
    assert len(found.rows) == len(train) == 2


@pytest.mark.distributed
def test_held_out_clips_do_not_train(own_clips, tmp_path):
    config = changed(tiny_config(own_clips, tmp_path / "run"), "data", held_out=0.5)
    results = run_ranks(2, prepared_on, (with_manifest(config),))
    for _, train, held_out, _ in results:
        assert len(train) + len(held_out) == NUM_CLIPS
        assert train
        assert held_out
        assert not set(train) & set(held_out)


@pytest.mark.distributed
def test_a_dataset_of_bad_files_is_one_error(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for name in ("a.mp4", "b.mp4"):
        (folder / name).write_bytes(b"nothing")
    write_captions(folder, ["a.mp4", "b.mp4"])
    with pytest.raises(DataError, match=r"none of the 2 clips in .* is usable; 2 of them: .+; see"):
        run_ranks(2, prepared_on, (tiny_config(folder, tmp_path / "run"),))


class NoNumbers(DctCodec):
    """An encoder whose weights are damaged."""

    def encode(self, frames: np.ndarray) -> np.ndarray:
        return super().encode(frames) * np.float32(np.nan)


@pytest.mark.distributed
def test_an_encoder_that_gives_no_numbers_for_any_clip_is_named(own_clips, tmp_path, monkeypatch):
    monkeypatch.setattr("arachne.models.encoders.DctCodec", NoNumbers)
    config = changed(tiny_config(own_clips, tmp_path / "run"), "data", cache=str(tmp_path / "new"))
    with pytest.raises(DataError, match=r"6 of them: the video encoder gave values that are not"):
        run_ranks(1, prepared_on, (with_manifest(config),))


def test_holding_out_everything_is_refused(own_clips, tmp_path):
    config = changed(tiny_config(own_clips, tmp_path / "run"), "data", held_out=1.0)
    with pytest.raises(DataError, match="keeps all 6 usable clips from training; lower it"):
        run_ranks(1, prepared_on, (with_manifest(config),))
