"""Low-rank adapters (LoRA) beside the linear layers of a transformer, by peft.

A layer y = W·x + b gets y + (alpha / rank)·B·A·x, with A [rank, in] and B [out, rank]; B starts at
zero. W and b are frozen. Source: LoRA (arXiv 2106.09685); with magnitudes DoRA (arXiv 2402.09353).
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from arachne.core.errors import ConfigError
from arachne.core.sequence_layout import SequenceLayout

ADAPTER = "default"
"""peft's name of the one adapter that a run trains."""

_ATTENTION = re.compile(r"attn\d*")
_FFN = ("ffn", "ff", "ff_context", "proj_mlp", "proj_out")
"""First parts of the names that families give to feed-forward layers within a block; a block of
HunyuanVideo that text and video share has them as `proj_mlp` and `proj_out`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """What all adapters of a model have in common.

    Attributes:
        rank: Inner width.
        alpha: Their output counts alpha / rank.
        use_dora: Each has a magnitude per output.
    """

    rank: int
    alpha: float
    use_dora: bool = False

    @property
    def scale(self) -> float:
        """What an adapter's output counts."""
        return self.alpha / self.rank


def adapter_targets(
    module: nn.Module,
    layout: SequenceLayout,
    targets: str | Sequence[str],
    frozen: Sequence[str] = (),
) -> tuple[str, ...]:
    """Names of the linear layers that get an adapter, in the model's order.

    `attention`, `attention+ffn` and `all-linear` are layers of the transformer blocks; other names
    are the last parts of module names, anywhere in the model. Layers of which `frozen` has patterns
    of the parameters' names get none.

    Raises:
        ConfigError: A name fits no linear layer.
    """
    linear = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
        and not any(fnmatchcase(f"{name}.weight", pattern) for pattern in frozen)
    ]
    if isinstance(targets, str):
        return tuple(name for name in linear if _is_in(targets, name, layout))
    found = {name for target in targets for name in _ending_in(target, linear)}
    return tuple(name for name in linear if name in found)


def _is_in(targets: str, name: str, layout: SequenceLayout) -> bool:
    block = re.match(rf"({layout.blocks})\.", name)
    if block is None:
        return False
    first = name[block.end() :].split(".")[0]
    is_attention = _ATTENTION.fullmatch(first) is not None
    wanted = {
        "attention": is_attention,
        "attention+ffn": is_attention or first in _FFN,
        "all-linear": True,
    }
    return wanted[targets]


def _ending_in(target: str, linear: Sequence[str]) -> list[str]:
    found = [name for name in linear if name == target or name.endswith(f".{target}")]
    if not found:
        endings = {name.split(".", depth)[-1] for name in linear for depth in range(5)}
        nearest = get_close_matches(target, sorted(endings), n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"layers are {linear[0]!r}, …"
        raise ConfigError(
            f"lora.targets holds {target!r}, which ends no linear layer's name; {hint}"
        )
    return found


def add_adapters(
    module: nn.Module,
    names: Sequence[str],
    options: AdapterOptions,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
) -> None:
    """Put an adapter beside each named layer, and freeze everything else.

    Adapters are of `dtype`, or of each layer's type: that of weights of few bits is none to train.

    Each A is drawn in float32 from a generator of its own, keyed by the seed and the layer's name:
    it depends on no rank, world, device or other layer. B is zero, so the model computes what it
    did. The global generators stay as they were.
    """
    from peft import LoraConfig, inject_adapter_in_model

    assert names, "no layers"
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]  it divides it only
        target_modules="|".join(re.escape(name) for name in names),
        lora_dropout=0.0,
        use_dora=options.use_dora,
    )
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("lora_" in name)
            if parameter.requires_grad and dtype is not None:
                parameter.data = parameter.data.to(dtype)
            if f".lora_A.{ADAPTER}" in name:
                parameter.copy_(_drawn(tuple(parameter.shape), seed, name))


def _drawn(shape: tuple[int, ...], seed: int, name: str) -> Tensor:
    """Uniform within ±1/√inputs, as nn.Linear starts (and A of LoRA's own code)."""
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(key, "big", signed=True))
    return (torch.rand(shape, generator=generator) * 2.0 - 1.0) / sqrt(shape[1])


def adapter_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The adapters' tensors by peft's names: `blocks.0.attn1.to_q.lora_A.weight`."""
    return {key: value.detach() for key, value in _peft_state(module).items()}


def set_adapter_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the adapters' tensors; `tensors` has exactly the names of `adapter_tensors`."""
    state = _peft_state(module)
    assert state.keys() == tensors.keys(), sorted(state.keys() ^ tensors.keys())
    with torch.no_grad():
        for key, value in tensors.items():
            assert state[key].shape == value.shape, (key, state[key].shape, value.shape)
            state[key].copy_(value)


def _peft_state(module: nn.Module) -> dict[str, Tensor]:
    """Views of the adapters' parameters, by peft's names in files."""
    return {
        name.replace(f".{ADAPTER}.weight", ".weight").replace(
            "lora_magnitude_vector.weight", "lora_magnitude_vector"
        ): parameter.data
        for name, parameter in module.named_parameters()
        if "lora_" in name
    }


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and layer of everything that has an adapter."""
    from peft.tuners.lora import LoraLayer

    for name, part in module.named_modules():
        if isinstance(part, LoraLayer):
            yield name, part


def merge_adapters(module: nn.Module) -> None:
    """Add each adapter's product to its weight, and leave plain layers, as they were before."""
    for name, layer in list(adapted_layers(module)):
        layer.merge(safe_merge=True)
        module.set_submodule(name, layer.get_base_layer())
    _forget_adapters(module)


def remove_adapters(module: nn.Module) -> None:
    """Leave the frozen model without its adapters."""
    for name, layer in list(adapted_layers(module)):
        module.set_submodule(name, layer.get_base_layer())
    _forget_adapters(module)


def _forget_adapters(module: nn.Module) -> None:
    if hasattr(module, "peft_config"):
        del module.peft_config
