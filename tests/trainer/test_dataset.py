from dataclasses import replace

import numpy as np
import pytest

from arachne.core.errors import DataError
from arachne.data.cache import LatentCache, text_key
from arachne.data.prepare import Store, TokenStates, keys_of
from arachne.data.sampler import ClipStream, Draw, Group
from arachne.trainer.clip_order import ClipOrder
from arachne.trainer.dataset import TrainingData
from tests.data.test_split import row_of

ROWS = tuple(row_of(number) for number in range(7))


@pytest.fixture
def data(tmp_path) -> TrainingData:
    data = TrainingData(
        rows=ROWS, cache_dir=tmp_path, fps=8.0, video_fingerprint="video", text_fingerprint="text"
    )
    cache = LatentCache(tmp_path)
    for number, row in enumerate(ROWS):
        latents, text = keys_of(row, 8.0, "video", "text")
        cache.put(latents, np.full((2, 1, 2, 2), number, np.float32))
        cache.put(text, np.full((3, 4), -1, np.float32))
    return data


def test_steps_take_every_clip_once_per_epoch_and_depend_on_seed_and_step_alone(data):
    order = ClipOrder(seed=1, stream=ClipStream([Group(num_items=7)]), step_size=2)
    steps = [data.step_batch(step, order.draws(step)) for step in range(7)]

    items = [item for step in steps for item in step.items]
    assert sorted(items[:7]) == sorted(items[7:]) == list(range(7))
    assert data.step_batch(4, order.draws(4)) == steps[4]
    assert [step.batch.step for step in steps] == list(range(7))


def test_a_slot_of_the_batch_is_the_item_of_the_same_place(data):
    draws = [Draw(item=item, epoch=0, turn=0) for item in (6, 0, 3, 3)]
    chosen = data.step_batch(3, draws)
    names = [clip.name for clip in chosen.batch.clips]
    assert names == [ROWS[item].clip.name for item in chosen.items]


def test_an_item_reads_its_own_arrays(data):
    arrays = data.read(5)
    assert (arrays.latents == 5).all()
    assert arrays.text.shape == (3, 4)


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_array_is_a_data_error(data, which):
    LatentCache(data.cache_dir).path_of(keys_of(ROWS[2], 8.0, "video", "text")[which]).unlink()
    with pytest.raises(DataError, match="no cached array"):
        data.read(2)


def test_each_time_a_clip_trains_one_of_its_captions_is_taken_and_all_are_cached(data, tmp_path):
    clip = replace(ROWS[0].clip, other_captions=("y", "z"))
    rows = (replace(ROWS[0], clip=clip), *ROWS[1:])
    data = replace(data, rows=rows)
    order = ClipOrder(seed=1, stream=ClipStream([Group(num_items=7)]), step_size=7)
    taken = [
        data.row(item).clip.captions
        for step in range(40)
        for item in data.step_batch(step, order.draws(step)).items
        if item % 7 == 0
    ]
    assert {len(captions) for captions in taken} == {1}
    assert {captions[0] for captions in taken} == {"x", "y", "z"}
    again = [data.step_batch(step, order.draws(step)).items for step in (39, 0)]
    assert again[0] != again[1]
    assert data.step_batch(39, order.draws(39)).items == again[0]

    store = Store(cache_dir=tmp_path, fps=8.0, video_fingerprint="video", text_fingerprint="text")
    texts = [piece.caption for piece in store.pieces(rows) if isinstance(piece, TokenStates)]
    assert texts == ["", "x", "y", "z"]
    for number, caption in enumerate("xyz"):
        states = np.full((3, 4), number, np.float32)
        LatentCache(tmp_path).put(text_key(caption, "text"), states)
    assert [float(data.read(7 * caption).text[0, 0]) for caption in range(3)] == [0.0, 1.0, 2.0]
    assert (data.read(14).latents == 0).all()
    assert data.batch_of((14,), 0).clips[0].name == "0.mp4"


def test_a_damaged_array_is_told_and_deleted_so_that_it_is_made_again(data):
    key, _ = keys_of(ROWS[2], 8.0, "video", "text")
    cache = LatentCache(data.cache_dir)
    content = bytearray(cache.path_of(key).read_bytes())
    content[-1] ^= 1
    cache.path_of(key).write_bytes(content)
    assert cache.has(key), "its length is right"
    with pytest.raises(DataError, match="damaged"):
        data.read(2)
    assert not cache.has(key)
    with pytest.raises(DataError, match="no cached array"):
        data.read(2)
