"""Image to video: what is known of a first frame shares one array with the clip, and comes back."""

import json

import diffusers
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arachne.core.errors import ConfigError, DataError
from arachne.models.codec import DctCodec
from arachne.models.encoders import first_frame_encoder, video_encoder_named
from arachne.models.first_frame import FirstFrameEncoder, Packing, packed_values
from arachne.models.pretrained_image import open_image_encoder
from tests.models.tiny_autoencoders import save_tiny_autoencoder

SMALL = st.integers(1, 4)


@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 5), st.integers(1, 9))
def test_what_is_packed_comes_back(channels, frames, height, width, tokens, size):
    packing = Packing(image_tokens=tokens, image_size=size if tokens else 0)
    random = np.random.default_rng(0)
    latents, first = random.random((2, channels, frames, height, width), dtype=np.float32)
    states = random.random((tokens, size), dtype=np.float32) if tokens else None
    packed = packing.pack(latents, first, states)
    assert packed.shape == packing.packed_shape(channels, (frames, height, width))
    found = packing.unpack(packed)
    assert np.array_equal(found.latents, latents)
    assert np.array_equal(found.first_latents, first)
    assert (found.states is None) == (states is None)
    if states is not None:
        assert np.array_equal(found.states, states)


def test_latents_without_a_first_frame_are_refused():
    with pytest.raises(DataError, match=r"\[4, 3, 2, 2\] hold no first frame; delete"):
        Packing().unpack(np.zeros((4, 3, 2, 2), np.float32))


def frames_of(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 16, 24, 3)).astype(np.uint8)


@pytest.mark.parametrize("kind", ["dct", "AutoencoderKLWan"])
def test_later_frames_do_not_change_what_is_known_of_the_first(tmp_path, kind):
    name = kind if kind == "dct" else str(save_tiny_autoencoder(kind, tmp_path))
    encoder = FirstFrameEncoder(encoder=video_encoder_named(name))
    frames = frames_of(9)
    others = np.concatenate([frames[:1], frames_of(17)[9:]])
    found, other = (encoder.packing.unpack(encoder.encode(each)) for each in (frames, others))
    assert found.latents.shape == found.first_latents.shape
    assert np.array_equal(found.first_latents, other.first_latents)
    assert not np.array_equal(found.latents, other.latents)
    np.testing.assert_allclose(found.first_latents[:, 0], found.latents[:, 0], atol=1e-5)
    assert encoder.fingerprint != encoder.encoder.fingerprint
    grid = found.latents.shape[1:]
    assert packed_values(encoder, grid) == 2 * packed_values(encoder.encoder, grid)


def test_the_dct_shows_grey_after_the_first_frame():
    codec = DctCodec()
    frames = codec.decode(codec.encode_first(frames_of(1)[0], 5))
    assert len(frames) == 5
    assert set(np.unique(frames[1:])) == {128}


def save_image_encoder(folder, **changes):
    """A tiny CLIP as a pipeline's folder holds it."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=12,
        patch_size=6,
        projection_dim=4,
    )
    CLIPVisionModel(config).save_pretrained(folder / "image_encoder")
    (folder / "image_processor").mkdir(exist_ok=True)
    processor = {
        "crop_size": {"height": 12, "width": 12},
        "size": {"shortest_edge": 12},
        "resample": 3,
        **changes,
    }
    (folder / "image_processor" / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_rescale": False}, "has do_rescale = False; only True is built"),
        ({"do_normalize": False}, "has do_normalize = False; only True is built"),
        ({"rescale_factor": 1 / 127.5}, "has rescale_factor = 0.0078"),
        ({"resample": 0}, "has resample = 0; only 3 is built"),
        (
            {"size": {"shortest_edge": 16}},
            "has size = .* looks at 12x12 pixels; only th",
        ),
        (
            {"image_mean": None},
            "has image_mean = None and image_std = .*; needed are three n",
        ),
        ({"image_mean": [0.1] * 4}, "needed are three numbers each"),
        ({"image_mean": ["a", "b", "c"]}, "needed are three numbers each"),
        ({"image_std": [0.0] * 3}, "needed are three numbers each"),
    ],
)
def test_pictures_that_would_be_treated_otherwise_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        open_image_encoder(save_image_encoder(tmp_path, **changes))


def test_the_states_of_an_image_are_those_that_the_pipeline_makes(tmp_path):
    from transformers import CLIPVisionModel

    encoder = open_image_encoder(save_image_encoder(tmp_path, image_mean=[0.4, 0.5, 0.6]))
    assert (encoder.num_tokens, encoder.image_size) == (5, 8)
    frame = np.random.default_rng(2).integers(0, 256, (20, 33, 3)).astype(np.uint8)
    found = encoder.encode(frame)
    assert found.shape == (5, 8)
    # By hand, as transformers' processor without torchvision does it.
    picture = Image.fromarray(frame).resize((12 * 33 // 20, 12), resample=3)
    left = (picture.width - 12) // 2
    pixels = np.asarray(picture.crop((left, 0, left + 12, 12))) / 255.0
    mean, std = [0.4, 0.5, 0.6], [0.26862954, 0.26130258, 0.27577711]
    scaled = torch.tensor((pixels - mean) / std, dtype=torch.float32).permute(2, 0, 1)[None]
    model = CLIPVisionModel.from_pretrained(tmp_path / "image_encoder")
    with torch.no_grad():
        needed = model(scaled, output_hidden_states=True).hidden_states[-2][0]
    np.testing.assert_allclose(found, needed.numpy(), atol=1e-5)


def test_siglips_states_are_those_that_the_pipeline_makes(tmp_path):
    from transformers import SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=12,
        patch_size=6,
    )
    torch.manual_seed(0)
    model = SiglipVisionModel(config).eval()
    model.save_pretrained(tmp_path / "image_encoder")
    processor = SiglipImageProcessorPil(size={"height": 12, "width": 12}, resample=3)
    processor.save_pretrained(tmp_path / "feature_extractor")
    encoder = open_image_encoder(tmp_path)
    assert (encoder.num_tokens, encoder.image_size) == (4, 8)
    frame = np.random.default_rng(2).integers(0, 256, (20, 33, 3)).astype(np.uint8)
    with torch.no_grad():
        needed = diffusers.HunyuanVideo15ImageToVideoPipeline._get_image_embeds(
            model, processor, Image.fromarray(frame), torch.device("cpu")
        )
    np.testing.assert_allclose(encoder.encode(frame), needed[0].numpy(), atol=1e-5)


def test_an_image_encoder_changes_the_fingerprint_and_is_packed(tmp_path):
    plain = first_frame_encoder(DctCodec(), "")
    seeing = first_frame_encoder(DctCodec(), str(save_image_encoder(tmp_path)))
    assert plain.fingerprint != seeing.fingerprint
    packed = seeing.encode(frames_of(5))
    found = seeing.packing.unpack(packed)
    assert found.states is not None
    assert np.array_equal(found.states, seeing.states(frames_of(5)[0]))


def test_a_folder_without_an_image_encoder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.image_encoder '.*': the folder has no config"):
        open_image_encoder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
    with pytest.raises(ConfigError, match="holds a 'siglip'; name a pipeline's folder"):
        open_image_encoder(tmp_path)
