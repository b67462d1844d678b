"""The run file: one TOML file becomes frozen, typed values before torch is imported.

Every key has a default where a safe one exists; unknown keys are errors with the nearest name.
"""

from dataclasses import dataclass, field

from arachne.core.families import family_named
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.checkpoint import CheckpointSettings
from arachne.trainer.settings.cluster import ClusterSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.logging import LoggingSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from arachne.trainer.settings.optimizer import OptimizerSettings
from arachne.trainer.settings.planner import PlannerSettings
from arachne.trainer.settings.run import RunSettings
from arachne.trainer.settings.validation import ValidationSettings

TRAINED_FAMILIES = ("wan", "skyreels_v2", "hunyuan_video")
"""Families that a run can train; the others can be planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole run file."""

    run: RunSettings
    data: DataSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)

    def __post_init__(self) -> None:
        self.data.shape_rules.check(family_named(self.model.family).geometry)
