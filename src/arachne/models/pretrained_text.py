"""Text encoders of transformers (T5, UMT5) behind our interface; loaded when first used."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arachne.core.errors import ConfigError
from arachne.models.diffusers_family import TextPadding
from arachne.models.pretrained_folder import content_digest, read_config

_SETTING = "model.text_encoder"
_CLASS_OF_TYPE: Mapping[str, str] = {"t5": "T5EncoderModel", "umt5": "UMT5EncoderModel"}
_TOKENIZER_FILES = ("tokenizer.json", "spiece.model")
_NEEDED = "'hashed', or a folder with a T5 or UMT5 encoder and its tokenizer"


@dataclass(frozen=True, kw_only=True)
class PretrainedTextEncoder:
    """A T5 or UMT5 encoder; `open_text_encoder` checks a folder and makes one.

    Attributes:
        folder: Where config.json and the weights lie.
        tokenizer_folder: Where the tokenizer lies.
        num_tokens: Rows of the result; a longer caption loses its end.
        text_size: Width of a token state.
        padding: What it makes of the padding after a caption.
        device: Where it runs.
    """

    folder: Path
    tokenizer_folder: Path
    num_tokens: int
    text_size: int
    padding: TextPadding = "masked"
    device: str = "cpu"

    @property
    def fingerprint(self) -> str:
        """Digest of config, weights and tokenizer, the number of tokens, and the padding."""
        padding = "" if self.padding == "masked" else f"{self.padding}-"
        return f"text-{self.num_tokens}-{padding}{self._digest}"

    @cached_property
    def _digest(self) -> str:
        return content_digest(*sorted({self.folder, self.tokenizer_folder}))

    @torch.no_grad()
    def encode(self, caption: str) -> np.ndarray:
        """Token states float32 [L, D]; what the rows after its last token hold, `padding` says."""
        tokens = self._tokenizer(
            clean_caption(caption),
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
        if self.padding != "kept":
            states_BLD = states_BLD * mask_BL[..., None]
        return states_BLD[0].to(torch.float32).cpu().numpy()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                str(self.tokenizer_folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f"{_SETTING}: no tokenizer can be loaded from {str(self.tokenizer_folder)!r}: "
                f"{error}"
            ) from error

    @cached_property
    def _encoder(self) -> Any:
        import transformers

        model_type = read_config(self.folder, setting=_SETTING, needed=_NEEDED)["model_type"]
        encoder_class = getattr(transformers, _CLASS_OF_TYPE[model_type])
        try:
            encoder = encoder_class.from_pretrained(str(self.folder), local_files_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{_SETTING} {str(self.folder)!r}: weights cannot be loaded: {error}"
            ) from error
        return encoder.to(self.device, torch.float32).eval().requires_grad_(False)


def clean_caption(caption: str) -> str:
    """HTML entities resolved and runs of whitespace made one space, as Wan's pipeline does it.

    The pipeline also repairs mis-decoded text with ftfy where that is installed; this does not.
    """
    return " ".join(html.unescape(html.unescape(caption)).split())


def open_text_encoder(
    folder: Path, *, num_tokens: int, padding: TextPadding = "masked", device: str = "cpu"
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
    if find_spec("transformers") is None:
        raise ConfigError(
            f"{_SETTING} {str(folder)!r} needs the package transformers, which is not installed; "
            "run: pip install 'arachne[pretrained]'"
        )
    tokenizer_folder = tokenizer_folder if tokenizer_folder.is_dir() else folder
    # Without these files transformers 5 makes an empty tokenizer that knows no word, in silence.
    if not any((tokenizer_folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(
            f"{_SETTING}: {str(tokenizer_folder)!r} holds no tokenizer; it needs one of "
            f"{', '.join(_TOKENIZER_FILES)}"
        )
    return PretrainedTextEncoder(
        folder=folder,
        tokenizer_folder=tokenizer_folder,
        num_tokens=num_tokens,
        text_size=int(config["d_model"]),
        padding=padding,
        device=device,
    )
