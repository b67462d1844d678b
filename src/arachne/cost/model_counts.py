"""What the cost formulas need of a model, counted once for each shape."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from arachne.core.activation_inputs import ActivationInputs
from arachne.core.families import family_named
from arachne.core.model_shape import FlopInputs, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCounts:
    """Counts of one model.

    Attributes:
        parameters: Of the whole model, without those that nothing runs or trains.
        idle_parameters: Those: they are held and nothing more.
        block_parameters: Of one transformer block, on average.
        flop_inputs: What a forward pass multiplies.
        head_size: Width of one attention head.
        output_size: Numbers that the model gives for each video token.
        activations: What a forward pass keeps.
    """

    parameters: int
    idle_parameters: int
    block_parameters: float
    flop_inputs: FlopInputs
    head_size: int
    output_size: int
    activations: ActivationInputs


@lru_cache(maxsize=256)
def model_counts(shape: ModelShape, /) -> ModelCounts:
    """The counts of a shape."""
    family = family_named(shape.family)
    inputs = family.flop_inputs(shape)
    idle = family.num_idle_parameters
    return ModelCounts(
        parameters=family.num_parameters(shape),
        idle_parameters=idle(shape) if idle else 0,
        block_parameters=_block_parameters(shape) / shape.num_blocks,
        flop_inputs=inputs,
        head_size=inputs.attention_size // shape.num_heads,
        output_size=shape.latent_channels * prod(family.geometry.patch),
        activations=family.activation_inputs(shape),
    )


def _block_parameters(shape: ModelShape) -> int:
    """Parameters of all blocks: families count parameters, not where they are.

    So a block has what one block more would add.
    """
    count = family_named(shape.family).num_parameters
    whole = count(shape)
    total = shape.num_layers * (count(replace(shape, num_layers=shape.num_layers + 1)) - whole)
    if shape.num_single_layers:
        more = replace(shape, num_single_layers=shape.num_single_layers + 1)
        total += shape.num_single_layers * (count(more) - whole)
    return total
