import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.trainer.randomness import draw_clip

SHAPE = (4, 3, 2, 2)
WHO = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 10_000))


def drawn(who, purpose="train", shape=SHAPE):
    seed, step, slot = who
    return draw_clip(seed=seed, step=step, slot=slot, shape=shape, purpose=purpose)


@given(WHO, WHO)
def test_a_draw_depends_on_seed_step_and_slot_alone(who, another):
    first = drawn(who)
    drawn(another)
    np.random.default_rng().normal(size=3)
    again = drawn(who)

    assert (first.uniform, first.normal, first.caption_uniform) == (
        again.uniform,
        again.normal,
        again.caption_uniform,
    )
    assert np.array_equal(first.noise, again.noise)


@given(WHO, WHO)
def test_other_clips_have_other_noise(who, another):
    if who != another:
        assert not np.array_equal(drawn(who).noise, drawn(another).noise)


def test_training_never_sees_the_noise_of_validation():
    assert not np.array_equal(drawn((0, 1, 2)).noise, drawn((0, 1, 2), "validation").noise)


def test_the_noise_level_does_not_depend_on_the_shape():
    small, large = drawn((5, 6, 7), shape=()), drawn((5, 6, 7), shape=(48, 5, 8, 8))
    assert (small.uniform, small.normal) == (large.uniform, large.normal)


def test_noise_is_standard_normal_float32():
    noise = drawn((0, 0, 0), shape=(100, 100, 10)).noise
    assert noise.dtype == np.float32
    assert noise.mean() == pytest.approx(0.0, abs=0.02)
    assert noise.std() == pytest.approx(1.0, abs=0.02)


def test_the_numbers_of_a_clip_are_unrelated():
    draws = [drawn((0, step, 0), shape=(1,)) for step in range(3000)]
    columns = np.array([[d.uniform, d.normal, d.caption_uniform, d.noise[0]] for d in draws])
    assert columns[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    assert columns[:, 2].mean() == pytest.approx(0.5, abs=0.03)
    assert np.abs(np.corrcoef(columns.T) - np.eye(4)).max() < 0.07
