"""`arachne compare RUN.toml --cluster NAME`: planners on the same modelled steps; no torch."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Any

from arachne.cli.compared_epoch import compared_epoch
from arachne.cli.compared_pipeline import compared_pipeline
from arachne.cli.compared_steps import Compared, compared_steps, planner_figures
from arachne.cli.counts import check_count
from arachne.cli.disturbances import add_disturbances, perturbation_of
from arachne.cli.modelled_steps import (
    ModelledSteps,
    add_modelled_steps,
    modelled_config,
    modelled_steps,
    prints_list,
)
from arachne.cli.whole_names_table import print_line, print_table
from arachne.cli.written_file import check_page, write_file
from arachne.core.local_path import local_path
from arachne.core.strict_json import to_json
from arachne.core.units import count_text
from arachne.planner import gpipe
from arachne.planner.registry import PEERS, PLANNERS, compared_planner_named

if TYPE_CHECKING:
    from arachne.reporting.epoch_figures import EpochFigures
    from arachne.reporting.pipeline_figures import PipelineFigures
    from arachne.reporting.planner_figures import PlannerFigures
    from arachne.trainer.planning import PlanRequest

_EXAMPLE = """example:
  arachne compare examples/quickstart.toml --cluster h100x16
  arachne compare run.toml --cluster h200x64 --steps 20 --json
  arachne compare run.toml --cluster h100x8 --planners arachne,flexsp,fcp --html compare.html
  arachne compare run.toml --cluster h100x16 --clips panda70m --frame-cap 129 --batch 64
  arachne compare run.toml --cluster h100x16 --clips panda70m --epoch 1024
  arachne compare run.toml --cluster h100x16 --disturb jitter=0.1 --disturb slow=3:1.5

