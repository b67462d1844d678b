"""`arachne inspect DATA`: what would become of every clip of a dataset; writes nothing."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from arachne.cli.inspected_memory import largest_shape
from arachne.cli.run_file import add_overrides
from arachne.cli.written_file import check_page, write_file
from arachne.core.clip import Clip
from arachne.core.credentials import setting_with_credential
from arachne.core.errors import ConfigError, DataError
from arachne.core.families import FAMILIES, family_named
from arachne.core.families.family import Family
from arachne.core.ledger import Ledger
from arachne.core.local_path import local_path
from arachne.core.strict_json import to_json
from arachne.core.strict_toml import load_toml
from arachne.data.remote_path import DatasetPath, dataset_path
from arachne.reporting.bucket_shares import BucketShare, bucket_shares
from arachne.reporting.ledger_table import (
    cost_table,
    ledger_summary,
    ledger_table,
    shown_rows,
    steps_table,
)
from arachne.trainer.config import RunConfig
from arachne.trainer.settings.data import DataSettings

_THUMBNAIL_SIDE = 320
"""Pixels; pages show thumbnails at most this large."""

_EXAMPLE = """example:
  arachne inspect clips/ --fps 16 --resolution 480 --frame-buckets 1,17,33,49,65,81
  arachne inspect clips/OpenVid.csv --html inspect.html
  arachne inspect run.toml --set data.resolution=256 --clip cats/a.mp4

exit code: 0 every clip is usable, 3 some were rejected, 2 the dataset cannot be read"""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what becomes of every clip of a dataset",
        description="Reads a dataset and prints its ledger: frames, bucket, reasons. "
        "Writes nothing but the page of --html.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help="the dataset's folder or address, a table or a tar shard in it, or a run.toml",
    )
    parser.add_argument("--fps", type=float, help="frames per second that clips are retimed to")
    parser.add_argument(
        "--resolution", metavar="N[,N]", help="a frame has at most N*N pixels; of several, see docs"
    )
    parser.add_argument(
        "--fit", choices=("crop", "letterbox"), help="crop what does not fit, or set it in black"
    )
    parser.add_argument("--frame-buckets", help="legal lengths, for example 1,17,33")
    parser.add_argument(
        "--frame-extraction",
        choices=("head", "middle", "uniform", "chunk", "slide", "full"),
        help="which pieces of a longer clip train (default: head)",
    )
    parser.add_argument("--missing-caption", choices=("error", "empty"), help="stop, or go on")
    parser.add_argument("--family", choices=tuple(FAMILIES), help="model family (default: wan)")
    parser.add_argument(
        "--preset", help="model whose FLOPs are shared out (default: the run's, or the first)"
    )
    parser.add_argument("--workers", type=int, help="processes (default: one per CPU, up to 8)")
    parser.add_argument(
        "--decode",
        action="store_true",
        help="decode every clip, too: frames are else estimated by counting packets",
    )
    parser.add_argument("--rows", type=int, default=200, help="most clips in the table")
    parser.add_argument("--clip", metavar="NAME", help="show one clip's arithmetic in full")
    parser.add_argument(
        "--html", type=local_path, metavar="FILE", help="write a page with each clip's first frame"
    )
    parser.add_argument("--json", action="store_true", help="print JSON with every clip")
    add_overrides(parser, "change a setting of run.toml")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger; 3 if a clip was rejected, else 0.

    Raises:
        ConfigError: An option or the run file cannot work.
        DataError: The dataset cannot be read.
    """
    from arachne.data.layouts import detected_layout, read_clips

    if arguments.clip and (arguments.json or arguments.html):
        raise ConfigError("--clip prints one clip; leave out --json and --html, or --clip")
    if arguments.rows < 0:
        raise ConfigError(f"--rows is {arguments.rows}; it must be at least 0")
    check_page(arguments.html)
    found = _inspected(arguments)
    num_workers = _num_workers(arguments.workers)
    found.data.shape_rules.check(found.family.geometry)
    layout = detected_layout(found.root).name
    clips = read_clips(found.root, found.data.missing_caption)
    if arguments.clip:
        return _print_clip(found, clips, arguments.clip)
    ledger = _ledger(found, clips, num_workers, is_decoded=arguments.decode)
    shape = found.family.presets[found.preset]
    shares = bucket_shares(ledger, shape)
    largest = largest_shape(shares, shape)
    if arguments.html:
        _write_file(arguments.html, found, layout, ledger, shares, arguments.rows)
    if arguments.json:
        # Stamps are of this machine's files: a copy of the dataset is inspected to the same words.
        rows = [replace(row, stamp="") for row in ledger.rows]
        table = {"layout": layout, "counts": ledger.counts, "rows": rows}
        table |= {"frames_are": "decoded" if arguments.decode else "estimated"}
        table |= {"preset": found.preset, "buckets": shares, "largest": largest}
        print(to_json(table))
    else:
        console = Console()
        console.print(f"layout: {layout}", highlight=False)
        console.print(ledger_table(ledger, arguments.rows))
        console.print(cost_table(shares, found.preset))
        if largest is not None:
            console.print(largest.text, highlight=False)
        console.print(ledger_summary(ledger), highlight=False)
        if not arguments.decode:
            console.print("frames are estimated from packets; --decode decodes every clip")
        for other in found.data.others:
            console.print(f"not shown: dataset {other.label!r}; see arachne inspect {other.path}")
    return 3 if ledger.counts["rejected"] else 0


