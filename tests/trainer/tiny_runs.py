"""A dataset of six tiny clips, a run file for it, and sessions on one to three ranks."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from diffusers import WanTransformer3DModel  # noqa: F401  imported once, before ranks are forked
from PIL import Image

from arachne.core.batch import Batch
from arachne.core.cascade import Cascade
from arachne.core.families import WAN
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.data.inspect import inspect_dataset
from arachne.data.manifest import write_manifest
from arachne.reporting.run_files import MANIFEST
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import ClipArrays, StepBatch
from arachne.trainer.listener import Listener, StepReport
from arachne.trainer.session import Session, open_session
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
from tests.data.media import Look, write_video
from tests.runtime.tiny_wan import float64_everywhere

VIDEOS = (("a.mp4", 64, 48, 10), ("b.mp4", 48, 64, 6), ("c.mp4", 64, 48, 5), ("d.mp4", 32, 32, 9))
STILLS = (("e.png", 64, 48), ("f.png", 48, 48))
NUM_CLIPS = len(VIDEOS) + len(STILLS)


def make_clips(folder: Path) -> Path:
    """Four videos and two stills of several shapes, with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, width, height, frames in VIDEOS:
        pixels = random.integers(0, 256, (frames, height, width, 3)).astype(np.uint8)
        write_video(folder / name, list(pixels), Look(width=width, height=height, fps=Fraction(8)))
    for name, width, height in STILLS:
        pixels = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name)
    write_captions(folder, [name for name, *_ in (*VIDEOS, *STILLS)])
    return folder


def write_captions(folder: Path, names: list[str]) -> None:
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "caption"])
        writer.writerows([name, f"this is {name[0]}"] for name in names)


def tiny_config(
    clips: Path, run_dir: Path, *, steps: int = 3, batch: int = 4, dtype: Any = "float64"
) -> RunConfig:
    return RunConfig(
        run=RunSettings(dir=str(run_dir), steps=steps, seed=3, device="cpu", timeout_s=30.0),
        data=DataSettings(
            path=str(clips),
            cache=str(clips.parent / "cache"),
            fps=8.0,
            resolution=56,
            frame_buckets=(1, 5, 9),
        ),
        model=ModelSettings(
            num_layers=1, num_heads=2, head_size=12, ffn_size=24, text_tokens=4, dtype=dtype
        ),
        objective=ObjectiveSettings(caption_dropout=0.2),
        batch=BatchSettings(clips=batch),
        planner=PlannerSettings(iterations=20, stack_tokens=16),
        cluster=ClusterSettings(name="cpu"),
        optimizer=OptimizerSettings(lr=1e-3),
        checkpoint=CheckpointSettings(every=0, keep=0),
        logging=LoggingSettings(trace_every=1),
    )


def with_manifest(config: RunConfig) -> RunConfig:
    """The same; its ledger stands already, so that no rank starts processes to inspect files."""
    ledger = inspect_dataset(
        Path(config.data.path), config.data.shape_rules, WAN.geometry, "error", num_workers=1
    )
    write_manifest(ledger, Path(config.run.dir) / MANIFEST)
    return config


def changed(config: RunConfig, section: str, **values: Any) -> RunConfig:
    return replace(config, **{section: replace(getattr(config, section), **values)})


@dataclass(kw_only=True)
class Heard:
    """What a run told."""

    said: list[str]
    reports: list[StepReport]
    validations: list[tuple[int, float]]

    @property
    def listener(self) -> Listener:
        return Listener(
            on_step=self.reports.append,
            on_validation=lambda step, found: self.validations.append((step, found.loss)),
            on_rank_log=lambda log: None,
        )

    @property
    def losses(self) -> list[float]:
        return [report.outcome.loss for report in self.reports]

    @property
    def clips(self) -> list[list[str]]:
        return [[clip.name for clip in report.batch.clips] for report in self.reports]


@contextmanager
def tiny_session(world: World, config: RunConfig) -> Iterator[tuple[Session, Heard]]:
    """A session on this rank, exact if it computes in float64."""
    heard = Heard(said=[], reports=[], validations=[])
    exact = float64_everywhere() if config.model.dtype == "float64" else nullcontext()
    with exact:
        session = open_session(
            world, config, say=heard.said.append, progress=lambda what, done, total: None
        )
        yield session, heard


def step_batch(session: Session, items: tuple[int, ...], step: int = 0) -> StepBatch:
    return StepBatch(batch=session.prepared.train.batch_of(items, step), items=items)


def plan_of(
    batch: Batch, world_size: int, launches: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> PlacedPlan:
    """A plan from (slots, ranks) of each launch, one after the other."""
    placed = tuple(
        PlacedLaunch(
            cascade=Cascade(
                module="dit",
                slots=slots,
                bucket=batch.clips[slots[0]].bucket,
                num_tokens=batch.clips[slots[0]].num_tokens,
            ),
            ranks=ranks,
            start_s=float(index),
            duration_s=1.0,
        )
        for index, (slots, ranks) in enumerate(launches)
    )
    plan = PlacedPlan(step=batch.step, planner="by hand", world_size=world_size, launches=placed)
    check_placed_plan(plan, batch, world_size)
    return plan


def poisoned(arrays: ClipArrays) -> ClipArrays:
    """A clip with one latent that is not a number."""
    latents = arrays.latents.copy()
    latents.reshape(-1)[5] = np.nan
    return replace(arrays, latents=latents)
