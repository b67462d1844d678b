"""Weights of a checkpoint as files that other programs load, read back before they count."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from shutil import copymode
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from arachne.core.errors import ConfigError, DataError
from arachne.core.refused_write import refusal, refusal_of_library
from arachne.models.diffusers_module import VideoTransformer, load_transformer
from arachne.models.lora import adapted_layers, merge_adapters
from arachne.models.lora_files import save_comfyui_lora, save_diffusers_lora
from arachne.models.lora_names import PUBLISHED
from arachne.models.wan_names import published_name
from arachne.trainer.built_model import DTYPES, adapter_options
from arachne.trainer.checkpoint_files import delete
from arachne.trainer.checkpoint_reader import CheckpointReader
from arachne.trainer.config import RunConfig
from arachne.trainer.export_check import LoraCheck, check_output, probe_output
from arachne.trainer.generate import Weights, trained_model
from arachne.trainer.model_card import model_card
from arachne.trainer.run_encoders import run_text_encoder, run_video_encoder

ExportFormat = Literal["diffusers", "comfyui"]

What = Literal["weights", "lora", "merged"]
"""`weights`: of a run without adapters; `lora`: adapters alone; `merged`: weights with adapters."""

COMFYUI_NAME = "diffusion_model.safetensors"
CARD_NAME = "README.md"
_PARTIAL = ".arachne-export"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How a checkpoint is written.

    Attributes:
        to: Whose names and files.
        what: Adapters or weights; None takes adapters where the run trains some.
        dtype: Of the tensors.
        weights: As they were trained, or their moving average.
        max_shard: Largest file of diffusers' weights.
    """

    to: ExportFormat
    what: Literal["lora", "merged"] | None = None
    dtype: str = "float32"
    weights: Weights = "raw"
    max_shard: str = "5GB"


def export(
    config: RunConfig, checkpoint: Path, folder: Path, options: ExportOptions
) -> tuple[Path, ...]:
    """Write a checkpoint's master weights into a new `folder`; its files.

    Weights for `diffusers` are `transformer/` with `config.json` and safetensors, sharded with an
    index where they are larger than `max_shard`; for `comfyui` one file with the published names.
    A LoRA is one file in either naming. What was written is loaded again, by diffusers' own loaders
    where they know the format, and compared: weights bit for bit, and the model's output. Only then
    the folder, with a card of the run's facts, gets its name.

    Raises:
        ConfigError: The folder is not empty, or cannot be written, or the format does not know
            the model's family, or the run has no adapters.
        CheckpointError: The checkpoint is of another model.
        DataError: What was written does not load, or is not what was to be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} exists and is not empty; name a new folder")
    what = _checked_what(config, options)
    model = _model_in_full_precision(config, checkpoint, options.weights)
    card = model_card(
        config,
        CheckpointReader(checkpoint).state,
        what=what,
        to=options.to,
        dtype=options.dtype,
        weights=options.weights,
        num_trained=num_parameters(checkpoint),
    )
    partial = folder.with_name(f".{folder.name}{_PARTIAL}")
    try:
        delete(partial)
        partial.mkdir(parents=True)
        if what == "lora":
            _write_lora(config, model, partial, options)
        else:
            _write_weights(model, partial, options)
        (partial / CARD_NAME).write_text(card, encoding="utf-8")
        for path in filter(Path.is_file, partial.rglob("*")):
            copymode(partial / CARD_NAME, path)  # safetensors' writer has others read nothing
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"{str(folder)!r} cannot be written: {refusal(error)}; choose another folder"
        ) from error
    except SafetensorError as error:  # a full disk, as safetensors tells it
        raise ConfigError(
            f"{str(folder)!r} cannot be written: {refusal_of_library(error)}; free some space, or "
            "choose another folder"
        ) from error
    finally:
        with suppress(OSError):
            delete(partial)  # gone already if all went well
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _checked_what(config: RunConfig, options: ExportOptions) -> What:
    """What is written; refuses what cannot be."""
    family, lora = config.model.family, config.lora
    if options.to == "comfyui" and family not in PUBLISHED:
        raise ConfigError(
            f"--to comfyui knows the published names of {' and '.join(PUBLISHED)}, and this run "
            f"trains a {family!r}; export --to diffusers"
        )
    if options.what == "lora" and not lora.is_on:
        raise ConfigError(
            "--what lora, but this run trained no adapters (lora.rank is 0); leave --what out"
        )
    if not lora.is_on:
        return "weights"
    what = options.what or "lora"
    if what == "lora" and options.to == "comfyui" and lora.use_dora:
        raise ConfigError(
            "--to comfyui cannot hold the magnitudes of lora.use_dora; export --what merged, or "
            "--to diffusers"
        )
    return what


def master_dtype(config: RunConfig) -> Literal["float32", "float64"]:
    """The type of a run's master weights."""
    return "float64" if config.model.dtype == "float64" else "float32"


