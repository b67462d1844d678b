"""Latents whose first frame is repeated: encoded, decoded, shared out and told apart."""

import numpy as np
import pytest

from arachne.models.encoders import first_frame_encoder, video_encoder_named
from arachne.models.pretrained_vae import PretrainedVideoEncoder
from arachne.models.repeated_frame import RepeatedFrameEncoder
from tests.models.tiny_autoencoders import save_tiny_autoencoder


def frames_of(num_frames, side=16):
    shape = (num_frames, side, side, 3)
    return np.random.default_rng(num_frames).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("num_frames", [1, 9])
def test_the_first_latent_frame_comes_twice_and_is_decoded_once(num_frames):
    plain = video_encoder_named("dct", family="cogvideox")
    encoder = video_encoder_named("dct", family="cogvideox15")
    assert isinstance(encoder, RepeatedFrameEncoder)
    assert encoder.fingerprint != plain.fingerprint
    frames = frames_of(num_frames)
    latents, needed = encoder.encode(frames), plain.encode(frames)
    assert latents.shape[1] == (num_frames - 1) // 4 + 2
    np.testing.assert_array_equal(latents[:, 0], needed[:, 0])
    np.testing.assert_array_equal(latents[:, 1:], needed)
    np.testing.assert_array_equal(encoder.decode(latents), plain.decode(needed))


def test_a_first_frame_is_shown_before_zeros():
    plain = video_encoder_named("dct", family="cogvideox15")
    encoder = first_frame_encoder(plain, "", family="cogvideox15")
    assert encoder.fingerprint != first_frame_encoder(plain, "", family="wan").fingerprint
    frame = frames_of(1)[0]
    for num_frames in (1, 9):
        shown = encoder.encode_first(frame, num_frames)
        assert shown.shape == plain.encode(frames_of(num_frames)).shape
        np.testing.assert_array_equal(shown[:, :1], plain.encode(frame[None])[:, :1])
        assert not shown[:, 1:].any()


def test_tiles_of_a_clip_can_be_encoded_apart(tmp_path):
    folder = save_tiny_autoencoder("AutoencoderKLCogVideoX", tmp_path)
    encoder = video_encoder_named(str(folder), family="cogvideox15", is_tiled=True)
    assert isinstance(encoder, RepeatedFrameEncoder)
    assert encoder.can_share
    whole = video_encoder_named(str(folder), family="cogvideox15")
    assert isinstance(whole, RepeatedFrameEncoder)
    assert not whole.can_share
    assert isinstance(encoder.encoder, PretrainedVideoEncoder)
    vae = encoder.encoder._vae
    sides = (vae.tile_sample_min_height // 16 + 1, vae.tile_sample_min_width // 16 + 1)
    frames = np.tile(frames_of(1), (1, *sides, 1))
    num_tiles = len(encoder.tile_shapes(*frames.shape[:3]))
    assert num_tiles > 1
    tiles = [encoder.encode_tile(frames, index) for index in range(num_tiles)]
    np.testing.assert_array_equal(encoder.join_tiles(frames, tiles), encoder.encode(frames))
