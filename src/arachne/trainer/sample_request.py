"""What video is drawn, and whether a run's model can draw it; without torch."""

from dataclasses import dataclass
from pathlib import Path

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.trainer.config import RunConfig
from arachne.trainer.planning_shape import planning_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What video is drawn.

    Attributes:
        prompt: What it shows.
        bucket: Its shape.
        steps: Denoising steps.
        guidance: Strength of classifier-free guidance; 1 is none.
        seed: Of the noise.
        image: The picture that it begins with, for models of image to video.
    """

    prompt: str
    bucket: Bucket
    steps: int
    guidance: float
    seed: int
    image: Path | None = None

    def check(self, config: RunConfig) -> None:
        """Refuse what the run's model cannot draw.

        Raises:
            ConfigError: The bucket is not legal for it, or a picture is missing or too much.
        """
        if (self.image is not None) != config.model.image_to_video:
            raise ConfigError(
                "this run trains image to video; name the picture that the video begins with: "
                "--image"
                if config.model.image_to_video
                else "this run trains text to video, which begins with no picture; leave --image "
                "out"
            )
        family_named(config.model.family).geometry.check(self.bucket)
        if config.model.pretrained:
            planning_shape(config.model).check_bucket(self.bucket)
