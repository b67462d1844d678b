"""The section `[objective]` of a run file."""

from dataclasses import dataclass, fields
from math import exp, inf, isfinite, log, pi
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.core.families.family import ObjectiveKind
from arachne.trainer.settings.checks import at_least, share

Sampling = Literal["uniform", "logit_normal", "mode"]

_LOGIT = ("auto", "logit_normal")
"""Samplings that may use the logit's mean and deviation."""

LEAST_SHIFT, MOST_SHIFT = 1e-3, 1e3
"""At either, half of all levels are within a thousandth of one end. *Assumption*: it is enough."""

_LEAST_STD, _MOST_STD = 1e-3, 1e3
"""Of the logit: below, all clips train at one level; above, at none between. *Assumption.*"""

_MOST_MODE_SCALE = 2.0 / (pi - 2.0)
"""Above it, and below -1, the map from uniform numbers to levels is not monotonic (SD3, 3.1)."""

_ONLY = {
    "flow_matching": ("shift", "max_shift", "shift_tokens", "shift_exponents"),
    "ddpm": ("prediction", "snr_shift", "zero_terminal_snr", "min_snr_gamma"),
}
"""Settings that one kind of objective has and the other does not."""

_CHANGES_NOTHING = {"snr_shift": 1.0}
"""Values besides the default that ask for nothing; older runs hold this one."""

