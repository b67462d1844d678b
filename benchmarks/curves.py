"""Is the loss curve the same on 1, 2 and 4 ranks, and under three planners, step after step?

The demo's model trains in float32 on the demo's clips, made small: frames of about 96 x 96 pixels,
at most 33 of them. Every run is `arachne train` with the same run file, but for ranks and planner.
A run's error is the largest relative difference of a step's loss from the run on one rank.

    python benchmarks/curves.py --quick --json out.json
    python benchmarks/curves.py --json out.json --picture docs/images/curves.png
    python benchmarks/curves.py --only 4-static_sp --resume --add out.json --json out.json

Runs save every 20 steps: with `--resume` one that was interrupted goes on. `--only` makes some of
the curves, and `--add` takes all others from the figures of an earlier call.

The page with the chart lies in the folder of the runs; `--picture` also photographs it, with a
chromium that is installed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from machine import about

from arachne.cli.demo.dataset import make_dataset
from arachne.cli.demo.settings import demo_config
from arachne.cli.run_dir import write_resolved
from arachne.reporting.chart_parts import (
    BLUE,
    FROM_LEAST_TO_MOST,
    GREEN,
    ORANGE,
    Figure,
    axes_layout,
    line_trace,
)
from arachne.reporting.page_document import document
from arachne.reporting.run_files import read_metrics

STEPS, QUICK_STEPS = 200, 6
_DIRTY = "-dirty"
_SAVE_EVERY = 20
TOLERANCE = 1e-4
"""Of a step's loss, relative."""

_SMALLEST_ERROR = 1e-9
"""Equal losses are drawn here: the axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a run is spread: over so many ranks, by a planner."""

    ranks: int
    planner: str

    @property
    def name(self) -> str:
        """As the chart calls it."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks}, {self.planner}"

    @property
    def folder(self) -> str:
        """The name of its run's folder."""
        return f"{self.ranks}-{self.planner}"


WAYS = (
    Way(ranks=1, planner="arachne"),
    Way(ranks=2, planner="arachne"),
    Way(ranks=4, planner="arachne"),
    Way(ranks=4, planner="static_dp"),
    Way(ranks=4, planner="static_sp"),
)
"""The first is what the others are compared with."""

_COLOURS = dict(
    zip(
        (way.name for way in WAYS),
        (FROM_LEAST_TO_MOST[3], BLUE, GREEN, ORANGE, FROM_LEAST_TO_MOST[2]),
        strict=True,
    )
)


