"""The figures of the Arachne paper (arXiv 2607.01701), modelled, beside the paper's own.

Every system plans the same clips under the same cost model, and runs in the same simulator under
its own synchronization. `paper_setting.py` holds every assumption; they were written down before
the first run and are not fitted to the paper. The paper's figures are marked *unverified*: most
come from one published summary of it.

    python benchmarks/paper.py --quick --json out.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import paper_setting as setting
from machine import about
from paper_setting import ARACHNE, SYSTEMS, Case, System

from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Trace
from arachne.cost.flops import training_flops
from arachne.cost.model import CostModel
from arachne.planner import flexsp
from arachne.simulator.simulate import simulate


def steps_of(system: System, case: Case, num_steps: int) -> list[tuple[PlacedPlan, Trace]]:
    """A system's first steps of a case, planned and simulated.

    The first step follows the last one, so that a system that encodes one step ahead encodes the
    same clips within these steps as one that encodes each step's own.
    """
    costs = case.costs(system)
    plans = [
        system.plan(case, costs, step, following=(step + 1) % num_steps)
        for step in range(num_steps)
    ]
    return [(plan, simulate(plan, costs)) for plan in plans]


def mean_step_s(steps: Sequence[tuple[PlacedPlan, Trace]]) -> float:
    """Mean seconds of a step, reduction and optimizer counted."""
    return fmean(trace.iteration_s for _, trace in steps)


def rank_tflops(plan: PlacedPlan, trace: Trace, costs: CostModel) -> list[float]:
    """TFLOP/s of each rank: model FLOPs of its trained launches over the step's seconds."""
    flops = [0.0] * plan.world_size
    for launch in plan.launches:
        if launch.cascade.module == "dit":
            cascade = launch.cascade
            of_launch = training_flops(costs.model, cascade.num_tokens, cascade.num_clips)
            for rank in launch.ranks:
                flops[rank] += of_launch / launch.degree
    return [of_rank / trace.iteration_s / 1e12 for of_rank in flops]


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation over mean."""
    return pstdev(values) / fmean(values)


def stages(num_steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figure 6, mean seconds of a step by system and stage; and figure 7, idle ratios."""
    seconds: dict[str, Any] = {}
    idle: dict[str, Any] = {}
    for system in SYSTEMS:
        seconds[system.name], idle[system.name] = {}, {}
        for stage in setting.STAGES:
            steps = steps_of(system, Case(stage=stage), num_steps)
            seconds[system.name][stage.name] = mean_step_s(steps)
            idle[system.name][stage.name] = fmean(trace.idle_ratio for _, trace in steps)
    return seconds, idle


def cached(num_steps: int) -> dict[str, Any]:
    """Figure 6 again with all latents cached: what planning gains where nothing is encoded."""
    return {
        system.name: {
            stage.name: mean_step_s(steps_of(system, Case(stage=stage, is_cached=True), num_steps))
            for stage in setting.STAGES
        }
        for system in SYSTEMS
    }


def gains(num_steps: int) -> dict[str, Any]:
    """Figure 8: how much shorter Arachne's step is than Megatron's, over three scales."""

    def gain(case: Case) -> float:
        mine, theirs = (
            mean_step_s(steps_of(system, case, num_steps)) for system in (ARACHNE, setting.MEGATRON)
        )
        return 1.0 - mine / theirs

    stage = setting.SCALED_STAGE
    return {
        "model": {name: gain(Case(stage=stage, model=name)) for name in setting.MODELS},
        "frames": {
            str(cap): gain(Case(stage=stage.with_frame_cap(cap))) for cap in setting.FRAME_CAPS
        },
        "gpus": {str(num): gain(Case(stage=stage, num_gpus=num)) for num in setting.CLUSTER_SIZES},
    }


