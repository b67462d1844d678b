"""HunyuanVideo's text encoders, tiny and random, as a pipeline's folder."""

from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

POOLED_SIZE = 20
"""More than the 16 of a token's state, so that the pooled state takes two rows."""

TEXT_SIZE = 16
NUM_PICTURE_STATES = 9
"""Patches of a picture: which neither 2 nor 4 divides."""

_SPECIAL = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<image>")
_START, _END = 127, 128


def save_tiny_llava(
    folder: Path, *, seed: int = 0, pooled_size: int = POOLED_SIZE, **processor: object
) -> Path:
    """The folder, in which a picture has nine states; `processor` changes what is done to it."""
    vision = transformers.CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=18,
        patch_size=6,
        projection_dim=4,
    )
    tokenizer = _tokenizer(folder / "tokenizer", adds_ends=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        llava = transformers.LlavaForConditionalGeneration(
            transformers.LlavaConfig(
                vision_config=vision,
                text_config=_language(),
                image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
                pad_token_id=0,
            )
        )
        llava.save_pretrained(folder / "text_encoder")
        _save_pooler(folder, pooled_size)
    transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 18}, crop_size={"height": 18, "width": 18}, **processor
    ).save_pretrained(folder / "image_processor")
    return folder


def save_tiny_llama(folder: Path) -> Path:
    """The folder, of text to video."""
    _tokenizer(folder / "tokenizer", adds_ends=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.LlamaModel(_language()).save_pretrained(folder / "text_encoder")
        _save_pooler(folder, POOLED_SIZE)
    return folder


def _language() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        vocab_size=140,
        hidden_size=TEXT_SIZE,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
    )


def _save_pooler(folder: Path, pooled_size: int) -> None:
    """CLIP's text model beside the other."""
    _tokenizer(folder / "tokenizer_2", adds_ends=True)
    clip = transformers.CLIPTextConfig(
        vocab_size=130,
        hidden_size=pooled_size,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=_END,
        bos_token_id=_START,
    )
    transformers.CLIPTextModel(clip).save_pretrained(folder / "text_encoder_2")


def _tokenizer(folder: Path, *, adds_ends: bool) -> transformers.PreTrainedTokenizerFast:
    """Knows letters and the instruction's marks, or letters and CLIP's two ends."""
    words = {"<pad>": 0, "<unk>": 1} | {chr(code): code for code in range(2, 127)}
    words |= {"<start>": _START, "<end>": _END}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if adds_ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<start> $A <end>", special_tokens=[("<start>", _START), ("<end>", _END)]
        )
    else:
        tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in _SPECIAL])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<end>" if adds_ends else "<pad>",
        unk_token="<unk>",
        padding_side="right",
    )
    made.save_pretrained(folder)
    return made