A cluster is a file's name, x, and its GPUs; see `--cluster list`. docs/planners.md says what each
planner stands for. Systems that draw their batches from buckets train other clips in a step; with
--epoch they are compared over so many clips."""

_MOST_EPOCH_CLIPS = 1_000_000

_ALL = [*PLANNERS, *PEERS, gpipe.NAME]


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
        help=f"planners to compare (default: all: {', '.join(_ALL)})",
    )
    parser.add_argument(
        "--epoch",
        type=int,
        metavar="CLIPS",
        help="compare systems with bucket batches too, over an epoch of so many clips",
    )
    add_disturbances(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--html", type=local_path, metavar="FILE", help="write a page with timelines"
    )
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """All that was found out.

    Attributes:
        lead: What was compared, in a few words.
        clips: Whose clips they are.
        encoders: Which encoders are counted; empty if all is cached.
        disturbed: What the plans knew nothing of, as it was asked for.
        requests: The steps.
        bounds_s: Lower bound of each step.
        compared: Every planner on every step.
        figures: The planners' figures, fastest first.
        pipeline: Of the reference without cascades, if it was asked for.
        epoch: Of systems that train other clips in a step, if they were asked for.
    """

    lead: str
    clips: str
    encoders: str
    disturbed: tuple[str, ...]
    requests: "tuple[PlanRequest, ...]"
    bounds_s: tuple[float, ...]
    compared: tuple[Compared, ...]
    figures: "tuple[PlannerFigures, ...]"
    pipeline: "PipelineFigures | None"
    epoch: "tuple[EpochFigures, ...]"


def run(arguments: argparse.Namespace) -> int:
    """Print the planners' figures; 0.

    Raises:
        ArachneError: The run file, the dataset, the cluster or a planner's name cannot work, or a
            clip fits nowhere.
    """
    if prints_list(arguments):
        return 0
    names = _names(arguments.planners)
    check_page(arguments.html)
    config = modelled_config(arguments)
    if arguments.epoch is not None:
        check_count("--epoch", arguments.epoch, most=_MOST_EPOCH_CLIPS)
    found = _comparison(arguments, names, modelled_steps(arguments, config))
    if arguments.html:
        write_file(arguments.html, _page(found))
    if arguments.json:
        print(to_json(_as_table(found)))
    else:
        _print(found)
    return 0


def _comparison(
    arguments: argparse.Namespace, names: Sequence[str], modelled: ModelledSteps
) -> _Comparison:
    from arachne.planner.lower_bound import lower_bound_s

    requests = modelled.steps(arguments.steps)
    bounds_s = tuple(lower_bound_s(request.problem) for request in requests)
    perturbation = perturbation_of(arguments.disturb, requests[0].costs.cluster.num_gpus)
    simulated = [name for name in names if name != gpipe.NAME]
    compared = compared_steps(simulated, requests, perturbation)
    figures = planner_figures(compared, bounds_s)
    clips = f"{modelled.batch_text} a step"
    lead = f"{modelled.cluster}, {clips}, {count_text(len(bounds_s), 'step')}, modelled"
    if arguments.disturb:
        lead += f", disturbed by {', '.join(arguments.disturb)}"
    return _Comparison(
        lead=lead,
        clips=modelled.clips.text,
        encoders=modelled.encoders_text,
        disturbed=tuple(arguments.disturb),
        requests=requests,
        bounds_s=bounds_s,
        compared=tuple(compared),
        figures=figures,
        pipeline=compared_pipeline(requests, figures) if gpipe.NAME in names else None,
        epoch=compared_epoch(modelled.epoch(arguments.epoch)) if arguments.epoch else (),
    )


def _names(listed: str | None) -> list[str]:
    names = _ALL if listed is None else [name.strip() for name in listed.split(",")]
    for name in names:
        if name != gpipe.NAME:
            compared_planner_named(name)
    return list(dict.fromkeys(names))


def _as_table(found: _Comparison) -> dict[str, object]:
    """What `--json` prints."""
    table: dict[str, object] = {
        "cluster": found.requests[0].costs.cluster.name,
        "clips": found.clips,
        "disturbed": found.disturbed,
        "steps": len(found.requests),
        "bound_s": found.bounds_s,
        "planners": {row.name: row for row in found.figures},
    }
    if found.encoders:
        table["encoders"] = found.encoders
    if found.pipeline:
        table["references"] = {found.pipeline.name: found.pipeline}
    if found.epoch:
        table["epoch"] = {row.name: row for row in found.epoch}
    return table


def _print(found: _Comparison) -> None:
    from arachne.reporting.epoch_figures import EPOCH_COLUMNS, epoch_cells, epoch_notes
    from arachne.reporting.planner_figures import COLUMNS, cells, notes

    rows = {row.name: cells(row) for row in found.figures}
    _print_rows(found.lead, "planner", COLUMNS, rows, notes(found.figures))
    if found.pipeline:
        print_line(found.pipeline.text)
    if found.epoch:
        num_clips = max(row.clips_trained + row.clips_dropped for row in found.epoch)
        title = f"epoch of {count_text(num_clips, 'clip')}, each system with its own batches"
        rows = {row.name: epoch_cells(row, found.epoch) for row in found.epoch}
        _print_rows(title, "system", EPOCH_COLUMNS, rows, epoch_notes(found.epoch))
    print_line(found.clips)
    if found.encoders:
        print_line(found.encoders)


def _print_rows(
    title: str,
    what: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[str]],
    notes: Sequence[str],
) -> None:
    from arachne.reporting.comparison import REFERENCE

    print_line(title)
    if rows:  # gpipe alone has none
        print_table(what, columns, rows, bold=REFERENCE)
    for line in notes:
        print_line(line)


def _page(found: _Comparison) -> str:
    """Draws the step that is typical of the fastest planner."""
    from arachne.reporting.comparison_page import DrawnStep, render_comparison

    by_name = {row.name: row for row in found.compared}
    drawn = [by_name[row.name] for row in found.figures if not row.failure]
    lengths_s = [step.trace.iteration_s for step in drawn[0].steps] if drawn else [0.0]
    typical = lengths_s.index(median_low(lengths_s))
    return render_comparison(
        title=f"Planners on {found.requests[0].costs.cluster.name}",
        lead="; ".join(filter(None, (found.lead, found.clips, found.encoders))),
        figures=found.figures,
        batch=found.requests[typical].batch,
        steps=[
            DrawnStep(name=row.name, plan=row.steps[typical].plan, trace=row.steps[typical].trace)
            for row in drawn
        ],
        epoch=found.epoch,
        beneath=[found.pipeline.text] if found.pipeline else [],
    )
