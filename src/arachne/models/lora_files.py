"""LoRA files: read with anybody's names, written with those of diffusers or ComfyUI."""

import json
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from arachne.core.errors import ConfigError
from arachne.core.units import names_text
from arachne.models.diffusers_module import VideoTransformer
from arachne.models.lora import (
    AdapterOptions,
    adapted_layers,
    adapter_tensors,
    set_adapter_tensors,
)
from arachne.models.lora_names import AdapterKey, AdapterNames, Part, published_layer

DIFFUSERS_FILE = "pytorch_lora_weights.safetensors"
COMFYUI_FILE = "lora.safetensors"
_PEFT_FILE, _PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"

_METADATA_KEY = "lora_adapter_metadata"
"""Where diffusers keeps peft's configuration in a file's metadata."""

_FINETRAINERS_KEY = "lora_config"
"""Where finetrainers does."""

_PREFIX = "transformer."

_LORA = "LORA"
"""peft's name of the kind of adapters."""


def load_adapters(
    model: VideoTransformer, path: str, options: AdapterOptions, *, setting: str
) -> None:
    """Overwrite a model's adapters with those of a file, or of a folder that holds one.

    The model then computes exactly what it does with the file's LoRA: where the file's alpha / rank
    is another one than the model's, the difference goes into B.

    Raises:
        ConfigError: The file cannot be read, or has another rank, other layers, or keys that are no
            adapter's; keys are named.
    """
    file = _lora_file(Path(path), setting)
    what = f"{setting} {str(file)!r}"
    tensors, settings = _read(file, setting)
    layers = [name for name, _ in adapted_layers(model.module)]
    names = AdapterNames(model.family.name, layers)
    needed = adapter_tensors(model.module)
    keys = _keys_of(tensors, names, what)
    found: dict[str, Tensor] = {}
    alphas: dict[str, float] = {}
    for name, key in keys.items():
        values = _usable(tensors[name], key.part, f"{what} has {name}")
        if key.part == "alpha":
            alphas |= dict.fromkeys(key.layers, float(values))
        elif key.part == "lora_A":
            found |= {f"{layer}.lora_A.weight": values for layer in key.layers}
        else:
            ending = "lora_magnitude_vector" if key.part == "magnitude" else "lora_B.weight"
            shares = _shares(values, key, needed, f"{what} has {name}")
            found |= {
                f"{layer}.{ending}": share for layer, share in zip(key.layers, shares, strict=True)
            }
    _check_same_tensors(found, needed, file, setting, options)
    without = [layer for layer in layers if layer not in alphas] if alphas else []
    if settings.get("use_dora") and not any(key.part == "magnitude" for key in keys.values()):
        raise ConfigError(f"{what} has use_dora = true and no magnitude; name the whole file")
    if without and "lora_alpha" not in settings:
        raise ConfigError(f"{what} has an alpha of other layers, and none of {names_text(without)}")
    for layer in layers:
        rank = found[f"{layer}.lora_A.weight"].shape[0]
        alpha: float = settings.get("lora_alpha", rank)
        scale = alphas.get(layer, alpha) / rank
        name = f"{layer}.lora_B.weight"
        # In double, as alphas need not be powers of two and the tensors may be narrow.
        found[name] = (found[name].double() * (scale / options.scale)).to(needed[name].dtype)
    set_adapter_tensors(model.module, found)


