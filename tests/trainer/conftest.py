"""What the trainer's tests share: clips that are made and encoded once."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.tiny_runs import make_clips


@pytest.fixture(scope="session")
def clips(tmp_path_factory) -> Path:
    """The tiny dataset and its cache; only read."""
    return make_clips(tmp_path_factory.mktemp("tiny") / "clips")


@pytest.fixture
def own_clips(clips, tmp_path) -> Path:
    """The same files with a cache of their own, to be damaged."""
    return Path(shutil.copytree(clips, tmp_path / "clips"))
