"""Image to video of CogVideoX and HunyuanVideo: a first frame before zeros, as channels; or kept.

Their loss and gradient are compared to a plain step in `test_image_to_video_losses`.
"""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.cogvideo import pipeline_cogvideox_image2video
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.models.encoders import first_frame_encoder, video_encoder_named
from arachne.models.text_padding import word_mask
from arachne.runtime.launcher import run_ranks
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.ddpm import Ddpm
from arachne.trainer.export import ExportOptions, export
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.sampling import walk
from arachne.trainer.sampling_model import first_frames, sampling_predict
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.models.tiny_autoencoders import (
    CLASS_OF_FAMILY,
    save_tiny_autoencoder,
    tiny_autoencoder,
)
from tests.models.tiny_transformers import tiny_inputs
from tests.trainer.first_frame_models import KEPT_HUNYUAN, LEARNED, first_of, tiny_model
from tests.trainer.test_families_train import config_of
from tests.trainer.test_image_to_video import drawn_from, losses_of
from tests.trainer.tiny_runs import changed, tiny_config

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself


@pytest.mark.parametrize(
    ("case", "inverts"),
    [("cogvideox", False), (LEARNED, False), ("cogvideox15", False), ("cogvideox15", True)],
)
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_cogvideox_draws_as_its_pipeline_draws(tmp_path: Path, guidance, case, inverts):
    model = tiny_model(case, torch.float32)
    family = model.family.name
    model.module.eval()
    noise, _, text = tiny_inputs(model, 1, torch.float32)
    null = text.flip(2) * 0.5
    height, width = (8 * side for side in noise.shape[3:])
    patch_frames = family_named(family).geometry.patch[0]
    num_frames = 1 + 4 * (noise.shape[2] - patch_frames)
    frame = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8)
    vae = tiny_autoencoder(CLASS_OF_FAMILY[family])
    vae.register_to_config(invert_scale_latents=inverts)
    vae.save_pretrained(tmp_path / "vae")
    pipeline = diffusers.CogVideoXImageToVideoPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=vae,
        transformer=model.module,
        scheduler=diffusers.CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=1.0,
            timestep_spacing="trailing",
            clip_sample=False,
        ),
    )
    pipeline.set_progress_bar_config(disable=True)
    takes_mode = patch.object(
        pipeline_cogvideox_image2video,
        "retrieve_latents",
        lambda encoded, _: encoded.latent_dist.mode(),
    )
    with takes_mode:
        needed = pipeline(
            image=Image.fromarray(frame),
            prompt_embeds=text,
            negative_prompt_embeds=null,
            latents=noise.transpose(1, 2).clone(),
            num_inference_steps=4,
            guidance_scale=guidance,
            output_type="latent",
            num_frames=num_frames,
            height=height,
            width=width,
        ).frames
    plain = video_encoder_named(str(tmp_path), family=family)
    encoder = first_frame_encoder(plain, "", family=family)
    first = first_frames(encoder, frame, num_frames, dtype=torch.float32)
    assert first.latents.shape == noise.shape
    assert not first.latents[:, :, 1:].any()
    found = walk(
        sampling_predict(tiny_config(tmp_path, tmp_path), model, first=first),
        noise,
        text,
        null_text_LD=null[0],
        steps=Ddpm(settings=ObjectiveSettings()).sampler_steps(4, 25),
        guidance=guidance,
    )
    assert float((found - needed.transpose(1, 2)).norm() / needed.norm()) < 1e-5


