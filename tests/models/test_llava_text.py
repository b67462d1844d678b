"""LLaVA gives what HunyuanVideo's image-to-video pipeline gives its transformer, in one array."""

from unittest.mock import patch

import diffusers
import numpy as np
import pytest
import torch
import transformers
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_image2video import (
    DEFAULT_PROMPT_TEMPLATE,
)
from PIL import Image
from transformers import CLIPImageProcessorPil

from arachne.core.errors import ConfigError
from arachne.models.encoders import text_encoder_named
from arachne.models.interface import PictureReader
from arachne.models.llava_sizes import (
    EVERY_IF_KEPT,
    EVERY_IF_SHOWN,
    llava_rows,
    llava_text_size,
    num_picture_states,
)
from tests.models.tiny_llava import (
    NUM_PICTURE_STATES,
    POOLED_SIZE,
    TEXT_SIZE,
    save_tiny_llava,
)

NUM_TOKENS = 900
"""The tiny tokenizer knows letters, and the instruction has more than 500 after its 103 tokens."""

PLACE = len("<>system<>\n\n") - 2
"""Of the picture's token among those letters."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llava(tmp_path_factory.mktemp("llava"))


def opened(folder, every=EVERY_IF_SHOWN, num_tokens=NUM_TOKENS):
    return text_encoder_named(
        str(folder),
        num_tokens,
        family="hunyuan_video",
        pooled_size=POOLED_SIZE,
        picture_every=every,
    )


def frame_of(seed):
    return np.random.default_rng(seed).integers(0, 256, (20, 33, 3)).astype(np.uint8)


def pipeline_of(folder):
    return diffusers.HunyuanVideoImageToVideoPipeline(
        text_encoder=transformers.LlavaForConditionalGeneration.from_pretrained(
            folder / "text_encoder"
        ),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
        text_encoder_2=transformers.CLIPTextModel.from_pretrained(folder / "text_encoder_2"),
        tokenizer_2=transformers.AutoTokenizer.from_pretrained(folder / "tokenizer_2"),
        image_processor=CLIPImageProcessorPil.from_pretrained(folder / "image_processor"),
        transformer=None,
        vae=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )


def theirs(folder, caption, frame, every, num_tokens=NUM_TOKENS):
    """The pooled state, and the states of tokens where they are not masked."""
    template = DEFAULT_PROMPT_TEMPLATE | {
        "image_emb_start": PLACE,
        "image_emb_end": PLACE + NUM_PICTURE_STATES,
        "image_emb_len": NUM_PICTURE_STATES,
    }
    with torch.no_grad():
        states, pooled, mask = pipeline_of(folder).encode_prompt(
            Image.fromarray(frame),
            caption,
            prompt_template=template,
            max_sequence_length=num_tokens,
            image_embed_interleave=every,
        )
    return pooled[0].numpy(), (states * mask[..., None])[0].numpy()


@pytest.mark.parametrize("every", [EVERY_IF_SHOWN, EVERY_IF_KEPT])
@pytest.mark.parametrize("caption", ["", "a cat runs", "a {cat} that runs, " * 40])
def test_the_array_holds_what_the_pipeline_gives_its_transformer(folder, caption, every):
    encoder = opened(folder, every)
    assert isinstance(encoder, PictureReader)
    found = encoder.encode_seeing(caption, frame_of(2))
    pooled, states = theirs(folder, caption, frame_of(2), every)
    assert found.shape == (2 + len(states), TEXT_SIZE)
    assert found.dtype == np.float32
    config = encoder.encoder._encoder.config.to_dict()
    assert len(states) == llava_rows(config, NUM_TOKENS, every)
    np.testing.assert_allclose(found[:2].ravel()[:POOLED_SIZE], pooled, atol=1e-6)
    np.testing.assert_allclose(found[2:], states, atol=1e-6)


def test_a_caption_alone_comes_after_a_black_picture(folder):
    encoder = opened(folder)
    _, states = theirs(folder, "", np.zeros((12, 40, 3), np.uint8), EVERY_IF_SHOWN)
    np.testing.assert_allclose(encoder.encode("")[2:], states, atol=1e-6)


def test_other_pictures_give_other_states_and_padding_is_zeros(folder):
    encoder = opened(folder)
    first, second = (encoder.encode_seeing("a cat", frame_of(seed)) for seed in (2, 3))
    words = first.any(axis=1)
    assert not words[-3:].any()
    assert not np.allclose(first[2:][words[2:]], second[2:][words[2:]], atol=1e-3)


def test_a_caption_that_names_the_mark_of_a_picture_has_no_second_one(folder):
    encoder = opened(folder)
    found, needed = (
        encoder.encode_seeing(caption, frame_of(2))
        for caption in ("a <ima<image>ge>cat <image>runs", "a cat runs")
    )
    np.testing.assert_array_equal(found[2:], needed[2:])


def test_the_fingerprint_follows_all_that_states_depend_on(folder, tmp_path):
    prints = {opened(folder).fingerprint, opened(folder, EVERY_IF_KEPT).fingerprint}
    prints.add(opened(folder, num_tokens=NUM_TOKENS + 1).fingerprint)
    prints.add(opened(save_tiny_llava(tmp_path / "darker", image_mean=[0.4] * 3)).fingerprint)
    prints.add(opened(save_tiny_llava(tmp_path / "other", seed=1)).fingerprint)
    assert len(prints) == 5


def test_what_cannot_read_a_picture_is_refused(folder):
    with pytest.raises(ConfigError, match="holds a llava model; name 'hashed', or a folder with"):
        opened(folder, every=0)
    with pytest.raises(ConfigError, match="text_tokens is 4, of which 4 are left out after a cap"):
        opened(folder, num_tokens=4)
    encoder = opened(folder).encoder
    with (
        patch.object(type(encoder), "_picture_token", 1),
        pytest.raises(ConfigError, match="finds 0 pictures in HunyuanVideo's instruction, which"),
    ):
        encoder.encode("a cat")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_config": [1]}, r"has vision_config = \[1\]; needed is a table"),
        (
            {"vision_config": {"patch_size": 0}},
            r"has vision_config\.patch_size = 0; needed",
        ),
        ({"vision_config": {"image_size": 10**12}}, r"has vision_config\.image_size = 10000000000"),
        ({"text_config": "x"}, r"has text_config = 'x'; needed is a table"),
        ({"text_config": {"hidden_size": None}}, r"has text_config\.hidden_size = None"),
        ({"vision_feature_select_strategy": "zzz"}, "has vision_feature_select_strategy = 'zzz'"),
    ],
)
def test_sizes_that_are_none_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        _ = llava_text_size(changes), num_picture_states(changes)


def test_a_square_may_be_said_by_both_sides():
    config = {"vision_config": {"image_size": [28, 28], "patch_size": 14}}
    assert num_picture_states(config) == 4
