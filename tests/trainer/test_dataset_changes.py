"""What a resumed run says of clips that came, went or were described anew since its ledger."""

import shutil
from pathlib import Path

import pytest

from arachne.data.manifest import read_manifest
from arachne.reporting.run_files import MANIFEST
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset_changes import dataset_changes_text
from tests.trainer.tiny_runs import make_clips, tiny_config, with_manifest, write_captions

NAMES = ["a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.png", "f.png"]


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return with_manifest(tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run"))


def said(config: RunConfig) -> str:
    return dataset_changes_text(config.data, read_manifest(Path(config.run.dir) / MANIFEST))


def test_of_a_dataset_as_it_was_nothing_is_said(config):
    assert said(config) == ""


def test_clips_that_came_and_went_are_counted_and_named(config):
    clips = Path(config.data.path)
    shutil.copyfile(clips / "a.mp4", clips / "more.mp4")
    write_captions(clips, ["more.mp4", *NAMES[2:]])
    for name in NAMES[:2]:
        (clips / name).unlink()
    assert said(config).startswith(
        "since the run began the dataset has 1 clip added ('more.mp4'), 2 clips removed "
        "('a.mp4', 'b.mp4'); the run goes on with the clips of its ledger; --rescan takes "
    )


def test_another_caption_is_said(config):
    table = Path(config.data.path) / "metadata.csv"
    table.write_text(table.read_text().replace("this is e", "this is a sheet"))
    assert "has 1 clip recaptioned ('e.png'); " in said(config)


def test_a_dataset_that_cannot_be_listed_is_said_and_no_error(config):
    (Path(config.data.path) / "metadata.csv").write_text("")
    assert said(config).startswith("the dataset cannot be listed any more (")
