"""The section `[data]` of a run file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.data.extraction import Extraction, Mode
from arachne.data.frame_size import Fit
from arachne.data.remote_path import dataset_path
from arachne.data.shapes import ShapeRules
from arachne.trainer.settings.checks import at_least, folder, local_folder, share
from arachne.trainer.settings.dataset import (
    DatasetSettings,
    check_resolution,
    check_share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """`[data]`.

    Attributes:
        path: Dataset: a folder with `metadata.csv` or with sidecar captions, or the address of one,
            such as `s3://bucket/clips`.
        cache: Folder for encoded clips; safe to share between runs.
        fps: Frames per second that the model learns; videos are retimed to it.
        resolution: Area budget of one frame: clips are scaled down to at most
            `resolution * resolution` pixels, in their own aspect ratio. Of a list each clip takes
            the largest that it reaches without being scaled up, or else the least.
        aspects: Ratios of width to height, as `16:9`, to which clips are brought: each to the
            nearest one. Without any, every clip keeps its own.
        upscale: Whether frames below the area budget are scaled up to it.
        fit: Whether what of a frame does not fit its size is cropped (`crop`), or the whole frame
            is set in black (`letterbox`).
        frame_buckets: Legal lengths; each clip takes the longest that it fills. Stills always
            take 1.
        frame_extraction: Which pieces of that length train: the first (`head`), the `middle` one,
            `frame_sample` of them spread evenly (`uniform`), all one after the other (`chunk`), one
            every `frame_stride` frames (`slide`). `full` takes the whole clip instead, cut to a
            legal length of at most `max_frames`.
        frame_sample: Pieces of each clip, for `uniform`.
        frame_stride: Frames at `fps` from one piece's start to the next one's, for `slide`.
        max_frames: Longest length, for `full`.
        missing_caption: `error` stops before step 1, `empty` trains without words.
        held_out: Share of the clips kept for validation, chosen by their files' content.
        encode: `before` makes all latents and text states before step 1; `online` makes those that
            the cache lacks within the steps, as the plan places them.
        cache_online: Whether what was encoded within steps is stored, so that the next epoch finds
            it.
        repeats: How often each clip comes up in an epoch; of 0.5 in one of two epochs.
        weight: Instead of `repeats`: how much of all clips that train are of this dataset, against
            the weights of `others`. Of the dataset that comes up least, each clip does so once an
            epoch.
        read_ahead_mb: Cached clips that may wait on a rank for their launches, in MB; a single
            larger clip may, too.
        others: More datasets, `[[data.others]]`, that train beside this one.
    """

    path: str
    cache: str
    fps: float = 16.0
    resolution: int | tuple[int, ...] = 480
    frame_buckets: tuple[int, ...] = (1, 17, 33, 49, 65, 81)
    aspects: tuple[str, ...] = ()
    upscale: bool = False
    fit: Fit = "crop"
    frame_extraction: Mode = "head"
    frame_sample: int = 2
    frame_stride: int = 16
    max_frames: int = 129
    missing_caption: Literal["error", "empty"] = "error"
    held_out: float = 0.0
    encode: Literal["before", "online"] = "before"
    cache_online: bool = True
    repeats: float = 1.0
    weight: float = 0.0
    read_ahead_mb: int = 2048
    others: tuple[DatasetSettings, ...] = ()

    def __post_init__(self) -> None:
        check_share("data", self.repeats, self.weight)
        at_least("data", 1, most=1e6, read_ahead_mb=self.read_ahead_mb)
        self._check_others()
        folder("data", path=self.path)
        local_folder("data", cache=self.cache)
        check_resolution("data", self.resolution)
        share("data", held_out=self.held_out)
        _ = self.shape_rules  # checks the rest

    def _check_others(self) -> None:
        places = [dataset_path(path) for path in (self.path, *(o.path for o in self.others))]
        roots = [os.path.realpath(p) if isinstance(p, Path) else p.url for p in places]
        pairs = zip(self.others, roots[1:], strict=True)
        again = next((other.path for other, root in pairs if roots.count(root) > 1), None)
        if again is not None:
            raise ConfigError(
                f"data.others.path {again!r} is a dataset that the run has already; to train its "
                "clips twice as often, set repeats = 2"
            )
        labels = [other.label for other in self.others]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"two entries of data.others are called {twice!r}; give each a name of its own, "
                'such as name = "b"'
            )
        if self.weight and not self.others:
            raise ConfigError(
                f"data.weight is {self.weight:g}, but the run has one dataset, and weights say how "
                "much of several trains; leave it out, or add another in [[data.others]]"
            )
        weights = [self.weight, *(other.weight for other in self.others)]
        if any(weights) and not all(weights):
            raise ConfigError(
                "some datasets have a weight and some have none; set data.weight and that of every "
                "entry of data.others, or none"
            )

    @property
    def length_setting(self) -> str:
        """Which setting bounds how long clips are, by its name."""
        return "data.max_frames" if self.frame_extraction == "full" else "data.frame_buckets"

    @property
    def shape_rules(self) -> ShapeRules:
        """What clips are brought to."""
        return ShapeRules(
            fps=self.fps,
            resolution=self.resolution,
            frame_buckets=self.frame_buckets,
            aspects=self.aspects,
            upscale=self.upscale,
            fit=self.fit,
            extraction=Extraction(
                mode=self.frame_extraction,
                frame_sample=self.frame_sample,
                frame_stride=self.frame_stride,
                max_frames=self.max_frames,
            ),
        )
