"""What a resumed run says of clips that came, went or were described anew since its ledger."""

import shutil
from pathlib import Path

import pytest

from arachne.data.manifest import read_manifest
from arachne.reporting.run_files import MANIFEST
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset_changes import dataset_changes_text, replaced_files
from tests.forbidden_files import forbidden
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


def test_a_dataset_that_may_not_be_read_is_said_and_no_error(config):
    clips = config.data.path
    with forbidden(Path(clips)):
        line = said(config)
    words = (
        f"the dataset cannot be listed any more (folder '{clips}' cannot be read: Permission denied"
    )
    assert line.startswith(words)
    assert line.endswith("--rescan takes those that are there now")


def test_a_file_with_other_content_is_said_and_one_that_was_only_copied_or_touched_is_not(config):
    clips = Path(config.data.path)
    ledger = read_manifest(Path(config.run.dir) / MANIFEST)
    assert replaced_files(config.data, ledger) == ()
    (clips / "a.mp4").touch()
    shutil.copy2(clips / "b.mp4", clips / "copy")
    (clips / "copy").replace(clips / "b.mp4")
    assert replaced_files(config.data, ledger) == ()
    shutil.copyfile(clips / "d.mp4", clips / "c.mp4")
    (clips / "d.mp4").unlink()
    replaced = replaced_files(config.data, ledger)
    assert replaced == ("c.mp4",)
    assert dataset_changes_text(config.data, ledger, replaced).startswith(
        "since the run began the dataset has 1 file with other content ('c.mp4'); the run goes on "
        "with the clips of its ledger; "
    )
