"""Wan 2.2 TI2V-5B: Wan's class, which for image to video keeps the first latent frame.

The class takes a timestep for each token as well, which `WanPipeline` always gives it for this
model; where all are one, the result is the same.
"""

from __future__ import annotations

from arachne.core.errors import ConfigError
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.kept_frame import keeping_first_frame, token_times
from arachne.models.wan import FIXED, WAN_LAYOUT, check_wan, wan_forward, wan_options, wan_sizes


def _check(shape: ModelShape) -> None:
    if shape.condition_channels or shape.image_size:
        raise ConfigError(
            f"the transformer takes {shape.condition_channels} channels beside its "
            f"{shape.latent_channels} latent ones, and family 'wan_5b' has none there; Wan 2.1 and "
            "2.2 A14B are family 'wan'"
        )
    check_wan(shape)


WAN_5B = DiffusersFamily(
    name="wan_5b",
    class_name="WanTransformer3DModel",
    pipeline_name="WanPipeline",
    layout=WAN_LAYOUT,
    kept_layout=token_times(WAN_LAYOUT),
    sizes=wan_sizes,
    options=wan_options,
    forward=wan_forward,
    first_frame_forward=keeping_first_frame(wan_forward, "wan_5b"),
    cleans_captions=True,
    fixed=FIXED,
    check=_check,
)
