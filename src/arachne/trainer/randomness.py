"""What chance decides for one clip of one step, whatever the plan, rank, world or device.

Philox is a counter-based generator: the counter names (step, slot, purpose), the key is the run's
seed, and no draw depends on another. Source: Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3".
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_PURPOSES = {"train": 0, "validation": 1, "strata": 2}

Purpose = Literal["train", "validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipDraw:
    """The random numbers of one clip.

    Attributes:
        uniform: For the noise level, in [0, 1).
        normal: For the noise level, standard normal.
        caption_uniform: For caption dropout, in [0, 1).
        noise: Standard normal, float32, shaped like the latents.
    """

    uniform: float
    normal: float
    caption_uniform: float
    noise: NDArray[np.float32]


def draw_clip(
    *,
    seed: int,
    step: int,
    slot: int,
    shape: tuple[int, ...],
    purpose: Purpose = "train",
    num_strata: int = 1,
) -> ClipDraw:
    """The numbers of (seed, step, slot); equal on every rank that asks.

    With as many strata as a step has slots, its slots' `uniform` numbers lie one in each of as many
    equal parts of [0, 1), in an order that is drawn anew for every step. Source: stratified
    sampling; Kingma et al. 2021 (arXiv 2107.00630) use such draws against the variance of the loss.
    """
    generator = _generator(seed, step, slot, purpose)
    uniform = float(generator.random())
    if num_strata > 1:
        order = _generator(seed, step, 0, "strata").permutation(num_strata)
        uniform = (int(order[slot]) + uniform) / num_strata
    return ClipDraw(
        uniform=uniform,
        normal=float(generator.standard_normal()),
        caption_uniform=float(generator.random()),
        noise=generator.standard_normal(shape, dtype=np.float32),
    )


def _generator(seed: int, step: int, slot: int, purpose: str) -> np.random.Generator:
    bits = np.random.Philox(
        key=np.array([seed, 0], dtype=np.uint64),
        counter=np.array([0, _PURPOSES[purpose], slot, step], dtype=np.uint64),
    )
    return np.random.Generator(bits)
