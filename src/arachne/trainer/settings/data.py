"""The section `[data]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.data.shapes import ShapeRules
from arachne.trainer.settings.checks import at_least, folder, share


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """`[data]`.

    Attributes:
        path: Dataset: a folder with `metadata.csv` or with sidecar captions.
        cache: Folder for encoded clips; safe to share between runs.
        fps: Frames per second that the model learns; videos are retimed to it.
        resolution: Area budget of one frame: clips are scaled down to at most
            `resolution * resolution` pixels, in their own aspect ratio.
        frame_buckets: Legal lengths; each clip takes the longest that it fills. Stills always
            take 1.
        missing_caption: `error` stops before step 1, `empty` trains without words.
        held_out: Share of the clips kept for validation, chosen by content.
        encode: `before` makes all latents and text states before step 1; `online` makes those that
            the cache lacks within the steps, as the plan places them.
        cache_online: Whether what was encoded within steps is stored, so that the next epoch finds
            it.
    """

    path: str
    cache: str
    fps: float = 16.0
    resolution: int = 480
    frame_buckets: tuple[int, ...] = (1, 17, 33, 49, 65, 81)
    missing_caption: Literal["error", "empty"] = "error"
    held_out: float = 0.0
    encode: Literal["before", "online"] = "before"
    cache_online: bool = True

    def __post_init__(self) -> None:
        folder("data", path=self.path, cache=self.cache)
        at_least("data", 16, most=16384, resolution=self.resolution)
        share("data", held_out=self.held_out)
        _ = self.shape_rules  # checks the rest

    @property
    def shape_rules(self) -> ShapeRules:
        """What clips are brought to."""
        return ShapeRules(
            fps=self.fps, resolution=self.resolution, frame_buckets=self.frame_buckets
        )
