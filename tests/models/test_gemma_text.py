"""LTX-2's text encoder gives what its pipeline gives its transformer."""

import json
import shutil

import diffusers
import numpy as np
import pytest
import torch
import transformers
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from arachne.core.errors import ConfigError
from arachne.models.encoders import text_encoder_named
from arachne.models.gemma_text import open_gemma

NUM_REGISTERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Gemma 3 and connectors, in a pipeline's folder."""
    root = tmp_path_factory.mktemp("ltx2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        text = {
            "vocab_size": 130,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "pad_token_id": 0,
        }
        vision = {
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 4,
            "patch_size": 2,
        }
        config = transformers.Gemma3Config(
            text_config=text, vision_config=vision, mm_tokens_per_image=1
        )
        gemma = transformers.Gemma3ForConditionalGeneration(config)
        gemma.save_pretrained(root / "text_encoder")
        LTX2TextConnectors(
            caption_channels=16,
            text_proj_in_factor=3,
            video_connector_num_attention_heads=2,
            video_connector_attention_head_dim=8,
            video_connector_num_layers=1,
            video_connector_num_learnable_registers=NUM_REGISTERS,
            audio_connector_num_attention_heads=2,
            audio_connector_attention_head_dim=8,
            audio_connector_num_layers=1,
            audio_connector_num_learnable_registers=NUM_REGISTERS,
            rope_type="split",
        ).save_pretrained(root / "connectors")
    words = {"<pad>": 0, "<unk>": 1} | {chr(code): code for code in range(2, 127)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", padding_side="right"
    ).save_pretrained(root / "tokenizer")
    return root


@pytest.mark.parametrize("caption", ["a", " a cat runs ", "a cat that runs, " * 3])
def test_states_are_those_that_the_pipeline_gives_its_transformer(folder, caption):
    encoder = text_encoder_named(str(folder), 24, family="ltx2")
    assert encoder.text_size == 16
    pipeline = diffusers.LTX2Pipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=None,
        audio_vae=None,
        text_encoder=transformers.Gemma3ForConditionalGeneration.from_pretrained(
            folder / "text_encoder"
        ),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
        connectors=LTX2TextConnectors.from_pretrained(folder / "connectors"),
        transformer=None,
        vocoder=None,
    )
    with torch.no_grad():
        states, mask, *_ = pipeline.encode_prompt(
            caption, do_classifier_free_guidance=False, max_sequence_length=24
        )
        expected, _, words = pipeline.connectors(states, mask, padding_side="left")
    assert words.all()  # registers stand where padding was
    found = encoder.encode(caption)
    assert found.shape == (24, 16)
    np.testing.assert_allclose(found, expected[0], atol=1e-5)


def test_the_fingerprint_follows_tokens_and_connectors(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    prints = {text_encoder_named(str(folder), tokens).fingerprint for tokens in (8, 12)}
    config = tmp_path / "copy" / "connectors" / "config.json"
    assert open_gemma(tmp_path / "copy", num_tokens=8).fingerprint in prints
    config.write_text(config.read_text() + "\n")
    assert open_gemma(tmp_path / "copy", num_tokens=8).fingerprint not in prints
    assert len(prints) == 2


def test_what_lacks_a_part_or_is_of_another_version_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="text_tokens is 10, and the connectors have 4 registers"):
        open_gemma(folder, num_tokens=10)
    (tmp_path / "connectors").mkdir()
    config = tmp_path / "connectors" / "config.json"
    config.write_text("{}")
    for words in ("there is no such folder", "the folder holds no tokenizer"):
        with pytest.raises(ConfigError, match=rf"/tokenizer': {words} .*name an LTX-2 pipeline's"):
            open_gemma(tmp_path, num_tokens=128)
        (tmp_path / "tokenizer").mkdir(exist_ok=True)
    config.write_text(json.dumps({"per_modality_projections": True}))
    with pytest.raises(ConfigError, match=r"the connectors of LTX-2\.3 or later"):
        open_gemma(tmp_path, num_tokens=128)
    with pytest.raises(ConfigError, match="there is no such folder"):
        open_gemma(tmp_path / "nowhere", num_tokens=128)
