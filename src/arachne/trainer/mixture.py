"""How a clip and noise are mixed at a noise level, and what the model is to predict of them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Shares [B] of clip and noise; every objective here is linear in both.

    noisy  = clean · clip + noise · noise
    target = target_clean · clip + target_noise · noise
    """

    clean: Tensor
    noise: Tensor
    target_clean: Tensor
    target_noise: Tensor
