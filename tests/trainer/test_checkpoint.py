import functools
import hashlib
import json
import os
import pkgutil
import shutil
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.errors import CheckpointError
from arachne.trainer.checkpoint import Keep, commit, prune, write_shard
from arachne.trainer.checkpoint_files import Chunk, TrainState, sha256_of
from arachne.trainer.checkpoint_reader import CheckpointReader, newest, verified
from tests.forbidden_files import forbidden

KINDS = ("master", "exp_avg", "exp_avg_sq")
SHAPES = {"blocks.0.w": (3, 5), "blocks.0.b": (5,), "scale": (), "head.w": (2, 3, 2)}


def _values(step, name, kind, dtype=np.float32):
    """The whole parameter, distinct for every step, name and kind."""
    seed = [step, list(SHAPES).index(name), KINDS.index(kind)]
    return np.random.default_rng(seed).standard_normal(prod(SHAPES[name])).astype(dtype)


def _chunks_of(step, cuts, dtype=np.float32):
    """Chunks per rank; `cuts` are ascending shares of the flattened model at which ranks change."""
    ranks = [[] for _ in range(len(cuts) + 1)]
    for name, shape in SHAPES.items():
        total = prod(shape)
        bounds = [0, *(round(cut * total) for cut in cuts), total]
        for rank, (start, stop) in enumerate(pairwise(bounds)):
            for kind in KINDS:
                values = _values(step, name, kind, dtype)[start:stop]
                ranks[rank].append(
                    Chunk(name=name, kind=kind, offset=start, total=total, values=values)
                )
    return ranks


def _state(step, world_size):
    return TrainState(
        step=step,
        num_updates=step - 1,
        seed=11,
        world_size=world_size,
        config_json='{"run": {"steps": 5}}',
        losses=(1.5, 1.25)[: step - 1],
        cluster_json='{"name": "cpu"}',
    )


def _save(run_dir, step, cuts=(0.5,), keep=0, dtype=np.float32):
    ranks = _chunks_of(step, cuts, dtype)
    for rank, chunks in enumerate(ranks):
        write_shard(run_dir, step, rank, chunks)
    state = _state(step, len(ranks))
    return commit(run_dir, step, parameters=SHAPES, state=state, keep=Keep(newest=keep))


def _names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def _never(message):
    raise AssertionError(message)


def _assert_holds(path, step, dtype=np.float32):
    reader = CheckpointReader(path)
    for name in SHAPES:
        for kind in KINDS:
            whole = reader.read(name, kind, 0, prod(SHAPES[name]))
            np.testing.assert_array_equal(whole, _values(step, name, kind, dtype))
            assert whole.dtype == dtype


def _flip_bit(path, at=-3):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


cut_lists = st.lists(st.floats(0, 1), max_size=3).map(sorted)


@settings(max_examples=25, deadline=None)
@given(written=cut_lists, read=cut_lists, dtype=st.sampled_from([np.float32, np.float64]))
def test_any_world_reads_what_any_other_world_wrote(tmp_path_factory, written, read, dtype):
    run_dir = tmp_path_factory.mktemp("run")
    reader = CheckpointReader(_save(run_dir, 4, cuts=written, dtype=dtype))
    for rank_chunks in _chunks_of(4, read, dtype):
        for chunk in rank_chunks:
            stop = chunk.offset + len(chunk.values)
            found = reader.read(chunk.name, chunk.kind, chunk.offset, stop)
            np.testing.assert_array_equal(found, chunk.values)


def test_state_and_shapes_come_back_as_they_were(tmp_path):
    path = _save(tmp_path, 123, cuts=(0.2, 0.7))
    assert path == tmp_path / "checkpoints" / "step-000123"
    reader = CheckpointReader(path)
    assert reader.state == _state(123, 3)
    assert reader.parameters == SHAPES


def test_a_committed_checkpoint_holds_nothing_but_shards_and_index(tmp_path):
    path = _save(tmp_path, 1)
    assert sorted(file.name for file in path.iterdir()) == [
        "index.json",
        "index.json.sha256",
        "shard-00000.safetensors",
        "shard-00001.safetensors",
    ]
    assert _names(tmp_path) == ["step-000001"]


