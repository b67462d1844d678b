"""The datasets of a run, read as one. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.model_shape import Geometry
from arachne.data.inspect import inspect_dataset
from arachne.data.layouts import read_clips
from arachne.data.remote_path import DatasetPath, dataset_path
from arachne.data.shapes import ShapeRules
from arachne.trainer.settings.data import DataSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A dataset of a run.

    Attributes:
        name: What its clips name as their dataset; empty for that of `data.path`.
        root: Where it lies.
        resolution: Area budget of its frames, as `ShapeRules` has it; 0 takes the run's.
    """

    name: str
    root: DatasetPath
    resolution: int | tuple[int, ...]

    def rules(self, rules: ShapeRules) -> ShapeRules:
        """What its clips are brought to, where the run's are brought to `rules`."""
        return replace(rules, resolution=self.resolution or rules.resolution)


def sources(data: DataSettings) -> tuple[Source, ...]:
    """The datasets of a run, that of `data.path` first."""
    others = [
        Source(name=each.label, root=dataset_path(each.path), resolution=each.resolution)
        for each in data.others
    ]
    return (Source(name="", root=dataset_path(data.path), resolution=0), *others)


def listed_clips(data: DataSettings) -> tuple[Clip, ...]:
    """All clips that a run's datasets list.

    Raises:
        DataError: A dataset cannot be read, or a caption is missing.
    """
    return tuple(
        replace(clip, dataset=source.name)
        for source in sources(data)
        for clip in read_clips(source.root, data.missing_caption)
    )


def inspected_sources(
    data: DataSettings,
    rules: ShapeRules,
    geometry: Geometry,
    *,
    num_workers: int,
    progress: Callable[[int, int], None] | None = None,
    known: Sequence[LedgerRow] = (),
) -> Ledger:
    """The ledger of all datasets of a run, one after the other; nothing is written.

    Rows that are `known`, of an earlier ledger by the same rules, stand where their files are as
    they were.

    Raises:
        DataError: A dataset cannot be read, or a caption is missing.
    """
    rows: list[LedgerRow] = []
    for source in sources(data):
        ledger = inspect_dataset(
            source.root,
            source.rules(rules),
            geometry,
            data.missing_caption,
            num_workers=num_workers,
            progress=progress,
            known=[row for row in known if row.clip.dataset == source.name],
        )
        rows += [replace(row, clip=replace(row.clip, dataset=source.name)) for row in ledger.rows]
    return Ledger(rows=tuple(rows))


def of_one_bucket(ledger: Ledger, only: Bucket | None) -> Ledger:
    """The ledger of a model that takes one shape alone: clips of others are rejected.

    None takes all shapes.
    """
    if only is None:
        return ledger

    def row_of(row: LedgerRow) -> LedgerRow:
        if row.bucket in (None, only):
            return row
        reason = (
            f"comes to {row.bucket}, and this model learned the positions of {only} alone; choose "
            "data.resolution, data.aspects and data.frame_buckets for that"
        )
        return replace(row, status="rejected", reason=reason, bucket=None, num_tokens=0)

    return Ledger(rows=tuple(row_of(row) for row in ledger.rows))
