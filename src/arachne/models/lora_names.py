"""How LoRA files of several programs name layers and the tensors of an adapter.

| who | layer | tensors |
|---|---|---|
| peft | `base_model.model.blocks.0.attn1.to_q` | `lora_A.weight` `lora_B.weight` |
| diffusers | `transformer.blocks.0.attn1.to_q` | the same |
| ComfyUI | `diffusion_model.blocks.0.self_attn.q` | `lora_down.weight` `lora_up.weight` `alpha` |
| kohya | `lora_unet_blocks_0_self_attn_q` | the same |

ComfyUI takes peft's tensors too. With DoRA peft and diffusers add `lora_magnitude_vector`.

ComfyUI and kohya use the published names of a model's layers, kohya with `_` for `.`. Published
layers of HunyuanVideo may be several of diffusers; see `hunyuan_names`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from arachne.models.hunyuan_names import PublishedPart, published_part
from arachne.models.wan_names import published_name

Part = Literal["lora_A", "lora_B", "magnitude", "alpha"]

_PARTS: tuple[tuple[str, Part], ...] = (
    (".lora_A.weight", "lora_A"),
    (".lora_A.default.weight", "lora_A"),
    (".lora_down.weight", "lora_A"),
    (".lora.down.weight", "lora_A"),
    (".lora_B.weight", "lora_B"),
    (".lora_B.default.weight", "lora_B"),
    (".lora_up.weight", "lora_B"),
    (".lora.up.weight", "lora_B"),
    (".lora_magnitude_vector", "magnitude"),
    (".lora_magnitude_vector.weight", "magnitude"),
    (".lora_magnitude_vector.default.weight", "magnitude"),
    (".alpha", "alpha"),
)

_PREFIXES = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "lora_unet__",
    "lora_unet_",
    "lora_transformer_",
)

PUBLISHED: dict[str, Callable[[str], str]] = {
    "wan": published_name,
    "wan_5b": published_name,
    "skyreels_v2": published_name,
}
"""By family: the published name of a parameter. SkyReels-V2 has Wan's modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterKey:
    """What a key of a LoRA file is: which tensor, and of which layers in diffusers' names.

    There are several where the file's layer is several of diffusers, in the order of their outputs.
    """

    layers: tuple[str, ...]
    part: Part


def published_layer(family: str, layer: str) -> str:
    """The published name of a layer, such as `blocks.0.self_attn.q`; `family` is in `PUBLISHED`."""
    return PUBLISHED[family](f"{layer}.weight").removesuffix(".weight")


class AdapterNames:
    """Finds layers of one model by any name that a LoRA file may give them."""

    def __init__(self, family: str, layers: Iterable[str]) -> None:
        self._layers: dict[str, tuple[str, ...]] = {}
        parts: list[tuple[PublishedPart, str]] = []
        for layer in layers:
            self._add(layer, layer)
            if family in PUBLISHED:
                self._add(published_layer(family, layer), layer)
            found = published_part(layer) if family == "hunyuan_video" else None
            if found is not None:
                parts.append((found, layer))
        for part, layer in sorted(parts):
            self._add(part.name, *self._layers.get(part.name, ()), layer)

    def _add(self, name: str, *layers: str) -> None:
        self._layers[name] = self._layers[name.replace(".", "_")] = layers

    def find(self, key: str) -> AdapterKey | None:
        """What a key of a LoRA file is; None if there is no such layer, or no such part."""
        for ending, part in _PARTS:
            if key.endswith(ending):
                layers = self._layers.get(_without_prefixes(key.removesuffix(ending)))
                return None if layers is None else AdapterKey(layers=layers, part=part)
        return None

    def is_of_layer(self, key: str) -> bool:
        """Whether a key begins with the name of a layer, whatever tensor of it it is."""
        words = _without_prefixes(key).split(".")
        return any(".".join(words[:count]) in self._layers for count in range(1, len(words)))


def _without_prefixes(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