def test_the_newest_whole_checkpoint_is_found(tmp_path):
    for step in (1, 2, 10):
        _save(tmp_path, step)
    assert newest(tmp_path, _never).name == "step-000010"


def test_a_flipped_bit_is_refused_by_file_and_parameter(tmp_path):
    _save(tmp_path, 1)
    path = _save(tmp_path, 2)
    _flip_bit(path / "shard-00001.safetensors")
    told = []
    assert newest(tmp_path, told.append).name == "step-000001"
    assert len(told) == 1
    assert (
        "step-000002: shard-00001.safetensors is damaged in exp_avg_sq of head.w: found" in told[0]
    )


@pytest.mark.parametrize("name", ["index.json", "index.json.sha256"])
def test_a_flipped_bit_in_the_index_is_refused(tmp_path, name):
    _flip_bit(_save(tmp_path, 2) / name, at=10)
    with pytest.raises(
        CheckpointError, match=r"index\.json is damaged.*it describes all parameters"
    ):
        verified(tmp_path / "checkpoints" / "step-000002")


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def _replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (_truncate, "shard-00000.safetensors", "shard-00000.safetensors is damaged"),
        (lambda path: path.unlink(), "shard-00000.safetensors", "is missing; it held blocks.0.b"),
        (lambda path: path.unlink(), "index.json", "index.json is missing"),
        (lambda path: path.unlink(), "index.json.sha256", "index.json.sha256 is missing"),
        (_truncate, "index.json", "index.json is damaged"),
        (_replace_by_pipe, "index.json.sha256", "index.json.sha256 is no file"),
        (_replace_by_pipe, "shard-00000.safetensors", "is no file; it held blocks.0.b"),
    ],
)
def test_truncated_and_deleted_files_are_passed_over(tmp_path, damage, file, message):
    _save(tmp_path, 1)
    damage(_save(tmp_path, 2) / file)
    told = []
    assert newest(tmp_path, told.append).name == "step-000001"
    assert message in told[0]


