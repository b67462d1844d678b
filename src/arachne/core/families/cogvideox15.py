"""CogVideoX 1.5: CogVideoX's layers over tokens that span two latent frames.

A clip's first latent frame stands for one frame alone; it is repeated in front, so that frames fill
tokens. Image to video has an offset embedding beside that of the timestep. Source: diffusers'
`CogVideoXTransformer3DModel` with `patch_size_t` and `ofs_embed_dim`, `CogVideoXPipeline` and
`CogVideoXImageToVideoPipeline`; sizes as of CogVideoX-5B.
"""

from dataclasses import replace

from arachne.core.families.cogvideox import (
    COGVIDEOX,
    COGVIDEOX_GEOMETRY,
    cogvideox_flop_inputs,
    cogvideox_parameters,
    cogvideox_shape,
)
from arachne.core.families.layers import two_layers
from arachne.core.model_shape import FlopInputs, ModelShape, WeightGroup

OFFSET_SIZE = 512
"""`ofs_embed_dim` of the published image-to-video model."""

_GEOMETRY = replace(COGVIDEOX_GEOMETRY, patch=(2, 2, 2))


def _num_parameters(shape: ModelShape) -> int:
    offset = two_layers(OFFSET_SIZE, OFFSET_SIZE, OFFSET_SIZE) if shape.condition_channels else 0
    return cogvideox_parameters(shape, _GEOMETRY) + offset


def _flop_inputs(shape: ModelShape) -> FlopInputs:
    found = cogvideox_flop_inputs(shape, _GEOMETRY)
    if not shape.condition_channels:
        return found
    offset = WeightGroup(num_weights=2 * OFFSET_SIZE**2, num_other_tokens=1)
    return replace(found, weights=(*found.weights, offset))


COGVIDEOX15 = replace(
    COGVIDEOX,
    name="cogvideox15",
    geometry=_GEOMETRY,
    presets={"cogvideox-1.5-5b": cogvideox_shape("cogvideox15", num_layers=42, num_heads=48)},
    num_parameters=_num_parameters,
    flop_inputs=_flop_inputs,
)
