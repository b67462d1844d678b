"""The description of a model family, without torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arachne.core.model_shape import FlopInputs, Geometry, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family turns pixels into tokens, and what its layers multiply and store.

    Attributes:
        name: The `model.family` of a run file.
        geometry: Pixels to tokens.
        presets: Published shapes by name, for example `wan-1.3b`.
        num_parameters: Exact number of trainable parameters of a shape.
        flop_inputs: What a forward pass multiplies.
    """

    name: str
    geometry: Geometry
    presets: Mapping[str, ModelShape]
    num_parameters: Callable[[ModelShape], int]
    flop_inputs: Callable[[ModelShape], FlopInputs]
