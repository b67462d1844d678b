"""`arachne compare RUN.toml --cluster NAME`: planners on the same modelled steps; no torch."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, mean, median, median_low
from typing import TYPE_CHECKING, Any

from arachne.cli.modelled_steps import (
    ModelledSteps,
    add_modelled_steps,
    modelled_steps,
    print_clusters,
    write_page,
)
from arachne.cli.run_file import loaded_config
from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import to_json
from arachne.core.trace import Trace
from arachne.core.units import count_text
from arachne.planner.registry import PEERS, PLANNERS, compared_planner_named

if TYPE_CHECKING:
    from arachne.reporting.planner_figures import PlannerFigures
    from arachne.trainer.planning import PlanRequest

_EXAMPLE = """example:
  arachne compare examples/quickstart.toml --cluster h100x16
  arachne compare run.toml --cluster h200x64 --steps 20 --json
  arachne compare run.toml --cluster h100x8 --planners arachne,flexsp,fcp --html compare.html

A cluster is a file's name, x, and its GPUs; see `--cluster list`. docs/planners.md says what each
planner stands for."""

_REFERENCE = "arachne"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """One step under one planner.

    Attributes:
        plan: As placed.
        trace: As simulated.
        plan_s: Seconds that planning took on this machine.
        cap_violations: Launches, or packs, that need more memory than a GPU has.
    """

    plan: PlacedPlan
    trace: Trace
    plan_s: float
    cap_violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One planner on all steps; without steps if it found no plan for one of them."""

    name: str
    steps: tuple[ComparedStep, ...] = ()
    failure: str = ""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "compare",
        help="every planner on the same modelled steps",
        description="Plan the first steps of a run with every planner, and with models of other "
        "systems under their own synchronization; simulate and compare.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_modelled_steps(parser, steps_help="steps to compare on")
    parser.add_argument(
        "--planners",
        metavar="A,B",
        help=f"planners to compare (default: all: {', '.join([*PLANNERS, *PEERS])})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with timelines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the planners' figures; 0.

    Raises:
        ArachneError: The run file, the dataset, the cluster or a planner's name cannot work, or a
            clip fits nowhere.
    """
    from arachne.planner.lower_bound import lower_bound_s

    if arguments.cluster == "list":
        return print_clusters()
    names = _names(arguments.planners)
    config = loaded_config(arguments)
    modelled = modelled_steps(arguments, config)
    bounds_s = [lower_bound_s(request.problem) for request in modelled.requests]
    compared = _compared(names, modelled.requests)
    figures = _figures(compared, bounds_s)
    clips = f"{count_text(config.batch.clips, 'clip')} a step"
    lead = f"{modelled.cluster}, {clips}, {count_text(len(bounds_s), 'step')}, modelled"
    if arguments.html:
        write_page(arguments.html, _page(modelled, lead, figures, compared))
    if arguments.json:
        planners = {row.name: row for row in figures}
        table = {"cluster": modelled.cluster, "steps": len(bounds_s), "bound_s": bounds_s}
        print(to_json({**table, "planners": planners}))
    else:
        _print_table(lead, figures)
    return 0


def _names(listed: str | None) -> list[str]:
    names = [*PLANNERS, *PEERS] if listed is None else [n.strip() for n in listed.split(",")]
    for name in names:
        compared_planner_named(name)
    return list(dict.fromkeys(names))


def _compared(names: Sequence[str], requests: "Sequence[PlanRequest]") -> list[Compared]:
    from rich.console import Console
    from rich.progress import Progress

    found: list[Compared] = []
    progress = Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    )
    with progress:
        task = progress.add_task("planning", total=len(names) * len(requests))
        for name in names:
            steps: list[ComparedStep] = []
            try:
                for request in requests:
                    steps.append(_step(name, request))
                    progress.advance(task)
                found.append(Compared(name=name, steps=tuple(steps)))
            except InfeasibleError as error:
                progress.advance(task, len(requests) - len(steps))
                failure = str(error).removeprefix(f"planner {name!r}: ")
                found.append(Compared(name=name, failure=failure))
    return found


def _step(name: str, request: "PlanRequest") -> ComparedStep:
    from time import perf_counter

    from arachne.planner.memory_cap import num_cap_violations
    from arachne.planner.registry import PACKING_PEERS
    from arachne.simulator.simulate import simulate
    from arachne.trainer.planning import placed_plan

    problem = request.problem
    started_s = perf_counter()
    plan = compared_planner_named(name)(problem)
    plan_s = perf_counter() - started_s
    placed = placed_plan(plan, request)
    return ComparedStep(
        plan=placed,
        trace=simulate(placed, request.costs),
        plan_s=plan_s,
        cap_violations=num_cap_violations(plan, problem, is_packed=name in PACKING_PEERS),
    )


def _figures(
    compared: Sequence[Compared], bounds_s: Sequence[float]
) -> "tuple[PlannerFigures, ...]":
    """Fastest first; planners without a plan last."""
    from arachne.reporting.planner_figures import PlannerFigures

    rows: list[PlannerFigures] = []
    for row in compared:
        if row.failure:
            rows.append(PlannerFigures(name=row.name, failure=row.failure))
            continue
        over_bound = [
            step.trace.makespan_s / bound_s if bound_s else 1.0
            for step, bound_s in zip(row.steps, bounds_s, strict=True)
        ]
        phases = [launch.phase for step in row.steps for launch in step.plan.launches]
        rows.append(
            PlannerFigures(
                name=row.name,
                step_s=mean(step.trace.iteration_s for step in row.steps),
                bound_geomean=geometric_mean(over_bound),
                bound_worst=max(over_bound),
                idle_ratio=max(0.0, mean(step.trace.idle_ratio for step in row.steps)),
                plan_s=median(step.plan_s for step in row.steps),
                cap_violations=sum(step.cap_violations for step in row.steps),
                num_phases=max(phases, default=0) + 1,
            )
        )
    reference_s = next((row.step_s for row in rows if row.name == _REFERENCE), None)
    if reference_s:
        rows = [
            row if row.step_s is None else replace(row, ratio=row.step_s / reference_s)
            for row in rows
        ]
    return tuple(sorted(rows, key=lambda row: (row.step_s or float("inf"), row.name)))


def _print_table(lead: str, figures: "Sequence[PlannerFigures]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from arachne.reporting.planner_figures import COLUMNS, cells, failures

    table = Table(title=lead, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("planner", overflow="fold")
    for column in COLUMNS:  # heads of two words take two lines, so that 80 columns are enough
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in figures:
        table.add_row(row.name, *cells(row), style="bold" if row.name == _REFERENCE else None)
    console = Console(highlight=False)
    console.print(table)
    for line in failures(figures):
        console.print(line, markup=False)


def _page(
    modelled: ModelledSteps,
    lead: str,
    figures: "Sequence[PlannerFigures]",
    compared: Sequence[Compared],
) -> str:
    """Draws the step that is typical of the fastest planner."""
    from arachne.reporting.comparison_page import DrawnStep, render_comparison

    by_name = {row.name: row for row in compared}
    drawn = [by_name[row.name] for row in figures if not row.failure]
    lengths_s = [step.trace.iteration_s for step in drawn[0].steps] if drawn else [0.0]
    typical = lengths_s.index(median_low(lengths_s))
    return render_comparison(
        title=f"Planners on {modelled.cluster}",
        lead=lead,
        figures=figures,
        batch=modelled.requests[typical].batch,
        steps=[
            DrawnStep(name=row.name, plan=row.steps[typical].plan, trace=row.steps[typical].trace)
            for row in drawn
        ],
    )
