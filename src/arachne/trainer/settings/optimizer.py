"""The section `[optimizer]` of a run file."""

from dataclasses import dataclass, field, fields
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.core.known_keys import choice_text
from arachne.trainer.settings.checks import at_least, share

OptionValue = bool | int | float | str | tuple[float, ...]

_NAMES = ("adamw", "adamw8bit", "muon")

_ADAMW = ("betas", "eps", "weight_decay")
"""Settings of AdamW, which classes that are named by their path do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """`[optimizer]`.

    Attributes:
        name: `adamw`; `adamw8bit`, AdamW whose moments take a byte each; `muon`, for the matrices
            of the blocks, with AdamW for the rest; or the path of a class, as `torch.optim.SGD`.
        options: Further arguments of Muon, or of the class; not its learning rate.
        whole_matrices: Each parameter is updated whole by one rank, for classes that look at more
            than one element at a time. Muon does so in any case.
        lr: Highest learning rate.
        betas: Decay of AdamW's two moments.
        eps: Added to the root of AdamW's second moment.
        weight_decay: Decoupled weight decay of AdamW and Muon.
        decay_1d: Whether parameters of one dimension (biases, scales of norms) decay too.
        schedule: What the learning rate does after the warm-up, up to `run.steps`: stays, falls
            along a cosine or a line, or stays until its last `decay_steps` steps (`wsd`).
        warmup_steps: Steps in which the learning rate rises linearly from 0.
        decay_steps: Last steps of the run, in which `wsd` falls.
        min_lr_share: Share of `lr` to which the schedule falls.
        max_grad_norm: Gradients are scaled down to this global norm; 0 switches clipping off.
        ema_decay: Decay of the moving average of the weights; 0 keeps none.
        gradients: Type of the buffer that launches add their gradients to, or that it lies in the
            host's memory.
    """

    name: str = "adamw"
    options: dict[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    whole_matrices: bool = False
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01
    decay_1d: bool = True
    schedule: Literal["constant", "cosine", "linear", "wsd"] = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    min_lr_share: float = 0.0
    max_grad_norm: float = 1.0
    ema_decay: float = 0.0
    gradients: Literal["float32", "bfloat16", "host"] = "float32"

    def __post_init__(self) -> None:
        at_least(
            "optimizer",
            0,
            lr=self.lr,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps,
            max_grad_norm=self.max_grad_norm,
        )
        at_least("optimizer", 1e-20, eps=self.eps)  # what has no gradient yet would be 0 / 0
        share("optimizer", min_lr_share=self.min_lr_share)
        for beta in self.betas:
            if not 0.0 <= beta < 1.0:
                raise ConfigError(f"optimizer.betas holds {beta}; each must be in [0, 1)")
        if not 0.0 <= self.ema_decay < 1.0:
            raise ConfigError(f"optimizer.ema_decay is {self.ema_decay}; it must be in [0, 1)")
        if (self.schedule == "wsd") != (self.decay_steps > 0):
            raise ConfigError(
                f"optimizer.decay_steps is {self.decay_steps} with schedule {self.schedule!r}; "
                "give schedule 'wsd' the number of its last, falling steps, and others none"
            )
        if self.min_lr_share and self.schedule == "constant":
            raise ConfigError(
                f"optimizer.min_lr_share is {self.min_lr_share}, but schedule 'constant' never "
                "falls; leave it out, or choose another optimizer.schedule"
            )
        self._check_name()

    def _check_name(self) -> None:
        is_class = "." in self.name
        if not is_class and self.name not in _NAMES:
            raise ConfigError(
                f"optimizer.name is {self.name!r}; {choice_text(self.name, _NAMES)}, or the path "
                "of a class, such as 'torch.optim.SGD'"
            )
        if self.options and self.name in ("adamw", "adamw8bit"):
            raise ConfigError(
                f"optimizer.options are for Muon and for classes; {self.name!r} has its own "
                "settings: betas, eps, weight_decay"
            )
        if "lr" in self.options:
            raise ConfigError("optimizer.options holds 'lr'; write it as optimizer.lr")
        if self.whole_matrices and not is_class:
            raise ConfigError(
                "optimizer.whole_matrices is for classes that are named by their path; "
                f"{self.name!r} knows by itself what it needs"
            )
        for known in fields(self) if is_class else ():
            if known.name in _ADAMW and getattr(self, known.name) != known.default:
                raise ConfigError(
                    f"optimizer.{known.name} does not reach {self.name}; write what the class "
                    "needs in optimizer.options"
                )

    @property
    def is_adamw_or_muon(self) -> bool:
        """Whether it is none of the classes that are named by their path."""
        return self.name in _NAMES

    @property
    def needs_bitsandbytes(self) -> bool:
        """Whether its moments are kept by that package."""
        return self.name == "adamw8bit"

    def check_steps(self, num_steps: int) -> None:
        """Refuse a schedule that does not fit into the steps of the run.

        Raises:
            ConfigError: Its warm-up and its decay are longer together.
        """
        if self.warmup_steps + self.decay_steps > num_steps and self.schedule != "constant":
            raise ConfigError(
                f"run.steps is {num_steps}, but optimizer.warmup_steps and decay_steps are "
                f"{self.warmup_steps} + {self.decay_steps}; shorten them, or train longer"
            )
