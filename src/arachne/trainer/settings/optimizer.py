"""The section `[optimizer]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """`[optimizer]`: AdamW.

    Attributes:
        lr: Learning rate after the warm-up.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled weight decay.
        warmup_steps: Steps in which the learning rate rises linearly from 0.
        max_grad_norm: Gradients are scaled down to this global norm; 0 switches clipping off.
        gradients: Type of the buffer that launches add their gradients to, or that it lies in the
            host's memory. For planning only, so far.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    gradients: Literal["float32", "bfloat16", "host"] = "float32"

    def __post_init__(self) -> None:
        at_least(
            "optimizer",
            0,
            lr=self.lr,
            eps=self.eps,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
            max_grad_norm=self.max_grad_norm,
        )
        for beta in self.betas:
            if not 0.0 <= beta < 1.0:
                raise ConfigError(f"optimizer.betas holds {beta}; each must be in [0, 1)")
