"""Which clips share a cascade: one rule for all planners, so that they compare by placement."""

from collections.abc import Sequence

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Module


def stack_limit(num_tokens: int, stack_tokens: int) -> int:
    """Most clips of `num_tokens` tokens that one cascade may hold; never below one."""
    return max(1, stack_tokens // max(num_tokens, 1))


def stacked_cascades(
    batch: Batch, stack_tokens: int, module: Module = "dit", *, steps_ahead: int = 0
) -> tuple[Cascade, ...]:
    """What `module` has to do for a batch: same-shape clips stacked in slot order up to
    `stack_tokens`, one rule for all modules; ordered by first slot.
    """
    open_stacks: dict[Bucket, list[int]] = {}
    stacks: list[list[int]] = []
    for slot, clip in enumerate(batch.clips):
        if module != "dit" and module not in clip.to_encode:
            continue
        limit = stack_limit(clip.num_tokens, stack_tokens)
        stack = open_stacks.get(clip.bucket)
        if stack is None or len(stack) >= limit:
            stack = open_stacks[clip.bucket] = []
            stacks.append(stack)
        stack.append(slot)
    return tuple(
        cascade_of(batch.clips, stack, module, steps_ahead=steps_ahead) for stack in stacks
    )


def cascade_of(
    clips: Sequence[BatchClip],
    slots: Sequence[int],
    module: Module = "dit",
    *,
    steps_ahead: int = 0,
) -> Cascade:
    """The cascade of a module on these slots, which hold clips of one shape."""
    first = clips[slots[0]]
    return Cascade(
        module=module,
        slots=tuple(sorted(slots)),
        bucket=first.bucket,
        num_tokens=first.num_tokens,
        steps_ahead=steps_ahead,
    )
