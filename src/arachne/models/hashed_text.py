"""A training-free text encoder: every word becomes the sum of pseudo-random vectors of its parts.

The parts of a word are the word itself and its character 3- to 5-grams between boundary marks, as
in fastText (Bojanowski et al. 2017, "Enriching Word Vectors with Subword Information"); instead of
being learned, a part's vector is drawn by hashing its name. Words that share many parts get similar
states: enough for a model to tell captions apart, and for near-spellings to land near each other.
"""

import hashlib
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

HASHED_TEXT_SIZE = 128
"""Width of a token state where nothing else is asked for."""

_GRAM_LENGTHS = (3, 4, 5)
_POSITION_SCALE = 0.2
"""Root mean square of the positional part; the word's own part has 1."""
_NULL_PART = "null"
_SPACELESS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # CJK ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0x20000, 0x3FFFF),  # CJK extensions
)
"""Scripts written without spaces: each of their characters counts as a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedTextEncoder:
    """Token states of captions, the same in every process and on every machine.

    Attributes:
        num_tokens: Rows of the result; a longer caption loses its end.
        text_size: Width of a token state.
    """

    num_tokens: int
    text_size: int = HASHED_TEXT_SIZE

    def __post_init__(self) -> None:
        assert self.num_tokens >= 1, self.num_tokens
        assert self.text_size >= 1, self.text_size

    @property
    def fingerprint(self) -> str:
        """Name of the rule, and a digest of what it gives for a caption of many scripts."""
        states = self.encode("A small robot, 2 cars & một con mèo 猫が走る 🚀")
        digest = hashlib.sha256(np.round(states * 1e4).astype("<i8").tobytes())
        return f"hashed-{self.num_tokens}x{self.text_size}-{digest.hexdigest()[:16]}"

    def encode(self, caption: str) -> np.ndarray:
        """Token states float32 [L, D] of about unit variance, padded with zero rows.

        A caption without words has one state that no word has: the `null` that training with
        dropped captions learns, and that guidance compares to.
        """
        states_LD = np.zeros((self.num_tokens, self.text_size), np.float32)
        words = split_words(caption)[: self.num_tokens]
        if not words:
            states_LD[0] = _state_of_parts((_NULL_PART,), self.text_size)
        for position, word in enumerate(words):
            states_LD[position] = _state_of_parts(_parts(word), self.text_size)
            states_LD[position] += _position_state(position, self.text_size)
        return states_LD


def split_words(caption: str) -> list[str]:
    """Words of a caption: case-folded and NFKC-normalised, punctuation dropped.

    Letters, marks and digits in a row are a word; a symbol or emoji is one by itself, and so is
    each character of a script that is written without spaces.
    """
    words: list[str] = []
    is_open = False
    for character in unicodedata.normalize("NFKC", caption.casefold()):
        is_spaceless = any(first <= ord(character) <= last for first, last in _SPACELESS)
        major = unicodedata.category(character)[0]
        if major == "M" and words and (is_open or is_spaceless):
            words[-1] += character  # a vowel sign or accent belongs to the letter before it
        elif major in "LN" and not is_spaceless:
            words[-1:] = [words[-1] + character] if is_open else [*words[-1:], character]
            is_open = True
        else:
            is_open = False
            if major in "LNS":
                words.append(character)
    return words


def _parts(word: str) -> tuple[str, ...]:
    """The word itself and all distinct character n-grams of `<word>`, in sorted order."""
    marked = f"<{word}>"
    grams = {
        marked[first : first + length]
        for length in _GRAM_LENGTHS
        for first in range(len(marked) - length + 1)
    }
    return (f"word:{word}", *(f"gram:{gram}" for gram in sorted(grams)))


@lru_cache(maxsize=65536)
def _part_signs(part: str, size: int) -> np.ndarray:
    """A vector of ±1 that depends on the part's name alone.

    Hash bits instead of a random generator's normal numbers: exact on every machine and version.
    """
    digest = hashlib.shake_256(part.encode("utf-8", "surrogatepass")).digest((size + 7) // 8)
    bits = np.unpackbits(np.frombuffer(digest, np.uint8), count=size)
    return 2.0 * bits.astype(np.float32) - 1.0


def _state_of_parts(parts: tuple[str, ...], size: int) -> np.ndarray:
    """Sum of the parts' vectors, scaled to a root mean square of 1."""
    total = np.sum([_part_signs(part, size) for part in parts], axis=0)
    norm = float(np.sqrt(np.mean(np.square(total))))
    return total / norm if norm > 0.0 else _part_signs(parts[0], size)


def _position_state(position: int, size: int) -> np.ndarray:
    """Sines and cosines of the position, as in Vaswani et al. 2017, of a small fixed size."""
    rates = 10000.0 ** (-2.0 * (np.arange(size) // 2) / size)
    phases = np.where(np.arange(size) % 2, np.pi / 2.0, 0.0)
    waves = np.sin(position * rates + phases)
    return (_POSITION_SCALE * sqrt(2.0) * waves).astype(np.float32)
