"""What one rank of a launch computes, in the terms that the cost model is linear in."""

from dataclasses import dataclass
from math import ceil

from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.flops import TRAINING_PASSES, forward_flops_split, num_matmul_weights
from arachne.cost.model_counts import model_counts
from arachne.cost.training_state import FULL_TRAINING, TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What one rank of a launch computes.

    Attributes:
        matmul_flops: Training FLOPs of matrix products with weights.
        attention_flops: Training FLOPs of the rank that holds most heads.
        flops_per_half_rate_token: Times `half_rate_tokens`, what small products lose in FLOPs.
    """

    matmul_flops: float
    attention_flops: float
    flops_per_half_rate_token: float


def rank_work(
    model: ModelShape,
    num_tokens: int,
    num_clips: int,
    degree: int,
    mode: LaunchMode = WHOLE,
    state: TrainingState = FULL_TRAINING,
) -> RankWork:
    """One rank's part of a launch of `num_clips` clips on `degree` ranks.

    With u ranks in a Ulysses group, r parts in a ring, H heads and ρ the share of blocks that are
    recomputed:

        matmul    = (3 + ρ)·(sharded / (u·r) + replicated)
        attention = (3 + ρ)·(self-attention · ⌈H/u⌉ / (H·r) + cross-attention / (u·r))

    Weights that are not trained need no product of their own, and blocks before the first trained
    one have no backward. Where a share t of the weights is trained and a share b of the blocks is
    reached by the backward, matmul has 1 + b + t + ρ passes and attention 1 + 2·b + ρ. With
    adapters (`num_adapter_weights`) 2 + ρ passes over the frozen weights and three over the
    adapters, which every token is taken to meet. What is recomputed counts as ρ of everything,
    embeddings included; they are about a hundredth.
    """
    flops = forward_flops_split(model, num_tokens, num_clips)
    head_share = ceil(model.num_heads / mode.ulysses(degree)) / model.num_heads / mode.ring
    recomputed = mode.recompute_layers / model.num_blocks
    matmul = flops.sharded_matmul / degree + flops.replicated_matmul
    attention = flops.self_attention * head_share + flops.cross_attention / degree
    reached = 1.0 if state.trained is None else 1.0 - state.trained.passed_share
    trained, adapter_flops = 1.0, 0.0
    if state.num_adapter_weights is not None:
        adapter_passes = TRAINING_PASSES + recomputed
        per_token = 2.0 * state.num_adapter_weights * adapter_passes
        trained, adapter_flops = 0.0, per_token * num_tokens * num_clips / degree
    elif state.trained is not None:
        trained = state.trained.num_parameters / model_counts(model).parameters
    weight_passes = 1.0 + reached + trained + recomputed
    return RankWork(
        matmul_flops=weight_passes * matmul + adapter_flops,
        attention_flops=(1.0 + 2.0 * reached + recomputed) * attention,
        flops_per_half_rate_token=weight_passes * 2.0 * num_matmul_weights(model),
    )
