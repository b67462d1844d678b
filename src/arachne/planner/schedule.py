"""Start times for cascades that know their GPUs: one rule for all planners.

A launch starts when all its GPUs are free and, if it trains, when everything that its clips'
encoders made has been handed to these GPUs. Waiting for that keeps the GPUs.
"""

from collections.abc import Iterable, Iterator, Sequence

from arachne.core.cascade import Cascade, Encoder
from arachne.core.plan import Launch, Plan
from arachne.planner.in_place import InPlace
from arachne.planner.problem import Placement, PlanningProblem


class Clock:
    """When GPUs are free and clips encoded, while launches are put one after another.

    Attributes:
        problem: What is planned.
        free_s: When each GPU has done all that it was given so far.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        self.free_s = [0.0] * problem.num_gpus
        self._encoded: dict[tuple[Encoder, int], tuple[float, Cascade, tuple[int, ...]]] = {}

    def run(self, cascade: Cascade, gpus: tuple[int, ...]) -> tuple[float, float]:
        """Start and seconds of a cascade that is launched now."""
        start_s = max([self.free_s[gpu] for gpu in gpus])
        if cascade.module == "dit":
            start_s = max(start_s, self._ready_s(cascade, gpus))
        duration_s = self.problem.duration_s(cascade, gpus)
        end_s = start_s + duration_s
        for gpu in gpus:
            self.free_s[gpu] = end_s
        if cascade.module != "dit" and not cascade.steps_ahead:
            made = (end_s, cascade, gpus)
            self._encoded |= {(cascade.module, slot): made for slot in cascade.slots}
        return start_s, duration_s

    def meet(self) -> None:
        """A barrier: from now on nothing starts before all GPUs are free."""
        self.free_s = [max(self.free_s)] * len(self.free_s)

    def _ready_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """When the last result that the cascade needs has arrived at its GPUs."""
        clips = self.problem.batch.clips
        handoff_s = self.problem.costs.handoff_s
        needed = [
            self._encoded[module, slot]
            for slot in cascade.slots
            for module in clips[slot].to_encode
        ]
        return max(
            [
                end_s + handoff_s(encoder, made_on, gpus)
                for end_s, encoder, made_on in {id(made): made for made in needed}.values()
            ],
            default=0.0,
        )


def scheduled(problem: PlanningProblem, planner: str, placements: Iterable[Placement]) -> Plan:
    """Start each cascade, in the given order, as soon as the rule allows.

    `placements` name what trains; encoders are added where trainers have them (`InPlace`).

    Raises:
        InfeasibleError: An encoder fits on no block within the GPUs that train its clip.
    """
    return scheduled_in_phases(problem, planner, [placements])


def scheduled_as_given(
    problem: PlanningProblem, planner: str, placements: Iterable[Placement]
) -> Plan:
    """The same for placements that name everything, encoders before what needs them."""
    clock = Clock(problem)
    return _plan(problem, planner, [_launch(clock, placed, 0) for placed in placements])


def end_s(problem: PlanningProblem, placements: Iterable[Placement]) -> float:
    """The makespan that `scheduled_as_given` would give."""
    clock = Clock(problem)
    for cascade, gpus in placements:
        clock.run(cascade, gpus)
    return max(clock.free_s)


def scheduled_in_phases(
    problem: PlanningProblem, planner: str, phases: Sequence[Iterable[Placement]]
) -> Plan:
    """Phase by phase, with a barrier over all GPUs between two; within one as `scheduled` does.

    Raises:
        InfeasibleError: An encoder fits on no block within the GPUs that train its clip.
    """
    clock = Clock(problem)
    launches = [
        _launch(clock, placed, phase) for phase, placed in _in_place(clock, planner, phases)
    ]
    return _plan(problem, planner, launches)


def end_in_place_s(
    problem: PlanningProblem, planner: str, placements: Iterable[Placement]
) -> float:
    """The makespan that `scheduled` would give; raises alike."""
    clock = Clock(problem)
    for _, placed in _in_place(clock, planner, [placements]):
        clock.run(*placed)
    return max(clock.free_s)


def _in_place(
    clock: Clock, planner: str, phases: Sequence[Iterable[Placement]]
) -> Iterator[tuple[int, Placement]]:
    """Phases with their encoders; each placement has to be run before the next one is asked for."""
    in_place = InPlace(clock.problem, planner)
    for phase, placements in enumerate(phases):
        clock.meet()
        for placed in placements:
            for one in in_place.with_encoders(*placed):
                yield phase, one
    for one in in_place.ahead(clock.free_s):
        yield max(len(phases) - 1, 0), one


def _launch(clock: Clock, placed: Placement, phase: int) -> Launch:
    cascade, gpus = placed
    start_s, duration_s = clock.run(cascade, gpus)
    return Launch(
        cascade=cascade,
        gpus=gpus,
        start_s=start_s,
        duration_s=duration_s,
        phase=phase,
        mode=clock.problem.costs.mode(cascade, gpus),
    )


def _plan(problem: PlanningProblem, planner: str, launches: list[Launch]) -> Plan:
    launches.sort(key=lambda launch: (launch.start_s, launch.gpus))
    return Plan(planner=planner, num_gpus=problem.num_gpus, launches=tuple(launches))
