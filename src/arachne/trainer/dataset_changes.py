"""What became of a run's datasets since its ledger was made. No torch."""

from collections.abc import Sequence
from dataclasses import replace

from arachne.core.errors import ConfigError, DataError
from arachne.core.ledger import Ledger
from arachne.core.refused_write import refusal_at
from arachne.core.units import count_text
from arachne.data.known_rows import replaced_paths
from arachne.data.source_media import has_source
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.sources import listed_clips, sources

_NAMES_SHOWN = 3
_GOES_ON = "the run goes on with the clips of its ledger; --rescan takes those that are there now"


def replaced_files(data: DataSettings, ledger: Ledger) -> tuple[str, ...]:
    """Files that hold other content than when a run's ledger was made, in the ledger's order.

    A file of the stamp that it had is taken for the same; others are read, as `replaced_paths` has
    it.
    """
    replaced: dict[str, None] = {}
    for source in sources(data):
        rows = [row for row in ledger.rows if row.clip.dataset == source.name]
        paths = replaced_paths(source.root, rows)
        whole = (replace(row.clip, span=None, piece=None) for row in rows if row.clip.path in paths)
        replaced |= dict.fromkeys(clip.name for clip in whole)
    return tuple(replaced)


def dataset_changes_text(data: DataSettings, ledger: Ledger, replaced: Sequence[str] = ()) -> str:
    """How what the datasets list now differs from a run's ledger, in a line; empty if it does not.

    Args:
        data: Names the datasets.
        ledger: Of the run.
        replaced: What `replaced_files` found.
    """
    try:
        listed = {clip.name: clip for clip in listed_clips(data)}
    except (DataError, OSError) as error:
        why = refusal_at(error) if isinstance(error, OSError) else error
        return f"the dataset cannot be listed any more ({why}); {_GOES_ON}"
    known = {row.clip.listed.name: row.clip.listed for row in ledger.rows}
    added = [clip for name, clip in listed.items() if name not in known]
    removed = [clip for name, clip in known.items() if name not in listed]
    renamed = [clip for name, clip in listed.items() if name in known and clip != known[name]]
    changes = [
        f"{count_text(len(clips), 'clip')} {what} ({_names_text([c.name for c in clips])})"
        for what, clips in (("added", added), ("removed", removed), ("recaptioned", renamed))
        if clips
    ]
    if replaced:
        files = count_text(len(replaced), "file")
        changes.append(f"{files} with other content ({_names_text(replaced)})")
    if not changes:
        return ""
    return f"since the run began the dataset has {', '.join(changes)}; {_GOES_ON}"


def check_moved(
    before: DataSettings, now: DataSettings, ledger: Ledger, replaced: Sequence[str]
) -> None:
    """Refuse datasets in another place than before that do not hold a run's clips.

    Args:
        before: As they were when the run was trained.
        now: As they are now.
        ledger: Of the run.
        replaced: What `replaced_files` found.

    Raises:
        ConfigError: Less than half of the files are there, or a file has other content.
    """
    if _places(before) == _places(now):
        return
    roots = {source.name: source.root for source in sources(now)}
    files = {(row.clip.dataset, row.clip.path) for row in ledger.usable}
    absent = sorted(path for name, path in files if not has_source(roots[name], path))
    if len(absent) * 2 > len(files):
        found = f"has not {_names_text(absent)}"
    elif replaced:
        found = f"has other content in {_names_text(replaced)}"
    else:
        return
    raise ConfigError(
        f"data.path is {now.path!r} and was {before.path!r}, but it {found} of the run to resume; "
        "name the folder that its clips were moved to"
    )


def _places(data: DataSettings) -> tuple[str, ...]:
    return (data.path, *(other.path for other in data.others))


def _names_text(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMES_SHOWN]))
    return shown if len(names) <= _NAMES_SHOWN else f"{shown}, …"
