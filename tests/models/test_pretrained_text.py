import shutil
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import torch
from diffusers.pipelines.hunyuan_video import pipeline_hunyuan_video
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError
from arachne.models import pretrained_folder
from arachne.models.encoders import text_encoder_named
from arachne.models.pretrained_text import clean_caption

WORDS = ["<pad>", "</s>", "<unk>", "a", "cat", "dog", "runs"]


@pytest.fixture(scope="module", params=["t5", "umt5"])
def folder(request, tmp_path_factory):
    """A tiny random encoder and a tokenizer of seven words, in a pipeline's folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    prefix = {"t5": "T5", "umt5": "UMT5"}[request.param]
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=len(WORDS), d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = getattr(transformers, f"{prefix}EncoderModel")(config)
    root = tmp_path_factory.mktemp(request.param)
    encoder.save_pretrained(root / "text_encoder")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(root / "tokenizer")
    return root


def test_states_end_with_the_caption_and_zeros_follow(folder):
    encoder = text_encoder_named(str(folder), 6)
    assert encoder.text_size == 16
    states = encoder.encode("a cat runs")
    assert states.shape == (6, 16)
    assert states.dtype == np.float32
    assert np.any(states[:4], axis=1).all()  # three words and the end mark
    assert not states[4:].any()


@pytest.mark.parametrize("family", ["cogvideox", "ltx", "mochi"])
@pytest.mark.parametrize(
    "caption", ["", "a cat runs", "a cat runs a dog runs a cat", "a &amp; cat  runs\n"]
)
def test_states_are_those_that_the_familys_pipeline_gives_its_transformer(folder, family, caption):
    encoder = text_encoder_named(str(folder), 6, family=family)
    pipeline_class = {
        "cogvideox": diffusers.CogVideoXPipeline,
        "ltx": diffusers.LTXPipeline,
        "mochi": diffusers.MochiPipeline,
    }[family]
    parts = SimpleNamespace(
        tokenizer=encoder._tokenizer,
        text_encoder=encoder._encoder,
        config=SimpleNamespace(force_zeros_for_empty_prompt=False),
    )
    found = pipeline_class._get_t5_prompt_embeds(
        parts, caption, max_sequence_length=6, device="cpu", dtype=torch.float32
    )
    states, mask = found if isinstance(found, tuple) else (found, torch.ones(1, 6))
    expected = (states * mask[..., None])[0].detach().numpy()  # what is masked is never seen
    np.testing.assert_allclose(encoder.encode(caption), expected, atol=1e-6)


@pytest.mark.parametrize("family", ["wan", "skyreels_v2", "wan_5b"])
def test_captions_of_wan_are_read_as_its_pipeline_cleans_them(folder, family):
    encoder = text_encoder_named(str(folder), 6, family=family)
    raw = text_encoder_named(str(folder), 6, family="ltx")
    caption = "a &amp;amp; cat  runs"
    parts = SimpleNamespace(
        tokenizer=encoder._tokenizer,
        text_encoder=encoder._encoder,
    )
    # SkyReels-V2's pipeline cleans in the same way, but cannot run without ftfy.
    expected = diffusers.WanPipeline._get_t5_prompt_embeds(
        parts, caption, max_sequence_length=6, device="cpu", dtype=torch.float32
    )
    np.testing.assert_allclose(encoder.encode(caption), expected[0].detach().numpy(), atol=1e-6)
    assert not np.allclose(raw.encode(caption)[:4], encoder.encode(caption)[:4])
    assert raw.fingerprint.split("-")[-2] == "raw"
    assert "raw" not in encoder.fingerprint


@pytest.fixture(scope="module", params=["hunyuan_video", "hunyuan_video15"])
def language_model(request, tmp_path_factory):
    """(family, folder): a tiny random language model, whose tokenizer knows letters."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    sizes = {
        "vocab_size": 130,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if request.param == "hunyuan_video":
            encoder = transformers.LlamaModel(transformers.LlamaConfig(**sizes))
        else:
            encoder = Qwen2_5_VLTextModel(
                Qwen2_5_VLTextConfig(
                    **sizes, rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]}
                )
            )
    words = {"<pad>": 0, "<unk>": 1} | {chr(code): code for code in range(2, 127)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    root = tmp_path_factory.mktemp(request.param)
    encoder.save_pretrained(root / "text_encoder")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="right",
        chat_template="{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
    ).save_pretrained(root / "tokenizer")
    return request.param, root


@pytest.mark.parametrize("caption", ["", "a cat runs", "a {cat} that runs, " * 40])
def test_a_language_model_reads_a_caption_in_the_instruction_of_the_pipeline(
    language_model, caption
):
    family, root = language_model
    encoder = text_encoder_named(str(root), 600, family=family)
    assert encoder.text_size == 16
    parts = {"tokenizer": encoder._tokenizer, "text_encoder": encoder._encoder}
    if family == "hunyuan_video":
        template = pipeline_hunyuan_video.DEFAULT_PROMPT_TEMPLATE
        states, mask = diffusers.HunyuanVideoPipeline._get_llama_prompt_embeds(
            SimpleNamespace(**parts),
            caption,
            template,
            device="cpu",
            dtype=torch.float32,
            max_sequence_length=600,
        )
    else:
        states, mask = diffusers.HunyuanVideo15Pipeline._get_mllm_prompt_embeds(
            **parts, prompt=caption, device="cpu", tokenizer_max_length=600
        )
    expected = (states * mask[..., None])[0].detach().numpy()  # what is masked is never seen
    found = encoder.encode(caption)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.any(found, axis=1).sum() == int(mask.sum()) > 300
    assert encoder.prompt.name in encoder.fingerprint


