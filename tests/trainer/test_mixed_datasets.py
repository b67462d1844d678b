"""A whole run on a video set in chunks beside a set of stills, with several captions and steps by
tokens: each piece trains, and a run that was stopped goes on as one that was not.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from arachne.core.families import family_named
from arachne.data.manifest import write_manifest
from arachne.reporting.run_files import MANIFEST
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.dataset import DatasetSettings
from arachne.trainer.sources import inspected_sources, listed_clips
from tests.data.media import write_ramp
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session

pytestmark = pytest.mark.distributed

STEPS = 5


def part_of_a_run(world: World, config: RunConfig, resume: bool):
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=resume)
        items = [session.step_batch(report.step).items for report in heard.reports]
    return heard.clips, heard.losses, items, session.order.steps_per_epoch


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    videos, stills = tmp_path / "videos", tmp_path / "stills"
    write_ramp(videos / "long.mp4", 26)
    for number, caption in enumerate(("rising", "brighter", "light"), start=1):
        name = "long.txt" if number == 1 else f"long.{number}.txt"
        (videos / name).write_text(caption)
    stills.mkdir()
    for name in ("e", "f"):
        (stills / f"{name}.png").write_bytes((clips / f"{name}.png").read_bytes())
        (stills / f"{name}.txt").write_text(f"this is {name}")
    config = tiny_config(videos, tmp_path / "run", steps=STEPS)
    config = replace(config, batch=BatchSettings(tokens=60))
    return changed(
        config,
        "data",
        frame_buckets=(5,),
        frame_extraction="chunk",
        fps=16.0,
        cache=str(tmp_path / "cache"),
        others=(DatasetSettings(path=str(stills), repeats=0.5),),
    )


def moved(config: RunConfig, folder: Path) -> RunConfig:
    """In a folder of its own, where the ledger stands already."""
    config = changed(config, "run", dir=str(folder))
    geometry = family_named("wan").geometry
    ledger = inspected_sources(config.data, config.data.shape_rules, geometry, num_workers=1)
    write_manifest(ledger, folder / MANIFEST)
    assert tuple(dict.fromkeys(row.clip.listed for row in ledger.rows)) == listed_clips(config.data)
    return config


def test_all_pieces_and_stills_train_and_a_stopped_run_goes_on_as_one(config, tmp_path):
    whole = run_ranks(2, part_of_a_run, (moved(config, tmp_path / "whole"), False))
    clips, losses, items, steps_per_epoch = whole[0]
    assert whole[1][0] == clips

    pieces = [f"long.mp4@{k * 5 / 16:.2f}-{(k + 1) * 5 / 16:.2f}s" for k in range(5)]
    drawn = Counter(name for names in clips for name in names)
    assert 2 * steps_per_epoch <= STEPS, "two epochs: all stills came up"
    assert set(drawn) == {*pieces, "stills:e.png", "stills:f.png"}
    assert {item // 7 for step in items for item in step} == {0, 1, 2}, "all captions trained"

    config = moved(config, tmp_path / "parts")
    first = run_ranks(2, part_of_a_run, (changed(config, "run", steps=2), False))
    second = run_ranks(1, part_of_a_run, (config, True))
    assert first[0][0] + second[0][0] == clips
    assert first[0][2] + second[0][2] == items
    assert first[0][1] + second[0][1] == pytest.approx(losses, rel=1e-9)
