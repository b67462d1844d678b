"""Costs of cascades by degree alone, looked up once: what planners of alike GPUs decide by."""

from math import inf

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of, stacked_cascades


class GroupCosts:
    """Costs on the first GPUs of a problem, which stand for any others of the same number."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        self._durations_s: dict[tuple[Bucket, int, int], float] = {}
        self._pack_shares: dict[tuple[Bucket, int, int], float] = {}

    def duration_s(self, cascade: Cascade, degree: int) -> float:
        """Seconds of a launch; infinite where it does not fit."""
        key = (cascade.bucket, cascade.num_clips, degree)
        known_s = self._durations_s.get(key)
        if known_s is None:
            gpus = tuple(range(degree))
            fits = self.problem.costs.fits(cascade, gpus)
            known_s = self.problem.duration_s(cascade, gpus) if fits else inf
            self._durations_s[key] = known_s
        return known_s

    def fits(self, cascade: Cascade, degree: int) -> bool:
        """Whether a group of this degree can run the cascade."""
        return self.duration_s(cascade, degree) < inf

    def pack_share(self, cascade: Cascade, degree: int) -> float:
        """Share of a GPU's activation memory that the cascade takes in a pack; above 1 = too much.

        A pack keeps the activations of all its cascades at once, each in the mode that it would
        have alone. They are what k more clips add to a launch of k, a, and the share is
        a / (cap − resident) with resident = m(k) − a: memory is taken as linear in the clips.
        """
        key = (cascade.bucket, cascade.num_clips, degree)
        known = self._pack_shares.get(key)
        if known is None:
            gpus, costs = tuple(range(degree)), self.problem.costs
            added_bytes = costs.added_bytes(cascade, gpus)
            free_bytes = costs.memory_bytes - (costs.launch_bytes(cascade, gpus) - added_bytes)
            known = added_bytes / free_bytes if free_bytes > 0 else inf
            self._pack_shares[key] = known
        return known

    def cascades(self, degrees: tuple[int, ...], *, planner: str) -> tuple[Cascade, ...]:
        """The batch under the common stacking rule; a stack that fits on no degree is halved.

        Raises:
            InfeasibleError: A clip fits on none of `degrees`.
        """
        found: list[Cascade] = []
        for stack in stacked_cascades(self.problem.batch, self.problem.stack_tokens):
            parts = [stack]
            while parts:
                cascade = parts.pop()
                if any(self.fits(cascade, degree) for degree in degrees):
                    found.append(cascade)
                elif cascade.num_clips == 1:
                    widest = tuple(range(degrees[-1]))
                    raise does_not_fit(self.problem, cascade, widest, planner=planner)
                else:
                    half = cascade.num_clips // 2
                    halves = cascade.slots[half:], cascade.slots[:half]
                    parts += [cascade_of(self.problem.batch.clips, slots) for slots in halves]
        return tuple(found)


def powers_of_two(degrees: tuple[int, ...]) -> tuple[int, ...]:
    """The powers of two among the degrees; all of them if there is none."""
    return tuple(degree for degree in degrees if degree & (degree - 1) == 0) or degrees
