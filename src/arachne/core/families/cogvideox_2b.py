"""CogVideoX-2B: CogVideoX's layers, with sines and cosines of the position added to the tokens.

Sizes: the defaults of diffusers' `CogVideoXTransformer3DModel`, into which its
`convert_cogvideox_to_diffusers.py` loads the published weights strictly. That script also gives its
scheduler the factor of 3 by which signal-to-noise ratios are divided.
"""

from dataclasses import replace

from arachne.core.families.cogvideox import COGVIDEOX, cogvideox_shape

COGVIDEOX_2B = replace(
    COGVIDEOX,
    name="cogvideox_2b",
    presets={"cogvideox-2b": cogvideox_shape("cogvideox_2b", num_layers=30, num_heads=30)},
    snr_shift=3.0,
    condition_channels=None,
)