def rates(num_steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figure 10, one step's TFLOP/s of each rank and their variation; figure 11, of many steps."""
    one: dict[str, Any] = {}
    many: dict[str, Any] = {}
    case = Case(stage=setting.SCALED_STAGE)
    for system in (setting.MEGATRON, setting.FLEXSP, ARACHNE):
        costs = case.costs(system)
        of_steps = [
            rank_tflops(plan, trace, costs) for plan, trace in steps_of(system, case, num_steps)
        ]
        one[system.name] = {"tflops": of_steps[0], "cv": variation(of_steps[0])}
        cvs = [variation(of_step) for of_step in of_steps]
        many[system.name] = {"mean": fmean(cvs), "least": min(cvs), "most": max(cvs)}
    return one, many


def longer_than(base_s: float, system: System, case: Case, num_steps: int) -> float:
    """By how much a system's step is longer than `base_s`; below 0 if it is shorter."""
    return mean_step_s(steps_of(system, case, num_steps)) / base_s - 1.0


def ablation(num_steps: int) -> dict[str, float]:
    """By how much a step gets longer without parts of the mapper."""
    case = Case(stage=setting.SCALED_STAGE)
    base_s = mean_step_s(steps_of(ARACHNE, case, num_steps))
    return {
        name: longer_than(base_s, system, case, num_steps)
        for name, system in setting.WITHOUT_MAPPER.items()
    }


def beyond(num_steps: int) -> dict[str, Any]:
    """By how much a step changes with what we add, one by one, per stage; below 0 is shorter."""
    found: dict[str, Any] = {name: {} for name in setting.ADDITIONS}
    for stage in setting.STAGES:
        case = Case(stage=stage)
        base_s = mean_step_s(steps_of(ARACHNE, case, num_steps))
        for name, system in setting.ADDITIONS.items():
            found[name][stage.name] = longer_than(base_s, system, case, num_steps)
    return found


QUICK_IS_OFF = (
    "quick: one step of each case, and 3 for figure 11, with a second for FlexSP's solver. "
    "Beside the full run of 2026-11-30 seconds of a step were off by up to 23 %, their ratios to "
    "arachne's by 14 %, idle ratios and figure 8 by 8 percentage points, the ablation by 0.5 and "
    "what we add by 0.2; its figure 11 is of too few steps to compare"
)
"""How far a quick figure was from the full one, at most; measured on 2026-11-30."""


def print_table(title: str, ours: dict[str, Any], paper: dict[str, Any], style: str) -> None:
    """Modelled figures, and the paper's in brackets where it has them."""
    print(f"\n{title} [paper, unverified]")
    for name, row in ours.items():
        of_paper = paper.get(name, {})
        cells = [
            f"{key} {value:{style}}" + (f" [{of_paper[key]:{style}}]" if key in of_paper else "")
            for key, value in row.items()
        ]
        print(f"  {name:28}" + "  ".join(cells))


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="few steps, about a minute")
    arguments = parser.parse_args(argv)
    num_steps, num_rated = (1, 3) if arguments.quick else (10, 50)
    if arguments.quick:
        flexsp.SOLVER_LIMIT_S = 1.0
    figure6, idle_ratio = stages(num_steps)
    figure6_all_cached = cached(num_steps)
    figure8 = gains(num_steps)
    figure10, figure11 = rates(num_rated)
    result = {
        "about": about(quick=arguments.quick, steps=num_steps, rated_steps=num_rated),
        "assumptions": setting.ASSUMPTIONS,
        "figure6": figure6,
        "idle_ratio": idle_ratio,
        "figure6_all_cached": figure6_all_cached,
        "figure8": figure8,
        "figure10": figure10,
        "figure11": figure11,
        "ablation": ablation(num_steps),
        "beyond": beyond(num_steps),
        "paper": setting.PAPER,
    }
    paper = setting.PAPER
    print_table("Figure 6: seconds of a step", figure6, paper["figure6"], ".2f")
    print_table("Figure 6 with all latents cached", figure6_all_cached, {}, ".2f")
    print_table("Figure 7: idle ratio", idle_ratio, paper["idle_ratio"], ".1%")
    print_table("Figure 8: shorter than Megatron-LM by", figure8, paper["figure8"], ".1%")
    print_table("Figure 11: variation of rank rates", figure11, {}, ".3f")
    lost = {"mapper": result["ablation"]}
    print_table("Ablation: longer by", lost, {"mapper": paper["ablation"]}, "+.1%")
    print_table("Beyond the paper: longer (+) or shorter (-) by", result["beyond"], {}, "+.1%")
    if arguments.quick:
        print(f"\n{QUICK_IS_OFF}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
