"""diffusers' own pipelines run on our transformers, and make what our sampler makes."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers import CogVideoXDDIMScheduler, FlowMatchEulerDiscreteScheduler

from arachne.core.families import family_named
from arachne.core.families.hunyuan_video15 import GLYPH_SIZE, GLYPH_TOKENS
from arachne.models.diffusers_module import diffusers_class
from arachne.models.text_padding import word_mask
from arachne.trainer.ddpm import Ddpm
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.sampling import SamplerStep, walk
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.models.tiny_autoencoders import CLASS_OF_FAMILY, tiny_autoencoder
from tests.models.tiny_transformers import tiny_inputs, tiny_transformer

pytestmark = [
    pytest.mark.filterwarnings("ignore:In CPU autocast"),  # Mochi asks for float32
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # diffusers of itself
]

NUM_STEPS = 4
SHIFT = 3.0


def parts_of(name: str, num_clips: int = 1) -> SimpleNamespace:
    """A tiny model in float32, noise, a caption with padding, and another as the null."""
    model = tiny_transformer(name, torch.float32)
    model.module.eval()
    noise, _, text = tiny_inputs(model, num_clips, torch.float32)
    geometry = family_named(name).geometry
    frames, height, width = noise.shape[2:]
    frames -= geometry.patch[0] - 1  # the first ones are dropped before decoding
    return SimpleNamespace(
        model=model,
        noise=noise,
        text=text,
        null=text.flip(2) * 0.5,
        vae=tiny_autoencoder(CLASS_OF_FAMILY[name]),
        size={
            "num_frames": (frames - 1) * geometry.temporal_compression + 1,
            "height": height * geometry.spatial_compression,
            "width": width * geometry.spatial_compression,
        },
        num_tokens=25,
    )


def ours(parts: SimpleNamespace, steps: tuple[SamplerStep, ...], guidance: float) -> torch.Tensor:
    return walk(
        parts.model.predict,
        parts.noise,
        parts.text,
        null_text_LD=parts.null[0],
        steps=steps,
        guidance=guidance,
    )


def theirs(pipeline, parts: SimpleNamespace, **inputs) -> torch.Tensor:
    """Latents of the pipeline; it also decodes them to as many frames as were asked for."""
    pipeline.set_progress_bar_config(disable=True)
    latents = inputs.pop("latents", parts.noise)
    settings = {"num_inference_steps": NUM_STEPS, "prompt_embeds": parts.text, **inputs}
    settings |= parts.size
    video = pipeline(latents=latents.clone(), output_type="np", **settings).frames
    assert np.isfinite(video).all()
    assert video.shape[1] == parts.size["num_frames"]
    found = pipeline(latents=latents.clone(), output_type="latent", **settings).frames
    return torch.as_tensor(found)


def even_flow_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """diffusers' shift, on levels that are even before it, as ours are."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=SHIFT)
    plain = scheduler.set_timesteps

    def set_timesteps(num_inference_steps=None, device=None, **_):
        plain(sigmas=np.linspace(1.0, 0.0, NUM_STEPS + 1)[:-1].tolist(), device=device)

    scheduler.set_timesteps = set_timesteps
    return scheduler


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert float((found - 1.01 * expected).norm() / expected.norm()) > 1e-3


@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize(
    ("name", "pipeline"),
    [("wan", "WanPipeline"), ("wan_5b", "WanPipeline"), ("skyreels_v2", "SkyReelsV2Pipeline")],
)
def test_wan_is_sampled_as_its_pipeline_samples(name, pipeline, guidance):
    parts = parts_of(name)
    made = getattr(diffusers, pipeline)(
        tokenizer=None,
        text_encoder=None,
        vae=parts.vae,
        scheduler=even_flow_scheduler(),
        transformer=parts.model.module,
    )
    found = theirs(made, parts, negative_prompt_embeds=parts.null, guidance_scale=guidance)
    steps = FlowMatching(settings=ObjectiveSettings(shift=SHIFT)).sampler_steps(NUM_STEPS, 25)
    check(found, ours(parts, steps, guidance))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize("name", ["cogvideox", "cogvideox_2b", "cogvideox15"])
def test_cogvideox_is_sampled_as_its_pipeline_samples(name, guidance):
    parts = parts_of(name)
    snr_shift = family_named(name).snr_shift
    made = diffusers.CogVideoXPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=parts.vae,
        transformer=parts.model.module,
        scheduler=CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=snr_shift,
            timestep_spacing="trailing",
            clip_sample=False,
        ),
    )
    found = theirs(
        made,
        parts,
        latents=parts.noise.transpose(1, 2),
        negative_prompt_embeds=parts.null,
        guidance_scale=guidance,
    )
    objective = Ddpm(settings=ObjectiveSettings(), auto_snr_shift=snr_shift)
    steps = objective.sampler_steps(NUM_STEPS, 25)
    check(found.transpose(1, 2), ours(parts, steps, guidance))


def ltx_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_image_seq_len=1024,
        max_image_seq_len=4096,
        base_shift=0.95,
        max_shift=2.05,
    )


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_ltx_is_sampled_as_its_pipeline_samples_at_the_shift_of_its_size(guidance):
    parts = parts_of("ltx")
    made = diffusers.LTXPipeline(
        scheduler=ltx_scheduler(),
        vae=parts.vae,
        text_encoder=None,
        tokenizer=None,
        transformer=parts.model.module,
    )
    packed = parts.noise.flatten(2).transpose(1, 2)
    found = theirs(
        made,
        parts,
        latents=packed,
        prompt_attention_mask=word_mask(parts.text),
        negative_prompt_embeds=parts.null,
        negative_prompt_attention_mask=word_mask(parts.null),
        guidance_scale=guidance,
    )
    settings = ObjectiveSettings(
        shift="auto", shift_tokens=(1024, 4096), shift_exponents=(0.95, 2.05), max_shift=100.0
    )
    steps = FlowMatching(settings=settings).sampler_steps(NUM_STEPS, parts.num_tokens)
    check(found.transpose(1, 2).reshape(parts.noise.shape), ours(parts, steps, guidance))