def test_an_encoder_that_follows_no_instruction_gets_none(folder):
    alone = text_encoder_named(str(folder), 6, family="wan")
    asked = text_encoder_named(str(folder), 6, family="hunyuan_video15")
    np.testing.assert_array_equal(alone.encode("a cat"), asked.encode("a cat"))


def test_families_that_treat_padding_or_captions_differently_do_not_share_states(folder):
    families = ("wan", "mochi", "ltx", "cogvideox")
    prints = [text_encoder_named(str(folder), 6, family=f).fingerprint for f in families]
    assert len(set(prints)) == len(families)
    again = text_encoder_named(str(folder), 6, family="skyreels_v2")
    assert again.fingerprint == prints[0]


def test_padding_does_not_change_the_states(folder):
    short, long = text_encoder_named(str(folder), 4), text_encoder_named(str(folder), 9)
    np.testing.assert_allclose(short.encode("a cat runs"), long.encode("a cat runs")[:4], atol=1e-5)


def test_captions_are_told_apart_and_long_ones_cut(folder):
    encoder = text_encoder_named(str(folder), 4)
    assert not np.allclose(encoder.encode("a cat"), encoder.encode("a dog"))
    assert encoder.encode("a cat runs a dog runs a cat").shape == (4, 16)
    assert encoder.encode("")[0].any()


def test_the_fingerprint_follows_content_and_tokens(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    before = text_encoder_named(str(folder), 4).fingerprint
    assert before == text_encoder_named(str(tmp_path / "copy"), 4).fingerprint
    assert before != text_encoder_named(str(folder), 5).fingerprint
    tokenizer = tmp_path / "copy" / "tokenizer" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("cat", "cow"))
    assert before != text_encoder_named(str(tmp_path / "copy"), 4).fingerprint


def test_a_missing_package_is_named_with_the_command_that_adds_it(folder, monkeypatch):
    monkeypatch.setattr(pretrained_folder, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'arachne\[pretrained\]'"):
        text_encoder_named(str(folder), 4)


def test_folders_without_an_encoder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder; name 'hashed', or"):
        text_encoder_named(str(tmp_path / "nowhere"), 4)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="holds a bert model"):
        text_encoder_named(str(tmp_path), 4)


def test_missing_weights_and_tokenizers_are_errors_of_the_configuration(folder, tmp_path):
    shutil.copy(folder / "text_encoder" / "config.json", tmp_path)
    with pytest.raises(ConfigError, match=r"holds no tokenizer \(tokenizer\.json, .*\); name"):
        text_encoder_named(str(tmp_path), 4)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="no tokenizer can be loaded"):
        text_encoder_named(str(tmp_path), 4).encode("a cat")
    shutil.copytree(folder / "tokenizer", tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match="weights cannot be loaded"):
        text_encoder_named(str(tmp_path), 4).encode("a cat")


def test_an_encoder_that_lacks_a_weight_is_refused_not_drawn_at_random(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    file = tmp_path / "copy" / "text_encoder" / "model.safetensors"
    tensors = load_file(file)
    del tensors["encoder.final_layer_norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"the files lack 'encoder\.final_layer_norm\.weight', wh"
    ):
        text_encoder_named(str(tmp_path / "copy"), 4).encode("a cat")


@pytest.mark.parametrize(
    ("stored", "named"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.int64, "I64")],
)
def test_quantized_weights_are_refused_and_positions_are_no_weights(
    folder, tmp_path, stored, named
):
    shutil.copytree(folder, tmp_path / "copy")
    file = tmp_path / "copy" / "text_encoder" / "model.safetensors"
    tensors = load_file(file)
    positions = tensors | {"encoder.position_ids": torch.arange(3)}
    save_file(positions, file, {"format": "pt"})
    variant = {name: values.to(stored) for name, values in tensors.items()}
    save_file(variant, file.with_name("model.small.safetensors"), {"format": "pt"})
    needed = text_encoder_named(str(folder), 4).encode("a cat")
    assert np.array_equal(text_encoder_named(str(tmp_path / "copy"), 4).encode("a cat"), needed)

    file.with_name("model.small.safetensors").replace(file)
    words = (
        rf"model\.text_encoder '.*': 'model\.safetensors' has '.*' as {named}; needed are floats"
    )
    with pytest.raises(ConfigError, match=words):
        text_encoder_named(str(tmp_path / "copy"), 4).encode("a cat")


def test_captions_are_cleaned_as_wan_does():
    assert clean_caption(" a &amp;amp; b\n c ") == "a & b c"


def test_hashed_is_the_training_free_encoder():
    assert text_encoder_named("hashed", 7).encode("a cat").shape == (7, 128)
    assert text_encoder_named("hashed", 7, hashed_size=32).text_size == 32
