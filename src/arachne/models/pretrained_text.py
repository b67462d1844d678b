"""Text encoders of transformers (T5, UMT5, LLaMA, Qwen2.5-VL's) behind our interface.

They are loaded when first used.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arachne.core.errors import ConfigError
from arachne.models.diffusers_family import TextPadding
from arachne.models.pretrained_folder import (
    check_tokenizer,
    content_digest,
    loaded_part,
    loaded_tokenizer,
    need_transformers,
    read_config,
)
from arachne.models.text_prompts import TextPrompt

_SETTING = "model.text_encoder"
_CLASS_OF_TYPE: Mapping[str, str] = {
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "llama": "LlamaModel",
    "qwen2_5_vl_text": "Qwen2_5_VLTextModel",
}
_READS_ALONE = ("t5", "umt5")
"""Encoders that were not trained to follow instructions read a caption by itself."""

_SIZE_OPTIONS = ("d_model", "hidden_size")
_NEEDED = "'hashed', or a folder with a T5, UMT5, LLaMA or Qwen2.5-VL encoder and its tokenizer"


@dataclass(frozen=True, kw_only=True)
class PretrainedTextEncoder:
    """An encoder of `_CLASS_OF_TYPE`; `open_text_encoder` checks a folder and makes one.

    Attributes:
        folder: Where config.json and the weights lie.
        tokenizer_folder: Where the tokenizer lies.
        num_tokens: Rows of the result; a longer caption loses its end.
        text_size: Width of a token state.
        padding: What it makes of the padding after a caption.
        prompt: The instruction that a caption stands in; None for the caption alone.
        cleans_captions: Whether a caption by itself is read as `clean_caption` makes it.
        device: Where it runs.
    """

    folder: Path
    tokenizer_folder: Path
    num_tokens: int
    text_size: int
    padding: TextPadding = "masked"
    prompt: TextPrompt | None = None
    cleans_captions: bool = False
    device: str = "cpu"

    @property
    def fingerprint(self) -> str:
        """Digest of config, weights and tokenizer, and all else that its states depend on."""
        padding = "" if self.padding == "masked" else f"{self.padding}-"
        prompt = f"{self.prompt.name}-" if self.prompt else ""
        # Encoders of other families cleaned captions too once; their states are not the same.
        raw = "" if self.cleans_captions or self.prompt else "raw-"
        return f"text-{self.num_tokens}-{padding}{prompt}{raw}{self._digest}"

    @cached_property
    def _digest(self) -> str:
        return content_digest(*sorted({self.folder, self.tokenizer_folder}))

    @torch.no_grad()
    def encode(self, caption: str) -> np.ndarray:
        """Token states float32 [L, D]; what the rows after its last token hold, `padding` says."""
        if self.prompt is None:
            states_BLD, mask_BL = self._states(caption)
        else:
            states_BLD, mask_BL = self._states_in(self.prompt, caption)
        if self.padding != "kept":
            states_BLD = states_BLD * mask_BL[..., None]
        return states_BLD[0].to(torch.float32).cpu().numpy()

    def _states(self, caption: str) -> tuple[torch.Tensor, torch.Tensor]:
        """States of a caption by itself, and which of them are its own."""
        tokens = self._tokenizer(
            clean_caption(caption) if self.cleans_captions else caption,
            max_length=self.num_tokens,
            truncation=True,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="pt",
        )
        mask_BL = tokens["attention_mask"].to(self.device)
        states_BLD = self._encoder(
            input_ids=tokens["input_ids"].to(self.device),
            attention_mask=mask_BL if self.padding == "masked" else None,
        ).last_hidden_state
        return states_BLD, mask_BL

    def _states_in(self, prompt: TextPrompt, caption: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The same within an instruction."""
        tokens = prompt.tokens(self._tokenizer, caption, self.num_tokens)
        mask_BL = tokens["attention_mask"].to(self.device)
        layers = self._encoder(
            input_ids=tokens["input_ids"].to(self.device),
            attention_mask=mask_BL,
            output_hidden_states=True,
        ).hidden_states
        states_BLD = layers[-(prompt.num_skipped_layers + 1)]
        return states_BLD[:, prompt.num_leading :], mask_BL[:, prompt.num_leading :]

    @cached_property
    def _tokenizer(self) -> Any:
        return loaded_tokenizer(self.tokenizer_folder, setting=_SETTING)

    @cached_property
    def _encoder(self) -> Any:
        import transformers

        model_type = read_config(self.folder, setting=_SETTING, needed=_NEEDED)["model_type"]
        encoder_class = getattr(transformers, _CLASS_OF_TYPE[model_type])
        encoder = loaded_part(encoder_class, self.folder, setting=_SETTING)
        return encoder.to(self.device, torch.float32).eval().requires_grad_(False)


def clean_caption(caption: str) -> str:
    """HTML entities resolved and runs of whitespace made one space, as Wan's pipeline does it.

    The pipeline also repairs mis-decoded text with ftfy where that is installed; this does not.
    """
    return " ".join(html.unescape(html.unescape(caption)).split())


def open_text_encoder(
    folder: Path,
    *,
    num_tokens: int,
    padding: TextPadding = "masked",
    prompt: TextPrompt | None = None,
    cleans_captions: bool = False,
    device: str = "cpu",
) -> PretrainedTextEncoder:
    """The encoder in a diffusers pipeline's folder (`text_encoder` in it), or in the folder itself.

    The tokenizer is looked for in `tokenizer` beside the encoder, then in the encoder's folder.
    Reads only config.json; weights are loaded when the first caption is encoded.

    Raises:
        ConfigError: The folder holds no such encoder, or transformers is not installed.
    """
    tokenizer_folder = folder / "tokenizer"
    if (folder / "text_encoder" / "config.json").is_file():
        folder = folder / "text_encoder"
    config = read_config(folder, setting=_SETTING, needed=_NEEDED)
    if config.get("model_type") not in _CLASS_OF_TYPE:
        raise ConfigError(
            f"{_SETTING} {str(folder)!r} holds a {config.get('model_type')} model; name {_NEEDED}"
        )
    need_transformers(folder, setting=_SETTING)
    tokenizer_folder = tokenizer_folder if tokenizer_folder.is_dir() else folder
    check_tokenizer(tokenizer_folder, setting=_SETTING, needed=_NEEDED)
    return PretrainedTextEncoder(
        folder=folder,
        tokenizer_folder=tokenizer_folder,
        num_tokens=num_tokens,
        text_size=_text_size(config, folder),
        padding=padding,
        prompt=None if config["model_type"] in _READS_ALONE else prompt,
        cleans_captions=cleans_captions,
        device=device,
    )


def _text_size(config: Mapping[str, Any], folder: Path) -> int:
    for name in _SIZE_OPTIONS:
        if name in config:
            return int(config[name])
    raise ConfigError(
        f"{_SETTING} {str(folder)!r}: config.json has none of {', '.join(_SIZE_OPTIONS)}"
    )
