"""Strategies against each other: what `comparison.json` holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arachne.core.errors import DataError
from arachne.core.strict_json import from_json

REFERENCE = "arachne"
"""The strategy that ratios are taken against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One strategy's figures; None where it was not measured or not modelled."""

    name: str
    step_s: float | None = None
    modelled_step_s: float | None = None
    idle_ratio: float | None = None

    @property
    def best_known_s(self) -> float | None:
        """Measured step time, or the modelled one where nothing was measured."""
        return self.modelled_step_s if self.step_s is None else self.step_s

    def ratio_to(self, reference: "Strategy | None") -> float | None:
        """How many times longer than `reference` a step takes; like is compared with like."""
        if reference is None:
            return None
        for own, other in (
            (self.step_s, reference.step_s),
            (self.modelled_step_s, reference.modelled_step_s),
        ):
            if own is not None and other:
                return own / other
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparisonFile:
    """Figures by strategy."""

    step_s: dict[str, float] = field(default_factory=dict[str, float])
    modelled_step_s: dict[str, float] = field(default_factory=dict[str, float])
    idle_ratio: dict[str, float] = field(default_factory=dict[str, float])


def strategies_from(
    *,
    step_s: Mapping[str, float] | None = None,
    modelled_step_s: Mapping[str, float] | None = None,
    idle_ratio: Mapping[str, float] | None = None,
) -> tuple[Strategy, ...]:
    """Join figures by name, fastest first."""
    step_s, modelled_step_s = step_s or {}, modelled_step_s or {}
    idle_ratio = idle_ratio or {}
    names = dict.fromkeys([*step_s, *modelled_step_s, *idle_ratio])
    found = [
        Strategy(
            name=name,
            step_s=step_s.get(name),
            modelled_step_s=modelled_step_s.get(name),
            idle_ratio=idle_ratio.get(name),
        )
        for name in names
    ]
    return tuple(sorted(found, key=lambda s: (s.best_known_s or float("inf"), s.name)))


def reference_of(strategies: tuple[Strategy, ...]) -> Strategy | None:
    """Arachne's own row, if it took part."""
    return next((s for s in strategies if s.name == REFERENCE), None)


def read_comparison(path: Path) -> tuple[Strategy, ...]:
    """The strategies of a `comparison.json`; none if there is no such file.

    Raises:
        DataError: The file has another shape.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    found = from_json(text, _ComparisonFile, what=str(path))
    return strategies_from(
        step_s=found.step_s, modelled_step_s=found.modelled_step_s, idle_ratio=found.idle_ratio
    )
