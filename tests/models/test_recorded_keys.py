"""Names, sizes and configurations of weights that were published, as their files list them."""

import json
from dataclasses import replace

import pytest
import torch

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import FAMILIES, WAN, family_named
from arachne.models.diffusers_module import diffusers_class, load_transformer
from arachne.models.families import transformer_named
from arachne.models.lora import adapter_targets
from arachne.models.lora_names import AdapterNames
from arachne.models.wan_names import published_name
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.settings.model import ModelSettings

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


COGVIDEOX15_T2V = {
    "_class_name": "CogVideoXTransformer3DModel",
    "activation_fn": "gelu-approximate",
    "attention_bias": True,
    "attention_head_dim": 64,
    "dropout": 0.0,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "in_channels": 16,
    "max_text_seq_length": 226,
    "norm_elementwise_affine": True,
    "norm_eps": 1e-05,
    "num_attention_heads": 48,
    "num_layers": 42,
    "out_channels": 16,
    "patch_bias": False,
    "patch_size": 2,
    "patch_size_t": 2,
    "sample_frames": 81,
    "sample_height": 300,
    "sample_width": 300,
    "spatial_interpolation_scale": 1.875,
    "temporal_compression_ratio": 4,
    "temporal_interpolation_scale": 1.0,
    "text_embed_dim": 4096,
    "time_embed_dim": 512,
    "timestep_activation_fn": "silu",
    "use_learned_positional_embeddings": False,
    "use_rotary_positional_embeddings": True,
}
"""`transformer/config.json` of CogVideoX1.5-5B."""

COGVIDEOX_I2V = {
    name: value
    for name, value in COGVIDEOX15_T2V.items()
    if name not in ("patch_bias", "patch_size_t")
} | {
    "in_channels": 32,
    "sample_frames": 49,
    "sample_height": 60,
    "sample_width": 90,
    "use_learned_positional_embeddings": True,
}
"""`transformer/config.json` of CogVideoX-5B-I2V."""

HUNYUAN_VIDEO_I2V = {
    "_class_name": "HunyuanVideoTransformer3DModel",
    "in_channels": 33,
    "out_channels": 16,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "num_layers": 20,
    "num_single_layers": 40,
    "num_refiner_layers": 2,
    "mlp_ratio": 4.0,
    "patch_size": 2,
    "patch_size_t": 1,
    "qk_norm": "rms_norm",
    "guidance_embeds": False,
    "text_embed_dim": 4096,
    "pooled_projection_dim": 768,
    "rope_theta": 256.0,
    "rope_axes_dim": (16, 56, 56),
    "image_condition_type": "latent_concat",
}
"""`HYVideo-T/2-I2V-33ch` in diffusers' `convert_hunyuan_video_to_diffusers.py`."""

HUNYUAN_VIDEO15_T2V = {
    "_class_name": "HunyuanVideo15Transformer3DModel",
    "in_channels": 65,
    "out_channels": 32,
    "num_attention_heads": 16,
    "attention_head_dim": 128,
    "num_layers": 54,
    "num_refiner_layers": 2,
    "mlp_ratio": 4.0,
    "patch_size": 1,
    "patch_size_t": 1,
    "qk_norm": "rms_norm",
    "text_embed_dim": 3584,
    "text_embed_2_dim": 1472,
    "image_embed_dim": 1152,
    "rope_theta": 256.0,
    "rope_axes_dim": (16, 56, 56),
    "use_meanflow": False,
    "target_size": 640,
    "task_type": "t2v",
}
"""`480p_t2v` in diffusers' `convert_hunyuan_video1_5_to_diffusers.py`."""


@pytest.mark.parametrize(
    ("family", "config", "conditions"),
    [
        (
            "cogvideox",
            COGVIDEOX_I2V,
            {
                "condition_channels": 16,
                "only_bucket": Bucket(width=720, height=480, frames=49),
            },
        ),
        ("hunyuan_video", HUNYUAN_VIDEO_I2V, {"condition_channels": 17}),
        (
            "hunyuan_video",  # as HYVideo-T/2-I2V-16ch there
            HUNYUAN_VIDEO_I2V
            | {"in_channels": 16, "guidance_embeds": True, "image_condition_type": "token_replace"},
            {"keeps_first_frame": True},
        ),
        ("cogvideox15", COGVIDEOX15_T2V, {}),
        (
            "cogvideox15",  # CogVideoX1.5-5B-I2V differs in these two
            COGVIDEOX15_T2V | {"in_channels": 32, "ofs_embed_dim": 512},
            {"condition_channels": 16},
        ),
        ("hunyuan_video15", HUNYUAN_VIDEO15_T2V, {}),
        (
            "hunyuan_video15",  # as 480p_i2v there
            HUNYUAN_VIDEO15_T2V | {"task_type": "i2v"},
            {"condition_channels": 33, "image_size": 1152, "image_tokens": 729},
        ),
    ],
)
def test_a_published_configuration_is_one_that_can_be_trained(tmp_path, family, config, conditions):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (preset,) = FAMILIES[family].presets.values()
    settings = ModelSettings(
        family=family,
        pretrained=str(tmp_path),
        text_tokens=preset.text_tokens,
        image_to_video=bool(conditions),
        image_encoder="siglip" if "image_size" in conditions else "",
    )
    assert planning_shape(settings) == replace(preset, **conditions)
    with pytest.raises(ConfigError, match="weights cannot be loaded"):
        load_transformer(family, tmp_path, dtype=torch.float32, text_tokens=preset.text_tokens)


WAN_LORA_KEYS = {
    f"lora_unet_blocks_{block}_{layer}.{tensor}"
    for block in range(30)
    for layer in (
        *(f"{attention}_{part}" for attention in ("self_attn", "cross_attn") for part in "qkvo"),
        "ffn_0",
        "ffn_2",
    )
    for tensor in ("lora_down.weight", "lora_up.weight", "alpha")
}
"""Of kohya's musubi-tuner for Wan2.1-T2V-1.3B: each linear layer of the blocks, its path with `_`
for `.`."""


def test_every_key_of_a_kohya_lora_of_wan_is_a_layer_s_and_none_is_left_without():
    family = transformer_named("wan")
    with torch.device("meta"):
        module = diffusers_class(family)(**family.options(WAN.presets["wan-1.3b"]))
    layers = adapter_targets(module, family.layout, "attention+ffn", family.frozen)
    names = AdapterNames("wan", layers)
    found = [names.find(key) for key in WAN_LORA_KEYS]
    assert None not in found
    met = {(*key.layers, key.part) for key in found if key is not None}
    assert met == {(layer, part) for layer in layers for part in ("lora_A", "lora_B", "alpha")}
    assert len(met) == len(WAN_LORA_KEYS) == 900
