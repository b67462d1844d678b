"""Image to video: a plain diffusers step, the family's pipeline, whole runs, and what is refused.

Shape suffixes: those of `arachne.models.interface`.
"""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.models import hunyuan_video15
from arachne.models.diffusers_module import build_transformer, load_transformer
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.interface import FirstFrames
from arachne.models.pretrained_vae import open_video_encoder
from arachne.models.text_padding import word_mask
from arachne.runtime.launcher import run_ranks
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.export import ExportOptions, export
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.generate import SampleRequest, generate
from arachne.trainer.loop import train
from arachne.trainer.objective import ClipSample
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.run_encoders import run_video_encoder
from arachne.trainer.sampling import walk
from arachne.trainer.sampling_model import first_frames, sampling_predict
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.models.test_first_frame import save_image_encoder
from tests.models.tiny_autoencoders import (
    CLASS_OF_FAMILY,
    save_tiny_autoencoder,
    tiny_autoencoder,
)
from tests.models.tiny_transformers import tiny_inputs, tiny_shape
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere
from tests.trainer.launch_gradients import launch_errors
from tests.trainer.plain_steps import FORWARDS, cogvideox_loss, hunyuan15, level_of, wan
from tests.trainer.test_families_train import config_of
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself

INDICES = (200, 700)
SMALL = Bucket(width=32, height=16, frames=5)
IMAGE = {"image_size": 6, "image_tokens": 3, "text_tokens": 512}
"""Of models that attend to an image: diffusers' class counts on 512 text tokens."""

CASES = {
    "wan": {},
    "wan and CLIP": IMAGE,
    "skyreels_v2 and CLIP": IMAGE,
    "wan_5b": {},
    "ltx": {},
    "cogvideox15": {},
    "hunyuan_video15": {"image_size": 1152, "image_tokens": 2},
}


def tiny_model(case, dtype=torch.float64):
    family = family_named(case.split()[0])
    assert family.has_image_to_video
    channels = family.condition_channels
    shape = replace(
        tiny_shape(family.name),
        condition_channels=channels(4) if channels else 0,
        keeps_first_frame=family.keeps_first_frame,
        **CASES[case],
    )
    return build_transformer(shape, dtype=dtype, seed=0)


def first_of(model, latents):
    """Made first frames, one for each clip."""
    generator = torch.Generator().manual_seed(5)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    shape = model.shape
    states = normal(len(latents), shape.image_tokens, shape.image_size)
    return FirstFrames(latents=normal(*latents.shape), states=states if shape.image_size else None)


def plain_loss(module, clean, noise, text, first_latents, states, index):
    """A training step of one clip, as one would write it with diffusers alone."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    timestep = scheduler.timesteps[index : index + 1]
    noisy = scheduler.scale_noise(clean, timestep, noise)
    num_frames = 4 * (clean.shape[2] - 1) + 1
    mask = torch.zeros(1, num_frames, *clean.shape[3:], dtype=clean.dtype)
    mask[:, 0] = 1.0
    mask = torch.cat([mask[:, :1].repeat(1, 4, 1, 1), mask[:, 1:]], dim=1)
    mask = mask.view(1, -1, 4, *clean.shape[3:]).transpose(1, 2)
    predicted = module(
        torch.cat([noisy, mask, first_latents], dim=1),
        scheduler.sigmas[index : index + 1].double() * 1000.0,
        text,
        states,
        return_dict=False,
    )[0]
    return (predicted - (noise - clean)).pow(2).mean()


def plain_loss_of_kept_frame(module, clean, noise, text, index, forward):
    """The same where the first frame goes in clean, at timestep 0, and counts nothing."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    noisy = scheduler.scale_noise(clean, scheduler.timesteps[index : index + 1], noise)
    noisy[:, :, 0] = clean[:, :, 0]
    mask = torch.ones(1, *clean.shape[2:], dtype=clean.dtype)
    mask[:, 0] = 0.0
    if forward is wan:
        mask = mask[..., ::2, ::2]
    timesteps = mask.flatten(1) * scheduler.sigmas[index].double() * 1000.0
    words = (torch.arange(text.shape[1]) <= text[0].any(dim=1).nonzero().max())[None]
    predicted = forward(module, noisy, timesteps, text, words)
    return (predicted - (noise - clean))[:, :, 1:].pow(2).mean()


