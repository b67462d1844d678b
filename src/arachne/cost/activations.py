"""Bytes that one rank of a launch keeps between forward and backward, by recompute level."""

from dataclasses import dataclass
from functools import lru_cache

from arachne.core.activation_inputs import BlockRun, Kept
from arachne.core.model_shape import ModelShape
from arachne.cost.model_counts import model_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchActivations:
    """What one rank of a launch keeps if nothing is recomputed, block by block.

    Attributes:
        ends_bytes: Before and after the blocks; nothing where only blocks have trained weights.
        runs: Of each run of equal blocks: how many, bytes of one, bytes of its input.
        work_bytes: What the backward of a block needs besides: the largest block once more. If all
            blocks are recomputed these are that block's activations: tracking every storage of
            small Wan models gave 0.98 to 1.17 of them. If not, they stand for temporaries, of which
            that gave 0.08 to 0.21; the buffers of rings and other exchanges are among these.
    """

    ends_bytes: float
    runs: tuple[tuple[int, float, float], ...]
    work_bytes: float

    def kept_bytes(self, recompute_layers: int, *, are_inputs_on_host: bool = False) -> float:
        """On the device at the end of the forward; a recomputed block keeps its input alone."""
        kept, left = self.ends_bytes, recompute_layers
        for num_blocks, block_bytes, input_bytes in self.runs:
            recomputed = min(left, num_blocks)
            left -= recomputed
            kept += (num_blocks - recomputed) * block_bytes
            if not are_inputs_on_host:
                kept += recomputed * input_bytes
        return kept


@lru_cache(maxsize=4096)
def launch_activations(
    shape: ModelShape,
    num_tokens: int,
    num_clips: int,
    degree: int,
    element_bytes: int,
    is_adapted: bool = False,
    /,
) -> LaunchActivations:
    """What one of `degree` ranks keeps of `num_clips` clips of `num_tokens` tokens.

    Video tokens are shared out over the degree, others too in families of joint attention. Each
    rank computes the patch embedding in whole, but keeps its own tokens of it. Ignores the padding
    of uneven shards, what a clip keeps once (modulation, masks), and the statistics of norms and
    softmax (about 0.2 % at 128 a head).

    Args:
        shape: Of the model.
        num_tokens: Video tokens of one clip.
        num_clips: Clips in the launch.
        degree: Ranks.
        element_bytes: Of an activation.
        is_adapted: Adapters are trained beside frozen weights, which keep less.
    """
    inputs = model_counts(shape).activations
    video_tokens = num_clips * num_tokens / degree
    other_tokens = num_clips * inputs.other_tokens / (degree if inputs.is_other_split else 1)

    def num_bytes(kept: Kept) -> float:
        return kept.num_bytes(video_tokens, other_tokens, element_bytes)

    def of_block(run: BlockRun) -> float:
        return num_bytes(run.adapted if is_adapted else run.trained)

    runs = tuple(
        (run.num_blocks, of_block(run), num_bytes(run.entered))
        for run in inputs.blocks
        if run.num_blocks
    )
    return LaunchActivations(
        ends_bytes=0.0 if is_adapted else num_bytes(inputs.ends),
        runs=runs,
        work_bytes=max(block_bytes for _, block_bytes, _ in runs),
    )
