"""How many iterations planner `arachne` has time for.

A plan must not depend on a clock, so a time budget chooses the iterations ahead. The figures below
are process time on one core of an x86-64 server under CPython 3.11, for the slowest of the clip
mixes of `benchmarks/planners.py` and, for several ladders, of Wan 1.3B on 4 to 64 H100s: most
problems take less. Another machine is faster or slower in proportion.
"""

_START_S = 0.01
_START_S_OF_A_CLIP = 1.5e-4
"""Baselines, greedy starts, and writing the plan down."""

_STEP_S = 8e-5
_STEP_S_OF_CLIPS_PER_GPU = 3e-5
_GPUS_THAT_DOUBLE = 2048
_LADDER_SHARE = 0.12
"""An iteration, with its part of the configuration starts; more ladders make these slower."""


def iterations_within(
    budget_s: float, num_gpus: int, num_clips: int, *, num_ladders: int = 1
) -> int:
    """Iterations that take about `budget_s` with all else that planning takes; 0 if that is more.

        s = 0.01 + 1.5e-4·clips + iterations · (8e-5 + 3e-5·clips/GPUs) · (1 + GPUs/2048)
            · (1 + 0.12·(ladders − 1))

    `num_ladders` is how many `core.blocks.ladders` names. Steps with encoders take longer.
    """
    step_s = _STEP_S + _STEP_S_OF_CLIPS_PER_GPU * num_clips / num_gpus
    step_s *= 1.0 + num_gpus / _GPUS_THAT_DOUBLE
    step_s *= 1.0 + _LADDER_SHARE * (num_ladders - 1)
    left_s = budget_s - _START_S - _START_S_OF_A_CLIP * num_clips
    return max(int(left_s / step_s), 0)
