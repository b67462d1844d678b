"""HunyuanVideo's two text encoders give what its pipeline gives its transformer, in one array."""

import json

import diffusers
import numpy as np
import pytest
import torch
import transformers

from arachne.core.errors import ConfigError
from arachne.models.encoders import text_encoder_named
from arachne.models.hashed_text import HashedTextEncoder
from arachne.models.pooled_text import PooledTextEncoder, open_pooler
from arachne.trainer.run_encoders import run_text_encoder
from arachne.trainer.settings.model import ModelSettings
from tests.models.tiny_llava import POOLED_SIZE, save_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("hunyuan"))


def opened(folder):
    return text_encoder_named(str(folder), 600, family="hunyuan_video", pooled_size=POOLED_SIZE)


@pytest.mark.parametrize("caption", ["", "a cat runs", "a cat that runs, " * 12])
def test_the_array_holds_what_the_pipeline_gives_its_transformer(folder, caption):
    encoder = opened(folder)
    pipeline = diffusers.HunyuanVideoPipeline(
        text_encoder=transformers.LlamaModel.from_pretrained(folder / "text_encoder"),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
        text_encoder_2=transformers.CLIPTextModel.from_pretrained(folder / "text_encoder_2"),
        tokenizer_2=transformers.AutoTokenizer.from_pretrained(folder / "tokenizer_2"),
        transformer=None,
        vae=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )
    with torch.no_grad():
        states, pooled, mask = pipeline.encode_prompt(caption, max_sequence_length=600)
    found = encoder.encode(caption)
    assert found.shape == (2 + 600, 16)
    np.testing.assert_allclose(found[:2].ravel()[:POOLED_SIZE], pooled[0], atol=1e-6)
    assert not found[:2].ravel()[POOLED_SIZE:].any()
    np.testing.assert_allclose(found[2:], (states * mask[..., None])[0], atol=1e-6)


def test_hashed_states_are_summed_up_by_their_mean():
    plain = HashedTextEncoder(num_tokens=4, text_size=16)
    states = plain.encode("a cat")
    for size in (6, 16, 20):
        found = PooledTextEncoder(encoder=plain, pooled_size=size).encode("a cat")
        rows = len(found) - 4
        mean = np.pad(states[:2].mean(axis=0), (0, 16))[:size]
        np.testing.assert_allclose(found[:rows].ravel()[:size], mean, rtol=1e-6)
        np.testing.assert_array_equal(found[rows:], states)


def test_the_fingerprint_follows_both_encoders(folder):
    plain = text_encoder_named(str(folder), 600, family="hunyuan_video")
    mean = PooledTextEncoder(encoder=plain, pooled_size=POOLED_SIZE)
    prints = {plain.fingerprint, mean.fingerprint, opened(folder).fingerprint}
    prints.add(PooledTextEncoder(encoder=plain, pooled_size=3).fingerprint)
    assert len(prints) == 4


def test_a_run_opens_the_second_encoder_where_its_model_has_a_pooled_state(folder):
    settings = {"family": "hunyuan_video", "preset": "hunyuanvideo-13b"}
    assert run_text_encoder(ModelSettings(**settings)).encode("a cat").shape == (256 + 6, 128)
    with pytest.raises(ConfigError, match="pooled states 20 wide, and the model takes 768; name"):
        run_text_encoder(ModelSettings(**settings, text_encoder=str(folder)))
    assert run_text_encoder(ModelSettings()).encode("a cat").shape == (512, 128)


def test_a_folder_without_clip_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder; name a pipeline's folder that"):
        open_pooler(tmp_path, pooled_size=POOLED_SIZE)
    (tmp_path / "text_encoder_2").mkdir()
    config = tmp_path / "text_encoder_2" / "config.json"
    config.write_text(json.dumps({"model_type": "clip_text_model", "hidden_size": POOLED_SIZE}))
    (tmp_path / "tokenizer_2").mkdir()
    for name in ("tokenizer_config.json", "vocab.json"):  # not all of a vocabulary
        (tmp_path / "tokenizer_2" / name).write_text("{}")
        with pytest.raises(
            ConfigError, match=r"tokenizer_2': the folder holds no tokenizer .*CLIP"
        ):
            open_pooler(tmp_path, pooled_size=POOLED_SIZE)
    (tmp_path / "tokenizer_2" / "merges.txt").write_text("")
    assert open_pooler(tmp_path, pooled_size=POOLED_SIZE).pooled_size == POOLED_SIZE
    config.write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ConfigError, match="has a 't5' as text_encoder_2/"):
        open_pooler(tmp_path, pooled_size=POOLED_SIZE)
