"""How long a run still takes, at the pace of its newest steps."""

from collections import deque

_WINDOW = 50


class Pace:
    """Counts the steps of one process; validation and checkpoints between them count as well."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_WINDOW + 1)

    def time_left_s(self, num_left: int, now_s: float, step_s: float) -> float:
        """Seconds for `num_left` more steps, told at the end of each step.

        The mean over at most 50 steps; `step_s`, what the step itself took, serves for the first.
        """
        self._ends_s.append(now_s)
        num_steps = len(self._ends_s) - 1
        each_s = (now_s - self._ends_s[0]) / num_steps if num_steps else step_s
        return num_left * each_s