def test_without_a_whole_checkpoint_the_error_says_what_was_found(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        newest(tmp_path, _never)
    _flip_bit(_save(tmp_path, 2) / "index.json")
    with pytest.raises(CheckpointError, match="none of its 1 checkpoints is whole"):
        newest(tmp_path, lambda message: None)


def test_a_partial_checkpoint_is_never_read(tmp_path):
    _save(tmp_path, 1)
    for rank, chunks in enumerate(_chunks_of(2, (0.5,))):
        write_shard(tmp_path, 2, rank, chunks)
    assert newest(tmp_path, _never).name == "step-000001"


@pytest.mark.timeout(20)
def test_what_lies_under_a_name_to_be_written_goes_first(tmp_path):
    """A pipe would wait for a reader, and a file may have a second name."""
    whole = _save(tmp_path, 1)
    before = (whole / "shard-00000.safetensors").read_bytes()
    partial = tmp_path / "checkpoints" / "step-000002.partial"
    partial.mkdir()
    os.link(whole / "shard-00000.safetensors", partial / "shard-00000.safetensors")
    for name in ("shard-00001.safetensors", "shard-00000.json", "index.json", "index.json.sha256"):
        os.mkfifo(partial / name)
    _save(tmp_path, 2)
    assert (whole / "shard-00000.safetensors").read_bytes() == before
    verified(whole)
    verified(tmp_path / "checkpoints" / "step-000002")


def test_what_an_earlier_crash_left_is_overwritten(tmp_path):
    for rank, chunks in enumerate(_chunks_of(77, (0.1, 0.2, 0.9))):  # other values, more ranks
        write_shard(tmp_path, 3, rank, chunks)
    (tmp_path / "checkpoints" / "step-000003.partial" / "index.json").write_text("{half")
    path = _save(tmp_path, 3, cuts=(0.4,))
    verified(path)
    _assert_holds(path, 3)
    assert len(list(path.glob("shard-*"))) == 2


def test_a_step_saved_again_replaces_the_earlier_one(tmp_path):
    _flip_bit(_save(tmp_path, 3) / "index.json")
    path = _save(tmp_path, 3, cuts=(0.1, 0.6))
    _assert_holds(path, 3)
    assert _names(tmp_path) == ["step-000003"]


def test_a_rank_that_has_not_written_stops_the_commit(tmp_path):
    write_shard(tmp_path, 3, 0, _chunks_of(3, (0.5,))[0])
    with pytest.raises(CheckpointError, match="rank 1 has not written its shard"):
        commit(tmp_path, 3, parameters=SHAPES, state=_state(3, 2))


@pytest.mark.parametrize("overlap", [True, False])
def test_pieces_that_do_not_tile_a_parameter_stop_the_commit(tmp_path, overlap):
    ranks = _chunks_of(3, (0.5,))
    if overlap:
        ranks[1].append(ranks[0][0])
    else:
        del ranks[1][0]
    for rank, chunks in enumerate(ranks):
        write_shard(tmp_path, 3, rank, chunks)
    with pytest.raises(CheckpointError, match=r"master of blocks\.0\.w needs 15 elements, each"):
        commit(tmp_path, 3, parameters=SHAPES, state=_state(3, 2))


def test_a_parameter_of_another_model_stops_the_commit(tmp_path):
    for rank, chunks in enumerate(_chunks_of(3, (0.5,))):
        write_shard(tmp_path, 3, rank, chunks)
    shapes = {name: shape for name, shape in SHAPES.items() if name != "scale"}
    with pytest.raises(CheckpointError, match="'scale', which is no parameter of this model"):
        commit(tmp_path, 3, parameters=shapes, state=_state(3, 2))


def test_a_chunk_given_twice_is_a_bug(tmp_path):
    chunks = _chunks_of(3, ())[0]
    with pytest.raises(AssertionError, match="given twice"):
        write_shard(tmp_path, 3, 0, [*chunks, chunks[0]])


def test_reading_another_models_parameter_says_so(tmp_path):
    reader = CheckpointReader(_save(tmp_path, 3))
    with pytest.raises(CheckpointError, match="has no parameter 'tail'; it is of another model"):
        reader.read("tail", "master", 0, 1)
    with pytest.raises(CheckpointError, match=r"head\.w has 12 elements, needed \[0, 13\)"):
        reader.read("head.w", "master", 0, 13)
    assert len(reader.read("head.w", "master", 4, 4)) == 0


def test_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("arachne.trainer.checkpoint.FORMAT", 3)
    path = _save(tmp_path, 3)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 3; this version reads 2"):
        CheckpointReader(path)


def test_the_newest_are_kept(tmp_path):
    for step in (5, 10, 15, 20):
        _save(tmp_path, step, keep=2)
    assert _names(tmp_path) == ["step-000015", "step-000020"]


def test_keeping_zero_keeps_all(tmp_path):
    for step in (5, 10, 15):
        _save(tmp_path, step)
    assert len(_names(tmp_path)) == 3


def test_pruning_counts_from_the_newest_whole_one(tmp_path):
    for step in (5, 10, 15, 20):
        _save(tmp_path, step)
    # A run that found 20 damaged went on from 5; what it saves now must survive its own pruning.
    _flip_bit(tmp_path / "checkpoints" / "step-000020" / "index.json")
    _save(tmp_path, 12, keep=1)
    assert _names(tmp_path) == ["step-000012", "step-000015", "step-000020"]


def test_pruning_clears_what_crashes_left_but_not_what_is_being_written(tmp_path):
    _save(tmp_path, 5)
    root = tmp_path / "checkpoints"
    for name in ("step-000003.partial", "step-000009.partial", "step-000002.deleting", "notes"):
        (root / name).mkdir()
    assert prune(tmp_path, Keep(newest=3), newest_step=5) == ()
    assert _names(tmp_path) == ["notes", "step-000005", "step-000009.partial"]


def test_pruning_names_what_it_deleted(tmp_path):
    for step in (5, 10, 15):
        _save(tmp_path, step)
    assert prune(tmp_path, Keep(newest=1), newest_step=15) == ("step-000010", "step-000005")


def test_of_a_linked_checkpoint_the_link_goes(tmp_path):
    moved = tmp_path / "elsewhere"
    _save(tmp_path, 5).rename(moved)
    (tmp_path / "checkpoints" / "step-000005").symlink_to(moved)
    _save(tmp_path, 10, keep=1)
    assert _names(tmp_path) == ["step-000010"]
    assert (moved / "index.json").is_file()


def test_what_cannot_be_pruned_is_said_beside_what_is_whole(tmp_path, monkeypatch):
    def refused(path):
        raise OSError(5, "Input/output error", str(path))

    _save(tmp_path, 5)
    monkeypatch.setattr("arachne.trainer.checkpoint_files.shutil.rmtree", refused)
    with pytest.raises(CheckpointError, match=r"step-000010 in .* is whole, but .*Input/output"):
        _save(tmp_path, 10, keep=1)
    verified(tmp_path / "checkpoints" / "step-000010")


def test_a_file_of_another_size_is_not_read_to_its_end(tmp_path, monkeypatch):
    path = _save(tmp_path, 5)
    file = path / "shard-00000.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(2**40)
    monkeypatch.setattr("arachne.trainer.checkpoint_reader.sha256_of", checked_size(file.stat()))
    with pytest.raises(CheckpointError, match="found 1099511627776 bytes, needed"):
        verified(path)


def checked_size(large):
    def sha256(path):
        assert path.stat().st_size < large.st_size, "it would take an hour"
        return sha256_of(path)

    return sha256


def test_a_full_disk_is_one_line_with_the_folder(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("arachne.trainer.checkpoint.write_arrays", full)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left") as caught:
        write_shard(tmp_path, 3, 0, [])
    assert "step-000003.partial" in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "stand"), [(0o500, "earlier checkpoints"), (0, "checkpoints that are there")]
)
def test_a_checkpoint_that_this_user_may_not_write_asks_for_no_space(tmp_path, mode, stand):
    root = _save(tmp_path, 3).parent
    refused = (
        rf"step-000004\.partial' cannot be written: Permission denied; {stand} are untouched; "
    )
    with forbidden(root, mode), pytest.raises(CheckpointError, match=refused) as caught:
        write_shard(tmp_path, 4, 0, [])
    assert str(caught.value).endswith("; let this user read and write it, then go on with --resume")


