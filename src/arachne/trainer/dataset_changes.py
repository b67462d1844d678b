"""What became of a run's datasets since its ledger was made. No torch."""

from collections.abc import Sequence

from arachne.core.clip import Clip
from arachne.core.errors import DataError
from arachne.core.ledger import Ledger
from arachne.core.units import count_text
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.sources import listed_clips

_NAMES_SHOWN = 3
_GOES_ON = "the run goes on with the clips of its ledger; --rescan takes those that are there now"


def dataset_changes_text(data: DataSettings, ledger: Ledger) -> str:
    """How what the datasets list now differs from a run's ledger, in a line; empty if it does not.

    Files are listed, and not looked into: what is in them is compared where a clip is decoded.
    """
    try:
        listed = {clip.name: clip for clip in listed_clips(data)}
    except DataError as error:
        return f"the dataset cannot be listed any more ({error}); {_GOES_ON}"
    known = {row.clip.listed.name: row.clip.listed for row in ledger.rows}
    added = [clip for name, clip in listed.items() if name not in known]
    removed = [clip for name, clip in known.items() if name not in listed]
    renamed = [clip for name, clip in listed.items() if name in known and clip != known[name]]
    changes = [
        f"{count_text(len(clips), 'clip')} {what} ({_names_text(clips)})"
        for what, clips in (("added", added), ("removed", removed), ("recaptioned", renamed))
        if clips
    ]
    if not changes:
        return ""
    return f"since the run began the dataset has {', '.join(changes)}; {_GOES_ON}"


def _names_text(clips: Sequence[Clip]) -> str:
    shown = ", ".join(repr(clip.name) for clip in clips[:_NAMES_SHOWN])
    return shown if len(clips) <= _NAMES_SHOWN else f"{shown}, …"
