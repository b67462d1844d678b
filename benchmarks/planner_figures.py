"""What is measured of planners, as ratios to times that no plan can beat."""

import gc
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner_settings import (
    Setting,
    budget_s,
    cluster_of,
    first_settings,
    iterations_on,
    small_problem,
)

from arachne.core.blocks import allowed_degrees
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.mapper.placement import place
from arachne.planner import flexsp
from arachne.planner.configuration_bound import configuration_bound_s
from arachne.planner.exact import plan_exact
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.problem import Planner, PlanningProblem
from arachne.planner.registry import PACKING_PEERS, PEERS, PLANNERS
from arachne.planner.tree import BASELINES, plan_arachne
from arachne.simulator.simulate import simulate

STRONG_STATIC = "static_degree_longest_first"
SLOW_PEERS = frozenset({flexsp.NAME})
"""Peers that run on the first batch of a setting only."""

SMALL_GAIN = 0.03
"""Gains over the strong static planner below this are named."""

MOST_RATIO = {2: 1.06, 4: 1.03}
"""Ratios to the bound, by clips per GPU, above which a batch is named with what is proved of it."""

REFEREE_GPUS = 16
"""On more GPUs the referee proves nothing in reasonable time."""

REFEREE_S = 20.0

_ROUNDING = 1e-9


@dataclass(slots=True)
class Tally:
    """What one planner did on the batches of a setting or of all."""

    ratios: list[float]
    plan_s: list[float]
    cap_violations: int = 0
    refused: int = 0

    @classmethod
    def empty(cls) -> "Tally":
        """Nothing yet."""
        return cls([], [])

    def add(self, other: "Tally") -> None:
        """Count another tally in."""
        self.ratios += other.ratios
        self.plan_s += other.plan_s
        self.cap_violations += other.cap_violations
        self.refused += other.refused

    def summary(self) -> dict[str, Any]:
        """Figures for the JSON file; null where every batch was refused."""
        return {
            "geomean": geomean(self.ratios),
            "worst": max(self.ratios, default=None),
            "plan_s_median": statistics.median(self.plan_s) if self.plan_s else None,
            "plan_s_most": max(self.plan_s, default=None),
            "batches": len(self.ratios),
            "cap_violations": self.cap_violations,
            "refused": self.refused,
        }


