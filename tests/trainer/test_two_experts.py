"""Two transformers of one model, each for a part of the noise levels: one is trained, both draw."""

from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.models.codec import DctCodec
from arachne.models.diffusers_module import build_transformer
from arachne.models.hashed_text import HASHED_TEXT_SIZE, HashedTextEncoder
from arachne.runtime.launcher import run_ranks
from arachne.trainer.built_model import built_model
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.generate import generate
from arachne.trainer.loop import train
from arachne.trainer.sample_request import SampleRequest
from arachne.trainer.sampling import walk
from arachne.trainer.sampling_model import other_expert, sampling_predict
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.models.tiny_autoencoders import tiny_autoencoder
from tests.models.tiny_transformers import tiny_inputs, tiny_shape
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself

NUM_STEPS = 8


def experts():
    """For high and for low noise."""
    models = [build_transformer(tiny_shape("wan"), dtype=torch.float32, seed=s) for s in (1, 2)]
    for model in models:
        model.module.eval()
    return models


@pytest.mark.parametrize("boundary", [0.875, 0.9])
@pytest.mark.parametrize("trains_high", [True, False])
def test_both_draw_as_the_family_s_pipeline_draws(tmp_path: Path, boundary, trains_high):
    high, low = experts()
    noise, _, text = tiny_inputs(high, 1, torch.float32)
    null = text.flip(2) * 0.5
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline = diffusers.WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=tiny_autoencoder("AutoencoderKLWan"),
        scheduler=scheduler,
        transformer=high.module,
        transformer_2=low.module,
        boundary_ratio=boundary,
    )
    pipeline.set_progress_bar_config(disable=True)
    needed = pipeline(
        prompt_embeds=text,
        negative_prompt_embeds=null,
        latents=noise.clone(),
        height=16,
        width=80,
        num_frames=17,
        num_inference_steps=NUM_STEPS,
        guidance_scale=4.0,
        output_type="latent",
    ).frames
    sigmas = scheduler.sigmas.double().tolist()
    assert min(sigmas[:-1]) < boundary < sorted(sigmas)[-2], "both draw"
    steps = tuple(
        replace(step, level=at, move=after - at)
        for step, at, after in zip(
            FlowMatching(settings=ObjectiveSettings()).sampler_steps(NUM_STEPS, 25),
            sigmas,
            sigmas[1:],
            strict=False,
        )
    )
    span = (boundary, 1.0) if trains_high else (0.0, boundary)
    config = changed(tiny_config(tmp_path, tmp_path), "objective", timestep_range=span)
    trained, other = (high, low) if trains_high else (low, high)

    def drawn(beside):
        return walk(
            sampling_predict(config, trained, other=beside),
            noise,
            text,
            null_text_LD=null[0],
            steps=steps,
            guidance=4.0,
        )

    assert float((drawn(other) - needed).norm() / needed.norm()) < 1e-5
    assert float((drawn(None) - needed).norm() / needed.norm()) > 1e-3


def test_a_boundary_belongs_to_the_expert_above_it(tmp_path):
    high, low = experts()
    noise, _, text = tiny_inputs(high, 1, torch.float32)
    level = torch.tensor([0.5])
    for trained, other, span in ((high, low, (0.5, 1.0)), (low, high, (0.0, 0.5))):
        config = changed(tiny_config(tmp_path, tmp_path), "objective", timestep_range=span)
        found = sampling_predict(config, trained, other=other)(noise, level, text)
        assert torch.equal(found, high.predict(noise, level, text))


def steps_of(world, config):
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    return heard.losses


@pytest.mark.distributed
def test_a_run_of_one_expert_draws_with_the_other_s_folder(clips, tmp_path: Path):
    config = changed(tiny_config(clips, tmp_path / "run"), "objective", timestep_range=(0.8, 1.0))
    config = with_manifest(config)
    assert len(run_ranks(1, steps_of, (config,))[0]) == 3
    shape = config.model.shape(latent_channels=48, text_size=HASHED_TEXT_SIZE)
    other = build_transformer(shape, dtype=torch.float32, seed=8)
    other.module.save_pretrained(tmp_path / "pipeline" / "transformer_2")
    request = SampleRequest(
        prompt="a cat", bucket=Bucket(width=32, height=16, frames=5), steps=4, guidance=1.0, seed=0
    )
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    folder = str(tmp_path / "pipeline" / "transformer_2")
    both = changed(config, "model", other_expert=folder)
    alone, drawn = (generate(each, checkpoint, request) for each in (config, both))
    assert alone.shape == drawn.shape
    assert not np.array_equal(alone, drawn)


def test_another_model_as_the_other_expert_is_refused(tmp_path):
    high, _ = experts()
    build_transformer(
        replace(tiny_shape("wan"), text_size=9), dtype=torch.float32, seed=0
    ).module.save_pretrained(tmp_path / "other")
    config = changed(tiny_config(tmp_path, tmp_path), "objective", timestep_range=(0.5, 1.0))
    where = {"dtype": torch.float32, "device": torch.device("cpu")}
    for folder, words in ((tmp_path / "other", "has text_size = 9"), (tmp_path, "config.json")):
        named = changed(config, "model", other_expert=str(folder))
        with pytest.raises(ConfigError, match=rf"model\.other_expert '.*{words}"):
            other_expert(named, high, **where)


def test_a_pipeline_of_two_experts_is_no_start_for_one_run(tmp_path):
    high, low = experts()
    high.module.save_pretrained(tmp_path / "transformer")
    low.module.save_pretrained(tmp_path / "transformer_2")
    settings = ModelSettings(pretrained=str(tmp_path), text_tokens=5)
    with pytest.raises(ConfigError, match=r"holds two experts; name '.*transformer' for high"):
        built_model(settings, 0, DctCodec(), HashedTextEncoder(num_tokens=5))
