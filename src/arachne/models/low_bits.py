"""Frozen weights of the blocks in 4 or 8 bits; adapters are trained beside them.

`fp8`: float8 with one scale for a row, see `float8`. The others are by bitsandbytes. `nf4`: 4 bits
from a table of sixteen levels, and one scale for 64 weights (QLoRA, arXiv 2305.14314); multiplied
in the model's own type. `int8`: one scale for a row; outliers of the activations apart (LLM.int8(),
arXiv 2208.07339).
"""

import re
from typing import Any, Literal

from torch import nn

from arachne.core.sequence_layout import SequenceLayout
from arachne.models.float8 import Float8Linear

LowBits = Literal["nf4", "int8", "fp8"]


def store_in_low_bits(module: nn.Module, layout: SequenceLayout, kind: LowBits) -> None:
    """Replace the linear layers of a model's blocks by those that hold their weights so.

    Called before adapters are added: peft puts its own kind of adapter beside such layers. Biases,
    norms and embeddings stay in the model's type.
    """
    in_block = re.compile(rf"({layout.blocks})\.")
    layers = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and in_block.match(name)
    ]
    for name, layer in layers:
        module.set_submodule(name, _stored(layer, kind))
    # peft asks for these names, which transformers gives its models.
    flags: Any = module
    flags.is_loaded_in_4bit, flags.is_loaded_in_8bit = kind == "nf4", kind == "int8"


def _stored(layer: nn.Linear, kind: LowBits) -> nn.Module:
    if kind == "fp8":
        return Float8Linear(layer)
    import bitsandbytes  # pyright: ignore[reportMissingImports]  an extra

    linear: Any = bitsandbytes.nn
    sizes = (layer.in_features, layer.out_features, layer.bias is not None)
    if kind == "nf4":
        stored = linear.Linear4bit(*sizes, compute_dtype=layer.weight.dtype, quant_type="nf4")
        stored.weight = linear.Params4bit(
            layer.weight.data, requires_grad=False, quant_type="nf4", module=stored
        )
    else:
        stored = linear.Linear8bitLt(*sizes, has_fp16_weights=False)
        stored.weight = linear.Int8Params(
            layer.weight.data, requires_grad=False, has_fp16_weights=False
        )
    stored.bias = layer.bias
    return stored.to("cpu")  # which is when bitsandbytes converts
