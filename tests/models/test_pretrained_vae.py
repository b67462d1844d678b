import json
import shutil

import numpy as np
import pytest
import torch

from arachne.core.errors import ConfigError, DataError
from arachne.models.encoders import video_encoder_named
from arachne.models.pretrained_vae import open_video_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random AutoencoderKLWan in a pipeline's folder."""
    from diffusers import AutoencoderKLWan

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = AutoencoderKLWan(
            base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            latents_mean=[0.1, 0.2, 0.3, 0.4],
            latents_std=[1.0, 2.0, 3.0, 4.0],
        )
    root = tmp_path_factory.mktemp("pipeline")
    vae.save_pretrained(root / "vae")
    return root


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


def test_dct_is_the_training_free_encoder():
    encoder = video_encoder_named("dct")
    assert encoder.latent_channels == 48
    assert encoder.fingerprint.startswith("dct-")
