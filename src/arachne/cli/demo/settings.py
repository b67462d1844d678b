"""The demo's run file, as a value; it is also written beside the run for the user to start from."""

from pathlib import Path

from arachne.trainer.config import RunConfig
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.checkpoint import CheckpointSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.logging import LoggingSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from arachne.trainer.settings.optimizer import OptimizerSettings
from arachne.trainer.settings.run import RunSettings
from arachne.trainer.settings.validation import ValidationSettings

RESUMED_STEPS = 2
"""Steps after the checkpoint that the demo resumes from on another world size."""


def demo_config(folder: Path, *, steps: int, ranks: int) -> RunConfig:
    """A small Wan (about 4 million parameters) on clips of 40-fold different length."""
    return RunConfig(
        run=RunSettings(dir=str(folder), steps=steps + RESUMED_STEPS, ranks=ranks, timeout_s=120.0),
        data=DataSettings(
            path=str(folder / "clips"),
            cache=str(folder / "cache"),
            fps=16.0,
            resolution=128,
            frame_buckets=(1, 9, 17, 33, 49, 65, 81, 97, 129, 157),
        ),
        model=ModelSettings(num_layers=3, num_heads=4, head_size=64, ffn_size=1024, text_tokens=24),
        objective=ObjectiveSettings(shift=1.0, caption_dropout=0.1),
        batch=BatchSettings(clips=8),
        optimizer=OptimizerSettings(lr=2e-3, warmup_steps=5, weight_decay=0.0),
        checkpoint=CheckpointSettings(every=steps, keep=0),
        logging=LoggingSettings(trace_every=1),
        validation=ValidationSettings(every=max(steps // 4, 1), noises=2),
    )