def _model_in_full_precision(
    config: RunConfig, checkpoint: Path, weights: Weights
) -> VideoTransformer:
    """The trained model as its masters have it; frozen weights as they were published."""
    settings = config.model
    return trained_model(
        replace(
            config,
            model=replace(settings, dtype=master_dtype(config)),
            memory=replace(config.memory, base="model"),
        ),
        checkpoint,
        run_video_encoder(settings),
        run_text_encoder(settings),
        weights,
    )


def _write_lora(
    config: RunConfig, model: VideoTransformer, folder: Path, options: ExportOptions
) -> None:
    adapters, dtype = adapter_options(config), DTYPES[options.dtype]
    check = LoraCheck.of(model)
    if options.to == "diffusers":
        path = save_diffusers_lora(model.module, adapters, folder, dtype)
    else:
        _check_layers_for_comfyui(model)
        path = save_comfyui_lora(model, adapters, folder, dtype)
    check.check(model, path, dtype)


def _check_layers_for_comfyui(model: VideoTransformer) -> None:
    """Refuse adapters that diffusers, which checks what was written, cannot read in this naming."""
    outside = [name for name, _ in adapted_layers(model.module) if not name.startswith("blocks.")]
    if outside:
        raise ConfigError(
            f"--to comfyui is for adapters within the model's blocks, and this run trained one of "
            f"{outside[0]!r}; export --what merged, or --to diffusers"
        )


def _write_weights(model: VideoTransformer, folder: Path, options: ExportOptions) -> None:
    needed = probe_output(model)
    merge_adapters(model.module)
    check_output(probe_output(model), needed, needed.dtype, "merging")
    dtype = DTYPES[options.dtype]
    weights = {name: p.detach().to(dtype) for name, p in model.module.named_parameters()}
    if options.to == "diffusers":
        _write_diffusers(model, weights, folder, options.max_shard)
    else:
        _write_comfyui(model, weights, folder)


def _write_diffusers(
    model: VideoTransformer, weights: Mapping[str, Tensor], folder: Path, max_shard: str
) -> None:
    module: Any = model.module
    needed = probe_output(model)
    for name, parameter in module.named_parameters():
        parameter.data = weights[name]
    transformer = folder / "transformer"
    module.save_pretrained(str(transformer), max_shard_size=max_shard)
    dtype = next(iter(weights.values())).dtype
    loaded = load_transformer(
        model.family.name, transformer, dtype=dtype, text_tokens=model.shape.text_tokens
    )
    _compare(dict(loaded.module.named_parameters()), weights, transformer)
    same_inputs = replace(loaded, shape=model.shape)
    check_output(probe_output(same_inputs), needed, dtype, repr(str(transformer)))


def _write_comfyui(model: VideoTransformer, weights: Mapping[str, Tensor], folder: Path) -> None:
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

    needed = probe_output(model)
    published = {published_name(name): tensor.contiguous() for name, tensor in weights.items()}
    path = folder / COMFYUI_NAME
    save_file(published, path)
    loaded = load_file(path)
    _compare(loaded, published, path)
    back = convert_wan_transformer_to_diffusers(dict(loaded))
    _compare(back, weights, path)
    for name, parameter in model.module.named_parameters():
        parameter.data = back[name]
    check_output(probe_output(model), needed, next(iter(back.values())).dtype, repr(str(path)))


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