class AudioSizes:
    """What the pipeline asks of an audio autoencoder before it decodes."""

    mel_compression_ratio = temporal_compression_ratio = 4
    config = SimpleNamespace(sample_rate=16000, mel_hop_length=160, mel_bins=4, latent_channels=4)
    latents_mean, latents_std = torch.zeros(4), torch.ones(4)


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_ltx2s_video_is_sampled_as_its_pipeline_samples_it_without_audio(guidance):
    """The pipeline always runs audio beside the video; here it isolates one from the other."""
    parts = parts_of("ltx2")
    model = parts.model
    whole: Any = diffusers_class(model.family)(**model.family.options(model.shape)).eval()
    whole.load_state_dict(model.module.state_dict())
    attending = whole.forward
    whole.forward = lambda **inputs: attending(**inputs | {"isolate_modalities": True})
    pipeline = diffusers.LTX2Pipeline(
        scheduler=ltx_scheduler(),
        vae=parts.vae,
        audio_vae=AudioSizes(),
        text_encoder=None,
        tokenizer=None,
        connectors=None,
        transformer=whole,
        vocoder=None,
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.connectors = lambda text, mask, **_: (text, text, mask)  # its states are the text
    found = pipeline(
        latents=parts.noise.flatten(2).transpose(1, 2),
        prompt_embeds=parts.text,
        prompt_attention_mask=word_mask(parts.text).long(),
        negative_prompt_embeds=parts.null,
        negative_prompt_attention_mask=word_mask(parts.null).long(),
        guidance_scale=guidance,
        stg_scale=0.0,
        audio_stg_scale=0.0,
        modality_scale=1.0,
        audio_modality_scale=1.0,
        guidance_rescale=0.0,
        num_inference_steps=NUM_STEPS,
        output_type="latent",
        return_dict=False,
        **parts.size,
    )[0]
    settings = ObjectiveSettings(
        shift="auto", shift_tokens=(1024, 4096), shift_exponents=(0.95, 2.05), max_shift=100.0
    )
    steps = FlowMatching(settings=settings).sampler_steps(NUM_STEPS, parts.num_tokens)
    mean, std = (
        each.view(1, -1, 1, 1, 1) for each in (parts.vae.latents_mean, parts.vae.latents_std)
    )
    found = (found - mean) * parts.vae.config.scaling_factor / std
    check(found, ours(parts, steps, guidance))


def test_hunyuan_video_is_sampled_as_its_pipeline_samples():
    parts = parts_of("hunyuan_video")
    made = diffusers.HunyuanVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=parts.model.module,
        vae=parts.vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=None,
        tokenizer_2=None,
    )
    words = parts.text[:, 1:]
    found = theirs(
        made,
        parts,
        prompt_embeds=words,
        pooled_prompt_embeds=parts.text[:, 0, : parts.model.shape.pooled_text_size],
        prompt_attention_mask=word_mask(words),
        guidance_scale=1.0,
    )
    steps = FlowMatching(settings=ObjectiveSettings(shift=7.0)).sampler_steps(NUM_STEPS, 25)
    check(found, ours(parts, steps, 1.0))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_hunyuan_video15_is_sampled_as_its_pipeline_samples(guidance):
    """Its caption quotes no words, so that all glyph tokens are masked."""
    parts = parts_of("hunyuan_video15")
    made = diffusers.HunyuanVideo15Pipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=parts.model.module,
        vae=parts.vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        text_encoder_2=None,
        tokenizer_2=None,
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=guidance),
    )
    glyphs = torch.zeros(1, GLYPH_TOKENS, GLYPH_SIZE), torch.zeros(1, GLYPH_TOKENS)
    inputs = {}
    for kind, states in (("", parts.text), ("negative_", parts.null)):
        inputs[f"{kind}prompt_embeds"] = states
        inputs[f"{kind}prompt_embeds_mask"] = word_mask(states)
        inputs[f"{kind}prompt_embeds_2"], inputs[f"{kind}prompt_embeds_mask_2"] = glyphs
    found = theirs(made, parts, **inputs)
    steps = FlowMatching(settings=ObjectiveSettings(shift=SHIFT)).sampler_steps(NUM_STEPS, 25)
    check(found, ours(parts, steps, guidance))


def test_mochis_pipeline_makes_what_our_sampler_makes_on_its_schedule():
    parts = parts_of("mochi")
    parts.vae.register_to_config(latents_mean=None, latents_std=None)  # it wants 12 channels
    scheduler = FlowMatchEulerDiscreteScheduler(invert_sigmas=True)
    made = diffusers.MochiPipeline(
        scheduler=scheduler,
        vae=parts.vae,
        text_encoder=None,
        tokenizer=None,
        transformer=parts.model.module,
    )
    found = theirs(
        made,
        parts,
        prompt_attention_mask=word_mask(parts.text),
        guidance_scale=1.0,
    )
    levels = (1.0 - scheduler.sigmas.double()).tolist()  # theirs run from noise at 0
    steps = tuple(SamplerStep(level=a, keep=1.0, move=b - a) for a, b in pairwise(levels))
    check(found, ours(parts, steps, 1.0))
