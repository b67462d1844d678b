"""Which weights lie under what a run trains: a checkpoint holds only what was trained.

A run that freezes parameters, or trains adapters beside them, needs the same frozen ones again to
resume, sample and export. They are identified by the bytes of the pretrained files, or by the seed
that drew them.
"""

import hashlib
from pathlib import Path

import torch
from torch import nn

from arachne.core.errors import CheckpointError, ConfigError
from arachne.models.diffusers_module import transformer_folder
from arachne.models.pretrained_folder import content_digest
from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup
from arachne.trainer.checkpoint_reader import CheckpointReader
from arachne.trainer.config import RunConfig


def frozen_base(config: RunConfig, module: nn.Module) -> str:
    """What the frozen parameters of a run's model are; empty if every parameter is trained.

    Reads all pretrained weights once more, at 1-2 GB/s.
    """
    if all(parameter.requires_grad for parameter in module.parameters()):
        return ""
    if config.model.pretrained:
        return f"files {_digest(Path(config.model.pretrained))}"
    return f"random weights of seed {config.run.seed}"


def _digest(pretrained: Path) -> str:
    """Of a file's bytes, or of everything in a transformer's folder."""
    if not pretrained.is_file():
        return content_digest(transformer_folder(pretrained))
    with pretrained.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def agree_on_base(base: str, group: RankGroup, device: torch.device) -> None:
    """Refuse ranks that hold different frozen parameters; all ranks call it together.

    Raises:
        ConfigError: On every rank, if two ranks read different files.
    """
    if not base.startswith("files "):
        return
    digest = int(base.removeprefix("files ")[:15], 16)
    ballot = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    collectives.all_reduce_max(ballot, group)
    highest, minus_lowest = ballot.tolist()
    if highest != -minus_lowest:
        raise ConfigError(
            "model.pretrained holds different files on different machines, and frozen weights must "
            "be the same everywhere; copy one folder to all of them"
        )


def check_same_base(reader: CheckpointReader, base: str, config: RunConfig) -> None:
    """Refuse a checkpoint whose parameters were trained on other frozen ones.

    Raises:
        CheckpointError: Names both.
    """
    found = reader.state.base
    if found != base:
        raise CheckpointError(
            f"the checkpoint of step {reader.state.step} was trained on "
            f"{found or 'nothing frozen'}, but the frozen weights are now {base or 'none'}; "
            "name the very files that it was trained on as model.pretrained (now "
            f"{config.model.pretrained!r}), and set model.freeze, model.train_only, [lora] and "
            "run.seed as they were"
        )
