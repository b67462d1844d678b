"""The section `[validation]` of a run file."""

from dataclasses import dataclass

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """`[validation]`: validation loss at fixed noise, `every` steps (0 = never), and sample videos.

    Both also come before the first step and after the last.

    Attributes:
        every: Steps between two validations.
        noises: Noise levels per clip, spread evenly over the timestep range.
        clips: Most clips of one validation, chosen by content; 0 = no limit.
        keep_best: Whether the checkpoint of the lowest validation loss is written and kept.
        sample_every: Steps between two drawings of sample videos; 0 = none.
        prompts: What is drawn, one video each.
        images: For image to video: the picture that each video begins with, one for each prompt.
        sample_shape: Their shape, WxHxF.
        sample_steps: Denoising steps of each.
        guidance: Strength of classifier-free guidance; 1 = none.
    """

    every: int = 0
    noises: int = 2
    clips: int = 64
    keep_best: bool = False
    sample_every: int = 0
    prompts: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    sample_shape: str = ""
    sample_steps: int = 30
    guidance: float = 5.0

    def __post_init__(self) -> None:
        at_least("validation", 0, every=self.every, clips=self.clips)
        at_least("validation", 1, most=10_000, noises=self.noises)
        at_least("validation", 0, sample_every=self.sample_every, guidance=self.guidance)
        at_least("validation", 1, most=10_000, sample_steps=self.sample_steps)
        if self.keep_best and not self.every:
            raise ConfigError(
                "validation.keep_best needs validation losses, but validation.every is 0; set it "
                "to the steps between two"
            )
        if not self.sample_every:
            return
        if not self.prompts:
            raise ConfigError(
                f"validation.sample_every is {self.sample_every}, but validation.prompts is empty; "
                "write one text for each video"
            )
        if not self.sample_shape:
            raise ConfigError(
                f"validation.sample_every is {self.sample_every}, but validation.sample_shape is "
                "empty; write WxHxF, for example '832x480x81'"
            )
        _ = self.sample_bucket  # checks how it is written

    @property
    def sample_bucket(self) -> Bucket:
        """The shape of sample videos.

        Raises:
            ConfigError: It is no shape.
        """
        try:
            return Bucket.parse(self.sample_shape)
        except ConfigError as error:
            raise ConfigError(f"validation.sample_shape: {error}") from error

    @property
    def drawn_prompts(self) -> tuple[str, ...]:
        """What videos are drawn of while the run trains."""
        return self.prompts if self.sample_every else ()

    def is_validated(self, done: int, last: int) -> bool:
        """Whether the validation loss is measured after `done` of `last` steps."""
        return bool(self.every) and (done % self.every == 0 or done == last)

    def is_sampled(self, done: int, last: int) -> bool:
        """Whether sample videos are drawn after `done` of `last` steps."""
        return bool(self.sample_every) and (done % self.sample_every == 0 or done == last)
