"""What a training run stores on each GPU besides activations, and how."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from arachne.core.blocks import plan_blocks
from arachne.core.errors import ConfigError
from arachne.core.model_shape import ModelShape
from arachne.cost.model_counts import model_counts
from arachne.cost.trained_part import TrainedPart

GradientStorage = Literal["float32", "bfloat16", "host"]

BaseBits = Literal[4, 8, 16]

_SCALE_BITS = {4: 0.5, 8: 0.0, 16: 0.0}
"""4 bits: one float32 scale for 64 weights, as in NF4 (QLoRA, arXiv 2305.14314). 8 bits: one for a
row, which is little."""

_NOT_NEGATIVE = ("swapped_layers", "num_communicators", "frozen_encoder_bytes", "reserve_share")

_MASTER_BYTES = 4
"""Master weights and moments are float32, or wider when the model is."""

HOST_BYTES_PER_S = 25e9
"""Between a GPU and its host: PCIe 4.0 x16 has 32 GB/s; *assumption*: 80 % reachable."""

COMMUNICATOR_BYTES = 0.6e9
"""GPU memory of one NCCL communicator; 544-688 MB were reported on A100 GPUs."""

RESERVE_SHARE = 0.1
"""*Assumption*: the allocator holds this much more than launches use, in pieces that fit nothing.
15-20 GB of 80 were reported where shapes mix and segments cannot grow; where they can
(`expandable_segments`), only the ends of segments are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """How weights, gradients and optimizer state are stored.

    Attributes:
        gradients: Type of the buffer that launches add their gradients to, or that it lies in the
            host's memory, to which each launch copies them.
        optimizer_bytes: Of master weight and optimizer state, for each trained weight; None is
            AdamW's, three numbers of 4 bytes or of the model's type if that is wider.
        num_adapter_weights: Parameters of adapters (LoRA), which alone are trained; None trains the
            whole model, or `trained` of it.
        trained: The part of the model that is trained where some of it is frozen; None trains all,
            or adapters.
        base_bits: Bits of a frozen weight in the blocks; None is the model's own type.
        swapped_layers: Blocks whose weights wait in the host's memory until they are used.
        parameter_shards: Neighbouring ranks that share out weights and gradients (ZeRO-3 inside the
            group): each block is gathered before its forward and again before its backward.
        are_inputs_on_host: What a recomputed block keeps of its input waits in the host's memory.
        num_communicators: Groups of ranks that a rank belongs to, each with an NCCL communicator;
            the function of this name counts them. 0 without NCCL.
        frozen_encoder_bytes: Weights of text encoder and autoencoder that stay on the GPU.
        reserve_share: What the allocator holds beyond what launches use, as a share of that; see
            `RESERVE_SHARE`. 0 where the memory that may be used leaves room for it.
        raised_reserves: (tokens of a clip, reserve share) of shapes whose launches ran out of
            memory although they were expected to fit; see `raised_reserve`.
    """

    gradients: GradientStorage = "float32"
    optimizer_bytes: float | None = None
    num_adapter_weights: int | None = None
    trained: TrainedPart | None = None
    base_bits: BaseBits | None = None
    swapped_layers: int = 0
    parameter_shards: int = 1
    are_inputs_on_host: bool = False
    num_communicators: int = 0
    frozen_encoder_bytes: float = 0.0
    reserve_share: float = 0.0
    raised_reserves: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.base_bits is not None and self.num_adapter_weights is None:
            raise ConfigError(
                f"weights of {self.base_bits} bits cannot be trained; train adapters beside them "
                "(LoRA), or keep the model's own type"
            )
        if self.parameter_shards < 1:
            raise ConfigError(
                f"parameters cannot be shared out over {self.parameter_shards} ranks; 1 is none"
            )
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(f"training state: {name} is {getattr(self, name)}; 0 is none")
        if self.num_adapter_weights is not None and self.trained is not None:
            raise ConfigError("training state: adapters are trained alone, or parts of the model")
        if self.num_adapter_weights is not None and self.num_adapter_weights < 0:
            raise ConfigError(
                f"training state: num_adapter_weights is {self.num_adapter_weights}; "
                "None trains the whole model"
            )

    def of_shape(self, num_tokens: int) -> "TrainingState":
        """The same with the reserve of launches whose clips have so many tokens."""
        for tokens, share in self.raised_reserves:
            if tokens == num_tokens:
                return replace(self, reserve_share=share)
        return self

    def gradient_bytes(self, element_bytes: int) -> int:
        """Bytes of one gradient on the GPU between launches."""
        return {"float32": max(4, element_bytes), "bfloat16": 2, "host": 0}[self.gradients]

    def owned_bytes(self, element_bytes: int) -> float:
        """Bytes that the owner of a trained weight holds of it: master and optimizer state."""
        if self.optimizer_bytes is None:
            return 3.0 * max(_MASTER_BYTES, element_bytes)
        return self.optimizer_bytes

    def base_bytes(self, element_bytes: int) -> float:
        """Bytes of one weight of a block, its part of a scale included."""
        if self.base_bits is None:
            return float(element_bytes)
        return (self.base_bits + _SCALE_BITS[self.base_bits]) / 8.0

    def num_trainable(self, shape: ModelShape) -> int:
        """Parameters with gradients and optimizer state."""
        if self.num_adapter_weights is not None:
            return self.num_adapter_weights
        if self.trained is not None:
            return self.trained.num_parameters
        return model_counts(shape).parameters


FULL_TRAINING = TrainingState()
"""All weights are trained, with float32 gradients; nothing is shared out but optimizer state."""


def lora_weights(shape: ModelShape, rank: int, *, only_attention: bool = False) -> int:
    """Parameters of adapters of `rank` beside every matrix of the blocks; rather too many.

    With `only_attention`, beside the four matrices with which video attends in each layer, to
    itself and to text, and four more for text that attends with it; none is larger than the width.

    A matrix a × b gets rank·(a + b). With a, b ≥ d, the model's width, that is at most
    rank·2·a·b / d, so all matrices together get at most 2·rank/d times their weights. (Only Mochi's
    text stream is narrower than its model.)
    """
    counts = model_counts(shape)
    if only_attention:
        inputs = counts.flop_inputs
        streams = 2 if inputs.joint_tokens else 1
        layers = inputs.self_attention_layers * streams + inputs.cross_attention_layers
        return 4 * layers * 2 * rank * max(shape.hidden_size, inputs.attention_size)
    in_blocks = counts.block_parameters * shape.num_blocks
    return ceil(2 * rank * in_blocks / shape.hidden_size)


def num_communicators(degrees: tuple[int, ...], world_size: int) -> int:
    """Most groups of more than one rank that a rank belongs to: blocks of plans, and the world.

    A ring inside a launch needs none (point to point); its Ulysses parts are blocks of a degree
    that is allowed too.
    """
    of_degree = plan_blocks(world_size, degrees)
    groups = {tuple(range(world_size)), *(block for found in of_degree.values() for block in found)}
    of_rank = [0] * world_size
    for group in groups:
        if len(group) > 1:
            for rank in group:
                of_rank[rank] += 1
    return max(of_rank)