def test_the_index_hash_is_what_sha256sum_reads(tmp_path):
    path = _save(tmp_path, 3)
    line = (path / "index.json.sha256").read_text()
    digest = hashlib.sha256((path / "index.json").read_bytes()).hexdigest()
    assert line == f"{digest}  index.json\n"
    shards = json.loads((path / "index.json").read_text())["shards"]
    for shard in shards:
        assert shard["sha256"] == hashlib.sha256((path / shard["name"]).read_bytes()).hexdigest()


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the code under test catches it."""


class _Disk:
    """Counts everything that changes the disk, and kills before the n-th change."""

    def __init__(self, monkeypatch, kill_before):
        self.left = kill_before
        for target in (
            "arachne.trainer.checkpoint.write_arrays",
            "arachne.trainer.checkpoint.sync",
            "arachne.trainer.checkpoint.write_synced",
            "arachne.trainer.checkpoint.shutil.rmtree",
            "pathlib.Path.rename",
            "pathlib.Path.unlink",
        ):
            self._wrap(monkeypatch, target)

    def _wrap(self, monkeypatch, target):
        effect = pkgutil.resolve_name(target)

        @functools.wraps(effect)
        def counted(*args, **kwargs):
            if self.left == 0:
                raise Killed
            self.left -= 1
            return effect(*args, **kwargs)

        monkeypatch.setattr(target, counted)


@pytest.mark.parametrize("is_saved_before", [False, True])
def test_a_kill_between_any_two_effects_loses_nothing(tmp_path, monkeypatch, is_saved_before):
    """Also while step 2 replaces an older checkpoint of step 2, and while older ones are pruned."""
    for kill_before in range(200):
        run_dir = tmp_path / str(kill_before)
        _save(run_dir, 1)
        if is_saved_before:
            _save(run_dir, 2)
        with monkeypatch.context() as patched:
            _Disk(patched, kill_before)
            try:
                _save(run_dir, 2, cuts=(0.3, 0.6), keep=1)
                is_over = True
            except Killed:
                is_over = False
        if is_over:
            assert kill_before > 15
            return
        path = newest(run_dir, _never)
        step = verified(path).state.step
        assert step == 2 if is_saved_before else step in (1, 2)
        _assert_holds(path, step)
        _assert_holds(_save(run_dir, 2, keep=1), 2)
        assert _names(run_dir) == ["step-000002"]
        shutil.rmtree(run_dir)
    pytest.fail("the save never ended")