def geomean(ratios: Sequence[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def planned(name: str, problem: PlanningProblem, bound_s: float) -> tuple[Tally, Plan | None]:
    """One planner on one batch, and its plan unless it refused."""
    planner = (PLANNERS | PEERS)[name]
    tally = Tally.empty()
    gc.collect()  # what earlier plans left behind is not this one's time,
    gc.freeze()  # nor is looking through what all else keeps
    started_s = time.process_time()
    try:
        plan = planner(problem)
    except InfeasibleError:
        tally.refused = 1
        return tally, None
    finally:
        gc.unfreeze()
    tally.plan_s.append(time.process_time() - started_s)
    tally.ratios.append(plan.makespan_s / bound_s)
    tally.cap_violations = num_cap_violations(plan, problem, is_packed=name in PACKING_PEERS)
    return tally, plan


@dataclass(slots=True)
class Comparison:
    """All planners on the settings run so far.

    Attributes:
        totals: Of each planner over all settings.
        settings: Figures of each setting.
        densities: Of each number of clips per GPU, arachne's ratios and the proved ones.
        num_batches: Batches run.
        num_worse: Those on which arachne's placed plan ran longer in the simulator than a
            baseline's.
        above: Where arachne is above `MOST_RATIO`, and what no plan can be below there.
        beaten: Where a planner that keeps the cap was shorter than arachne: ratios of both, and of
            arachne with the degrees 3·2^k too, since fcp takes any degree.
    """

    totals: dict[str, Tally]
    settings: dict[str, Any]
    densities: dict[int, list[tuple[float, float]]]
    num_batches: int
    num_worse: int
    above: list[dict[str, Any]]
    beaten: list[dict[str, Any]]

    @classmethod
    def empty(cls) -> "Comparison":
        """Nothing run yet."""
        return cls({name: Tally.empty() for name in PLANNERS | PEERS}, {}, {}, 0, 0, [], [])

    def run(self, setting: Setting) -> dict[str, Any]:
        """Run one setting, and give its figures."""
        tallies = {name: Tally.empty() for name in self.totals}
        proved: list[float] = []
        for index, problem in enumerate(setting.problems()):
            bound_s = lower_bound_s(problem)
            mine: Plan | None = None
            for name, tally in tallies.items():
                is_peer_run = setting.has_peers and (index == 0 or name not in SLOW_PEERS)
                if name in PLANNERS or is_peer_run:
                    one, plan = planned(name, problem, bound_s)
                    tally.add(one)
                    mine = plan if name == "arachne" else mine
                    self._note_if_beaten(setting, problem, name, one, mine, bound_s)
            proved.append(configuration_bound_s(problem) / bound_s)
            if mine is not None:
                self._note_if_above(setting, problem, mine, bound_s, proved[-1])
            self.num_batches += 1
            self.num_worse += mine is None or is_worse(mine, problem)
        for name, tally in tallies.items():
            self.totals[name].add(tally)
        ratios = tallies["arachne"].ratios
        self.densities.setdefault(setting.clips_per_gpu, []).extend(
            zip(ratios, proved, strict=True)
        )
        figures = self.settings[setting.name] = setting_figures(tallies, proved)
        return figures

    def _note_if_above(
        self, setting: Setting, problem: PlanningProblem, mine: Plan, bound_s: float, proved: float
    ) -> None:
        ratio = mine.makespan_s / bound_s
        if ratio <= MOST_RATIO[setting.clips_per_gpu]:
            return
        if problem.num_gpus <= REFEREE_GPUS:
            proved = max(proved, plan_exact(problem, time_limit_s=REFEREE_S).proved_s / bound_s)
        self.above.append({"setting": setting.name, "arachne": ratio, "proved": proved})

    def _note_if_beaten(
        self,
        setting: Setting,
        problem: PlanningProblem,
        name: str,
        one: Tally,
        mine: Plan | None,
        bound_s: float,
    ) -> None:
        if mine is None or not one.ratios or one.cap_violations:
            return
        ratio = mine.makespan_s / bound_s
        if one.ratios[0] < ratio * (1.0 - _ROUNDING):
            degrees = allowed_degrees(problem.num_gpus, problem.degrees[-1])
            wider = plan_arachne(replace(problem, degrees=degrees))
            self.beaten.append(
                {
                    "setting": setting.name,
                    "by": name,
                    "ratio": one.ratios[0],
                    "arachne": ratio,
                    "arachne_with_threes": wider.makespan_s / bound_s,
                }
            )

    def density_figures(self) -> dict[str, Any]:
        """Arachne's ratios by clips per GPU: to the area bound, and to the proved one."""
        return {
            f"{clips_per_gpu} clips per GPU": {
                "geomean": geomean([ratio for ratio, _ in pairs]),
                "worst": max(ratio for ratio, _ in pairs),
                "proved_geomean": geomean([least for _, least in pairs]),
                "proved_worst": max(least for _, least in pairs),
                "over_proved_geomean": geomean([ratio / least for ratio, least in pairs]),
                "over_proved_worst": max(ratio / least for ratio, least in pairs),
            }
            for clips_per_gpu, pairs in sorted(self.densities.items())
        }


def setting_figures(tallies: dict[str, Tally], proved: Sequence[float]) -> dict[str, Any]:
    """Each planner's ratios, how much shorter arachne is than the strong static planner, and which
    ratios no plan can have (`proved`, the configuration bound over the bound).
    """
    ratios = tallies["arachne"].ratios
    for ratio, least in zip(ratios, proved, strict=True):
        assert least <= ratio * (1.0 + _ROUNDING), f"a plan at {ratio} is below the bound {least}"
    return {
        "planners": {
            name: {**tally.summary(), "ratios": tally.ratios}
            for name, tally in tallies.items()
            if tally.ratios or tally.refused
        },
        "proved": list(proved),
        "over_proved": geomean([r / least for r, least in zip(ratios, proved, strict=True)]),
        "gain_over_strong_static": gain(ratios, tallies[STRONG_STATIC].ratios),
    }


def gain(mine: Sequence[float], static: Sequence[float]) -> float | None:
    """How much shorter arachne's steps are; None if the static planner refused them all."""
    ours, theirs = geomean(mine), geomean(static)
    return 1.0 - ours / theirs if ours and theirs else None


def is_worse(mine: Plan, problem: PlanningProblem) -> bool:
    """Law 5: whether a cheap baseline's placed plan runs shorter in the unperturbed simulator."""
    least_s = math.inf
    for baseline in BASELINES:
        least_s = min(least_s, _simulated_or_inf(baseline, problem))
    return _simulated_s(mine) > least_s * (1.0 + _ROUNDING)


def _simulated_or_inf(planner: Planner, problem: PlanningProblem) -> float:
    try:
        return _simulated_s(planner(problem))
    except InfeasibleError:
        return math.inf


def _simulated_s(plan: Plan) -> float:
    trace = simulate(place(plan, cluster_of(plan.num_gpus), 0))
    return max((span.end_s for span in trace.spans), default=0.0)


def run_sensitivity(settings: Sequence[Setting]) -> dict[str, Any]:
    """Gain over the strong static planner at other bandwidths and launch costs."""
    gains: dict[str, float] = {}
    for setting in settings:
        both: dict[str, list[float]] = {"arachne": [], STRONG_STATIC: []}
        for problem in setting.problems():
            bound_s = lower_bound_s(problem)
            for name, ratios in both.items():
                ratios += planned(name, problem, bound_s)[0].ratios
        found = gain(both["arachne"], both[STRONG_STATIC])
        if found is not None:
            gains[setting.name] = found
    return {
        "gains": gains,
        "least": min(gains.values()),
        "median": statistics.median(gains.values()),
        "below_3_percent": [name for name, one in gains.items() if one < SMALL_GAIN],
    }


def run_exact(num_instances: int, time_limit_s: float) -> dict[str, Any]:
    """Arachne over the referee on random small instances; unproved ones are counted apart."""
    ratios: list[float] = []
    bounds: list[float] = []
    num_unproved = 0
    for seed in range(num_instances):
        problem = small_problem(seed)
        verdict = plan_exact(problem, time_limit_s=time_limit_s)
        ratios.append(plan_arachne(problem).makespan_s / verdict.plan.makespan_s)
        num_unproved += not verdict.is_proved
        bounds.append(verdict.proved_s / lower_bound_s(problem))
    return {
        "geomean": geomean(ratios),
        "worst": max(ratios),
        "instances": num_instances,
        "unproved": num_unproved,
        "time_limit_s": time_limit_s,
        "proved_over_bound": {"geomean": geomean(bounds), "worst": max(bounds)},
    }


def run_scale(num_gpus: int, clips_per_gpu: int) -> dict[str, Any]:
    """The largest case of the t2v mix."""
    setting = Setting(
        mix="t2v",
        launch_ms=30,
        num_gpus=num_gpus,
        clips_per_gpu=clips_per_gpu,
        num_batches=1,
        iterations=iterations_on(num_gpus, clips_per_gpu, budget_s(num_gpus)),
    )
    problem = next(setting.problems())
    tally, _ = planned("arachne", problem, lower_bound_s(problem))
    return {
        "gpus": num_gpus,
        "clips": len(problem.batch.clips),
        "plan_s": tally.plan_s[0],
        "ratio": tally.ratios[0],
    }


def run_first(num_gpus: int) -> dict[str, Any]:
    """How soon a usable plan is there: few search steps, all mixes."""
    total = Tally.empty()
    for setting in first_settings(num_gpus):
        for problem in setting.problems():
            total.add(planned("arachne", problem, lower_bound_s(problem))[0])
    return {"gpus": num_gpus, **total.summary()}
