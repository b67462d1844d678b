"""Every autoencoder that can be opened, tiny, with random weights, as diffusers saves it."""

from pathlib import Path
from typing import Any

import diffusers
import torch

TINY: dict[str, dict[str, Any]] = {
    "AutoencoderKLWan": {
        "base_dim": 4,
        "z_dim": 4,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "latents_mean": [0.1, 0.2, 0.3, 0.4],
        "latents_std": [1.0, 2.0, 3.0, 4.0],
    },
    "AutoencoderKLWan of 2.2": {
        "base_dim": 4,
        "decoder_base_dim": 4,
        "z_dim": 4,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
        "latents_mean": [0.1, 0.2, 0.3, 0.4],
        "latents_std": [1.0, 2.0, 3.0, 4.0],
    },
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (4, 4, 4, 4),
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "scaling_factor": 0.7,
    },
    "AutoencoderKLHunyuanVideo": {
        "block_out_channels": (4, 4, 4, 4),
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "mid_block_add_attention": False,
    },
    "AutoencoderKLHunyuanVideo15": {
        "block_out_channels": (8, 8, 8, 8, 8),
        "latent_channels": 4,
        "layers_per_block": 1,
    },
    "AutoencoderKLLTXVideo": {
        "block_out_channels": (4, 4, 4, 4),
        "decoder_block_out_channels": (4, 4, 4, 4),
        "latent_channels": 4,
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
        "scaling_factor": 0.9,
    },
    "AutoencoderKLLTX2Video": {
        "block_out_channels": (8, 8, 8, 8),
        "decoder_block_out_channels": (8, 16, 32),
        "latent_channels": 4,
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1),
        "spatial_compression_ratio": 32,
        "temporal_compression_ratio": 8,
        "scaling_factor": 0.9,
    },
    "AutoencoderKLMagvit": {
        "block_out_channels": (4, 4, 4, 4),
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "scaling_factor": 0.7,
    },
    "AutoencoderKLMochi": {
        "encoder_block_out_channels": (32, 32, 32, 32),
        "decoder_block_out_channels": (32, 32, 32, 32),
        "latent_channels": 4,
        "layers_per_block": (1, 1, 1, 1, 1),
        "latents_mean": [0.1, 0.2, 0.3, 0.4],
        "latents_std": [1.0, 2.0, 3.0, 4.0],
        "scaling_factor": 0.8,
    },
}
CLASS_OF_FAMILY = {
    "wan": "AutoencoderKLWan",
    "wan_5b": "AutoencoderKLWan of 2.2",
    "skyreels_v2": "AutoencoderKLWan",
    "cogvideox": "AutoencoderKLCogVideoX",
    "cogvideox_2b": "AutoencoderKLCogVideoX",
    "cogvideox15": "AutoencoderKLCogVideoX",
    "hunyuan_video": "AutoencoderKLHunyuanVideo",
    "hunyuan_video15": "AutoencoderKLHunyuanVideo15",
    "ltx": "AutoencoderKLLTXVideo",
    "ltx2": "AutoencoderKLLTX2Video",
    "mochi": "AutoencoderKLMochi",
}


def tiny_autoencoder(class_name: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = getattr(diffusers, class_name.split()[0])(**TINY[class_name])
    if class_name in (
        "AutoencoderKLLTXVideo",
        "AutoencoderKLLTX2Video",
    ):  # its figures are buffers, set by the weights
        vae.latents_mean.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        vae.latents_std.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return vae


def save_tiny_autoencoder(class_name: str, folder: Path) -> Path:
    """The pipeline's folder, with the autoencoder in `vae`."""
    tiny_autoencoder(class_name).save_pretrained(folder / "vae")
    return folder
