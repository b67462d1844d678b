"""Wan 2.2 TI2V-5B: Wan's layers over an autoencoder that compresses each side 16 times.

Sizes: diffusers' `convert_wan_to_diffusers.py`, which loads the published weights into them. The
same weights make videos from text and from a first frame, which is kept in the latents: no further
channels show it, and its tokens have noise level 0.
"""

from dataclasses import replace

from arachne.core.families.encoders import UMT5_XXL, WAN_5B_VAE
from arachne.core.families.family import Family
from arachne.core.families.wan import (
    WAN,
    WAN_GEOMETRY,
    wan_activation_inputs,
    wan_flop_inputs,
    wan_parameters,
)

WAN_5B = Family(
    name="wan_5b",
    geometry=replace(WAN_GEOMETRY, spatial_compression=16),
    presets={
        "wan2.2-5b": replace(
            WAN.presets["wan-1.3b"],
            family="wan_5b",
            num_layers=30,
            num_heads=24,
            ffn_size=14336,
            latent_channels=48,
        )
    },
    num_parameters=wan_parameters,
    flop_inputs=wan_flop_inputs,
    video_encoder=WAN_5B_VAE,
    text_encoders=(UMT5_XXL,),
    activation_inputs=wan_activation_inputs,
    keeps_first_frame="always",
)
