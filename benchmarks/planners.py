"""Head to head: every planner on modelled batches, as ratios to a time that no plan can beat.

    python benchmarks/planners.py --json out.json          all settings, some ten minutes
    python benchmarks/planners.py --quick --json out.json  a fair sample, a minute

Costs are FlexSP's published coefficients of a 7B model on A100 GPUs (arXiv 2412.01523): seconds are
modelled, not measured; only the planning times are measured here. A token cap stands in for memory,
and clips of one shape are stacked up to that cap by all planners alike. Bandwidths exist for powers
of two up to 64; 256 and 1,024 GPUs use 16 as the largest degree.
"""

import argparse
import json
import math
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.planner import flexsp
from arachne.planner.configuration_bound import configuration_bound_s
from arachne.planner.exact import plan_exact
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.problem import LaunchCosts, PlanningProblem
from arachne.planner.registry import PACKING_PEERS, PEERS, PLANNERS
from arachne.planner.tree import BASELINES, plan_arachne

TOKENS_PER_GPU = 20_480
BYTES_PER_TOKEN = 4.48e6
QUADRATIC_MS, LINEAR_MS = 5.128e-6, 0.18396
NUM_LAYERS, HIDDEN_SIZE = 32, 4096
GB_PER_S = {1: math.inf, 2: 119.5, 4: 104.0, 8: 96.5, 16: 10.3, 32: 5.9, 64: 4.9}

MIXES: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "t2v": (
        (1560, 3600, 7800, 14040, 18000, 20280, 32760, 75600),
        (0.20, 0.15, 0.20, 0.12, 0.10, 0.08, 0.10, 0.05),
    ),
    "img_heavy": (
        (256, 1024, 1560, 3600, 7800, 32760, 75600),
        (0.3, 0.2, 0.2, 0.1, 0.1, 0.07, 0.03),
    ),
    "long": ((7800, 32760, 75600, 151200), (0.35, 0.35, 0.25, 0.05)),
}
"""Tokens of a clip, and how likely each is."""

STRONG_STATIC = "static_degree_longest_first"
SLOW_PEERS = frozenset({flexsp.NAME})
"""Peers that run on the first batch of a setting only."""


