import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.models.hashed_text import HashedTextEncoder, split_words

ENCODER = HashedTextEncoder(num_tokens=8, text_size=128)


def _cosine(first, second):
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def _state(word):
    return ENCODER.encode(word)[0]


@settings(max_examples=60, deadline=None)
@given(caption=st.text(max_size=80), num_tokens=st.integers(1, 9), size=st.integers(1, 70))
def test_every_caption_has_finite_states_of_the_promised_shape(caption, num_tokens, size):
    states = HashedTextEncoder(num_tokens=num_tokens, text_size=size).encode(caption)
    assert states.shape == (num_tokens, size)
    assert states.dtype == np.float32
    assert np.isfinite(states).all()
    num_words = min(num_tokens, max(1, len(split_words(caption))))
    assert np.any(states[:num_words], axis=1).all()
    assert not states[num_words:].any()


def test_similar_words_have_similar_states():
    assert _cosine(_state("car"), _state("cars")) > _cosine(_state("car"), _state("tree")) + 0.2
    assert _cosine(_state("running"), _state("runner")) > 0.2


def test_case_form_and_punctuation_do_not_matter():
    plain = ENCODER.encode("a cafe\u0301 car")
    np.testing.assert_array_equal(plain, ENCODER.encode("A CAF\u00c9, car!"))


def test_word_order_matters():
    first, second = ENCODER.encode("dog bites man"), ENCODER.encode("man bites dog")
    assert not np.allclose(first, second)


def test_the_same_word_at_two_places_differs_a_little():
    states = ENCODER.encode("car car")
    assert 0.8 < _cosine(states[0], states[1]) < 0.9999


def test_states_have_about_unit_variance():
    states = ENCODER.encode("a small robot walks over the bridge")
    assert 0.8 < float(np.sqrt(np.mean(states[:7] ** 2))) < 1.2


def test_a_longer_caption_loses_its_end():
    long = ENCODER.encode("one two three four five six seven eight nine ten")
    np.testing.assert_array_equal(long, ENCODER.encode("one two three four five six seven eight"))


def test_a_caption_without_words_is_the_null_state():
    null = ENCODER.encode("")
    assert null[0].any()
    assert not null[1:].any()
    np.testing.assert_array_equal(null, ENCODER.encode("  ...  "))
    assert not np.allclose(null, ENCODER.encode("null"))


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("Don't stop", ["don", "t", "stop"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("猫が走る", ["猫", "が", "走", "る"]),
        ("кот бежит", ["кот", "бежит"]),
        ("a 🚀🚀", ["a", "🚀", "🚀"]),
        ("ﬁne ＡＢ", ["fine", "ab"]),
        ("\u0301", []),
    ],
)
def test_captions_of_other_scripts_have_words(caption, words):
    assert split_words(caption) == words


def test_scripts_and_emoji_are_told_apart():
    captions = ["кот", "猫", "🚀", "🐈", "قطة", "cat"]
    states = [_state(caption) for caption in captions]
    for index, state in enumerate(states):
        for other in states[:index]:
            assert _cosine(state, other) < 0.5


def test_another_process_gives_the_same_states():
    source = str(Path(__file__).parents[2] / "src")
    program = (
        f"import sys; sys.path.insert(0, {source!r})\n"
        "from arachne.models.hashed_text import HashedTextEncoder\n"
        "encoder = HashedTextEncoder(num_tokens=8, text_size=128)\n"
        "sys.stdout.write(encoder.encode('two cars, 猫').tobytes().hex())"
    )
    environment = {"PYTHONHASHSEED": "77"}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True
    )
    assert told.stdout == ENCODER.encode("two cars, 猫").tobytes().hex()


def test_the_fingerprint_follows_the_sizes():
    assert ENCODER.fingerprint == HashedTextEncoder(num_tokens=8, text_size=128).fingerprint
    assert ENCODER.fingerprint != HashedTextEncoder(num_tokens=9, text_size=128).fingerprint
    assert ENCODER.fingerprint != HashedTextEncoder(num_tokens=8, text_size=64).fingerprint