def curves(
    folder: Path, num_steps: int, ways: Sequence[Way], *, resume: bool
) -> dict[str, list[float]]:
    """The loss of every step, by the name of the way; files lie in `folder`.

    With `resume` what runs did there before counts, and those that did not end go on.
    """
    config = demo_config(folder, steps=num_steps, ranks=0)
    config = replace(
        config,
        run=replace(config.run, steps=num_steps),
        data=replace(config.data, resolution=96, frame_buckets=(1, 9, 17, 33)),
        checkpoint=replace(config.checkpoint, every=_SAVE_EVERY),
        validation=replace(config.validation, every=0),
        logging=replace(config.logging, trace_every=0, tensorboard=False, every=_SAVE_EVERY),
    )
    make_dataset(Path(config.data.path))
    losses: dict[str, list[float]] = {}
    for way in ways:
        run_dir = folder / way.folder
        if run_dir.exists() and not resume:
            shutil.rmtree(run_dir)
        chosen = replace(
            config,
            run=replace(config.run, dir=str(run_dir), ranks=way.ranks),
            planner=replace(config.planner, name=way.planner),
        )
        run_file = folder / f"{way.folder}.toml"
        write_resolved(chosen, run_file)
        print(f"{way.name}: {num_steps} steps", flush=True)
        subprocess.run(
            [sys.executable, "-m", "arachne", "train", str(run_file), "--resume-if-any"],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        losses[way.name] = [row.loss for row in read_metrics(run_dir).train if row.loss is not None]
        assert len(losses[way.name]) == num_steps, way
    return losses


def joined(
    added: Mapping[str, Any] | None, losses: Mapping[str, Sequence[float]], commit: str
) -> dict[str, list[float]]:
    """All curves, in the order of `WAYS`; of one commit, since another may decode clips otherwise.

    Raises:
        ValueError: A curve is missing, or what is added was made with another commit.
    """
    found: dict[str, Sequence[float]] = {}
    if added is not None:
        found |= added["losses"]
        known = added["about"]["commit"]
        if known.removesuffix(_DIRTY) != commit.removesuffix(_DIRTY):
            raise ValueError(f"curves of {known} cannot be compared with those of {commit}")
    found |= losses
    missing = [way.name for way in WAYS if way.name not in found]
    if missing:
        raise ValueError(f"there is no curve of {', '.join(missing)}; add figures that have it")
    return {way.name: list(found[way.name]) for way in WAYS}


def errors_of(losses: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Relative difference of every step's loss from the first way's, by the others' names."""
    first, *others = losses
    return {
        name: [
            abs(found - needed) / abs(needed)
            for found, needed in zip(losses[name], losses[first], strict=False)  # if it was ended
        ]
        for name in others
    }


def page(losses: Mapping[str, Sequence[float]], errors: Mapping[str, Sequence[float]]) -> str:
    """One page with the curves, and beneath them how far they are apart."""
    num_steps = len(next(iter(losses.values())))
    short = [f"{name} ended after {len(v)}" for name, v in losses.items() if len(v) < num_steps]
    but = f" ({', '.join(short)})" if short else ""
    # Wide lines beneath narrow ones: curves that coincide stay visible.
    widths = {name: 9.0 - 1.8 * index for index, name in enumerate(losses)}
    curve: Figure = {
        "data": [
            line_trace([*enumerate(values)], name, _COLOURS[name], width=widths[name])
            for name, values in losses.items()
        ],
        "layout": axes_layout("step", "training loss", has_legend=True),
    }
    apart = axes_layout("step", "relative difference", has_legend=True)
    apart["yaxis"] |= {"type": "log", "range": [-9, -3], "dtick": 1, "exponentformat": "power"}
    difference: Figure = {
        "data": [
            *(
                line_trace(
                    [(step, max(error, _SMALLEST_ERROR)) for step, error in enumerate(values)],
                    name,
                    _COLOURS[name],
                    width=1.6,
                )
                for name, values in errors.items()
            ),
            line_trace(
                [(0, TOLERANCE), (num_steps - 1, TOLERANCE)], "promised", "#444444", width=1.4
            ),
        ],
        "layout": apart,
    }
    difference["data"][-1] |= {"mode": "lines"}
    difference["data"][-1]["line"] |= {"dash": "dash"}
    reference = escape(next(iter(losses)))
    return document(
        title="One loss curve, however the work is spread",
        lead=f"{num_steps} steps of the demo's model in float32{but}; losses of a step differ by "
        f"at most {max(map(max, errors.values())):.1e} of themselves.",
        body=(
            '<div class="panel"><h3>Training loss, widest line first</h3>'
            '<div class="chart" data-figure="curves"></div></div>'
            f'<div class="panel"><h3>Difference from {reference}</h3>'
            '<div class="chart" data-figure="apart"></div></div>'
        ),
        figures={"curves": curve, "apart": difference},
        times="",
        shows_idle=False,
    )


def photograph(html: Path, picture: Path) -> None:
    """A picture of the page by an installed chromium.

    Raises:
        FileNotFoundError: There is none.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("no chromium is installed; open the page in a browser instead")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                "--window-size=1000,920",
                "--virtual-time-budget=8000",
                f"--screenshot={picture.absolute()}",
                html.absolute().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120.0,
        )


def main(argv: Sequence[str]) -> int:
    """Run, print, write; 1 if a curve leaves the promised band."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps, not {STEPS}")
    parser.add_argument("--dir", type=Path, default=Path("runs/curves"), help="folder of the runs")
    parser.add_argument("--resume", action="store_true", help="go on with the runs in that folder")
    parser.add_argument(
        "--only",
        action="append",
        choices=[way.folder for way in WAYS],
        help="make this curve; may be given again",
    )
    parser.add_argument("--add", type=Path, metavar="FILE", help="take other curves from there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write a PNG there")
    arguments = parser.parse_args(argv)
    num_steps = QUICK_STEPS if arguments.quick else STEPS
    arguments.dir.mkdir(parents=True, exist_ok=True)
    added = None if arguments.add is None else json.loads(arguments.add.read_text(encoding="utf-8"))
    ways = [way for way in WAYS if arguments.only is None or way.folder in arguments.only]
    made = curves(arguments.dir, num_steps, ways, resume=arguments.resume)
    known = about(quick=arguments.quick, steps=num_steps)
    losses = joined(added, made, known["commit"])
    errors = errors_of(losses)
    largest = {name: max(values) for name, values in errors.items()}
    result: dict[str, Any] = {
        "about": known,
        "tolerance": TOLERANCE,
        "largest_error": largest,
        "losses": losses,
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    html = arguments.dir / "curves.html"
    html.write_text(page(losses, errors), encoding="utf-8")
    if arguments.picture is not None:
        photograph(html, arguments.picture)
    for name, error in largest.items():
        print(f"{name:24} differs by {error:.1e} at most")
    print(f"the curves: {html}")
    return 0 if max(largest.values()) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
