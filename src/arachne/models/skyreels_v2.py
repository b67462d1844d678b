"""SkyReels-V2, text to video: Wan's layers in a class of their own.

Models of diffusion forcing, which give each frame a noise level of its own, are of the same class;
here every frame of a clip has the same.
"""

from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.wan import (
    FIXED,
    WAN_LAYOUT,
    check_wan,
    wan_first_frame_forward,
    wan_forward,
    wan_options,
    wan_sizes,
)

SKYREELS_V2 = DiffusersFamily(
    name="skyreels_v2",
    class_name="SkyReelsV2Transformer3DModel",
    pipeline_name="SkyReelsV2Pipeline",
    layout=WAN_LAYOUT,
    sizes=wan_sizes,
    options=wan_options,
    forward=wan_forward,
    first_frame_forward=wan_first_frame_forward,
    cleans_captions=True,
    fixed=(*FIXED, "inject_sample_info", "num_frame_per_block"),
    check=check_wan,
)
