"""Image to video of Wan, SkyReels-V2 and LTX draws what diffusers' pipelines draw.

Families whose channels show the first frame before zeros: `test_shown_frames`.
"""

from dataclasses import replace
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from arachne.core.families import family_named
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.pretrained_vae import open_video_encoder
from arachne.models.text_padding import word_mask
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.sampling import walk
from arachne.trainer.sampling_model import first_frames, sampling_predict
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.models.tiny_autoencoders import (
    CLASS_OF_FAMILY,
    save_tiny_autoencoder,
    tiny_autoencoder,
)
from tests.models.tiny_transformers import tiny_inputs
from tests.trainer.first_frame_models import first_of, tiny_model
from tests.trainer.tiny_runs import tiny_config

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself


def wan_video(model, vae, size, states):
    family = model.family.name
    kind = "SkyReelsV2" if family == "skyreels_v2" else "Wan"
    expands = {"expand_timesteps": True} if family == "wan_5b" else {}
    pipeline = getattr(diffusers, f"{kind}ImageToVideoPipeline")(
        tokenizer=None,
        text_encoder=None,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=model.module,
        image_processor=None,
        image_encoder=None,
        **expands,
    )
    pipeline.encode_image = lambda *_: states  # random CLIP states; CLIP has a test of its own
    pipeline.set_progress_bar_config(disable=True)

    def drawn(frame, noise, text, null, guidance):
        return pipeline(
            image=Image.fromarray(frame),
            prompt_embeds=text,
            negative_prompt_embeds=null,
            latents=noise.clone(),
            num_inference_steps=3,
            guidance_scale=guidance,
            output_type="latent",
            **size,
        ).frames

    return pipeline.scheduler, drawn


def ltx_video(model, vae, size):
    pipeline = diffusers.LTXImageToVideoPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        transformer=model.module,
    )
    pipeline.set_progress_bar_config(disable=True)

    def drawn(frame, noise, text, null, guidance):
        pixels = torch.from_numpy(frame).permute(2, 0, 1)[None, :, None].float() / 127.5 - 1.0
        with torch.no_grad():  # its mode: by itself the pipeline takes a sample
            kept = vae.encode(pixels).latent_dist.mode()
        kept = pipeline._normalize_latents(
            kept, vae.latents_mean, vae.latents_std, vae.config.scaling_factor
        )
        latents = torch.cat([kept, noise[:, :, 1:]], dim=2)
        found = pipeline(
            image=Image.fromarray(frame),
            prompt_embeds=text,
            prompt_attention_mask=word_mask(text),
            negative_prompt_embeds=null,
            negative_prompt_attention_mask=word_mask(null),
            latents=latents.flatten(2).transpose(1, 2),
            num_inference_steps=3,
            guidance_scale=guidance,
            output_type="latent",
            **size,
        ).frames
        return found.transpose(1, 2).reshape(noise.shape)

    return pipeline.scheduler, drawn


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("case", ["wan", "wan and CLIP", "skyreels_v2 and CLIP", "wan_5b", "ltx"])
def test_a_video_is_drawn_as_the_family_s_pipeline_draws_it(tmp_path: Path, case, guidance):
    model = tiny_model(case, torch.float32)
    model.module.eval()
    noise, _, text = tiny_inputs(model, 1, torch.float32)
    null = text.flip(2) * 0.5
    geometry = family_named(model.family.name).geometry
    num_frames = 1 + (noise.shape[2] - 1) * geometry.temporal_compression
    height, width = (side * geometry.spatial_compression for side in noise.shape[3:])
    size = {"num_frames": num_frames, "height": height, "width": width}
    frame = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8)
    states = first_of(model, noise).states
    class_name = CLASS_OF_FAMILY[model.family.name]
    vae = tiny_autoencoder(class_name)
    is_ltx = model.family.name == "ltx"
    scheduler, theirs = (
        ltx_video(model, vae, size) if is_ltx else wan_video(model, vae, size, states)
    )
    needed = theirs(frame, noise, text, null, guidance)
    encoder = open_video_encoder(save_tiny_autoencoder(class_name, tmp_path))
    if not model.shape.keeps_first_frame:
        encoder = FirstFrameEncoder(encoder=encoder)
    first = first_frames(encoder, frame, num_frames, dtype=torch.float32)
    first = replace(first, states=states)
    sigmas = scheduler.sigmas.double().tolist()
    steps = FlowMatching(settings=ObjectiveSettings()).sampler_steps(3, 25)
    steps = tuple(
        replace(step, level=at, move=after - at)
        for step, at, after in zip(steps, sigmas, sigmas[1:], strict=False)
    )
    config = tiny_config(tmp_path, tmp_path)
    found = walk(
        sampling_predict(config, model, first=first),
        noise,
        text,
        null_text_LD=null[0],
        steps=steps,
        guidance=guidance,
    )
    assert float((found - needed).norm() / needed.norm()) < 1e-5