_WEIGHTINGS_OF = {
    "flow_matching": ("none", "logit_normal", "cosmap", "sigma_sqrt"),
    "ddpm": ("none", "min_snr"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSettings:
    """`[objective]`: what the model learns to predict, at which noise levels.

    Attributes:
        kind: `flow_matching` or `ddpm`; `auto` is the one that the family was trained on.
        timestep_sampling: Distribution of the noise level before the shift; `auto` is
            `logit_normal` for flow matching and `uniform` for DDPM.
        stratified: Whether a step's clips share the noise levels evenly: each takes one of as many
            equal parts of the distribution as there are clips.
        logit_mean, logit_std: Of the normal number whose sigmoid is a `logit_normal` level.
        mode_scale: How far `mode` prefers the middle levels; 0 is uniform.
        timestep_range: Lowest and highest noise level (after the shift) that is trained.
        shift: Flow shift: sigma becomes shift·sigma / (1 + (shift − 1)·sigma); `auto` follows each
            clip's own number of tokens.
        max_shift: Highest shift of `auto`.
        shift_tokens, shift_exponents: The line of `auto`: the shift's logarithm at two numbers of
            tokens.
        prediction: What a DDPM model predicts.
        snr_shift: What DDPM's signal-to-noise ratios are divided by; `auto` is what those of the
            family's published models were.
        zero_terminal_snr: Whether DDPM's last timestep is pure noise.
        loss_weighting: What a noise level counts in the loss.
        min_snr_gamma: Highest signal-to-noise ratio that `min_snr` counts.
        caption_dropout: Share of clips that train without their caption.
        weighting: What a clip counts in the loss: each `clip` the same, or by its `token`s.
    """

    kind: Literal["auto", "flow_matching", "ddpm"] = "auto"
    timestep_sampling: Literal["auto", "uniform", "logit_normal", "mode"] = "auto"
    stratified: bool = False
    logit_mean: float = 0.0
    logit_std: float = 1.0
    mode_scale: float = 1.29
    timestep_range: tuple[float, float] = (0.0, 1.0)
    shift: float | Literal["auto"] = 3.0
    max_shift: float = 5.0
    shift_tokens: tuple[int, int] = (256, 4096)
    shift_exponents: tuple[float, float] = (0.5, 1.15)
    prediction: Literal["v", "noise", "clean"] = "v"
    snr_shift: float | Literal["auto"] = "auto"
    zero_terminal_snr: bool = True
    loss_weighting: Literal["none", "logit_normal", "cosmap", "sigma_sqrt", "min_snr"] = "none"
    min_snr_gamma: float = 5.0
    caption_dropout: float = 0.1
    weighting: Literal["clip", "token"] = "clip"

    def __post_init__(self) -> None:
        share("objective", caption_dropout=self.caption_dropout)
        if self.shift != "auto":
            _above_zero(shift=self.shift)
            at_least("objective", LEAST_SHIFT, most=MOST_SHIFT, shift=self.shift)
        if self.snr_shift != "auto":
            _above_zero(snr_shift=self.snr_shift)
            at_least("objective", LEAST_SHIFT, most=MOST_SHIFT, snr_shift=self.snr_shift)
        _above_zero(
            max_shift=self.max_shift,
            logit_std=self.logit_std,
            min_snr_gamma=self.min_snr_gamma,
        )
        at_least("objective", LEAST_SHIFT, most=MOST_SHIFT, max_shift=self.max_shift)
        at_least("objective", _LEAST_STD, most=_MOST_STD, logit_std=self.logit_std)
        at_least("objective", -1.0, most=_MOST_MODE_SCALE, mode_scale=self.mode_scale)
        at_least("objective", -100.0, most=100.0, logit_mean=self.logit_mean)
        low, high = self.timestep_range
        if not 0.0 <= low < high <= 1.0:
            raise ConfigError(
                f"objective.timestep_range is [{low}, {high}]; name the lower noise level first, "
                "both between 0 (clean) and 1 (noise)"
            )
        first, last = self.shift_tokens
        if not 1 <= first < last or not all(isfinite(value) for value in self.shift_exponents):
            raise ConfigError(
                f"objective.shift_tokens is [{first}, {last}] and shift_exponents is "
                f"{list(self.shift_exponents)}; name two finite exponents, at rising numbers of "
                "tokens of at least 1"
            )
        for exponent in self.shift_exponents:
            at_least("objective", log(LEAST_SHIFT), most=log(MOST_SHIFT), shift_exponents=exponent)
        low_shift, high_shift = (exp(value) for value in self.shift_exponents)
        if self.shift == "auto" and not low_shift <= min(high_shift, self.max_shift):
            raise ConfigError(
                f"objective.shift 'auto' begins at {low_shift:.3g} for few tokens, above its end "
                f"({high_shift:.3g}) or objective.max_shift ({self.max_shift:g}); name rising "
                "shift_exponents and a higher max_shift, or a number as shift"
            )
        self._refuse_ignored()

    def _refuse_ignored(self) -> None:
        """Refuse settings of a distribution or shift that is not chosen."""
        sampling = self.timestep_sampling
        has_logit = sampling in _LOGIT or self.loss_weighting == "logit_normal"
        for name, is_used, needed in (
            ("mode_scale", sampling == "mode", "timestep_sampling = 'mode'"),
            ("logit_mean", has_logit, "timestep_sampling = 'logit_normal'"),
            ("logit_std", has_logit, "timestep_sampling = 'logit_normal'"),
            ("max_shift", self.shift == "auto", "shift = 'auto'"),
            ("shift_tokens", self.shift == "auto", "shift = 'auto'"),
            ("shift_exponents", self.shift == "auto", "shift = 'auto'"),
        ):
            if not is_used and getattr(self, name) != _default_of(name):
                raise ConfigError(
                    f"objective.{name} does nothing here; leave it out, or set objective.{needed}"
                )

    def sampling(self, kind: ObjectiveKind) -> Sampling:
        """The distribution of noise levels for a kind of objective."""
        if self.timestep_sampling != "auto":
            return self.timestep_sampling
        return "logit_normal" if kind == "flow_matching" else "uniform"

    def check(self, kind: ObjectiveKind) -> None:
        """Refuse settings that this kind of objective would ignore, or cannot have together.

        Raises:
            ConfigError: Names the setting.
        """
        for other, names in _ONLY.items():
            for name in names:
                unset = (_default_of(name), _CHANGES_NOTHING.get(name))
                if other != kind and getattr(self, name) not in unset:
                    raise ConfigError(
                        f"objective.{name} is a setting of {other}, and this run trains {kind}; "
                        f"leave it out, or set objective.kind = {other!r}"
                    )
        if self.prediction == "noise" and self.zero_terminal_snr:
            raise ConfigError(
                "objective.prediction 'noise' says nothing of the clip at a last timestep of pure "
                "noise; set objective.zero_terminal_snr = false, or predict 'v'"
            )
        if self.loss_weighting not in _WEIGHTINGS_OF[kind]:
            raise ConfigError(
                f"objective.loss_weighting {self.loss_weighting!r} does not go with {kind}; choose "
                f"{' or '.join(repr(name) for name in _WEIGHTINGS_OF[kind])}"
            )


def _default_of(name: str) -> object:
    return next(field.default for field in fields(ObjectiveSettings) if field.name == name)


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < inf:
            raise ConfigError(
                f"objective.{name} is {value}; it must be above 0"
                + (", and finite" if value == inf else "")
            )
