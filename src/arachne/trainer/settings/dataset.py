"""One dataset of a run: where it lies, and how often its clips come up."""

from dataclasses import dataclass

from arachne.core.errors import ConfigError
from arachne.core.units import number_text
from arachne.data.remote_path import dataset_path
from arachne.trainer.settings.checks import at_least, folder

MOST_REPEATS = 1000.0
LEAST_REPEATS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """An entry of `[[data.others]]`: a dataset that trains beside that of `data.path`.

    Attributes:
        path: As `data.path`.
        repeats: As `data.repeats`.
        weight: As `data.weight`.
        resolution: In place of `data.resolution`; 0 takes that.
        name: How its clips are told from others': `NAME:cats/a.mp4`. Empty takes the path's end.
    """

    path: str
    repeats: float = 1.0
    weight: float = 0.0
    resolution: int | tuple[int, ...] = 0
    name: str = ""

    def __post_init__(self) -> None:
        folder("data.others", path=self.path)
        if any(sign in self.name for sign in ":/\\"):
            raise ConfigError(
                f"data.others.name {self.name!r} holds a sign that parts datasets from files; "
                "leave out ':', '/' and '\\'"
            )
        check_share("data.others", self.repeats, self.weight)
        if self.resolution != 0:
            check_resolution("data.others", self.resolution)

    @property
    def label(self) -> str:
        """Its name, as clips have it."""
        return self.name or dataset_path(self.path).name or self.path


def check_resolution(section: str, resolution: int | tuple[int, ...]) -> None:
    """Refuse resolutions that no clip can have, and a list without any.

    Raises:
        ConfigError: Names the setting.
    """
    if resolution == ():
        raise ConfigError(f"{section}.resolution is empty; name at least one, such as 480")
    for each in (resolution,) if isinstance(resolution, int) else resolution:
        at_least(section, 16, most=16384, resolution=each)


def check_share(section: str, repeats: float, weight: float) -> None:
    """Refuse repeats and weights that mean nothing, and both at once.

    Raises:
        ConfigError: Names the setting.
    """
    if not LEAST_REPEATS <= repeats <= MOST_REPEATS:
        raise ConfigError(
            f"{section}.repeats is {number_text(repeats)}; it must be between {LEAST_REPEATS:g} "
            f"and {MOST_REPEATS:g}, where 1 is once an epoch"
        )
    at_least(section, 0, weight=weight)
    if weight and repeats != 1.0:
        raise ConfigError(
            f"{section}.weight and {section}.repeats are both set; a weight is of the clips that "
            "train, repeats are of each clip: leave one out"
        )
