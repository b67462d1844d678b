"""Bytes that one rank of a launch keeps between forward and backward, by recompute level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from arachne.core.activation_inputs import BlockRun, Kept
from arachne.core.model_shape import ModelShape
from arachne.cost.model_counts import model_counts
from arachne.cost.trained_part import BlockPart, TrainedPart


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
    trained: TrainedPart | None = None,
    /,
) -> LaunchActivations:
    """What one of `degree` ranks keeps of `num_clips` clips of `num_tokens` tokens.

    Video tokens are shared out over the degree, others too in families of joint attention. Each
    rank computes the patch embedding in whole, but keeps its own tokens of it. Ignores the padding
    of uneven shards, what a clip keeps once (modulation, masks), and the statistics of norms and
    softmax (about 0.2 % at 128 a head). Of a partly frozen model a frozen block counts as if it had
    adapters, a partly trained one and the ends as if all of them were trained: rather too much.

    Args:
        shape: Of the model.
        num_tokens: Video tokens of one clip.
        num_clips: Clips in the launch.
        degree: Ranks.
        element_bytes: Of an activation.
        is_adapted: Adapters are trained beside frozen weights, which keep less.
        trained: The trained part of a model without adapters; None is all of it.
    """
    inputs = model_counts(shape).activations
    video_tokens = num_clips * num_tokens / degree
    other_tokens = num_clips * inputs.other_tokens / (degree if inputs.is_other_split else 1)

    def num_bytes(kept: Kept) -> float:
        return kept.num_bytes(video_tokens, other_tokens, element_bytes)

    def block_bytes(run: BlockRun, part: BlockPart) -> tuple[float, float]:
        if part == "passed":
            return 0.0, 0.0
        return num_bytes(run.trained if part == "trained" else run.adapted), num_bytes(run.entered)

    whole: BlockPart = "frozen" if is_adapted else "trained"
    parts = _parts(inputs.blocks, trained or whole)
    runs = tuple((run.num_blocks, *block_bytes(run, part)) for run, part in parts if run.num_blocks)
    return LaunchActivations(
        ends_bytes=0.0 if is_adapted else num_bytes(inputs.ends),
        runs=runs,
        work_bytes=max(bytes_of_block for _, bytes_of_block, _ in runs),
    )


def _parts(
    runs: Sequence[BlockRun], trained: TrainedPart | BlockPart
) -> list[tuple[BlockRun, BlockPart]]:
    """Runs of blocks of one kind that are all passed, frozen or trained."""
    if not isinstance(trained, TrainedPart):
        return [(run, trained) for run in runs]
    kinds = [run for run in runs for _ in range(run.num_blocks)]
    return [
        (replace(run, num_blocks=len(list(same))), part)
        for (run, part), same in groupby(zip(kinds, trained.blocks, strict=True))
    ]
