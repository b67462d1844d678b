"""Which parameters of a model a run trains, by the patterns of `model.freeze` and `train_only`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from arachne.core.errors import ConfigError
from arachne.cost.trained_part import BlockPart, TrainedPart
from arachne.models.families import transformer_named
from arachne.trainer.planning_shape import planning_shape

if TYPE_CHECKING:
    from torch import nn

    from arachne.core.sequence_layout import SequenceLayout
    from arachne.trainer.settings.model import ModelSettings

_AFTER_BLOCKS = ("proj_out", "norm_out", "norm_final", "scale_shift_table")
"""What runs after the last block, in all of diffusers' classes that are built here. Everything else
outside of the blocks runs before them, or is taken to."""


def choose_trained(module: nn.Module, settings: ModelSettings) -> None:
    """Freeze what the run's patterns freeze, and what its family never trains.

    Raises:
        ConfigError: A pattern is no parameter's name, or nothing is left to train.
    """
    names = [name for name, _ in module.named_parameters()]
    for setting in ("freeze", "train_only"):
        for pattern in getattr(settings, setting):
            if not _matching(names, [pattern]):
                nearest = get_close_matches(pattern, names, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"model.{setting} holds {pattern!r}, which is no parameter's name; "
                    f"did you mean {nearest!r}? * stands for anything"
                )
    trained = _matching(names, settings.train_only or ["*"]) - _matching(names, settings.freeze)
    trained -= _matching(names, transformer_named(settings.family).frozen)
    if not trained:
        raise ConfigError(
            "model.freeze and model.train_only leave no parameter to train; freeze less"
        )
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)


def trained_part(module: nn.Module, layout: SequenceLayout) -> TrainedPart:
    """The part of a model that `choose_trained` left to train."""
    trained = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    blocks = [name for name, _ in module.named_modules() if re.fullmatch(layout.blocks, name)]
    in_block = [any(name.startswith(f"{block}.") for name in trained) for block in blocks]
    ends = [name for name in trained if not name.startswith(tuple(f"{b}." for b in blocks))]
    first = next((index for index, is_trained in enumerate(in_block) if is_trained), len(blocks))
    if any(name.split(".")[0] not in _AFTER_BLOCKS for name in ends):
        first = 0

    def part_of(index: int) -> BlockPart:
        if in_block[index]:
            return "trained"
        return "passed" if index < first else "frozen"

    return TrainedPart(
        num_parameters=sum(trained.values()),
        blocks=tuple(part_of(index) for index in range(len(blocks))),
    )


def planned_part(settings: ModelSettings) -> TrainedPart | None:
    """The part that a run will train, without its weights; None if it freezes nothing itself.

    Names are those of diffusers' class, so that this, alone in planning, needs torch.

    Raises:
        ConfigError: As `planning_shape` and `choose_trained`.
    """
    if not settings.is_partly_frozen:
        return None
    import torch

    from arachne.models.diffusers_module import diffusers_class

    family = transformer_named(settings.family)
    with torch.device("meta"):
        module = diffusers_class(family)(**family.options(planning_shape(settings)))
    choose_trained(module, settings)
    return trained_part(module, family.layout)


def _matching(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
