"""Runs of every kind go on where they stopped: bit for bit on their world, else to rounding."""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.distributed

Change = Callable[[RunConfig, Path], RunConfig]

STEPS, STOP, WORLD = 4, 2, 2
"""Of the whole run; the resumed ones begin at the checkpoint of step `STOP`."""

TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 2e-2}
"""Of a loss on another world: two steps after the change."""


def of(**sections: dict[str, Any]) -> Change:
    """A change of settings."""

    def change(config: RunConfig, _: Path) -> RunConfig:
        for section, values in sections.items():
            config = changed(config, section, **values)
        return config

    return change


def with_lora(**sections: dict[str, Any]) -> Change:
    """Adapters, and further settings."""
    lora = {"rank": 2, "targets": "all-linear"} | sections.pop("lora", {})
    return of(lora=lora, **sections)


def two_experts(config: RunConfig, folder: Path) -> RunConfig:
    """The one for high noise, beside any other."""
    config = changed(config, "objective", timestep_range=(0.875, 1.0))
    return changed(config, "model", other_expert=str(folder / "other"))


KINDS: dict[str, Change] = {
    "everything in float64": of(),
    "float32": of(model={"dtype": "float32"}),
    "bfloat16, gradients too": of(model={"dtype": "bfloat16"}, optimizer={"gradients": "bfloat16"}),
    "LoRA": with_lora(),
    "DoRA": with_lora(lora={"use_dora": True}),
    "swapped blocks": with_lora(planner={"recompute": "all"}, memory={"swapped_blocks": 1}),
    "inputs on the host": of(planner={"recompute": "all"}, memory={"inputs_on_host": True}),
    "fp8 base": with_lora(model={"dtype": "float32"}, memory={"base": "fp8"}),
    "nf4 base": with_lora(model={"dtype": "float32"}, memory={"base": "nf4"}),
    "int8 base": with_lora(model={"dtype": "float32"}, memory={"base": "int8"}),
    "Muon": of(optimizer={"name": "muon"}),
    "8-bit AdamW": of(model={"dtype": "float32"}, optimizer={"name": "adamw8bit"}),
    "Adamax by its path": of(optimizer={"name": "torch.optim.Adamax"}),
    "a moving average": of(optimizer={"ema_decay": 0.9}),
    "gradients on the host": of(optimizer={"gradients": "host"}),
    "a schedule": of(optimizer={"schedule": "wsd", "warmup_steps": 2, "decay_steps": 2}),
    "frozen layers": of(model={"train_only": ("blocks.0.attn*", "proj_out.*")}),
    "one of two experts": two_experts,
    "image to video": of(model={"image_to_video": True}),
    "dropped captions": of(objective={"caption_dropout": 0.5}),
    "levels by stratum and tokens that weigh": of(
        objective={"stratified": True, "weighting": "token"}
    ),
    "encoders within steps": of(data={"encode": "online"}),
    "much at once": of(
        model={"image_to_video": True, "freeze": ("*.bias",)},
        optimizer={"name": "muon", "ema_decay": 0.9, "gradients": "host"},
        objective={"caption_dropout": 0.5},
    ),
}

ROUNDED = ("8-bit AdamW", "encoders within steps")
"""Even their own world goes on to rounding. Moments of 8 bits are rounded once more when they are
read back. A plan that counts on clips that were encoded ahead is made anew, since no checkpoint
holds them; launches may then be split otherwise."""

NEEDS_BITSANDBYTES = ("nf4 base", "int8 base", "8-bit AdamW")


def losses_of(world: World, config: RunConfig, resume: bool) -> list[float]:
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=resume)
    return heard.losses


def check_resumed(clips: Path, folder: Path, kind: str, worlds: tuple[int, ...]) -> None:
    """A run on two ranks, and again from its middle on other worlds."""
    config = KINDS[kind](tiny_config(clips, folder / "run", steps=STEPS), folder)
    config = changed(config, "data", cache=str(folder / "cache"))
    config = with_manifest(changed(config, "checkpoint", every=STOP, keep=0))
    whole = run_ranks(WORLD, losses_of, (config, False))[0]
    assert len(set(whole)) == STEPS
    for size in worlds:
        there = changed(config, "run", dir=copied(folder / "run", size))
        rest = run_ranks(size, losses_of, (there, True))[0]
        if size == WORLD and kind not in ROUNDED:
            assert rest == whole[STOP:]
        else:
            tolerance = TOLERANCE[config.model.dtype]
            assert rest == pytest.approx(whole[STOP:], rel=tolerance), size


def copied(run_dir: Path, size: int) -> str:
    """A run as it was when it stopped."""
    there = run_dir.with_name(f"on-{size}")
    shutil.copytree(run_dir, there)
    shutil.rmtree(there / "checkpoints" / f"step-{STEPS:06}")
    return str(there)


def test_a_run_with_much_at_once_goes_on_where_it_stopped(clips, tmp_path):
    check_resumed(clips, tmp_path, "much at once", (WORLD,))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_goes_on_where_it_stopped(clips, tmp_path, kind):
    if kind in NEEDS_BITSANDBYTES and find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    check_resumed(clips, tmp_path, kind, (WORLD, 1, 3))
