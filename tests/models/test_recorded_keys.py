"""Names and sizes of weights that were published, as their index lists them."""

from dataclasses import replace

import torch

from arachne.core.families import WAN, family_named
from arachne.models.diffusers_module import diffusers_class
from arachne.models.families import transformer_named
from arachne.models.wan_names import published_name

_ATTENTION = ("q", "k", "v", "o")
_OF_A_BLOCK = (
    *(
        f"{attention}.{part}.{kind}"
        for attention in ("self_attn", "cross_attn")
        for part in _ATTENTION
        for kind in ("weight", "bias")
    ),
    *(
        f"{attention}.norm_{part}.weight"
        for attention in ("self_attn", "cross_attn")
        for part in "qk"
    ),
    *(f"ffn.{index}.{kind}" for index in (0, 2) for kind in ("weight", "bias")),
    "norm3.weight",
    "norm3.bias",
    "modulation",
)
_OF_NO_BLOCK = (
    "head.modulation",
    *(
        f"{layer}.{kind}"
        for layer in (
            "head.head",
            "patch_embedding",
            "text_embedding.0",
            "text_embedding.2",
            "time_embedding.0",
            "time_embedding.2",
            "time_projection.1",
        )
        for kind in ("weight", "bias")
    ),
)
WAN22_TI2V_5B_KEYS = {
    *(f"blocks.{block}.{name}" for block in range(30) for name in _OF_A_BLOCK),
    *_OF_NO_BLOCK,
}
"""`diffusion_pytorch_model.safetensors.index.json` of Wan2.2-TI2V-5B, as its authors published it
(a copy lies in the repository tky135/FastWAM): all 825 names."""

WAN22_TI2V_5B_BYTES = 19_999_150_848
"""`total_size` there, in float32."""


def test_a_wan_of_published_size_has_the_published_names_and_bytes():
    shape = replace(
        WAN.presets["wan-1.3b"], num_heads=24, ffn_size=14336, latent_channels=48
    )  # dim 3072 and ffn_dim 14336 of its config.json
    family = transformer_named("wan")
    with torch.device("meta"):
        module = diffusers_class(family)(**family.options(shape))
    names = [published_name(name) for name, _ in module.named_parameters()]
    assert len(names) == len(set(names)) == 825
    assert set(names) == WAN22_TI2V_5B_KEYS
    assert 4 * sum(p.numel() for p in module.parameters()) == WAN22_TI2V_5B_BYTES
    assert 4 * family_named("wan").num_parameters(shape) == WAN22_TI2V_5B_BYTES
