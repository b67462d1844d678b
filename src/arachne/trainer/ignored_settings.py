"""Settings of a run file that do nothing beside others: said in one line each, not refused.

Whoever switches something off by one setting, `--set validation.sample_every=0`, need not take out
what says more of it. What contradicts another setting is refused by its section.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from arachne.models.lora_names import PUBLISHED
from arachne.models.published_file import is_published_file
from arachne.trainer.config import RunConfig
from arachne.trainer.settings.model import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ignored:
    """Settings of a section, in which runs they do nothing, and what changes that."""

    section: str
    names: tuple[str, ...]
    is_in: Callable[[RunConfig], bool]
    fix: str


_IGNORED = (
    _Ignored(
        section="validation",
        names=("prompts", "sample_shape", "sample_steps", "guidance"),
        is_in=lambda run: not run.validation.sample_every,
        fix="set validation.sample_every to the steps between two drawings",
    ),
    _Ignored(
        section="validation",
        names=("noises", "clips"),
        is_in=lambda run: not run.validation.every,
        fix="set validation.every to the steps between two validations",
    ),
    _Ignored(
        section="data",
        names=("cache_online",),
        is_in=lambda run: run.data.encode == "before",
        fix="set data.encode = 'online'",
    ),
    _Ignored(
        section="planner",
        names=("fill",),
        is_in=lambda run: run.data.encode == "before",
        fix="set data.encode = 'online'",
    ),
    _Ignored(
        section="data",
        names=("frame_buckets",),
        is_in=lambda run: run.data.frame_extraction == "full",
        fix="set another data.frame_extraction than 'full', which takes data.max_frames",
    ),
    _Ignored(
        section="planner",
        names=("iterations",),
        is_in=lambda run: run.planner.budget_s > 0.0,
        fix="set planner.budget_s to 0",
    ),
    _Ignored(
        section="lora",
        names=("targets",),
        is_in=lambda run: not run.lora.is_on,
        fix="set lora.rank",
    ),
    _Ignored(
        section="checkpoint",
        names=("keep_every",),
        is_in=lambda run: run.checkpoint.keep == 0,
        fix="set checkpoint.keep above 0, which keeps all",
    ),
    _Ignored(
        section="optimizer",
        names=("decay_1d",),
        is_in=lambda run: run.optimizer.is_adamw_or_muon and run.optimizer.weight_decay == 0.0,
        fix="set optimizer.weight_decay",
    ),
    _Ignored(
        section="model",
        names=("num_layers", "num_heads", "head_size", "ffn_size"),
        is_in=lambda run: _is_pretrained(run.model) and not _is_wan_file(run.model),
        fix="leave out model.pretrained, which brings its own",
    ),
    _Ignored(
        section="model",
        names=("num_layers", "num_heads", "ffn_size"),
        is_in=lambda run: _is_wan_file(run.model),
        fix="leave out model.pretrained, which brings its own",
    ),
)


def ignored_settings(config: RunConfig) -> tuple[str, ...]:
    """A line for each group of settings with other values than their defaults that the rest of the
    run ignores.
    """
    lines: list[str] = []
    for ignored in _IGNORED:
        section: Any = getattr(config, ignored.section)
        names = [n for n in ignored.names if getattr(section, n) != _default_of(section, n)]
        if names and ignored.is_in(config):
            settings = " and ".join(f"{ignored.section}.{name}" for name in names)
            does, it = ("does", "it") if len(names) == 1 else ("do", "them")
            lines.append(f"{settings} {does} nothing here; leave {it} out, or {ignored.fix}")
    return tuple(lines)


def _is_pretrained(model: ModelSettings) -> bool:
    """Whether weights with sizes of their own are here; planning does without them."""
    return bool(model.pretrained) and Path(model.pretrained).exists()


def _is_wan_file(model: ModelSettings) -> bool:
    """Whether the weights are a file whose tensors do not tell the width of a head."""
    return model.family in PUBLISHED and is_published_file(model.pretrained)


def _default_of(section: Any, name: str) -> object:
    return next(field.default for field in fields(section) if field.name == name)
