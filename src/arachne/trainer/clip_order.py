"""In which order a run trains its clips, and how many of them are one step. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import ceil

from arachne.core.errors import ConfigError
from arachne.core.ledger import LedgerRow
from arachne.core.model_shape import ModelShape
from arachne.core.units import count_text, number_text
from arachne.cost.flops import training_flops
from arachne.data.sampler import ClipStream, Draw, Group, step_draws
from arachne.trainer.config import RunConfig
from arachne.trainer.settings.batch import BatchSettings, Unit
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.dataset import MOST_REPEATS

_FLOPS_UNIT = 10**6
"""Sizes are whole numbers, so that no machine rounds them otherwise: FLOPs count in MFLOPs."""

_FINEST = 1000
"""Repeats count in fractions whose denominators are at most this."""

_COUNTLESS = 10**15

_PER_TFLOP = 10**12 // _FLOPS_UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipOrder:
    """A run's stream of clips, cut into steps.

    Attributes:
        seed: Of the order.
        stream: Of items, with the sizes that steps are measured in.
        step_size: Of a step, likewise.
        unused: Datasets of which no clip trains.
    """

    seed: int
    stream: ClipStream
    step_size: int
    unused: tuple[str, ...] = ()

    def draws(self, step: int) -> tuple[Draw, ...]:
        """The clips of a step."""
        return step_draws(self.stream, self.seed, step, self.step_size)

    @property
    def steps_per_epoch(self) -> Fraction:
        """Steps until every clip came up as often as it should, in the mean over epochs."""
        return self.stream.epoch_size / self.step_size

    @property
    def clips_per_step(self) -> Fraction:
        """In the mean over steps."""
        return self.stream.items_per_epoch / self.steps_per_epoch

    def text(self, num_steps: int) -> str:
        """How epochs and a run's steps go together, in words."""
        clips, steps = float(self.stream.items_per_epoch), float(self.steps_per_epoch)
        plural = "step" if steps == 1.0 else "steps"
        without = f"; no clip of {' and '.join(map(repr, self.unused))} trains"
        return (
            f"one epoch is {clips:.4g} clips in {steps:.4g} {plural}; the run's {num_steps:,} are "
            f"{num_steps / steps:.3g} epochs{without if self.unused else ''}"
        )


def clip_order(
    rows: Sequence[LedgerRow], config: RunConfig, model: ModelShape, *, shape_settings: str = ""
) -> ClipOrder:
    """The order of a run's training clips, and its steps.

    Args:
        rows: The clips.
        config: The run.
        model: What is trained.
        shape_settings: What a user lowers for smaller clips; empty is the run's settings.

    Raises:
        ConfigError: A clip is larger than a step is to be.
    """
    unit = config.batch.unit
    groups = _groups(rows, config.data)
    sizes = None
    if unit != "clips":
        size_of = {tokens: _size(tokens, unit, model) for tokens in {r.num_tokens for r in rows}}
        sizes = [size_of[row.num_tokens] for row in rows]
    order = ClipOrder(
        seed=config.run.seed,
        stream=ClipStream(groups, sizes),
        step_size=_step_size(config.batch),
        unused=_unused(rows, config.data),
    )
    if rows and sizes is not None:
        lowered = shape_settings or f"data.resolution or {config.data.length_setting}"
        _check_largest(rows, order, config.batch, lowered)
    return order


def _groups(rows: Sequence[LedgerRow], data: DataSettings) -> list[Group]:
    """The datasets that the clips are of, in their order, with the repeats that their settings say.

    With weights w of datasets of n clips each, a clip comes up w / n times, over the least such
    number of all datasets.
    """
    settings: dict[str, tuple[float, float]] = {"": (data.repeats, data.weight)}
    settings |= {other.label: (other.repeats, other.weight) for other in data.others}
    counts = [(name, len(list(of_it))) for name, of_it in groupby(r.clip.dataset for r in rows)]
    if not data.weight:
        shares = [Fraction(settings[name][0]) for name, _ in counts]
    else:
        # As it is written: what a float makes of 0.3 is a little more.
        raw = [Fraction(repr(float(settings[name][1]))) / count for name, count in counts]
        shares = [share / min(raw) for share in raw]
        for (name, count), share in zip(counts, shares, strict=True):
            if share > MOST_REPEATS:
                times = f"{float(share):,.0f}" if share < _COUNTLESS else "countless"
                raise ConfigError(
                    f"the weights have each of the {count_text(count, 'clip')} of "
                    f"{name or data.path!r} come up {times} times in an epoch; the "
                    f"most is {MOST_REPEATS:,.0f}: lower its weight, or add clips"
                )
    return [
        Group(num_items=count, repeats=share.limit_denominator(_FINEST))
        for (_, count), share in zip(counts, shares, strict=True)
    ]


def _unused(rows: Sequence[LedgerRow], data: DataSettings) -> tuple[str, ...]:
    """The datasets of a run that none of its training clips is of."""
    used = {row.clip.dataset for row in rows}
    named = {"": data.path} | {other.label: other.label for other in data.others}
    return tuple(text for name, text in named.items() if name not in used)


def _size(num_tokens: int, unit: Unit, model: ModelShape) -> int:
    """What a clip takes up of a step that is measured in a unit other than clips."""
    if unit == "tokens":
        return num_tokens
    return max(1, round(training_flops(model, num_tokens) / _FLOPS_UNIT))


def _step_size(batch: BatchSettings) -> int:
    """A step, in the units of its clips' sizes."""
    if batch.unit == "tflops":
        return max(1, round(batch.tflops * _PER_TFLOP))
    return batch.clips or batch.tokens


def _check_largest(
    rows: Sequence[LedgerRow], order: ClipOrder, batch: BatchSettings, shape_settings: str
) -> None:
    """Refuse steps that some clip alone overfills: others would then be empty."""
    sizes = order.stream.sizes
    item = int(sizes.argmax())
    largest = int(sizes[item])
    if largest <= order.step_size:
        return
    row = rows[item]
    if batch.unit == "tokens":
        found, least = f"{largest:,} tokens", f"{largest}"
    else:
        least = number_text(ceil(largest / _PER_TFLOP * 1000) / 1000)
        found = f"{least} TFLOPs to train"
    raise ConfigError(
        f"batch.{batch.unit} is {number_text(getattr(batch, batch.unit))}, but clip "
        f"{row.clip.name!r} ({row.bucket}) alone has {found}; set batch.{batch.unit} to at least "
        f"{least}, or lower {shape_settings}"
    )
