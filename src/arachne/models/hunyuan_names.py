"""Names of HunyuanVideo's layers in its authors' code, as LoRAs of kohya's programs have them.

diffusers cut some of those layers into several, whose outputs follow each other. Source: how
diffusers' `_convert_hunyuan_video_lora_to_diffusers` renames and cuts them.
"""

import re
from dataclasses import dataclass

_QKV = "qkv"

_DOUBLE = r"transformer_blocks\.(\d+)"
_SINGLE = r"single_transformer_blocks\.(\d+)"

_WHOLE = (
    (rf"{_DOUBLE}\.attn\.to_out\.0", r"double_blocks.\1.img_attn_proj"),
    (rf"{_DOUBLE}\.attn\.to_add_out", r"double_blocks.\1.txt_attn_proj"),
    (rf"{_DOUBLE}\.ff\.net\.0\.proj", r"double_blocks.\1.img_mlp.fc1"),
    (rf"{_DOUBLE}\.ff\.net\.2", r"double_blocks.\1.img_mlp.fc2"),
    (rf"{_DOUBLE}\.ff_context\.net\.0\.proj", r"double_blocks.\1.txt_mlp.fc1"),
    (rf"{_DOUBLE}\.ff_context\.net\.2", r"double_blocks.\1.txt_mlp.fc2"),
    (rf"{_DOUBLE}\.norm1\.linear", r"double_blocks.\1.img_mod.linear"),
    (rf"{_DOUBLE}\.norm1_context\.linear", r"double_blocks.\1.txt_mod.linear"),
    (rf"{_SINGLE}\.proj_out", r"single_blocks.\1.linear2"),
    (rf"{_SINGLE}\.norm\.linear", r"single_blocks.\1.modulation.linear"),
)

_PARTS = (
    (rf"{_DOUBLE}\.attn\.to_([qkv])", r"double_blocks.\1.img_attn_qkv"),
    (rf"{_DOUBLE}\.attn\.add_([qkv])_proj", r"double_blocks.\1.txt_attn_qkv"),
    (rf"{_SINGLE}\.attn\.to_([qkv])", r"single_blocks.\1.linear1"),
    (rf"{_SINGLE}\.proj_(mlp)", r"single_blocks.\1.linear1"),
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PublishedPart:
    """A layer of diffusers as a part of a published one.

    Attributes:
        name: The published layer's.
        position: Where its outputs lie among the parts of that layer, from 0.
    """

    name: str
    position: int = 0


def published_part(layer: str) -> PublishedPart | None:
    """What a layer of diffusers is in the published code; None for layers outside the blocks."""
    for pattern, replacement in _WHOLE:
        found = re.fullmatch(pattern, layer)
        if found:
            return PublishedPart(name=found.expand(replacement))
    for pattern, replacement in _PARTS:
        found = re.fullmatch(pattern, layer)
        if found:
            part = found[2]
            position = _QKV.index(part) if part in _QKV else len(_QKV)
            return PublishedPart(name=found.expand(replacement), position=position)
    return None