def _ledger(
    found: "_Inspected", clips: Sequence[Clip], num_workers: int, *, is_decoded: bool = False
) -> Ledger:
    from arachne.data.inspect import inspect_clips  # PyAV loads FFmpeg: not before it is needed

    with _progress() as progress:
        task = progress.add_task("inspecting", total=None)
        return inspect_clips(
            found.root,
            clips,
            found.data.shape_rules,
            found.family.geometry,
            num_workers,
            lambda done, total: progress.update(task, completed=done, total=total),
            is_decoded,
        )


def _print_clip(found: "_Inspected", clips: Sequence[Clip], name: str) -> int:
    """All that is known of a clip, or of each clip of a file."""
    from arachne.data.clip_arithmetic import clip_arithmetic, clips_named

    named = clips_named(clips, name)
    rules, geometry = found.data.shape_rules, found.family.geometry
    ledgers = [_ledger(found, [clip], 1) for clip in named]
    console = Console()
    for clip, ledger in zip(named, ledgers, strict=True):
        steps = clip_arithmetic(found.root, ledger.rows, rules, geometry)
        console.print(steps_table(clip.name, steps))
    return 3 if any(ledger.counts["rejected"] for ledger in ledgers) else 0


def _write_file(
    path: Path,
    found: "_Inspected",
    layout: str,
    ledger: Ledger,
    shares: Sequence[BucketShare],
    max_rows: int,
) -> None:
    from arachne.data.thumbnail import thumbnail
    from arachne.reporting.inspect_page import Thumbnails, render_inspection

    jpegs: dict[str, bytes] = {}
    faults: dict[str, str] = {}
    shown = [row for row in shown_rows(ledger, max_rows) if row.bucket is not None]
    with _progress() as progress:
        for row in progress.track(shown, description="thumbnails"):
            try:
                jpegs[row.clip.name] = thumbnail(
                    found.root, row, found.data.fps, found.data.fit, _THUMBNAIL_SIDE
                )
            except DataError as error:
                faults[row.clip.name] = str(error)
    rules = found.data.shape_rules
    lead = (
        f"Layout: {layout}. For {found.family.name} at {found.data.fps:g} frames per second, "
        f"{rules.area_text} a frame; {rules.lengths_text} frames."
    )
    page = render_inspection(
        found.data.path,
        lead,
        ledger,
        shares,
        found.preset,
        Thumbnails(jpegs=jpegs, faults=faults),
        max_rows,
    )
    write_file(path, page)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspected:
    """What is inspected, and for which model.

    Attributes:
        preset: The model of the family whose FLOPs are shared out.
    """

    data: DataSettings
    family: Family
    preset: str

    @property
    def root(self) -> DatasetPath:
        return dataset_path(self.data.path)


def _inspected(arguments: argparse.Namespace) -> _Inspected:
    """From the run file or defaults, then the options."""
    if arguments.data.endswith(".toml"):
        config = load_toml(Path(arguments.data), RunConfig, overrides=arguments.overrides)
        settings, family, preset = config.data, config.model.family, config.model.preset
    else:
        if arguments.overrides:
            raise ConfigError("--set changes settings of a run file; DATA is a dataset")
        if setting_with_credential({"DATA": arguments.data}):
            raise ConfigError(
                "DATA holds a password or token, which would be printed and written into pages; "
                "leave it out, and give it as the scheme's driver expects it: in its environment "
                "variables or its own configuration"
            )
        settings, family = DataSettings(path=arguments.data, cache="unused"), "wan"
        preset = ""
    given: dict[str, Any] = {
        "fps": arguments.fps,
        "resolution": _numbers("--resolution", arguments.resolution, "256,480"),
        "fit": arguments.fit,
        "frame_buckets": _numbers("--frame-buckets", arguments.frame_buckets, "1,17,33"),
        "frame_extraction": arguments.frame_extraction,
        "missing_caption": arguments.missing_caption,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    found = family_named(arguments.family or family)
    return _Inspected(
        data=replace(settings, **changes),
        family=found,
        preset=_preset(arguments.preset or preset, found, is_asked=bool(arguments.preset)),
    )


def _preset(name: str, family: Family, *, is_asked: bool) -> str:
    """A preset of the family; its first one where none was named, or the run's is of another."""
    if name in family.presets:
        return name
    if is_asked:
        raise ConfigError(
            f"--preset {name!r} is not known; presets of {family.name}: {', '.join(family.presets)}"
        )
    return next(iter(family.presets))


def _numbers(option: str, text: str | None, example: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is not a list of numbers; write for example {example}"
        ) from error


def _num_workers(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers is {workers}; it must be at least 1")
    return workers or min(os.cpu_count() or 1, 8)


def _progress() -> Progress:
    """A bar on standard error; none where that is not a terminal."""
    return Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