def _keys_of(names: Iterable[str], adapters: AdapterNames, what: str) -> dict[str, AdapterKey]:
    """What each tensor of a file is, by its name.

    Raises:
        ConfigError: One is of no adapter, or of another kind of adapter, or is there twice.
    """
    found: dict[str, AdapterKey] = {}
    names_of: dict[AdapterKey, str] = {}
    unknown: list[str] = []
    for name in names:
        key = adapters.find(name)
        if key is None:
            unknown.append(name)
            continue
        if key in names_of:
            raise ConfigError(
                f"{what} has both {names_of[key]} and {name}, which are the same tensor; leave one "
                "out"
            )
        found[name], names_of[key] = key, name
    of_other_kind = [name for name in unknown if adapters.is_of_layer(name)]
    if of_other_kind:
        raise ConfigError(
            f"{what} has tensors that no plain LoRA has: {names_text(of_other_kind)}; only LoRA, "
            "and peft's DoRA, can be trained on; name another file"
        )
    of_text = [name for name in unknown if name.startswith(("lora_te", "text_encoder"))]
    if of_text:
        raise ConfigError(
            f"{what} has adapters of a text encoder, which is not trained here: "
            f"{names_text(of_text)}; remove these keys from the file, or name another one"
        )
    if unknown:
        raise ConfigError(
            f"{what} has keys of no adapter of this run: {names_text(unknown)}; set lora.targets "
            "so that these layers have adapters, or name another file"
        )
    return found


def _shares(
    rows: Tensor, key: AdapterKey, needed: Mapping[str, Tensor], what: str
) -> tuple[Tensor, ...]:
    """What of a tensor with a row for each output belongs to each layer of its key.

    Raises:
        ConfigError: The layers have another number of outputs together.
    """
    if len(key.layers) == 1:
        return (rows,)
    widths = [needed[f"{layer}.lora_B.weight"].shape[0] for layer in key.layers]
    if rows.shape[0] != sum(widths):
        raise ConfigError(
            f"{what} of shape {tuple(rows.shape)}, and the run's adapters of "
            f"{', '.join(key.layers)} have {sum(widths)} outputs; set lora.targets so that all "
            "layers of the file have one"
        )
    return rows.split(widths)


def _usable(tensor: Tensor, part: Part, what: str) -> Tensor:
    """Values of a tensor of an adapter: an alpha, a matrix or a vector.

    Layers that were taken for convolutions of one pixel have matrices with two more dimensions.

    Raises:
        ConfigError: It is none, or holds what is no number; `what` begins the line.
    """
    # kohya's scripts write an alpha that was a whole number as such.
    is_number = tensor.is_floating_point() or (part == "alpha" and not tensor.is_complex())
    if not is_number or not bool(torch.isfinite(tensor.float()).all()):
        raise ConfigError(f"{what} with values that are no finite floats; name another file")
    if part == "alpha":
        if tensor.numel() != 1 or float(tensor) <= 0.0:
            raise ConfigError(f"{what} = {tensor.tolist()}; an alpha is one number above 0")
        return tensor
    if part == "magnitude":
        return tensor.reshape(-1)
    if tensor.ndim < 2 or any(size != 1 for size in tensor.shape[2:]):
        raise ConfigError(f"{what} of shape {tuple(tensor.shape)}; an adapter has matrices")
    return tensor.flatten(1)


def _lora_file(path: Path, setting: str) -> Path:
    if path.is_file():
        return path
    for name in (DIFFUSERS_FILE, _PEFT_FILE):
        if (path / name).is_file():
            return path / name
    others = sorted(path.glob("*.safetensors"))
    if len(others) == 1:
        return others[0]
    found = f"{len(others)} safetensors files" if path.is_dir() else "no such file or folder"
    raise ConfigError(f"{setting} {str(path)!r}: {found}; name one safetensors file with a LoRA")