def errors_of(group, case):
    model = tiny_model(case)
    latents, _, text = tiny_inputs(model, 2)
    first = first_of(model, latents)
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(9))
    keeps = model.shape.keeps_first_frame
    samples = [
        ClipSample(
            arrays=ClipArrays(
                latents=latents[clip].float().numpy(),
                text=text[clip].float().numpy(),
                first_latents=None if keeps else first.latents[clip].numpy(),
                image_states=None if first.states is None else first.states[clip].numpy(),
            ),
            noise=noise[clip],
            sigma=level_of(model.family.name, index),
            has_caption=True,
        )
        for clip, index in enumerate(INDICES)
    ]

    def loss_of(plain, clip):
        arrays = samples[clip].arrays
        clean, text, first_latents, states = (
            None if array is None else torch.from_numpy(array).double()[None]
            for array in (arrays.latents, arrays.text, arrays.first_latents, arrays.image_states)
        )
        noise_of_clip, index = samples[clip].noise.double()[None], INDICES[clip]
        if model.family.name == "cogvideox15":
            return cogvideox_loss(plain, clean, noise_of_clip, text, index, first_latents)
        if model.family.name == "hunyuan_video15":
            words = (torch.arange(text.shape[1]) <= text[0].any(dim=1).nonzero().max())[None]
            scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
            noisy = scheduler.scale_noise(clean, scheduler.timesteps[[index]], noise_of_clip)
            level = scheduler.sigmas[[index]].double() * 1000.0
            predicted = hunyuan15(plain, noisy, level, text, words, first_latents, states)
            return (predicted - (noise_of_clip - clean)).pow(2).mean()
        if not keeps:
            return plain_loss(plain, clean, noise_of_clip, text, first_latents, states, index)
        forward = FORWARDS[model.family.name]
        return plain_loss_of_kept_frame(plain, clean, noise_of_clip, text, index, forward)

    return launch_errors(group, model, samples, loss_of)


def errors_of_cases(world):
    _, groups = open_groups(world)
    with float64_everywhere(), patch.object(hunyuan_video15, "GLYPH_TOKENS", 3):
        return {case: errors_of(groups.world, case) for case in CASES}


@pytest.mark.distributed
@pytest.mark.parametrize("degree", [1, 2])
def test_loss_and_gradient_are_those_of_a_plain_diffusers_step(degree):
    for errors in run_ranks(degree, errors_of_cases):
        assert set(errors) == set(CASES)
        for case, found in errors.items():
            assert max(found) < 1e-12, (case, found)


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
@pytest.mark.parametrize("case", [case for case in CASES if "15" not in case])
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


def run_of(clips: Path, folder: Path, **model) -> object:
    config = tiny_config(clips, folder, steps=3)
    config = changed(config, "model", image_to_video=True, **model)
    return with_manifest(changed(config, "validation", every=2, noises=2))


def losses_of(world, config):
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    return [*heard.losses, *(loss for _, loss in heard.validations)]


@pytest.mark.distributed
@pytest.mark.parametrize("encode", ["before", pytest.param("online", marks=pytest.mark.slow)])
def test_a_run_has_the_same_curve_on_two_ranks_and_draws_and_exports(clips, tmp_path, encode):
    curves = {}
    for size in (1, 2):
        config = changed(run_of(clips, tmp_path / str(size)), "data", encode=encode)
        config = changed(config, "data", cache=str(tmp_path / f"cache-{size}"))
        curves[size] = run_ranks(size, losses_of, (config,))[0]
    assert len(curves[1]) >= 5
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)
    if encode == "online":
        return
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey) for grey in (0, 255)]
    assert drawn[0].shape == (5, 16, 32, 3)
    assert not np.array_equal(*drawn)
    files = export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers"))
    assert files
    loaded = load_transformer(
        "wan", tmp_path / "out", dtype=torch.float32, text_tokens=config.model.num_text_tokens
    )
    assert loaded.shape.condition_channels == 4 + 48
    settings = replace(config.model, pretrained=str(tmp_path / "out"))
    assert planning_shape(settings) == loaded.shape


