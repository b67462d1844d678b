"""What a model keeps between forward and backward, counted per token."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one part of a model keeps of each token.

    Attributes:
        video: Elements of a video token, in the model's own type.
        other: Elements of a token besides the video, likewise.
        video_copies: Bytes of the wider copies of a video token that norms, modulation and rotary
            embedding add where the model's type is narrower than float32.
        other_copies: The same of a token besides the video.
    """

    video: int
    other: int = 0
    video_copies: int = 0
    other_copies: int = 0

    def num_bytes(self, video_tokens: float, other_tokens: float, element_bytes: int) -> float:
        """Bytes of so many tokens."""
        has_copies = element_bytes < 4
        video_bytes = self.video * element_bytes + self.video_copies * has_copies
        other_bytes = self.other * element_bytes + self.other_copies * has_copies
        return video_tokens * video_bytes + other_tokens * other_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Transformer blocks of one kind that follow each other.

    Attributes:
        num_blocks: How many.
        trained: What a block keeps if all its weights are trained.
        adapted: What it keeps if its weights are frozen, with an adapter beside each linear layer.
        entered: What comes in, which is all that a block keeps that is computed again.
    """

    num_blocks: int
    trained: Kept
    adapted: Kept
    entered: Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationInputs:
    """What a forward pass keeps for its backward; `cost.activations` turns it into bytes.

    Source: the storages that autograd saves in diffusers' classes with an attention kernel that
    keeps no scores, counted by `torch.autograd.graph.saved_tensors_hooks`; each storage once.

    Attributes:
        blocks: The transformer blocks in the order in which they run.
        ends: Everything before and after them.
        other_tokens: Tokens of a clip besides its video: text.
        is_other_split: Sequence parallelism shares those out too (joint attention); else every rank
            keeps all of them.
    """

    blocks: tuple[BlockRun, ...]
    ends: Kept
    other_tokens: int
    is_other_split: bool = False