def _read(file: Path, setting: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, and the settings of peft that lie in the file or beside it."""
    settings: Any = {}
    try:
        tensors = load_file(file)
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
        key = next((key for key in (_METADATA_KEY, _FINETRAINERS_KEY) if key in metadata), None)
        if key is not None:
            settings = json.loads(metadata[key])
        elif (file.parent / _PEFT_CONFIG).is_file():  # a file of another writer has its own alphas
            settings = json.loads((file.parent / _PEFT_CONFIG).read_text(encoding="utf-8"))
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{setting}: cannot read {str(file)!r}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{setting}: the settings of {str(file)!r} are no table but {settings!r}")
    named = cast(dict[str, Any], settings)
    settings = {key.removeprefix(_PREFIX): value for key, value in named.items()}
    alpha = settings.get("lora_alpha", 1.0)
    is_number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not is_number or not 0.0 < alpha < inf:
        raise ConfigError(
            f"{setting} {str(file)!r} has lora_alpha = {alpha!r}; needed is a number above 0"
        )
    kind = settings.get("peft_type", _LORA)
    if kind != _LORA:
        raise ConfigError(f"{setting} {str(file)!r} has peft_type = {kind!r}; only {_LORA} is read")
    for name in ("use_rslora", "alpha_pattern", "rank_pattern"):
        if settings.get(name):
            raise ConfigError(
                f"{setting} {str(file)!r} has {name} = {settings[name]}; adapters of one rank and "
                "alpha can be read, without rank-stabilised scaling"
            )
    return tensors, settings


def _check_same_tensors(
    found: Mapping[str, Tensor],
    needed: Mapping[str, Tensor],
    file: Path,
    setting: str,
    options: AdapterOptions,
) -> None:
    ranks = {tensor.shape[0] for name, tensor in found.items() if name.endswith("lora_A.weight")}
    if ranks and ranks != {options.rank}:
        raise ConfigError(
            f"{setting} {str(file)!r} has rank {', '.join(map(str, sorted(ranks)))}, lora.rank is "
            f"{options.rank}; set lora.rank to the file's"
        )
    missing = [name for name in needed if name not in found]
    surplus = [name for name in found if name not in needed]
    if missing or surplus:
        what = "lacks" if missing else "has, and the run has not,"
        raise ConfigError(
            f"{setting} {str(file)!r} {what} {names_text(missing or surplus)}; "
            "set lora.targets and lora.use_dora as they were when the file was trained"
        )
    for name, tensor in found.items():
        if tensor.shape != needed[name].shape:
            raise ConfigError(
                f"{setting} {str(file)!r} has {name} of shape {tuple(tensor.shape)}, the model "
                f"needs {tuple(needed[name].shape)}; it is a LoRA of another model"
            )


def save_diffusers_lora(
    module: nn.Module, options: AdapterOptions, folder: Path, dtype: torch.dtype
) -> Path:
    """Write the adapters as diffusers' own writer does, peft's settings in the metadata; the file.

    Raises:
        OSError: The disk refuses it.
    """
    settings = {
        "r": options.rank,
        "lora_alpha": options.alpha,
        "target_modules": [name for name, _ in adapted_layers(module)],
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": options.use_dora,
    }
    packed = json.dumps({_PREFIX + key: value for key, value in settings.items()}, sort_keys=True)
    tensors = {
        _PREFIX + name: tensor.to(dtype).contiguous()
        for name, tensor in adapter_tensors(module).items()
    }
    path = folder / DIFFUSERS_FILE
    _save(tensors, path, {"format": "pt", _METADATA_KEY: packed})
    return path


def save_comfyui_lora(
    model: VideoTransformer, options: AdapterOptions, folder: Path, dtype: torch.dtype
) -> Path:
    """Write the adapters with the published names that ComfyUI loads, and an alpha for each.

    ComfyUI counts an adapter's output alpha / rank, and 1 where there is no alpha.

    Raises:
        OSError: The disk refuses it.
    """
    assert not options.use_dora, "ComfyUI's magnitudes are other ones"
    state = adapter_tensors(model.module)
    tensors: dict[str, Tensor] = {}
    for layer, _ in adapted_layers(model.module):
        name = f"diffusion_model.{published_layer(model.family.name, layer)}"
        for theirs, ours in (("lora_down", "lora_A"), ("lora_up", "lora_B")):
            weight = state[f"{layer}.{ours}.weight"]
            tensors[f"{name}.{theirs}.weight"] = weight.to(dtype).contiguous()
        tensors[f"{name}.alpha"] = torch.tensor(options.alpha, dtype=torch.float32)
    path = folder / COMFYUI_FILE
    _save(tensors, path, {"format": "pt"})
    return path


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        raise OSError(f"cannot write {str(path)!r}: {error}") from error
