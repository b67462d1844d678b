"""diffusers' video autoencoders that can be run, as their config.json describes them; no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoencoderClass:
    """What a class's config.json says of its latents; keys that it leaves out have its defaults.

    Attributes:
        defaults: The class's own, of the keys that are read here.
        channels: The key of the number of latent channels.
        compression: Frames and pixels per latent.
        can_tile: Whether the class joins its tiles where they belong.
    """

    defaults: Config
    channels: str
    compression: Callable[[Config], tuple[int, int]]
    can_tile: bool = True

    def whole(self, config: Config) -> Config:
        """A config.json with what it leaves out."""
        return {**self.defaults, **config}


def _by_keys(temporal: str, spatial: str) -> Callable[[Config], tuple[int, int]]:
    return lambda config: (int(config[temporal]), int(config[spatial]))


def _by_blocks(config: Config) -> tuple[int, int]:
    halvings = len(config["block_out_channels"]) - 1
    return 2 ** (halvings - 1), 2**halvings


def _ltx_compression(config: Config) -> tuple[int, int]:
    given = config["temporal_compression_ratio"], config["spatial_compression_ratio"]
    halvings = 2 ** sum(config["spatio_temporal_scaling"])
    made = config["patch_size_t"] * halvings, config["patch_size"] * halvings
    temporal, spatial = (a or b for a, b in zip(given, made, strict=True))
    return temporal, spatial


def _ltx2_compression(config: Config) -> tuple[int, int]:
    """Of its own count; the class's attributes take every halving for one of both axes."""
    halvings = [
        kind
        for kind, is_on in zip(
            config["downsample_type"], config["spatio_temporal_scaling"], strict=True
        )
        if is_on
    ]
    temporal = sum(kind != "spatial" for kind in halvings)
    spatial = sum(kind != "temporal" for kind in halvings)
    return config["patch_size_t"] * 2**temporal, config["patch_size"] * 2**spatial


AUTOENCODERS: Mapping[str, AutoencoderClass] = {
    "AutoencoderKLWan": AutoencoderClass(
        defaults={"z_dim": 16, "scale_factor_temporal": 4, "scale_factor_spatial": 8},
        channels="z_dim",
        compression=_by_keys("scale_factor_temporal", "scale_factor_spatial"),
    ),
    "AutoencoderKLHunyuanVideo": AutoencoderClass(
        defaults={
            "latent_channels": 16,
            "temporal_compression_ratio": 4,
            "spatial_compression_ratio": 8,
        },
        channels="latent_channels",
        compression=_by_keys("temporal_compression_ratio", "spatial_compression_ratio"),
    ),
    "AutoencoderKLHunyuanVideo15": AutoencoderClass(
        defaults={
            "latent_channels": 32,
            "temporal_compression_ratio": 4,
            "spatial_compression_ratio": 16,
        },
        channels="latent_channels",
        compression=_by_keys("temporal_compression_ratio", "spatial_compression_ratio"),
    ),
    "AutoencoderKLCogVideoX": AutoencoderClass(
        defaults={
            "latent_channels": 16,
            "temporal_compression_ratio": 4,
            "block_out_channels": (128, 256, 256, 512),
            "scaling_factor": 1.15258426,
            "invert_scale_latents": False,
        },
        channels="latent_channels",
        compression=lambda config: (
            int(config["temporal_compression_ratio"]),
            2 ** (len(config["block_out_channels"]) - 1),
        ),
    ),
    "AutoencoderKLLTXVideo": AutoencoderClass(
        defaults={
            "latent_channels": 128,
            "patch_size": 4,
            "patch_size_t": 1,
            "spatio_temporal_scaling": (True, True, True, False),
            "spatial_compression_ratio": None,
            "temporal_compression_ratio": None,
        },
        channels="latent_channels",
        compression=_ltx_compression,
    ),
    "AutoencoderKLLTX2Video": AutoencoderClass(
        defaults={
            "latent_channels": 128,
            "patch_size": 4,
            "patch_size_t": 1,
            "spatio_temporal_scaling": (True, True, True, True),
            "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
        },
        channels="latent_channels",
        compression=_ltx2_compression,
    ),
    "AutoencoderKLMagvit": AutoencoderClass(
        defaults={"latent_channels": 16, "block_out_channels": [128, 256, 512, 512]},
        channels="latent_channels",
        compression=_by_blocks,
        can_tile=False,  # diffusers 0.42 keeps what overlaps, and shifts every tile but the first
    ),
    "AutoencoderKLMochi": AutoencoderClass(
        defaults={
            "latent_channels": 12,
            "temporal_expansions": (1, 2, 3),
            "spatial_expansions": (2, 2, 2),
        },
        channels="latent_channels",
        compression=lambda config: (
            prod(config["temporal_expansions"]),
            prod(config["spatial_expansions"]),
        ),
    ),
}
