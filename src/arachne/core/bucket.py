"""A bucket: the shape, in pixels and frames, that clips are brought to."""

import re
from dataclasses import dataclass

from arachne.core.errors import ConfigError

_PATTERN = re.compile(r"([0-9]{1,9})x([0-9]{1,9})x([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Bucket:
    """Width × height in pixels, and frames; an image has one frame. Printed `832x480x81`."""

    width: int
    height: int
    frames: int

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or self.frames < 1:
            raise ConfigError(f"bucket {self}: width, height and frames must each be at least 1")

    @property
    def num_pixels(self) -> int:
        """Pixels of the whole clip, all frames counted."""
        return self.width * self.height * self.frames

    @classmethod
    def parse(cls, text: str) -> "Bucket":
        """Read `832x480x81` (width x height x frames).

        Raises:
            ConfigError: The text has another form.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"bucket {text!r} is not WIDTHxHEIGHTxFRAMES; write for example 832x480x81"
            )
        width, height, frames = (int(group) for group in match.groups())
        return cls(width=width, height=height, frames=frames)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}"
