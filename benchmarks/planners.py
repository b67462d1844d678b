"""Head to head: every planner on modelled batches, as ratios to a time that no plan can beat.

    python benchmarks/planners.py --json out.json          all settings, some eight minutes
    python benchmarks/planners.py --quick --json out.json  a fair sample, a minute

Costs are FlexSP's published coefficients of a 7B model on A100 GPUs (arXiv 2412.01523): seconds are
modelled, not measured; only the planning times are measured here. A token cap stands in for memory,
and clips of one shape are stacked up to that cap by all planners alike. Bandwidths exist for powers
of two up to 64; 256 and 1,024 GPUs use 16 as the largest degree.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import about
from planner_figures import (
    STRONG_STATIC,
    Comparison,
    geomean,
    run_exact,
    run_first,
    run_scale,
    run_sensitivity,
)
from planner_settings import TOKENS_PER_GPU, Setting, sensitivity_settings, settings_of

from arachne.planner import flexsp


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


def print_sensitivity(sensitivity: dict[str, Any]) -> None:
    """The gain, and where it is small."""
    small = sensitivity["below_3_percent"]
    print(
        f"gain over {STRONG_STATIC} at other bandwidths and launch costs: "
        f"median {sensitivity['median']:.1%}, least {sensitivity['least']:.1%}; "
        f"below 3 % in {len(small)} of {len(sensitivity['gains'])}"
        + (f": {', '.join(small)}" if small else "")
    )


def print_summary(result: dict[str, Any]) -> None:
    """What is found over all settings, a row each; ratios are to the bound unless a row says so."""
    print(f"\n{'arachne':46}{'geomean':>9}{'worst':>9}")
    rows = [(name, row["geomean"], row["worst"]) for name, row in result["densities"].items()]
    for name, row in result["densities"].items():
        proved = (row["over_proved_geomean"], row["over_proved_worst"])
        rows.append((f"{name}, to what no plan is below", *proved))
    first, exact, scale = result["first"], result["exact"], result["scale"]
    slowest = 1000.0 * first["plan_s_most"]
    rows.append((f"first plan, {first['gpus']} GPUs", first["geomean"], first["worst"]))
    referee = (
        f"small cases, to the best plan ({exact['unproved']} of {exact['instances']} unproved)"
    )
    rows.append((referee, exact["geomean"], exact["worst"]))
    rows.append((f"{scale['gpus']:,} GPUs, {scale['clips']:,} clips", *2 * (scale["ratio"],)))
    for name, mean, worst in rows:
        print(f"{name:46}{mean:9.4f}{worst:9.4f}")
    print(
        f"first plan after {slowest:.0f} ms at most; the largest case took {scale['plan_s']:.2f} s"
    )
    law5 = result["law5"]
    print(f"longer than a baseline on {law5['worse']} of {law5['batches']} batches")
    for one in result["beaten"]:
        print(
            f"shorter on {one['setting']}: {one['by']} {one['ratio']:.4f}, arachne "
            f"{one['arachne']:.4f} (with degrees 3·2^k {one['arachne_with_threes']:.4f})"
        )
    for one in result["above"]:
        print(
            f"above what was wished on {one['setting']}: {one['arachne']:.4f}; no plan is below "
            f"{one['proved']:.4f}"
        )


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description="Every planner on modelled batches.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="a fair sample, about a minute")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        flexsp.SOLVER_LIMIT_S = 1.0
    comparison = Comparison.empty()
    for setting in settings_of(is_quick=arguments.quick):
        print_setting(setting, comparison.run(setting))
    planners = {n: t.summary() for n, t in comparison.totals.items() if t.ratios or t.refused}
    print_planners(planners)
    result = {
        "about": about(
            quick=arguments.quick,
            costs="FlexSP 7B on A100, published coefficients",
            stack_tokens=TOKENS_PER_GPU,
            flexsp={"solver": "HiGHS", "limit_s": flexsp.SOLVER_LIMIT_S, "cores": 1},
            plan_s="process time on one core",
        ),
        "settings": comparison.settings,
        "planners": planners,
        "densities": comparison.density_figures(),
        "law5": {"batches": comparison.num_batches, "worse": comparison.num_worse},
        "above": comparison.above,
        "beaten": comparison.beaten,
        "sensitivity": run_sensitivity(sensitivity_settings(is_quick=arguments.quick)),
        "first": run_first(64),
        "exact": run_exact(15 if arguments.quick else 200, time_limit_s=5.0),
        "scale": run_scale(1024, 4),
    }
    print_sensitivity(result["sensitivity"])
    print_summary(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
