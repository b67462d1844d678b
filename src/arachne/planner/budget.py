"""How many iterations planner `arachne` has time for.

A plan must not depend on a clock, so a time budget chooses the iterations ahead. The figures below
are process time on one core of an x86-64 server under CPython 3.11. Those of an iteration are of
the slowest of the clip mixes of `benchmarks/planners.py` and, for several ladders, of Wan 1.3B on 4
to 64 H100s: most problems take less. Those of what is done in any case are of Wan 1.3B and
HunyuanVideo-13B on 2 to 1,024 H100s, 8 to 2,048 clips, 1 to 10 ladders, with encoders and without:
0.004 s to 1.8 s. Another machine is faster or slower in proportion.
"""

from arachne.planner.search import ITERATIONS_OF_A_START

_START_S = 0.01
_START_S_OF_A_CLIP = 3e-4
_GPUS_THAT_DOUBLE_A_START = 1024
_START_S_OF_A_GPU_IN_A_LADDER = 5e-5
"""Baselines, the lower bound, greedy starts, and writing the plan down."""

_TIMES_WITH_ENCODERS = 2.5
"""The same where anything is encoded: more shapes, and starts on every ladder."""

_MORE_S_OF_A_GPU_IN_A_LADDER = 2e-4
"""Greedy starts on every ladder, and peers' plans, which longer searches begin with."""

_STEP_S = 8e-5
_STEP_S_OF_CLIPS_PER_GPU = 3e-5
_GPUS_THAT_DOUBLE = 2048
_LADDER_SHARE = 0.12
"""An iteration, with its part of the configuration starts; more ladders make these slower."""

_ENCODERS_STEP_S = 1.5e-4
"""The search on whole plans, for each iteration: 80 steps of five models with encoders on 8 to 32
GPUs took 1.0e-4 s more on average, the slowest 2.2e-4 s."""


def iterations_within(
    budget_s: float,
    num_gpus: int,
    num_clips: int,
    *,
    num_ladders: int = 1,
    fixed_s: float | None = None,
    has_encoders: bool = False,
) -> int:
    """Iterations that take about `budget_s` with all else that planning takes; 0 if that is more.

        s = fixed + iterations · (8e-5 + 3e-5·clips/GPUs) · (1 + GPUs/2048)
            · (1 + 0.12·(ladders − 1)) + iterations · 1.5e-4 if anything is encoded
        fixed = 0.01 + 3e-4·clips · (1 + GPUs/1024) + 5e-5·GPUs·ladders, 2.5 times that if anything
            is encoded, else 2e-4·GPUs·ladders more from 400 iterations on

    The fixed part is spent in any case: a budget below it saves nothing more, and planning takes
    longer than it. `fixed_s` replaces it where it was measured: it is less where degrees end below
    the world, or launches cost less to ask for. `num_ladders` is how many `core.blocks.ladders`
    names. Placing the plan is not counted.
    """
    step_s = _STEP_S + _STEP_S_OF_CLIPS_PER_GPU * num_clips / num_gpus
    step_s *= 1.0 + num_gpus / _GPUS_THAT_DOUBLE
    step_s *= 1.0 + _LADDER_SHARE * (num_ladders - 1)
    step_s += _ENCODERS_STEP_S * has_encoders
    more_s = 0.0
    if fixed_s is None:
        fixed_s = _START_S + _START_S_OF_A_GPU_IN_A_LADDER * num_gpus * num_ladders
        fixed_s += _START_S_OF_A_CLIP * num_clips * (1.0 + num_gpus / _GPUS_THAT_DOUBLE_A_START)
        if has_encoders:
            fixed_s *= _TIMES_WITH_ENCODERS
        else:
            more_s = _MORE_S_OF_A_GPU_IN_A_LADDER * num_gpus * num_ladders
    iterations = max(int((budget_s - fixed_s) / step_s), 0)
    if iterations < ITERATIONS_OF_A_START:
        return iterations
    with_all_starts = int((budget_s - fixed_s - more_s) / step_s)
    return max(with_all_starts, ITERATIONS_OF_A_START - 1)
