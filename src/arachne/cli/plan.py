"""`arachne plan RUN.toml --cluster NAME`: what real steps would cost; needs no torch."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arachne.cli.run_file import add_run_file, loaded_config
from arachne.core.errors import ConfigError, DataError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import to_json
from arachne.core.units import count_text, seconds_text

if TYPE_CHECKING:
    from arachne.core.ledger import Ledger
    from arachne.trainer.config import RunConfig
    from arachne.trainer.planning import PlanRequest

_EXAMPLE = """example:
  arachne plan examples/quickstart.toml --cluster h100x16
  arachne plan run.toml --cluster h200x64 --steps 20 --json
  arachne plan run.toml --cluster h100x8 --planner static_sp --html plan.html

A cluster is a file's name, x, and its GPUs; see `--cluster list`."""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "plan",
        help="plan real steps of a dataset for any cluster",
        description="Plan the first steps of a run for a cluster, without starting anything.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(parser)
    parser.add_argument("--cluster", help="NAMExGPUS, or `list` (default: the run file's)")
    parser.add_argument("--steps", type=int, default=8, help="steps to plan (default: 8)")
    parser.add_argument("--planner", help="planner to use (default: the run file's)")
    parser.add_argument("--json", action="store_true", help="print JSON with every plan")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with timelines")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One step's plan with its figures.

    Attributes:
        num_tokens: Tokens of all clips.
        makespan_s: To the end of the last launch.
        lower_bound_s: No plan of these clips is shorter.
        step_s: Makespan, reduction and optimizer.
        idle_ratio: Modelled.
    """

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
    from arachne.cost.cluster_files import cluster_names

    if arguments.cluster == "list":
        print("\n".join(cluster_names()))
        return 0
    if arguments.steps < 1:
        raise ConfigError(f"--steps is {arguments.steps}; it must be at least 1")
    config = loaded_config(arguments)
    if arguments.planner:
        config = replace(config, planner=replace(config.planner, name=arguments.planner))
    name = arguments.cluster or config.cluster.name
    if name == "auto":
        raise ConfigError(
            "which cluster? add --cluster NAMExGPUS, for example h100x16; known: "
            + ", ".join(cluster_names())
        )
    ledger = _inspected(config)
    steps = [_planned(request) for request in _requests(config, ledger, name, arguments.steps)]
    if arguments.html:
        _write_page(arguments.html, config, name, ledger, steps)
    if arguments.json:
        print(to_json({"cluster": name, "planner": config.planner.name, "steps": steps}))
    else:
        _print_table(config, name, steps)
    return 0


def _inspected(config: "RunConfig") -> "Ledger":
    import os

    from arachne.core.families import family_named
    from arachne.data.inspect import inspect_dataset

    ledger = inspect_dataset(
        Path(config.data.path),
        config.data.shape_rules,
        family_named(config.model.family).geometry,
        config.data.missing_caption,
        num_workers=len(os.sched_getaffinity(0)),
    )
    if not ledger.usable:
        raise DataError(
            f"none of the {len(ledger.rows)} clips in {config.data.path!r} is usable; "
            f"see why with: arachne inspect {config.data.path}"
        )
    return ledger


def _requests(
    config: "RunConfig", ledger: "Ledger", cluster_name: str, num_steps: int
) -> "list[PlanRequest]":
    from arachne.cost.cluster_files import load_cluster
    from arachne.cost.model import CostModel
    from arachne.trainer.dataset import TrainingData
    from arachne.trainer.planning import PlanRequest
    from arachne.trainer.planning_shape import planning_shape

    shape = planning_shape(config.model)
    cluster = load_cluster(cluster_name)
    element_bytes = {"float32": 4, "bfloat16": 2, "float64": 8}[config.model.dtype]
    costs = CostModel(model=shape, cluster=cluster, element_bytes=element_bytes)
    data = TrainingData(
        rows=ledger.usable,
        cache_dir=Path(config.data.cache),
        fps=config.data.fps,
        video_fingerprint="",
        text_fingerprint="",
    )
    max_degree = min(config.planner.max_degree or cluster.num_gpus, cluster.num_gpus)
    if cluster.device.name != "CPU core":
        max_degree = min(max_degree, shape.num_heads)
    return [
        PlanRequest(
            batch=data.step_batch(
                seed=config.run.seed, step=step, num_clips=config.batch.clips
            ).batch,
            costs=costs,
            planner=config.planner.name,
            max_degree=max_degree,
            stack_tokens=config.planner.stack_tokens,
            seed=config.run.seed,
            iterations=config.planner.iterations,
        )
        for step in range(num_steps)
    ]


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


def _print_table(config: "RunConfig", cluster_name: str, steps: list[PlannedStep]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{config.planner.name} on {cluster_name}, {count_text(config.batch.clips, 'clip')} "
        "a step (modelled)",
        title_justify="left",
    )
    for column in ("step", "tokens", "launches", "degrees", "makespan", "× bound", "step", "idle"):
        table.add_column(column, justify="right", no_wrap=True)
    for planned in steps:
        degrees = sorted({launch.degree for launch in planned.plan.launches})
        table.add_row(
            str(planned.plan.step),
            f"{planned.num_tokens:,}",
            str(len(planned.plan.launches)),
            ",".join(map(str, degrees)),
            seconds_text(planned.makespan_s),
            f"{planned.makespan_s / planned.lower_bound_s:.3f}",
            seconds_text(planned.step_s),
            f"{planned.idle_ratio:.1%}",
        )
    console = Console(highlight=False)
    console.print(table)
    mean_s = sum(planned.step_s for planned in steps) / len(steps)
    tokens = sum(planned.num_tokens for planned in steps)
    console.print(f"mean step {seconds_text(mean_s)}, {tokens / len(steps) / mean_s:,.0f} tokens/s")


def _write_page(
    path: Path, config: "RunConfig", cluster_name: str, ledger: "Ledger", steps: list[PlannedStep]
) -> None:
    from arachne.reporting.page import render_report
    from arachne.reporting.report_data import ReportData

    title = f"{config.planner.name} on {cluster_name}"
    plans = {planned.plan.step: planned.plan for planned in steps}
    page = render_report(ReportData(title=title, plans=plans, ledger=ledger))
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"cannot write {str(path)!r}: {error.strerror}; choose another") from error
