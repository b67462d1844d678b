import inspect
import json
import shutil

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.models.autoencoder_classes import AUTOENCODERS
from arachne.models.encoders import video_encoder_named
from arachne.models.pretrained_vae import open_video_encoder
from tests.models.tiny_autoencoders import (
    CLASS_OF_FAMILY,
    TINY,
    save_tiny_autoencoder,
    tiny_autoencoder,
)

every_class = pytest.mark.parametrize("class_name", TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random AutoencoderKLWan in a pipeline's folder."""
    return save_tiny_autoencoder("AutoencoderKLWan", tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same of every class."""
    return {name: save_tiny_autoencoder(name, tmp_path_factory.mktemp("pipeline")) for name in TINY}


def _raw(vae, latents):
    """What diffusers' pipelines make of latents before they decode them."""
    mean = vae.config.get("latents_mean") or dict(vae.named_buffers()).get("latents_mean")
    std = vae.config.get("latents_std") or dict(vae.named_buffers()).get("latents_std")
    factor = vae.config.get("scaling_factor", 1.0)
    if mean is None:
        return latents / factor
    mean, std = (torch.as_tensor(v).view(-1, 1, 1, 1) for v in (mean, std))
    return latents * std / factor + mean


def _legal_frames(encoder):
    return _frames(1 + 2 * encoder.temporal_compression, 2 * encoder.spatial_compression)


@every_class
def test_every_class_encodes_to_what_its_pipeline_decodes(folders, class_name):
    vae = tiny_autoencoder(class_name).eval()
    encoder = open_video_encoder(folders[class_name])
    frames = _legal_frames(encoder)
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    latents = encoder.encode(frames)
    assert latents.shape == (4, 3, 2, 2)
    with torch.no_grad():
        raw = vae.encode(pixels).latent_dist.mean[0]
        decoded = vae.decode(_raw(vae, torch.from_numpy(latents))[None]).sample[0]
    torch.testing.assert_close(_raw(vae, torch.from_numpy(latents)), raw, rtol=1e-4, atol=1e-5)
    expected = ((decoded.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 3, 0).numpy()
    assert encoder.decode(latents).shape == frames.shape
    np.testing.assert_allclose(encoder.decode(latents), expected, atol=0.51)


@pytest.mark.parametrize("family", CLASS_OF_FAMILY)
def test_the_autoencoder_of_a_family_has_its_compression(folders, family):
    folder = folders[CLASS_OF_FAMILY[family]]
    encoder = video_encoder_named(str(folder), family=family)
    assert encoder.latent_channels == 4
    assert family_named(family).video_encoder.name == CLASS_OF_FAMILY[family]


@pytest.mark.parametrize("class_name", AUTOENCODERS)
def test_what_a_config_leaves_out_is_the_classs_own(class_name):
    parameters = inspect.signature(getattr(diffusers, class_name).__init__).parameters
    for key, value in AUTOENCODERS[class_name].defaults.items():
        assert parameters[key].default == value, key


@pytest.mark.parametrize("class_name", sorted(set(CLASS_OF_FAMILY.values()) & set(AUTOENCODERS)))
def test_a_published_config_has_the_compression_of_its_shape(tmp_path, class_name):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": class_name}))
    encoder = open_video_encoder(tmp_path)
    family = next(name for name, found in CLASS_OF_FAMILY.items() if found == class_name)
    published = family_named(family).video_encoder
    assert encoder.temporal_compression == published.temporal_compression
    assert encoder.spatial_compression == published.spatial_compression
    preset = next(iter(family_named(family).presets.values()))
    assert encoder.latent_channels == preset.latent_channels


@pytest.mark.parametrize(
    "class_name", [name for name in TINY if AUTOENCODERS[name.split()[0]].can_tile]
)
def test_classes_encode_large_frames_in_tiles_as_diffusers_does(folders, class_name):
    """Wider than the widest tile that a class has."""
    plain = open_video_encoder(folders[class_name])
    tiled = open_video_encoder(folders[class_name], is_tiled=True)
    side, step = plain.spatial_compression, plain.temporal_compression
    frames = np.concatenate([_frames(1 + step, side)] * (640 // side), axis=2)
    vae = tiny_autoencoder(class_name).eval()
    vae.enable_tiling()
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    with torch.no_grad():
        raw = vae.encode(pixels).latent_dist.mean[0]
    latents = tiled.encode(frames)
    torch.testing.assert_close(_raw(vae, torch.from_numpy(latents)), raw, rtol=1e-4, atol=1e-5)
    assert latents.shape == plain.encode(frames).shape
    assert np.abs(latents - plain.encode(frames)).max() > 1e-6, "there were tiles"
    assert tiled.fingerprint == f"{plain.fingerprint}-tiled"


def test_tiles_that_diffusers_misplaces_are_refused(folders):
    folder = folders["AutoencoderKLMagvit"]
    with pytest.raises(ConfigError, match="misplaces the tiles of AutoencoderKLMagvit"):
        open_video_encoder(folder, is_tiled=True)
    vae = tiny_autoencoder("AutoencoderKLMagvit").eval()
    with torch.no_grad():
        plain, tiled = (_mean_of_wide_frames(vae, tiled) for tiled in (False, True))
    away_from_seams = slice(-16, -4)
    gap = (plain - tiled)[..., away_from_seams].abs().max()
    assert gap > 0.1 * plain.std(), "it is mended: let it be tiled"


def _mean_of_wide_frames(vae, is_tiled):
    if is_tiled:
        vae.enable_tiling()
    generator = torch.Generator().manual_seed(0)
    return vae.encode(torch.randn(1, 3, 5, 8, 640, generator=generator)).latent_dist.mean


@every_class
def test_a_sample_is_of_the_encoders_distribution_and_a_clips_own(folders, class_name):
    mode = open_video_encoder(folders[class_name])
    sample = open_video_encoder(folders[class_name], latents="sample")
    frames = _legal_frames(mode)
    with torch.no_grad():
        pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        std = tiny_autoencoder(class_name).eval().encode(pixels).latent_dist.std[0]
    vae = tiny_autoencoder(class_name)
    raw, of_mode = (_raw(vae, torch.from_numpy(e.encode(frames))) for e in (sample, mode))
    noise = ((raw - of_mode) / std).numpy()
    assert abs(noise.mean()) < 4 / noise.size**0.5
    assert noise.std() == pytest.approx(1, abs=4 / (2 * noise.size) ** 0.5)
    planar = frames.transpose(0, 3, 1, 2).copy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(sample.encode(planar), sample.encode(frames))
    assert np.abs(sample.encode(255 - frames) - sample.encode(frames)).max() > 0.1
    assert sample.fingerprint == f"{mode.fingerprint}-sample"


def test_a_decoder_that_also_removes_noise_is_told_that_there_is_none(tmp_path):
    vae = diffusers.AutoencoderKLLTXVideo(
        **TINY["AutoencoderKLLTXVideo"], timestep_conditioning=True
    )
    vae.save_pretrained(tmp_path)
    encoder = open_video_encoder(tmp_path)
    latents = encoder.encode(_legal_frames(encoder))
    with torch.no_grad():
        raw = _raw(vae.eval(), torch.from_numpy(latents))[None]
        decoded = vae.decode(raw, torch.zeros(1)).sample[0]
    expected = ((decoded.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 3, 0).numpy()
    np.testing.assert_allclose(encoder.decode(latents), expected, atol=0.51)


def _frames(num_frames=5, side=16):
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (num_frames, side, side, 3), np.uint8)


def test_a_pipeline_folder_gives_its_autoencoder(folder):
    encoder = video_encoder_named(str(folder))
    assert encoder.latent_channels == 4
    latents = encoder.encode(_frames())
    assert latents.shape == (4, 2, 2, 2)
    assert latents.dtype == np.float32
    frames = encoder.decode(latents)
    assert frames.shape == (5, 16, 16, 3)
    assert frames.dtype == np.uint8


def test_latents_are_the_mode_normalised_as_the_config_says(folder):
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan.from_pretrained(folder / "vae").eval()
    frames = _frames()
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    with torch.no_grad():
        raw = vae.encode(pixels).latent_dist.mean[0].numpy()
    mean = np.array([0.1, 0.2, 0.3, 0.4]).reshape(4, 1, 1, 1)
    std = np.array([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1, 1)
    encoder = open_video_encoder(folder / "vae")
    np.testing.assert_allclose(encoder.encode(frames), (raw - mean) / std, atol=1e-5)


def test_decoding_undoes_the_normalisation(folder):
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan.from_pretrained(folder / "vae").eval()
    encoder = open_video_encoder(folder)
    frames = _frames()
    with torch.no_grad():
        pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        expected = vae.decode(vae.encode(pixels).latent_dist.mode()).sample[0]
    expected = ((expected.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 3, 0).numpy()
    np.testing.assert_allclose(encoder.decode(encoder.encode(frames)), expected, atol=0.51)


def test_the_fingerprint_is_of_the_content(folder, tmp_path):
    shutil.copytree(folder / "vae", tmp_path / "copy")
    assert open_video_encoder(tmp_path / "copy").fingerprint == (
        open_video_encoder(folder).fingerprint
    )
    (tmp_path / "copy" / ".DS_Store").touch()
    assert open_video_encoder(tmp_path / "copy").fingerprint == (
        open_video_encoder(folder).fingerprint
    )
    weights = next((tmp_path / "copy").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert open_video_encoder(tmp_path / "copy").fingerprint != (
        open_video_encoder(folder).fingerprint
    )


def test_frames_that_do_not_fit_are_refused(folder):
    encoder = open_video_encoder(folder)
    with pytest.raises(DataError, match=r"6 frames are not 4k\+1; nearest that fit: 5 or 9"):
        encoder.encode(_frames(num_frames=6))
    with pytest.raises(DataError, match="multiples of 8"):
        encoder.encode(_frames(side=12))
    with pytest.raises(DataError, match="needs uint8"):
        encoder.encode(_frames().astype(np.float32))


def test_another_compression_than_the_familys_is_refused(folder, tmp_path):
    config = json.loads((folder / "vae" / "config.json").read_text())
    config["scale_factor_spatial"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match="compresses 4 frames x 16 pixels, but family 'wan' needs"
    ):
        video_encoder_named(str(tmp_path))


def test_folders_without_an_autoencoder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere': there is no such folder; name 'dct', or"):
        video_encoder_named(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"the folder has no config\.json"):
        video_encoder_named(str(tmp_path))
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKL"}')
    with pytest.raises(ConfigError, match="holds a AutoencoderKL; name 'dct'"):
        video_encoder_named(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="no table of options"):
        video_encoder_named(str(tmp_path))


def test_missing_weights_are_an_error_of_the_configuration(tmp_path):
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKLWan", "base_dim": 4}')
    with pytest.raises(ConfigError, match="weights cannot be loaded"):
        open_video_encoder(tmp_path).encode(_frames())


def test_weights_that_are_there_as_a_variant_alone_are_read(folder, tmp_path):
    shutil.copytree(folder / "vae", tmp_path / "vae")
    file = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    file.rename(file.with_name("diffusion_pytorch_model.fp16.safetensors"))
    latents = open_video_encoder(tmp_path).encode(_frames())
    np.testing.assert_array_equal(latents, open_video_encoder(folder).encode(_frames()))


def test_quantized_weights_are_refused_by_their_config(folder, tmp_path):
    shutil.copytree(folder / "vae", tmp_path / "vae")
    config = tmp_path / "vae" / "config.json"
    options = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "torchao"}}
    config.write_text(json.dumps(options))
    with pytest.raises(ConfigError, match="holds quantized weights"):
        open_video_encoder(tmp_path).encode(_frames())


def test_weights_of_8_bits_are_refused(folder, tmp_path):
    shutil.copytree(folder / "vae", tmp_path / "vae")
    file = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    narrow = {name: values.to(torch.float8_e4m3fn) for name, values in load_file(file).items()}
    save_file(narrow, file, {"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"model\.video_encoder '.*has '.*' as F8_E4M3; needed are"
    ):
        open_video_encoder(tmp_path).encode(_frames())


@pytest.mark.parametrize(
    ("class_name", "option", "value", "needed"),
    [
        ("AutoencoderKLWan", "latents_mean", [0.0, 1.0, 1.0], "4 finite numbers;"),
        ("AutoencoderKLWan", "latents_std", 1.0, "4 finite numbers above 0;"),
        ("AutoencoderKLWan", "latents_std", [0.0, 1.0, 1.0, 1.0], "4 finite numbers above 0;"),
        ("AutoencoderKLWan", "latents_std", [float("inf"), 1, 1, 1], "4 finite numbers above 0;"),
        ("AutoencoderKLWan", "latents_std", [None, 1, 1, 1], "4 finite numbers above 0;"),
        ("AutoencoderKLCogVideoX", "scaling_factor", 0.0, "1 finite number above 0;"),
        ("AutoencoderKLCogVideoX", "scaling_factor", None, "1 finite number above 0;"),
        ("AutoencoderKLCogVideoX", "scaling_factor", "0.7", "1 finite number above 0;"),
        ("AutoencoderKLCogVideoX", "scaling_factor", [0.7], "1 finite number above 0;"),
    ],
)
def test_latents_that_cannot_be_normalised_are_refused_before_any_weight_is_read(
    folders, tmp_path, class_name, option, value, needed
):
    config = json.loads((folders[class_name] / "vae" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {option: value}))
    words = rf"config\.json has {option} = .*, but its 4 latent channels need {needed}"
    with pytest.raises(ConfigError, match=words):
        open_video_encoder(tmp_path)


def test_a_mean_that_only_the_class_gives_has_to_fit_too(folder, tmp_path):
    shutil.copytree(folder / "vae", tmp_path / "vae")
    config = json.loads((tmp_path / "vae" / "config.json").read_text())
    del config["latents_mean"]
    (tmp_path / "vae" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"latents_mean = .*, but its 4 latent channels need 4"):
        open_video_encoder(tmp_path).encode(_frames())


def test_dct_is_the_training_free_encoder():
    encoder = video_encoder_named("dct")
    assert encoder.latent_channels == 48
    assert encoder.fingerprint.startswith("dct-")
