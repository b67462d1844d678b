"""Files that are valid in form and wrong in content are refused in our own words, or harmless."""

import copy
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.errors import ArachneError, CheckpointError, ConfigError, DataError
from arachne.core.ledger import Ledger
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_toml import load_toml
from arachne.cost.cluster_files import load_cluster
from arachne.data.manifest import read_manifest, write_manifest
from arachne.reporting.run_files import PLANS, read_plans
from arachne.trainer.checkpoint_reader import CheckpointReader, newest, verified
from arachne.trainer.config import RunConfig
from tests.core.test_ledger import made_row
from tests.trainer.damaged_checkpoints import KINDS, NEWEST, write_checkpoints
from tests.trainer.tiny_runs import plan_of

EXAMPLES = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HOSTILE_TEXTS = ["", "../../outside", "/etc/passwd", "a\0b", "шард", "x" * 300, "NaN", "-1"]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(HOSTILE_TEXTS)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inner = enumerate(value)
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


@st.composite
def changed_json(draw: Any, original: Any) -> Any:
    """The value with one to three of its parts replaced, removed, doubled or added."""
    value = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(value)))
        if not path:
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        what = draw(st.sampled_from(["replace", "remove", "double", "add"]))
        if what == "replace":
            parent[path[-1]] = draw(values)
        elif what == "remove":
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]) if what == "double" else draw(values))
        else:
            parent[draw(st.sampled_from(["extra", *map(str, parent)]))] = draw(values)
    return value


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    write_checkpoints(folder)
    newest_one = folder / "checkpoints" / NEWEST
    # What a path that leaves its root would find.
    for outside in (folder / "checkpoints" / "outside", folder.parent / "outside"):
        shutil.copyfile(newest_one / "shard-00000.safetensors", outside)
    return folder


@pytest.fixture(scope="module")
def index(run_dir) -> Any:
    return json.loads((run_dir / "checkpoints" / NEWEST / "index.json").read_text())


def put_index(run_dir: Path, index: Any) -> Path:
    path = run_dir / "checkpoints" / NEWEST
    content = json.dumps(index).encode()
    (path / "index.json").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (path / "index.json.sha256").write_text(f"{digest}  index.json\n")
    return path


def read_all(path: Path) -> None:
    """As a resumed run does."""
    verified(path)
    reader = CheckpointReader(path)
    for name, shape in reader.parameters.items():
        size = 1
        for extent in shape:
            size *= extent
        for kind in KINDS:
            assert len(reader.read(name, kind, 0, size)) == size


@EXAMPLES
@given(data=st.data())
def test_any_ledger_of_a_checkpoint_is_read_whole_or_refused(run_dir, index, data):
    path = put_index(run_dir, data.draw(changed_json(index)))
    try:
        read_all(path)
    except CheckpointError:
        assert newest(run_dir, on_skip=lambda _: None)
    finally:
        put_index(run_dir, index)


@pytest.mark.parametrize("name", ["../outside", "../../outside", "/etc/passwd", "aside", ""])
def test_a_ledger_cannot_name_a_file_elsewhere(run_dir, index, name):
    hostile = copy.deepcopy(index)
    hostile["shards"][0]["name"] = name
    path = put_index(run_dir, hostile)
    try:
        with pytest.raises(CheckpointError, match="which is no shard"):
            read_all(path)
    finally:
        put_index(run_dir, index)


@pytest.mark.parametrize("name", ["index.json", "index.json.sha256"])
def test_a_ledger_that_would_fill_the_memory_is_refused_unread(run_dir, name):
    path = run_dir / "checkpoints" / NEWEST / name
    content = path.read_bytes()
    os.truncate(path, 2**40)  # a hole in the file takes no room on the disk
    try:
        with pytest.raises(CheckpointError, match="has more than 268,435,456 bytes"):
            verified(path.parent)
    finally:
        path.write_bytes(content)


def test_a_run_file_that_does_not_end_is_refused():
    with pytest.raises(ConfigError, match="has more than 1,048,576 bytes; name a file of settings"):
        load_toml(Path("/dev/zero"), RunConfig)


@EXAMPLES
@given(data=st.data())
def test_any_plan_from_a_file_is_a_plan_or_refused(tmp_path, data):
    bucket = Bucket(width=32, height=32, frames=1)
    clips = tuple(BatchClip(name=name, bucket=bucket, num_tokens=4) for name in "abc")
    plan = plan_of(Batch(step=3, clips=clips), 2, [((0,), (0, 1)), ((1,), (0,)), ((2,), (1,))])
    changed = json.dumps(data.draw(changed_json(json.loads(plan.to_json()))))
    (tmp_path / PLANS).write_text(changed + "\n")
    try:
        plans, _ = read_plans(tmp_path)
        assert all(isinstance(each, PlacedPlan) for each in plans.values())
    except DataError:
        with pytest.raises(DataError):
            PlacedPlan.from_json(changed)


@pytest.fixture(scope="module")
def manifest_bytes(tmp_path_factory) -> bytes:
    bucket = Bucket(width=64, height=48, frames=5)
    rows = (made_row("kept", bucket), made_row("trimmed", bucket), made_row("rejected", None))
    path = tmp_path_factory.mktemp("manifest") / "ledger.parquet"
    write_manifest(Ledger(rows=rows), path)
    return path.read_bytes()


@EXAMPLES
@given(data=st.data())
def test_any_bytes_of_a_manifest_are_a_ledger_or_refused(tmp_path, manifest_bytes, data):
    path, content = tmp_path / "ledger.parquet", bytearray(manifest_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(content), len(content) // 2, 3]))
    path.write_bytes(content[:cut])
    with suppress(DataError):
        assert len(read_manifest(path).rows) <= 2**16


_TOML_SCRAPS = [
    *("steps = -1", "steps = 1e999", "steps = nan", 'steps = "many"', "steps = [1]", "[run]"),
    *("lr = 1e-4", 'dir = "../../outside"', 'dir = "a\\u0000b"', "= 3", "[planner", '"'),
    *("seed = 99999999999999999999999", "betas = [1]", 'name = "static_sp"', "unknown = 1"),
    *("every = 0x10", "keep = 1.5", "ranks = true", "\ufeff", "\0", "[run.dir]", "[[data]]"),
]


@EXAMPLES
@given(data=st.data())
def test_any_run_file_is_settings_or_refused(tmp_path, data):
    lines = Path("examples/quickstart.toml").read_text(encoding="utf-8").splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.sampled_from(["remove", "add", "replace", "cut"]))
        scrap = data.draw(st.sampled_from(_TOML_SCRAPS) | st.text(max_size=12))
        if what == "cut":
            lines[at] = lines[at][: len(lines[at]) // 2]
        elif what != "add":
            del lines[at]
        if what in ("add", "replace"):
            lines.insert(at, scrap)
        lines = lines or [""]
    path = tmp_path / "run.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    with suppress(ConfigError):
        assert isinstance(load_toml(path, RunConfig), RunConfig)


@EXAMPLES
@given(name=st.sampled_from(["../outside", "/etc/passwd", "a\0b", "h100x0"]) | st.text(max_size=9))
def test_any_cluster_name_is_a_cluster_or_refused(name):
    with suppress(ArachneError):
        load_cluster(name)