@pytest.mark.parametrize("case", ["hunyuan_video", KEPT_HUNYUAN])
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_hunyuan_video_draws_as_its_pipeline_draws(tmp_path: Path, guidance, case):
    model = tiny_model(case, torch.float32)
    model.module.eval()
    noise, _, text = tiny_inputs(model, 1, torch.float32)
    null = text.flip(2) * 0.5
    height, width = (8 * side for side in noise.shape[3:])
    num_frames = 1 + 4 * (noise.shape[2] - 1)
    frame = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8)
    class_name = CLASS_OF_FAMILY["hunyuan_video"]
    pipeline = diffusers.HunyuanVideoImageToVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=model.module,
        vae=tiny_autoencoder(class_name),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder_2=None,
        tokenizer_2=None,
        image_processor=None,
    )
    pipeline.set_progress_bar_config(disable=True)
    inputs = {}
    for kind, found in (("", text), ("negative_", null)):
        words = found[:, model.shape.pooled_rows :]
        inputs[f"{kind}prompt_embeds"] = words
        inputs[f"{kind}prompt_attention_mask"] = word_mask(words)
        inputs[f"{kind}pooled_prompt_embeds"] = found[:, 0, : model.shape.pooled_text_size]
    needed = pipeline(
        image=Image.fromarray(frame),
        height=height,
        width=width,
        latents=noise.clone(),
        num_frames=num_frames,
        num_inference_steps=4,
        true_cfg_scale=guidance,
        output_type="latent",
        **inputs,
    ).frames
    encoder = video_encoder_named(
        str(save_tiny_autoencoder(class_name, tmp_path)), family="hunyuan_video"
    )
    if not model.shape.keeps_first_frame:
        encoder = first_frame_encoder(encoder, "", family="hunyuan_video")
    first = first_frames(encoder, frame, num_frames, dtype=torch.float32)
    found = walk(
        sampling_predict(tiny_config(tmp_path, tmp_path), model, first=first),
        0.999 * noise + 0.001 * first.latents[:, :, :1],  # where the pipeline begins
        text,
        null_text_LD=null[0],
        steps=FlowMatching(settings=ObjectiveSettings(shift=3.0)).sampler_steps(4, 25),
        guidance=guidance,
    )
    if not model.shape.keeps_first_frame:
        found = found[:, :, 1:]  # the pipeline drops the picture itself
    assert float((found - needed).norm() / needed.norm()) < 1e-5


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_hunyuan_video15_draws_as_its_pipeline_draws(tmp_path: Path, guidance):
    model = tiny_model("hunyuan_video15", torch.float32)
    model.module.eval()
    noise, _, text = tiny_inputs(model, 1, torch.float32)
    null = text.flip(2) * 0.5
    height, width = (16 * side for side in noise.shape[3:])
    num_frames = 1 + 4 * (noise.shape[2] - 1)
    frame = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8)
    states = first_of(model, noise).states
    class_name = CLASS_OF_FAMILY["hunyuan_video15"]
    pipeline = diffusers.HunyuanVideo15ImageToVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=model.module,
        vae=tiny_autoencoder(class_name),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder_2=None,
        tokenizer_2=None,
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=guidance),
        image_encoder=None,
        feature_extractor=None,
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.encode_image = lambda **_: states  # random SigLIP states; it has a test of its own
    pipeline.video_processor.calculate_default_height_width = lambda **_: (height, width)
    inputs = {}
    for kind, found in (("", text), ("negative_", null)):
        inputs[f"{kind}prompt_embeds"], inputs[f"{kind}prompt_embeds_mask"] = (
            found,
            word_mask(found),
        )
        inputs[f"{kind}prompt_embeds_2"] = torch.zeros(1, 3, 1472)
        inputs[f"{kind}prompt_embeds_mask_2"] = torch.zeros(1, 3)
    needed = pipeline(
        image=Image.fromarray(frame),
        latents=noise.clone(),
        num_frames=num_frames,
        num_inference_steps=4,
        output_type="latent",
        **inputs,
    ).frames
    plain = video_encoder_named(
        str(save_tiny_autoencoder(class_name, tmp_path)), family="hunyuan_video15"
    )
    encoder = first_frame_encoder(plain, "", family="hunyuan_video15")
    first = first_frames(encoder, frame, num_frames, dtype=torch.float32)
    found = walk(
        sampling_predict(
            tiny_config(tmp_path, tmp_path), model, first=replace(first, states=states)
        ),
        noise,
        text,
        null_text_LD=null[0],
        steps=FlowMatching(settings=ObjectiveSettings(shift=3.0)).sampler_steps(4, 25),
        guidance=guidance,
    )
    assert float((found - needed).norm() / needed.norm()) < 1e-5


def save_siglip(folder: Path) -> None:
    """Tiny but for the width of its states, which the family's class fixes."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    sizes = {"intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = SiglipVisionConfig(hidden_size=1152, image_size=12, patch_size=6, **sizes)
    torch.manual_seed(0)
    SiglipVisionModel(config).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("family", ["cogvideox", "cogvideox15", "hunyuan_video15", "hunyuan_video"])
def test_a_run_has_the_same_curve_on_two_ranks_and_draws_and_exports(clips, tmp_path, family):
    folder = str(save_tiny_autoencoder(CLASS_OF_FAMILY[family], tmp_path / "pipeline"))
    seen = {"image_to_video": True}
    if family == "hunyuan_video15":
        save_siglip(Path(folder) / "image_encoder")
        seen["image_encoder"] = folder
    curves = {}
    for size in (1, 2):
        config = config_of(family, clips, tmp_path / str(size), folder)
        config = changed(config, "model", **seen)
        config = changed(config, "data", cache=str(tmp_path / f"cache-{size}"))
        curves[size] = run_ranks(size, losses_of, (config,))[0]
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    bucket = Bucket(width=32, height=16, frames=9)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey, bucket) for grey in (0, 255)]
    assert drawn[0].shape == (9, 16, 32, 3)
    assert not np.array_equal(*drawn)
    assert export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers"))
    settings = replace(config.model, pretrained=str(tmp_path / "out"))
    assert planning_shape(settings).condition_channels == 4 + family.startswith("hunyuan")
