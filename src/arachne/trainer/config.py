"""The run file: one TOML file becomes frozen, typed values before torch is imported.

Every key has a default where a safe one exists; unknown keys are errors with the nearest name.
"""

from dataclasses import dataclass, field

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.families.family import ObjectiveKind
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.checkpoint import CheckpointSettings
from arachne.trainer.settings.cluster import ClusterSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.logging import LoggingSettings
from arachne.trainer.settings.lora import LoraSettings
from arachne.trainer.settings.memory import MemorySettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from arachne.trainer.settings.optimizer import OptimizerSettings
from arachne.trainer.settings.planner import PlannerSettings
from arachne.trainer.settings.run import RunSettings
from arachne.trainer.settings.validation import ValidationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole run file."""

    run: RunSettings
    data: DataSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)

    def __post_init__(self) -> None:
        geometry = family_named(self.model.family).geometry
        self.data.shape_rules.check(geometry)
        if self.validation.sample_every:
            try:
                geometry.check(self.validation.sample_bucket)
            except ConfigError as error:
                raise ConfigError(f"validation.sample_shape: {error}") from error
        self.optimizer.check_steps(self.run.steps)
        if self.lora.is_on and (self.model.freeze or self.model.train_only):
            raise ConfigError(
                "with lora.rank above 0 only adapters are trained; leave model.freeze and "
                "model.train_only out, or set lora.rank to 0"
            )
        self.objective.check(self.objective_kind)
        self.memory.check(self.model, self.lora, self.planner)
        if self.memory.encoders_on_host and self.data.encode != "online":
            raise ConfigError(
                "memory.encoders_on_host is for encoders that work within steps, and data.encode "
                f"is {self.data.encode!r}, after which they are gone; leave it out, or set "
                "data.encode = 'online'"
            )
        self._check_first_frames()
        low, high = self.objective.timestep_range
        if self.model.other_expert and (low > 0.0) == (high < 1.0):
            raise ConfigError(
                f"model.other_expert is for noise levels that this run leaves out, and "
                f"objective.timestep_range is [{low}, {high}]; train one end of it, such as "
                "[0.875, 1.0], or leave the other expert out"
            )

    def _check_first_frames(self) -> None:
        """Pictures for sample videos belong to image to video, and are needed there."""
        prompts, images = self.validation.prompts, self.validation.images
        needed = len(prompts) if self.model.image_to_video and self.validation.sample_every else 0
        if len(images) != needed:
            raise ConfigError(
                f"validation.images names {len(images)} pictures, and this run draws {needed} "
                "videos that begin with one; name one for each of validation.prompts with "
                "model.image_to_video, and none without"
            )
        if self.model.always_keeps_first_frame:
            self.check_kept_frame()

    def check_kept_frame(self) -> None:
        """Refuse an objective by which a model that keeps the first frame cannot draw.

        Raises:
            ConfigError: Names it.
        """
        if self.objective_kind != "flow_matching":
            raise ConfigError(
                f"model.image_to_video of family {self.model.family!r} keeps the first frame at "
                f"noise level 0, which objective.kind = {self.objective_kind!r} cannot draw; train "
                "flow_matching"
            )

    @property
    def objective_kind(self) -> ObjectiveKind:
        """What the run trains: as it says, or else what its family was trained on."""
        if self.objective.kind != "auto":
            return self.objective.kind
        return family_named(self.model.family).objective