def gb_per_s(degree: int) -> float:
    """Published bandwidth; between two powers of two that of the larger one (peers use those)."""
    return next((rate for known, rate in GB_PER_S.items() if known >= degree), GB_PER_S[64])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexSpCosts(LaunchCosts):
    """FlexSP's cost model, in seconds: k clips of s tokens on p GPUs.

    β + k · ((5.128e-6·s² + 0.18396·s) / p + 8·L·h·s·2 / 2^20 / p / bandwidth(p)) ms
    """

    launch_overhead_s: float

    @property
    def memory_bytes(self) -> float:
        """The token cap in bytes."""
        return TOKENS_PER_GPU * BYTES_PER_TOKEN

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds of a launch."""
        tokens, degree = cascade.num_tokens, len(gpus)
        compute_ms = (QUADRATIC_MS * tokens * tokens + LINEAR_MS * tokens) / degree
        moved_mib = 8 * NUM_LAYERS * HIDDEN_SIZE * tokens * 2 / 2**20 / degree
        clip_ms = compute_ms + moved_mib / gb_per_s(degree)
        return self.launch_overhead_s + cascade.num_clips * clip_ms / 1e3

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Bytes on each GPU."""
        return cascade.num_clips * cascade.num_tokens / len(gpus) * BYTES_PER_TOKEN

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        """Whether the token cap is kept."""
        return cascade.num_clips * cascade.num_tokens <= TOKENS_PER_GPU * len(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Batches of one kind on one cluster."""

    mix: str
    launch_ms: int
    num_gpus: int
    clips_per_gpu: int
    num_batches: int
    iterations: int
    has_peers: bool

    @property
    def name(self) -> str:
        """Key in the JSON file."""
        return f"{self.mix}/{self.launch_ms}ms/{self.num_gpus}gpus/{self.clips_per_gpu}clips"

    def problems(self) -> Iterator[PlanningProblem]:
        """One problem per batch; drawn from the setting's name, so the same in every run."""
        tokens, weights = MIXES[self.mix]
        largest = 16 if self.num_gpus > 64 else self.num_gpus
        for seed in range(self.num_batches):
            rng = random.Random(f"{self.mix}/{self.num_gpus}/{self.clips_per_gpu}/{seed}")
            drawn = rng.choices(tokens, weights, k=self.clips_per_gpu * self.num_gpus)
            yield problem_of(drawn, self.num_gpus, largest, self.launch_ms, self.iterations)


def problem_of(
    tokens: Sequence[int], num_gpus: int, largest_degree: int, launch_ms: float, iterations: int
) -> PlanningProblem:
    """A batch of clips of these lengths; a length is a shape."""
    clips = tuple(
        BatchClip(
            name=f"{slot}.mp4", bucket=Bucket(width=count, height=1, frames=1), num_tokens=count
        )
        for slot, count in enumerate(tokens)
    )
    return PlanningProblem(
        batch=Batch(step=0, clips=clips),
        num_gpus=num_gpus,
        degrees=tuple(degree for degree in GB_PER_S if degree <= largest_degree),
        costs=FlexSpCosts(launch_overhead_s=launch_ms / 1e3),
        stack_tokens=TOKENS_PER_GPU,
        iterations=iterations,
    )


@dataclass(slots=True)
class Tally:
    """What one planner did on the batches of a setting or of all."""

    ratios: list[float]
    plan_s: list[float]
    wall_s: list[float]
    cap_violations: int = 0
    refused: int = 0

    @classmethod
    def empty(cls) -> "Tally":
        """Nothing yet."""
        return cls([], [], [])

    def add(self, other: "Tally") -> None:
        """Count another tally in."""
        self.ratios += other.ratios
        self.plan_s += other.plan_s
        self.wall_s += other.wall_s
        self.cap_violations += other.cap_violations
        self.refused += other.refused

    def summary(self) -> dict[str, Any]:
        """Figures for the JSON file; null where every batch was refused."""
        return {
            "geomean": geomean(self.ratios),
            "worst": max(self.ratios, default=None),
            "plan_s_median": statistics.median(self.plan_s) if self.plan_s else None,
            "plan_wall_s_median": statistics.median(self.wall_s) if self.wall_s else None,
            "plan_s_most": max(self.plan_s, default=None),
            "batches": len(self.ratios),
            "cap_violations": self.cap_violations,
            "refused": self.refused,
        }


def geomean(ratios: Sequence[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def planned(name: str, problem: PlanningProblem, bound_s: float) -> Tally:
    """One planner on one batch."""
    planner = (PLANNERS | PEERS)[name]
    tally = Tally.empty()
    wall_s, process_s = time.perf_counter(), time.process_time()
    try:
        plan = planner(problem)
    except InfeasibleError:
        tally.refused = 1
        return tally
    tally.plan_s.append(time.process_time() - process_s)
    tally.wall_s.append(time.perf_counter() - wall_s)
    tally.ratios.append(plan.makespan_s / bound_s)
    tally.cap_violations = num_cap_violations(plan, problem, is_packed=name in PACKING_PEERS)
    return tally


def settings_of(*, is_quick: bool) -> list[Setting]:
    """What is run: all settings, or a fair sample of them."""
    worlds = {8: 1, 64: 1} if is_quick else {8: 5, 16: 5, 32: 5, 64: 5, 256: 2, 1024: 1}
    return [
        Setting(
            mix=mix,
            launch_ms=launch_ms,
            num_gpus=num_gpus,
            clips_per_gpu=clips_per_gpu,
            num_batches=num_batches,
            iterations=iterations_on(num_gpus),
            has_peers=num_gpus <= (8 if is_quick else 64),
        )
        for num_gpus, num_batches in worlds.items()
        for clips_per_gpu in (2, 4)
        for mix in MIXES
        for launch_ms in (30, 200)
    ]


def iterations_on(num_gpus: int) -> int:
    """Search steps that take less than a second up to 64 GPUs, less than five at 1,024."""
    return 5_000 if num_gpus <= 64 else 8_000


def run_settings(settings: Sequence[Setting]) -> tuple[dict[str, Any], dict[str, Tally], int, int]:
    """Figures of each setting, each planner's over all, law 5: batches and how many were worse."""
    totals = {name: Tally.empty() for name in PLANNERS | PEERS}
    by_setting: dict[str, Any] = {}
    num_batches = num_worse = 0
    for setting in settings:
        tallies = {name: Tally.empty() for name in totals}
        proved: list[float] = []
        for index, problem in enumerate(setting.problems()):
            bound_s = lower_bound_s(problem)
            for name, tally in tallies.items():
                is_run = name in PLANNERS or (
                    setting.has_peers and (index == 0 or name not in SLOW_PEERS)
                )
                if is_run:
                    tally.add(planned(name, problem, bound_s))
            proved.append(configuration_bound_s(problem) / bound_s)
            num_batches += 1
            num_worse += tallies["arachne"].ratios[-1] > best_baseline(problem, bound_s)
        for name, tally in tallies.items():
            totals[name].add(tally)
        figures = by_setting[setting.name] = setting_figures(tallies, proved)
        print_setting(setting, figures)
    return by_setting, totals, num_batches, num_worse


def best_baseline(problem: PlanningProblem, bound_s: float) -> float:
    """Ratio of the best cheap planner, those that warm-start the search."""
    best = math.inf
    for baseline in BASELINES:
        try:
            best = min(best, baseline(problem).makespan_s / bound_s)
        except InfeasibleError:
            continue
    return best


def setting_figures(tallies: dict[str, Tally], proved: Sequence[float]) -> dict[str, Any]:
    """Each planner's ratios, how much shorter arachne is than the strong static planner, and which
    ratios no plan can have (`proved`, the configuration bound over the bound).
    """
    for ratio, least in zip(tallies["arachne"].ratios, proved, strict=True):
        assert least <= ratio * (1.0 + 1e-9), f"a plan at {ratio} is below a proved bound, {least}"
    mine, static = geomean(tallies["arachne"].ratios), geomean(tallies[STRONG_STATIC].ratios)
    return {
        "planners": {
            name: {**tally.summary(), "ratios": tally.ratios}
            for name, tally in tallies.items()
            if tally.ratios or tally.refused
        },
        "proved": list(proved),
        "over_proved": geomean(
            [r / least for r, least in zip(tallies["arachne"].ratios, proved, strict=True)]
        ),
        "gain_over_strong_static": 1.0 - mine / static if mine and static else None,
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


def small_problem(seed: int) -> PlanningProblem:
    """A few clips of a mix on 2 to 8 GPUs, at least one of which can hold the longest."""
    rng = random.Random(f"small/{seed}")
    while True:
        tokens, weights = MIXES[rng.choice(list(MIXES))]
        num_gpus = rng.randint(2, 8)
        drawn = rng.choices(tokens, weights, k=rng.randint(2, 14))
        largest = max(degree for degree in GB_PER_S if degree <= num_gpus)
        if max(drawn) <= TOKENS_PER_GPU * largest:
            return problem_of(drawn, num_gpus, largest, rng.choice((10, 30, 100, 200)), 4_000)


def run_scale(num_gpus: int, clips_per_gpu: int) -> dict[str, Any]:
    """The largest case of the t2v mix."""
    setting = Setting(
        mix="t2v",
        launch_ms=30,
        num_gpus=num_gpus,
        clips_per_gpu=clips_per_gpu,
        num_batches=1,
        iterations=iterations_on(num_gpus),
        has_peers=False,
    )
    problem = next(setting.problems())
    tally = planned("arachne", problem, lower_bound_s(problem))
    return {
        "gpus": num_gpus,
        "clips": len(problem.batch.clips),
        "plan_s": tally.plan_s[0],
        "plan_wall_s": tally.wall_s[0],
        "ratio": tally.ratios[0],
    }


def run_first(num_gpus: int, iterations: int) -> dict[str, Any]:
    """How soon a usable plan is there: few search steps, all mixes."""
    total = Tally.empty()
    for mix in MIXES:
        for launch_ms in (30, 200):
            for clips_per_gpu in (2, 4):
                setting = Setting(
                    mix=mix,
                    launch_ms=launch_ms,
                    num_gpus=num_gpus,
                    clips_per_gpu=clips_per_gpu,
                    num_batches=1,
                    iterations=iterations,
                    has_peers=False,
                )
                for problem in setting.problems():
                    total.add(planned("arachne", problem, lower_bound_s(problem)))
    return {"gpus": num_gpus, "iterations": iterations, **total.summary()}


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the figures were made with."""
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": git.stdout.strip() if git.returncode == 0 else "unknown",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": arguments.quick,
        "costs": "FlexSP 7B on A100, published coefficients",
        "stack_tokens": TOKENS_PER_GPU,
        "flexsp": {"solver": "HiGHS", "limit_s": flexsp.SOLVER_LIMIT_S, "cores": 1},
        "plan_s": "process time on one core",
    }


def print_setting(setting: Setting, figures: dict[str, Any]) -> None:
    """One line a setting."""
    mine, static = figures["planners"]["arachne"], figures["planners"][STRONG_STATIC]
    gain = figures["gain_over_strong_static"]
    print(
        f"{setting.name:32} arachne {mine['geomean']:.4f} (worst {mine['worst']:.4f}, "
        f"{mine['plan_s_median']:.2f} s; no plan below {geomean(figures['proved']):.4f})  "
        "strong static "
        + (f"{static['geomean']:.4f}, gain {gain:.1%}" if gain is not None else "refused"),
        flush=True,
    )


def print_planners(planners: dict[str, Any]) -> None:
    """One line a planner, the best first."""
    print(f"\n{'planner':34}{'geomean':>9}{'worst':>9}{'plan s':>10}{'batches':>9}{'cap':>6}")
    for name, row in sorted(planners.items(), key=lambda item: item[1]["geomean"] or math.inf):
        if row["geomean"] is not None:
            print(
                f"{name:34}{row['geomean']:9.4f}{row['worst']:9.4f}{row['plan_s_median']:10.4f}"
                f"{row['batches']:9}{row['cap_violations']:6}"
            )


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description="Every planner on modelled batches.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="a fair sample, about a minute")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        flexsp.SOLVER_LIMIT_S = 1.0
    by_setting, totals, num_batches, num_worse = run_settings(settings_of(is_quick=arguments.quick))
    result = {
        "about": about(arguments),
        "settings": by_setting,
        "planners": {name: t.summary() for name, t in totals.items() if t.ratios or t.refused},
        "law5": {"batches": num_batches, "worse": num_worse},
        "first": run_first(64, iterations=150),
        "exact": run_exact(30 if arguments.quick else 200, time_limit_s=5.0),
        "scale": run_scale(1024, 4),
    }
    print_planners(result["planners"])
    for name in ("law5", "first", "exact", "scale"):
        print(f"{name}: {json.dumps(result[name])}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
