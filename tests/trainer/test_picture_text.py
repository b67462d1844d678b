"""Runs of HunyuanVideo's image to video whose text encoder, LLaVA, sees each clip's first frame."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.models.interface import PictureReader
from arachne.runtime.launcher import run_ranks
from arachne.trainer import generate
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.loop import train
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.run_encoders import run_text_encoder
from arachne.trainer.settings.model import ModelSettings
from tests.models.tiny_autoencoders import CLASS_OF_FAMILY, save_tiny_autoencoder
from tests.models.tiny_llava import POOLED_SIZE, TEXT_SIZE, save_tiny_llava
from tests.trainer.first_frame_models import save_hunyuan
from tests.trainer.test_families_train import config_of
from tests.trainer.test_image_to_video import drawn_from
from tests.trainer.tiny_runs import changed, tiny_session

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself

NUM_TOKENS = 640
"""The tiny tokenizer knows letters, and a caption comes after more than 500 of the instruction."""

BUCKET = Bucket(width=32, height=16, frames=9)


@pytest.fixture
def config(clips, tmp_path):
    """Weights of `token_replace`, and all encoders, tiny."""
    encoders = save_tiny_llava(tmp_path / "pipeline")
    folder = str(save_tiny_autoencoder(CLASS_OF_FAMILY["hunyuan_video"], encoders))
    found = config_of("hunyuan_video", clips, tmp_path / "run", folder)
    sizes = {"text_size": TEXT_SIZE, "pooled_text_size": POOLED_SIZE}
    save_hunyuan(found.model, tmp_path / "weights", **sizes)
    found = changed(found, "data", cache=str(tmp_path / "cache"))
    return changed(
        found,
        "model",
        pretrained=str(tmp_path / "weights"),
        text_encoder=folder,
        text_tokens=NUM_TOKENS,
        image_to_video=True,
    )


def found_in(world, config):
    """Losses, and text states of all clips and of what guidance compares to."""
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
        data = session.prepared.train
        texts = [data.read(item).text for item in range(len(data.rows))]
        return heard.losses, texts, session.null_text.numpy(), session.model.shape


@pytest.mark.distributed
def test_text_is_each_clips_own_and_a_video_s_begins_with_its_picture(config, tmp_path):
    losses, texts, null_text, shape = run_ranks(1, found_in, (config,))[0]
    assert np.isfinite(losses).all()
    assert {text.shape for text in texts} == {null_text.shape}
    assert null_text.shape == (shape.text_rows, TEXT_SIZE)
    # 9 states of a picture, every fourth of them, and 4 tokens after the caption are left out.
    assert shape.text_tokens == 3 + NUM_TOKENS - 4
    assert planning_shape(config.model) == shape
    shown = changed(config, "model", pretrained="").model  # in channels: every second of them
    assert planning_shape(shown).text_tokens == 5 + NUM_TOKENS - 4
    words = [text[2 + 3 :] for text in [*texts, null_text]]
    assert all(
        not np.allclose(one, other)
        for index, one in enumerate(words)
        for other in words[index + 1 :]
    )
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    drawn = [drawn_from(config, checkpoint, tmp_path, grey, BUCKET) for grey in (0, 255)]
    assert not np.array_equal(*drawn)
    with patch.object(generate, "walk", wraps=generate.walk) as walk:
        drawn_from(config, checkpoint, tmp_path, 255, BUCKET)
    encoder = run_text_encoder(config.model)
    assert isinstance(encoder, PictureReader)
    needed = encoder.encode_seeing("a cat", np.full((16, 32, 3), 255, np.uint8))
    np.testing.assert_allclose(walk.call_args.args[2][0], needed, atol=1e-6)
    np.testing.assert_allclose(walk.call_args.kwargs["null_text_LD"], null_text, atol=1e-6)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_have_the_loss_curve_of_one(config, tmp_path):
    curves = [
        run_ranks(size, found_in, (changed(config, "run", dir=f"{config.run.dir}-{size}"),))[0][0]
        for size in (1, 2)
    ]
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)


def prompt_texts_of(world, config):
    with tiny_session(world, config) as (session, _):
        return [text.numpy() for text in session.prompt_texts]


@pytest.mark.distributed
def test_prompts_of_sample_videos_come_after_their_pictures(config, tmp_path):
    pictures = []
    for grey in (0, 0, 255):
        pictures.append(str(tmp_path / f"{grey}.png"))
        Image.fromarray(np.full((40, 40, 3), grey, np.uint8)).save(pictures[-1])
    config = changed(
        config,
        "validation",
        sample_every=100,
        prompts=("", "a cat", "a cat"),
        images=tuple(pictures),
        sample_shape=str(BUCKET),
    )
    black, cat_after_black, cat_after_white = run_ranks(1, prompt_texts_of, (config,))[0]
    assert not np.allclose(cat_after_black, cat_after_white)
    assert not np.allclose(black, cat_after_black)


def test_plans_without_the_encoder_s_folder_count_the_states_of_the_published_one(tmp_path):
    away = ModelSettings(
        family="hunyuan_video",
        preset="hunyuanvideo-13b",
        image_to_video=True,
        text_encoder="/nowhere",
    )
    assert planning_shape(away).text_tokens == 576 // 2 + 256 - 4
    save_file({"img_in.proj.weight": torch.zeros(3, 16, 1, 2, 2)}, tmp_path / "kept.safetensors")
    kept = replace(away, pretrained=str(tmp_path / "kept.safetensors"))
    assert planning_shape(kept).text_tokens == 576 // 4 + 256 - 4
    for captions_alone in ({"image_to_video": False}, {"text_encoder": "hashed"}):
        assert planning_shape(replace(away, **captions_alone)).text_tokens == 256


def test_text_that_sees_clips_is_not_made_within_steps(config):
    with pytest.raises(
        ConfigError, match=r"looks at each clip's first frame, which data\.encode = 'o"
    ):
        run_ranks(1, found_in, (changed(config, "data", encode="online"),))


def test_a_text_encoder_of_captions_alone_stays_one_and_llava_is_for_image_to_video(config):
    hashed = changed(config, "model", text_encoder="hashed").model
    assert planning_shape(hashed).text_tokens == NUM_TOKENS
    with pytest.raises(ConfigError, match="holds a llava model; name 'hashed', or a folder with"):
        run_ranks(
            1,
            found_in,
            (changed(config, "model", pretrained="", image_to_video=False),),
        )
