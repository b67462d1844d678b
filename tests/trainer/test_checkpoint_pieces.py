"""A ledger with the right hash that is wrong all the same is refused, and an older one is taken."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arachne.core.errors import CheckpointError
from arachne.core.strict_json import to_json
from arachne.trainer.checkpoint_contents import loadable
from arachne.trainer.checkpoint_reader import newest, verified
from tests.trainer.damaged_checkpoints import NEWEST, write_checkpoints
from tests.trainer.tiny_runs import changed, tiny_config


@pytest.fixture
def run_dir(tmp_path) -> Path:
    write_checkpoints(tmp_path)
    return tmp_path


def edited(run_dir: Path, change: Callable[[Any], None], name: str = NEWEST) -> Path:
    """The checkpoint after its ledger was changed by hand, hash and all."""
    path = run_dir / "checkpoints" / name
    index = json.loads((path / "index.json").read_text())
    change(index)
    content = json.dumps(index).encode()
    (path / "index.json").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (path / "index.json.sha256").write_text(f"{digest}  index.json\n")
    return path


def piece(index: Any) -> Any:
    return index["shards"][0]["chunks"][0]


CHANGES: dict[str, Callable[[Any], object]] = {
    r"needs 1500 elements, each once": lambda index: index["shards"][0]["chunks"].pop(0),
    r"needs 900 elements": lambda index: index["parameters"].update({"blocks.0.w": [30, 30]}),
    r"holds 'scale', which is no parameter": lambda index: index["parameters"].pop("scale"),
    r"master of more needs 7 elements": lambda index: index["parameters"].update({"more": [7]}),
    r"bytes for 3000 elements; they are": lambda index: piece(index).update(length=3000),
    r"has 1500 bytes for 750 elements": lambda index: piece(index)["extent"].update(num_bytes=1500),
    r"begins at byte .*, in another one": lambda index: piece(index)["extent"].update(
        start_byte=index["shards"][0]["chunks"][1]["extent"]["start_byte"] + 4
    ),
    r"end at byte 1000003000 of": lambda index: piece(index)["extent"].update(start_byte=10**9),
    r"names 1 shard, needed one of each of 2 ranks": lambda index: index["shards"].pop(),
    r"names 2 shards, needed one of each of 3": lambda index: index["state"].update(world_size=3),
    r"needed one of each of 4,611,686,018,427,387,904": lambda index: index["state"].update(
        world_size=2**62
    ),
    r"about 2\^18600 elements": lambda index: index["parameters"].update({"more": [2**62] * 300}),
}


@pytest.mark.parametrize("message", CHANGES)
def test_pieces_that_are_not_every_parameter_once_are_refused_and_said(run_dir, message):
    path = edited(run_dir, CHANGES[message])
    with pytest.raises(CheckpointError, match=message):
        verified(path)
    skipped: list[str] = []
    assert newest(run_dir, skipped.append).name == "step-000020"
    (line,) = skipped
    assert line.startswith(f"skipped: checkpoint {NEWEST}: index.json")


def test_a_name_that_would_move_a_terminal_s_cursor_is_written_out(run_dir):
    path = edited(run_dir, lambda index: index["parameters"].update({"a\n\x1b[2Jb": [7]}))
    with pytest.raises(CheckpointError, match=r"master of a\\n\\x1b\[2Jb needs 7 elements"):
        verified(path)


def renamed(index: Any) -> None:
    """The second moments become an array that no shard holds."""
    for shard in index["shards"]:
        for place in shard["chunks"]:
            place["kind"] = place["kind"].replace("exp_avg_sq", "other")


def test_arrays_that_the_shards_do_not_hold_are_refused(run_dir):
    path = edited(run_dir, renamed)
    with pytest.raises(CheckpointError, match=r"shard-00000\.safetensors holds other arrays than"):
        verified(path)


def test_a_ledger_whose_settings_plan_or_cluster_cannot_be_read_is_passed_over(run_dir, tmp_path):
    config = to_json(changed(tiny_config(tmp_path, tmp_path), "run", seed=0))
    edited(run_dir, lambda index: index["state"].update(config_json=config), "step-000010")
    edited(run_dir, lambda index: index["state"].update(config_json=config, cluster_json="{}"))
    plan = '{"step":19,"planner":"x","world_size":2,"launches":[]}'
    edited(
        run_dir,
        lambda index: index["state"].update(config_json=config, next_plan_json=plan),
        "step-000020",
    )
    skipped: list[str] = []
    assert newest(run_dir, skipped.append, check=loadable).name == "step-000010"
    assert "its cluster cannot be read" in skipped[0]
    assert "its plan is for step 19 on 2 ranks, needed step 20 on 2" in skipped[1]
    edited(run_dir, lambda index: index["state"].update(config_json="{}"), "step-000010")
    with pytest.raises(CheckpointError, match="none of its 3 checkpoints is whole"):
        newest(run_dir, skipped.append, check=loadable)
    assert "its settings cannot be read" in skipped[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": {"step": 1e308}}, r"impossible value step is 1e\+308"),
        ({"numbers": {"step": -5.0}}, r"its optimizer counts -5\.0 updates"),
        ({"numbers": {"step": 2.5}}, r"its optimizer counts 2\.5 updates"),
        (
            {"numbers": {"step": 77.0}, "num_updates": 2},
            r"its optimizer counts 77\.0 updates, and it has 2",
        ),
        ({"losses": [1.0] * 3, "num_updates": 2}, "impossible value 3 losses of 2 updates"),
        ({"clips": {"num_clips": -5, "sha256": ""}}, "impossible value -5 clips"),
        ({"seed": 7}, "its seed is 7, but 0 in its settings"),
    ],
)
def test_numbers_that_no_run_wrote_are_passed_over(run_dir, tmp_path, change, message):
    config = to_json(changed(tiny_config(tmp_path, tmp_path), "run", seed=0))
    edited(run_dir, lambda index: index["state"].update(config_json=config), "step-000020")
    path = edited(run_dir, lambda index: index["state"].update(config_json=config, **change))
    with pytest.raises(CheckpointError, match=message):
        loadable(path)
    assert newest(run_dir, lambda _: None, check=loadable).name == "step-000020"


def test_optimizers_of_others_count_as_they_like(run_dir, tmp_path):
    config = changed(tiny_config(tmp_path, tmp_path), "run", seed=0)
    config = to_json(changed(config, "optimizer", name="torch.optim.Adamax"))
    numbers = {"step": -0.5}
    path = edited(run_dir, lambda index: index["state"].update(config_json=config, numbers=numbers))
    assert loadable(path).state.numbers == numbers
