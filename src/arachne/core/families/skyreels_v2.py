"""SkyReels-V2: Wan's layers and Wan's autoencoder, trained anew.

Layers: diffusers' `SkyReelsV2Transformer3DModel` without an image condition and without
`inject_sample_info`. Sizes: those that diffusers' `convert_skyreelsv2_to_diffusers.py` loads the
published 14B weights into. The published 1.3B weights add a frame-rate embedding and are no preset.
"""

from dataclasses import replace

from arachne.core.families.encoders import UMT5_XXL, WAN_VAE
from arachne.core.families.family import Family
from arachne.core.families.wan import (
    WAN,
    WAN_GEOMETRY,
    wan_activation_inputs,
    wan_condition_channels,
    wan_flop_inputs,
    wan_parameters,
)

SKYREELS_V2 = Family(
    name="skyreels_v2",
    geometry=WAN_GEOMETRY,
    presets={"skyreels-v2-14b": replace(WAN.presets["wan-14b"], family="skyreels_v2")},
    num_parameters=wan_parameters,
    flop_inputs=wan_flop_inputs,
    video_encoder=WAN_VAE,
    text_encoders=(UMT5_XXL,),
    activation_inputs=wan_activation_inputs,
    condition_channels=wan_condition_channels,
    image_states="some",
)
