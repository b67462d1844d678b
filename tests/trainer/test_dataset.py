import numpy as np
import pytest

from arachne.core.errors import DataError
from arachne.data.cache import LatentCache
from arachne.data.prepare import keys_of
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
    steps = [data.step_batch(seed=1, step=step, num_clips=2) for step in range(7)]

    items = [item for step in steps for item in step.items]
    assert sorted(items[:7]) == sorted(items[7:]) == list(range(7))
    assert data.step_batch(seed=1, step=4, num_clips=2) == steps[4]
    assert [step.batch.step for step in steps] == list(range(7))


def test_a_slot_of_the_batch_is_the_item_of_the_same_place(data):
    chosen = data.step_batch(seed=0, step=3, num_clips=4)
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
