"""Whose clips a verb models: the run's dataset, a manifest, or clips drawn like a public set's."""

import argparse
import os
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from arachne.cli.counts import check_count
from arachne.core.bucket import Bucket
from arachne.core.clip import MediaFacts
from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.model_shape import Geometry
from arachne.core.units import count_text, percent_text

if TYPE_CHECKING:
    from arachne.data.shapes import ShapeRules
    from arachne.trainer.config import RunConfig

MOST_FRAMES = 10_000
"""The longest `--frame-cap`: minutes of video, where models train on seconds."""

NUM_DRAWN = 10_000
"""Clips that are drawn where no dataset is read: more than the steps that anybody models take."""


def add_clip_source(parser: argparse.ArgumentParser) -> None:
    """Add `--clips`, `--frame-cap` and `--resolutions` to a verb."""
    group = parser.add_argument_group("clips")
    group.add_argument(
        "--clips",
        metavar="NAME|FILE",
        help="clips drawn like those of panda70m, webvid10m or opensora1.2-stage3 (or `list`), or "
        "those of a manifest.parquet; then data.path need not exist (default: the run file's "
        "dataset)",
    )
    group.add_argument(
        "--frame-cap",
        type=int,
        metavar="FRAMES",
        help="longest clip; each takes the longest length that is legal for the model, up to this "
        "(default: the lengths in data.frame_buckets)",
    )
    group.add_argument(
        "--resolutions",
        metavar="WxH:SHARE,…",
        help="frame sizes to train drawn clips in, as 1280x720:0.7,640x368:0.3; sides become "
        "multiples that the model takes, shares count as parts of their sum (default: the sizes of "
        "the set, scaled down to data.resolution; all landscape)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledClips:
    """The clips that steps are drawn from.

    Attributes:
        source: Where they come from.
        ledger: What became of every clip of the source.
        rows: Those that train.
        shape_settings: What bounds their shapes, as messages name it.
        sizes: What became of the sizes of `--resolutions`, in words; empty without them.
    """

    source: str
    ledger: Ledger
    rows: tuple[LedgerRow, ...]
    shape_settings: str
    sizes: str = ""

    @property
    def text(self) -> str:
        """One line: `panda70m (drawn): 10,000 clips of up to 129 frames and …`."""
        tokens = [row.num_tokens for row in self.rows]
        frames = max(row.bucket.frames for row in self.rows if row.bucket)
        longest = f"{count_text(frames, 'frame')} and {max(tokens):,} tokens"
        return (
            f"{self.source}: {count_text(len(tokens), 'clip')} of up to {longest}, "
            f"median {median_low(tokens):,}{self.sizes and f'; sizes: {self.sizes}'}"
        )


def modelled_clips(arguments: argparse.Namespace, config: "RunConfig") -> ModelledClips:
    """The clips that were asked for.

    Raises:
        ArachneError: An option, the dataset or the manifest cannot work, or no clip is usable.
    """
    from arachne.data.split import training_rows
    from arachne.trainer.planning_shape import only_bucket
    from arachne.trainer.sources import of_one_bucket

    geometry = family_named(config.model.family).geometry
    if arguments.frame_cap is not None:
        check_count("--frame-cap", arguments.frame_cap, most=MOST_FRAMES)
    rules = _rules(arguments, config, geometry)
    held_out = config.data.held_out
    if arguments.clips is None:
        _refuse_resolutions(arguments, "the run's dataset")
        ledger, source = _inspected(config, rules, geometry), config.data.path
    elif _is_manifest(arguments.clips):
        _refuse_resolutions(arguments, f"manifest {arguments.clips!r}")
        ledger, source = _manifest(arguments, geometry), arguments.clips
    else:
        ledger, source = _drawn(arguments, config, rules, geometry), f"{arguments.clips} (drawn)"
        held_out = 0.0
    ledger = of_one_bucket(ledger, only_bucket(config.model))
    rows = training_rows(ledger.usable, held_out)
    _check_usable(source, ledger, rows)
    return ModelledClips(
        source=source,
        ledger=ledger,
        rows=rows,
        shape_settings=_shape_settings(arguments, config),
        sizes=_sizes(arguments.resolutions, rules, geometry) if arguments.resolutions else "",
    )


def _sizes(listed: str, rules: "ShapeRules", geometry: Geometry) -> str:
    """Shares as parts of their sum, and sizes as they train: `1281x721 → 1280x720 (58.3 %), …`."""
    from arachne.data.frame_size import FrameSize
    from arachne.data.length_distributions import parsed_size_mix

    mix = parsed_size_mix(listed)
    total = sum(size.weight for size in mix)
    texts: list[str] = []
    for size in mix:
        named = f"{size.width}x{size.height}"
        facts = MediaFacts(
            width=size.width, height=size.height, fps=rules.fps, num_frames=1, is_estimated=False
        )
        trained = rules.size_of(facts, geometry)
        found = f"{trained.width}x{trained.height}" if isinstance(trained, FrameSize) else "none"
        change = "" if found == named else f" → {found}"
        texts.append(f"{named}{change} ({percent_text(size.weight / total, 1)})")
    return ", ".join(texts)


def _shape_settings(arguments: argparse.Namespace, config: "RunConfig") -> str:
    """What a user lowers for smaller clips: options come before the settings that they replace."""
    frames = config.data.length_setting if arguments.frame_cap is None else "--frame-cap"
    if arguments.resolutions is not None:
        return f"the sizes of --resolutions or {frames}"
    if _is_manifest(arguments.clips):
        return f"--frame-cap or the data.resolution with which {arguments.clips!r} is made"
    return f"data.resolution or {frames}"


def _is_manifest(clips: str | None) -> bool:
    return clips is not None and Path(clips).suffix == ".parquet"


def _check_usable(source: str, ledger: Ledger, rows: tuple[LedgerRow, ...]) -> None:
    """Refuse a source without clips that train, and say why there are none."""
    if rows:
        return
    if ledger.usable:
        raise DataError(
            f"all {len(ledger.usable):,} usable clips of {source!r} are held out; lower "
            "data.held_out"
        )
    why = next((row.reason for row in ledger.rows), "it is empty")
    if Path(source).is_dir():
        why = f"see why with: arachne inspect {source}"
    raise DataError(f"none of the {len(ledger.rows):,} clips in {source!r} is usable; {why}")


def _rules(arguments: argparse.Namespace, config: "RunConfig", geometry: Geometry) -> "ShapeRules":
    from arachne.data.length_distributions import parsed_size_mix

    rules = config.data.shape_rules
    if arguments.frame_cap is not None:
        lengths = range(1, arguments.frame_cap + 1, geometry.frame_step)
        rules = replace(rules, frame_buckets=tuple(lengths))
    if arguments.resolutions is not None:  # these sizes are meant as they are
        areas = [size.width * size.height for size in parsed_size_mix(arguments.resolutions)]
        rules = replace(rules, resolution=ceil(sqrt(max(areas))))
    return rules


def _refuse_resolutions(arguments: argparse.Namespace, source: str) -> None:
    if arguments.resolutions is not None:
        raise ConfigError(
            f"--resolutions is for drawn clips, but those of {source} have sizes of their own; "
            "leave it out, or name a set with --clips, such as panda70m"
        )


def _inspected(config: "RunConfig", rules: "ShapeRules", geometry: Geometry) -> Ledger:
    from arachne.trainer.sources import inspected_sources

    num_workers = len(os.sched_getaffinity(0))
    return inspected_sources(config.data, rules, geometry, num_workers=num_workers)


def _drawn(
    arguments: argparse.Namespace, config: "RunConfig", rules: "ShapeRules", geometry: Geometry
) -> Ledger:
    from arachne.data.drawn_clips import drawn_ledger
    from arachne.data.length_distributions import distribution_named, parsed_size_mix

    sizes = parsed_size_mix(arguments.resolutions) if arguments.resolutions else None
    return drawn_ledger(
        distribution_named(arguments.clips),
        rules,
        geometry,
        num_clips=NUM_DRAWN,
        seed=config.run.seed,
        sizes=sizes,
    )


def _manifest(arguments: argparse.Namespace, geometry: Geometry) -> Ledger:
    """A manifest's ledger; clips longer than the cap are cut, and tokens counted for the model."""
    from arachne.data.manifest import read_manifest

    path = Path(arguments.clips)
    if not path.exists():
        raise DataError(
            f"--clips {arguments.clips!r}: there is no such file; name a manifest that exists, or "
            "a set (--clips list names them)"
        )
    ledger = read_manifest(path, remedy="restore it from a copy, or name another with --clips")
    rows: list[LedgerRow] = []
    for row in ledger.rows:
        try:
            rows.append(_capped(row, arguments.frame_cap, geometry))
        except ConfigError as error:
            raise DataError(
                f"manifest {arguments.clips!r}: clip {row.clip.name!r}: {error}; make the manifest "
                "for this model"
            ) from error
    return Ledger(rows=tuple(rows))


def _capped(row: LedgerRow, frame_cap: int | None, geometry: Geometry) -> LedgerRow:
    if row.bucket is None:
        return row
    bucket = row.bucket
    if frame_cap is not None:
        frames = geometry.legal_frames_up_to(min(bucket.frames, frame_cap))
        bucket = Bucket(width=bucket.width, height=bucket.height, frames=frames)
    return replace(row, bucket=bucket, num_tokens=geometry.num_tokens(bucket))