@pytest.mark.distributed
def test_a_kept_run_trains_on_plain_latents_and_begins_a_video_with_a_picture(clips, tmp_path):
    folder = str(save_tiny_autoencoder(CLASS_OF_FAMILY["ltx"], tmp_path / "pipeline"))
    config = config_of("ltx", clips, tmp_path / "run", folder)
    config = changed(config, "model", image_to_video=True)
    assert not isinstance(run_video_encoder(config.model), FirstFrameEncoder)
    assert np.isfinite(run_ranks(1, losses_of, (config,))[0]).all()
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    bucket = Bucket(width=64, height=32, frames=9)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey, bucket) for grey in (0, 255)]
    assert drawn[0].shape == (9, 32, 64, 3)
    assert not np.array_equal(drawn[0][0], drawn[1][0])
    assert export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers"))


def drawn_from(config, checkpoint, folder: Path, grey: int, bucket=SMALL) -> np.ndarray:
    path = folder / f"{grey}.png"
    Image.fromarray(np.full((40, 40, 3), grey, np.uint8)).save(path)
    request = SampleRequest(
        prompt="a cat",
        bucket=bucket,
        steps=2,
        guidance=2.0,
        seed=0,
        image=path,
    )
    with pytest.raises(ConfigError, match="trains image to video; name the picture"):
        generate(config, checkpoint, replace(request, image=None))
    return generate(config, checkpoint, request)


@pytest.mark.slow
def test_a_model_that_attends_to_the_image_trains(clips, tmp_path):
    folder = str(save_image_encoder(tmp_path))
    config = run_of(clips, tmp_path / "run", image_encoder=folder, text_tokens=512)
    config = changed(config, "data", cache=str(tmp_path / "cache"))
    found = run_ranks(1, losses_of, (config,))[0]
    assert np.isfinite(found).all()
    assert planning_shape(config.model).image_tokens == 5


def test_what_cannot_be_image_to_video_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"image_to_video is not built for family 'mochi'; .*wan"):
        ModelSettings(family="mochi", image_to_video=True)
    with pytest.raises(ConfigError, match="but nothing looks at images"):
        ModelSettings(family="ltx", image_to_video=True, image_encoder="clip")
    with pytest.raises(ConfigError, match="but nothing looks at images"):
        ModelSettings(family="cogvideox15", image_to_video=True, image_encoder="clip")
    with pytest.raises(ConfigError, match=r"name its folder as model\.image_encoder"):
        ModelSettings(family="hunyuan_video15", image_to_video=True)
    with pytest.raises(ConfigError, match=r"image_encoder is 'clip', but nothing looks at images"):
        ModelSettings(image_encoder="clip")
    config = tiny_config(tmp_path, tmp_path)
    kept = replace(
        config,
        data=replace(config.data, frame_buckets=(1, 9), resolution=64),
        model=replace(config.model, family="ltx", ffn_size=4 * 24, image_to_video=True),
    )
    with pytest.raises(
        ConfigError, match="keeps the first frame at noise level 0, which objective"
    ):
        changed(kept, "objective", kind="ddpm")
    sampling = {"sample_every": 1, "prompts": ("a", "b"), "sample_shape": "32x16x5"}
    with pytest.raises(ConfigError, match="names 0 pictures, and this run draws 2"):
        changed(changed(config, "model", image_to_video=True), "validation", **sampling)
    with pytest.raises(ConfigError, match="names 1 pictures, and this run draws 0"):
        changed(config, "validation", images=("a.png",), **sampling)


def test_weights_of_the_other_kind_are_refused_with_the_setting(tmp_path):
    tiny_model("wan", torch.float32).module.save_pretrained(tmp_path / "transformer")
    with pytest.raises(ConfigError, match=r"a model of image to video; set model\.image_to_video"):
        planning_shape(ModelSettings(pretrained=str(tmp_path), text_tokens=5))
    plain = build_transformer(tiny_shape("wan"), dtype=torch.float32, seed=0)
    plain.module.save_pretrained(tmp_path / "plain" / "transformer")
    with pytest.raises(ConfigError, match="a model of text to video; set"):
        planning_shape(ModelSettings(pretrained=str(tmp_path / "plain"), image_to_video=True))
    seeing = tiny_model("wan and CLIP", torch.float32)
    seeing.module.save_pretrained(tmp_path / "seeing" / "transformer")
    settings = ModelSettings(pretrained=str(tmp_path / "seeing"), image_to_video=True)
    with pytest.raises(ConfigError, match=r"attends to .*; name its folder as model\.image_enc"):
        planning_shape(settings)
