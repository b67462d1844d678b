"""`arachne plan RUN.toml --cluster NAME`: what real steps would cost; needs no torch."""

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arachne.cli.modelled_steps import (
    ModelledSteps,
    add_modelled_steps,
    modelled_config,
    modelled_steps,
    prints_list,
)
from arachne.cli.planned_memory import memory_table, planned_memory, print_memory
from arachne.cli.whole_names_table import print_line, print_table
from arachne.cli.written_file import check_page, write_file
from arachne.core.errors import ConfigError
from arachne.core.local_path import local_path
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import to_json
from arachne.planner.registry import PLANNERS

if TYPE_CHECKING:
    from arachne.reporting.planned_figures import PlannedFigures
    from arachne.trainer.config import RunConfig
    from arachne.trainer.planning import PlanRequest

_EXAMPLE = """example:
  arachne plan examples/quickstart.toml --cluster h100x16
  arachne plan run.toml --cluster h200x64 --steps 20 --json
  arachne plan run.toml --cluster h100x8 --planner static_sp --html plan.html
  arachne plan run.toml --cluster h100x16 --clips panda70m --frame-cap 129 --batch 64
  arachne plan run.toml --cluster h100x16 --clips webvid10m --resolutions 1280x720:0.7,640x368:0.3
  arachne plan run.toml --cluster h100x16 --clips panda70m --memory --gradients bfloat16

A cluster is a file's name, x, and its GPUs; see `--cluster list`. `--clips list` says where the
figures of public sets come from."""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "plan",
        help="plan real steps of a dataset for any cluster",
        description="Plan the first steps of a run for a cluster, without starting anything.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_modelled_steps(parser, steps_help="steps to plan")
    parser.add_argument(
        "--planner", help=f"{', '.join(PLANNERS)} (default: planner.name of the run file)"
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="predict the memory of one GPU for the longest clips instead of planning",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with every plan")
    parser.add_argument(
        "--html", type=local_path, metavar="FILE", help="write a page with timelines"
    )
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One step's plan with its figures, which `PlannedFigures` explains."""

    plan: PlacedPlan
    num_tokens: int
    makespan_s: float
    lower_bound_s: float
    step_s: float
    idle_ratio: float


def run(arguments: argparse.Namespace) -> int:
    """Print the plans' figures; 0.

    Raises:
        ArachneError: The run file, the dataset or the cluster cannot work.
    """
    if prints_list(arguments):
        return 0
    if arguments.memory:
        _refuse_options_of_plans(arguments)
    check_page(arguments.html)
    config = modelled_config(arguments)
    if arguments.planner is not None:
        config = replace(config, planner=replace(config.planner, name=arguments.planner))
    modelled = modelled_steps(arguments, config)
    if arguments.memory:
        memory = planned_memory(modelled, max_groups=config.run.max_groups)
        if arguments.json:
            print(to_json(memory_table(memory)))
        else:
            print_memory(memory)
        return 0
    steps = [_planned(request) for request in modelled.steps(arguments.steps)]
    if arguments.html:
        write_file(arguments.html, _page(config, modelled, steps))
    if arguments.json:
        table = {"cluster": modelled.cluster, "planner": config.planner.name}
        if modelled.encoders_text:
            table["encoders"] = modelled.encoders_text
        print(to_json({**table, "clips": modelled.clips.text, "steps": steps}))
    else:
        _print_table(config, modelled, steps)
    return 0


def _refuse_options_of_plans(arguments: argparse.Namespace) -> None:
    """Refuse what means nothing where memory is predicted instead of planning."""
    if arguments.html:
        raise ConfigError("--memory writes no page; leave out --html, or --memory")
    for option in ("planner", "steps"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--memory plans no steps; leave out --{option}, or --memory")


def _planned(request: "PlanRequest") -> PlannedStep:
    from arachne.planner.lower_bound import lower_bound_s
    from arachne.simulator.simulate import simulate
    from arachne.trainer.planning import plan_batch

    plan = plan_batch(request)
    trace = simulate(plan, request.costs)
    return PlannedStep(
        plan=plan,
        num_tokens=sum(clip.num_tokens for clip in request.batch.clips),
        makespan_s=plan.makespan_s,
        lower_bound_s=lower_bound_s(request.problem),
        step_s=trace.iteration_s,
        idle_ratio=trace.idle_ratio,
    )


def _figures(planned: PlannedStep) -> "PlannedFigures":
    from arachne.reporting.planned_figures import PlannedFigures

    return PlannedFigures(
        step=planned.plan.step,
        num_tokens=planned.num_tokens,
        num_launches=len(planned.plan.launches),
        degrees=tuple(sorted({launch.degree for launch in planned.plan.launches})),
        makespan_s=planned.makespan_s,
        lower_bound_s=planned.lower_bound_s,
        step_s=planned.step_s,
        idle_ratio=planned.idle_ratio,
    )


def _print_table(config: "RunConfig", modelled: ModelledSteps, steps: list[PlannedStep]) -> None:
    from arachne.reporting.planned_figures import PLANNED_COLUMNS, planned_cells, planned_text

    planned = [_figures(step) for step in steps]
    print_line(
        f"{config.planner.name} on {modelled.cluster}, {config.batch.text} a step (modelled)"
    )
    rows = {str(figures.step): planned_cells(figures) for figures in planned}
    print_table("step", PLANNED_COLUMNS, rows, bold="")
    print_line(planned_text(planned))
    print_line(modelled.clips.text)
    if modelled.encoders_text:
        print_line(modelled.encoders_text)


def _page(config: "RunConfig", modelled: ModelledSteps, steps: list[PlannedStep]) -> str:
    from arachne.reporting.page import render_report
    from arachne.reporting.report_data import ReportData

    return render_report(
        ReportData(
            title=f"{config.planner.name} on {modelled.cluster}",
            plans={planned.plan.step: planned.plan for planned in steps},
            planned=tuple(_figures(planned) for planned in steps),
            ledger=modelled.clips.ledger,
        )
    )
