"""Runs of every family that can be trained, and why others cannot."""

from dataclasses import replace
from pathlib import Path

import pytest

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.models.codec import DctCodec
from arachne.models.diffusers_module import import_transformer
from arachne.models.families import TRANSFORMERS
from arachne.models.hashed_text import HashedTextEncoder
from arachne.runtime.launcher import run_ranks
from arachne.trainer.config import TRAINED_FAMILIES, RunConfig
from arachne.trainer.loop import train
from arachne.trainer.session import built_model
from arachne.trainer.settings.model import ModelSettings
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest


def losses_of(world, config: RunConfig) -> list[float]:
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    return heard.losses


@pytest.mark.distributed
@pytest.mark.parametrize("family", [name for name in TRAINED_FAMILIES if name != "wan"])
def test_two_ranks_have_the_loss_curve_of_one(clips, tmp_path: Path, family: str):
    import_transformer(family)  # once, before ranks are forked
    model = {"family": family, "preset": next(iter(family_named(family).presets))}
    curves = {}
    for size in (1, 2):
        config = changed(tiny_config(clips, tmp_path / str(size), steps=2), "model", **model)
        config = changed(config, "planner", name="static_sp")  # all ranks on every clip
        curves[size] = run_ranks(size, losses_of, (with_manifest(config),))[0]
    assert len(curves[1]) == 2
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)


@pytest.mark.parametrize("family", [name for name in TRANSFORMERS if name not in TRAINED_FAMILIES])
def test_a_family_that_cannot_be_trained_is_refused_with_the_reason(family: str):
    settings = ModelSettings(family=family, num_layers=1, num_heads=2, head_size=16, ffn_size=128)
    with pytest.raises(
        ConfigError, match=f"model.family '{family}' cannot be trained: it"
    ) as error:
        built_model(settings, 0, DctCodec(), HashedTextEncoder(num_tokens=4))
    assert TRANSFORMERS[family].not_trained in str(error.value)


def test_weights_that_need_another_encoder_are_refused():
    settings = replace(ModelSettings(family="hunyuan_video"), pretrained="folder")
    with pytest.raises(ConfigError, match=r"model\.pretrained 'folder' cannot be trained: .*CLIP"):
        built_model(settings, 0, DctCodec(), HashedTextEncoder(num_tokens=4))
