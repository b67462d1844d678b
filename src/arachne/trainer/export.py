"""Weights of a checkpoint as files that other programs load, read back before they count."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from arachne.core.errors import ConfigError, DataError
from arachne.models.diffusers_module import VideoTransformer, load_transformer
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.models.wan_names import published_name
from arachne.trainer.checkpoint import CheckpointReader
from arachne.trainer.config import RunConfig
from arachne.trainer.generate import trained_model
from arachne.trainer.session import DTYPES

ExportFormat = Literal["diffusers", "comfyui"]

COMFYUI_NAME = "diffusion_model.safetensors"
_PARTIAL = ".partial"


def export(
    config: RunConfig,
    checkpoint: Path,
    folder: Path,
    *,
    to: ExportFormat,
    dtype: str,
    max_shard: str = "5GB",
) -> tuple[Path, ...]:
    """Write a checkpoint's master weights into a new `folder`; its files.

    `diffusers` writes `transformer/` with `config.json` and safetensors, sharded with an index
    where it is larger than `max_shard`; `comfyui` one file with the published names. What was
    written is loaded again and compared, bit for bit, before the folder gets its name.

    Raises:
        ConfigError: The folder is not empty, or cannot be written, or the format does not know
            the model's family.
        CheckpointError: The checkpoint is of another model.
        DataError: What was written does not load, or is not what was to be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} exists and is not empty; name a new folder")
    settings = config.model
    if to == "comfyui" and settings.family != "wan":
        raise ConfigError(
            f"--to comfyui knows Wan's published names only, and this run trains a "
            f"{settings.family!r}; export --to diffusers"
        )
    master_dtype = "float64" if settings.dtype == "float64" else "float32"
    model = trained_model(
        replace(config, model=replace(settings, dtype=master_dtype)),
        checkpoint,
        video_encoder_named(settings.video_encoder, family=settings.family),
        text_encoder_named(settings.text_encoder, settings.num_text_tokens),
    )
    weights = {
        name: parameter.detach().to(DTYPES[dtype])
        for name, parameter in model.module.named_parameters()
    }
    partial = folder.with_name(folder.name + _PARTIAL)
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        _WRITERS[to](model, weights, partial, max_shard)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; choose another folder"
        ) from error
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _write_diffusers(
    model: VideoTransformer, weights: Mapping[str, Tensor], folder: Path, max_shard: str
) -> None:
    module: Any = model.module
    for name, parameter in module.named_parameters():
        parameter.data = weights[name]
    transformer = folder / "transformer"
    module.save_pretrained(str(transformer), max_shard_size=max_shard)
    dtype = next(iter(weights.values())).dtype
    loaded = load_transformer(model.family.name, transformer, dtype=dtype)
    _compare(dict(loaded.module.named_parameters()), weights, transformer)


def _write_comfyui(
    model: VideoTransformer, weights: Mapping[str, Tensor], folder: Path, max_shard: str
) -> None:
    published = {published_name(name): tensor.contiguous() for name, tensor in weights.items()}
    path = folder / COMFYUI_NAME
    try:
        save_file(published, path)
        loaded = load_file(path)
    except SafetensorError as error:
        raise DataError(f"{str(path)!r} cannot be written: {error}") from error
    _compare(loaded, published, path)


_Writer = Callable[[VideoTransformer, Mapping[str, Tensor], Path, str], None]

_WRITERS: dict[ExportFormat, _Writer] = {
    "diffusers": _write_diffusers,
    "comfyui": _write_comfyui,
}


def _compare(found: Mapping[str, Tensor], needed: Mapping[str, Tensor], path: Path) -> None:
    for name in sorted(set(found) | set(needed)):
        if name not in found or name not in needed or not torch.equal(found[name], needed[name]):
            raise DataError(
                f"{str(path)!r} was written but reads back with another {name!r}; the disk may be "
                "faulty, export again"
            )


def num_parameters(checkpoint: Path) -> int:
    """Parameters of a checkpoint."""
    return sum(prod(shape) for shape in CheckpointReader(checkpoint).parameters.values())
