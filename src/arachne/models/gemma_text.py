"""Gemma 3 with LTX-2's connectors behind our interface; they are loaded when first used.

The connectors are a part of the pipeline: they mix all layers of Gemma into one state a token, put
learned registers where padding was, and let tokens and registers attend to each other. Nothing
trains them, here as in LTX-2's own trainer, so what they give is cached.

Shape suffixes:
  B batch (one caption)   L text tokens   G Gemma's width   K its layers   D text width
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arachne.core.errors import ConfigError
from arachne.models.pretrained_folder import (
    check_tokenizer,
    content_digest,
    loaded_part,
    loaded_tokenizer,
    need_transformers,
    read_config,
)

_SETTING = "model.text_encoder"
_NEEDED = "an LTX-2 pipeline's folder, with text_encoder/, tokenizer/ and connectors/"


@dataclass(frozen=True, kw_only=True)
class GemmaTextEncoder:
    """Gemma and the video's connector; `open_gemma` checks a folder and makes one.

    Attributes:
        folder: A pipeline's.
        num_tokens: Rows of the result; a longer caption loses its end.
        text_size: Width of a token state.
        device: Where it runs.
    """

    folder: Path
    num_tokens: int
    text_size: int
    device: str = "cpu"

    @property
    def fingerprint(self) -> str:
        """Digest of all weights, configs and the tokenizer, and the number of tokens."""
        return f"text-{self.num_tokens}-gemma-{self._digest}"

    @cached_property
    def _digest(self) -> str:
        parts = ("text_encoder", "tokenizer", "connectors")
        return content_digest(*(self.folder / part for part in parts))

    @torch.no_grad()
    def encode(self, caption: str) -> np.ndarray:
        """Token states float32 [L, D]: the caption's tokens first, then registers."""
        tokens = self._tokenizer(
            [caption.strip()],
            padding="max_length",
            max_length=self.num_tokens,
            truncation=True,
            return_tensors="pt",
        )
        mask_BL = tokens["attention_mask"].to(self.device)
        layers = self._encoder(
            input_ids=tokens["input_ids"].to(self.device),
            attention_mask=mask_BL,
            output_hidden_states=True,
        ).hidden_states
        states_BLGK = torch.stack(layers, dim=-1)
        states_BLD, *_ = self._connectors(states_BLGK.flatten(2), mask_BL, padding_side="left")
        return states_BLD[0].float().cpu().numpy()

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = loaded_tokenizer(self.folder / "tokenizer", setting=_SETTING)
        tokenizer.padding_side = "left"  # as Gemma was trained, and as the pipeline sets it
        return tokenizer

    @cached_property
    def _encoder(self) -> Any:
        from transformers import Gemma3ForConditionalGeneration

        return self._frozen(self._loaded(Gemma3ForConditionalGeneration, "text_encoder"))

    @cached_property
    def _connectors(self) -> Any:
        from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

        return self._frozen(self._loaded(LTX2TextConnectors, "connectors"))

    def _frozen(self, module: Any) -> Any:
        return module.to(self.device, torch.float32).eval().requires_grad_(False)

    def _loaded(self, loader: Any, part: str) -> Any:
        return loaded_part(loader, self.folder / part, setting=_SETTING)


def is_gemma(folder: Path) -> bool:
    """Whether a pipeline's folder has Gemma 3 as its text encoder."""
    config = folder / "text_encoder" / "config.json"
    if not config.is_file():
        return False
    found = read_config(config.parent, setting=_SETTING, needed=_NEEDED)
    return found.get("model_type") == "gemma3"


def open_gemma(folder: Path, *, num_tokens: int, device: str = "cpu") -> GemmaTextEncoder:
    """The text encoder of an LTX-2 pipeline's folder.

    Reads only configuration files; weights are loaded when the first caption is encoded.

    Raises:
        ConfigError: A part is missing, or the connectors are those of another version, or do not
            fit the number of tokens.
    """
    need_transformers(folder, setting=_SETTING)
    config = read_config(folder / "connectors", setting=_SETTING, needed=_NEEDED)
    if config.get("per_modality_projections"):
        raise ConfigError(
            f"{_SETTING} {str(folder)!r} has the connectors of LTX-2.3 or later; name {_NEEDED} of "
            "version 2.0"
        )
    check_tokenizer(folder / "tokenizer", setting=_SETTING, needed=_NEEDED)
    num_registers = config.get("video_connector_num_learnable_registers", 128)
    if not num_registers or num_tokens % num_registers:
        raise ConfigError(
            f"model.text_tokens is {num_tokens}, and the connectors have {num_registers} registers "
            "to fill it with; set a multiple of that, 1024 for published models"
        )
    heads = config.get("video_connector_num_attention_heads", 30)
    head_size = config.get("video_connector_attention_head_dim", 128)
    return GemmaTextEncoder(
        folder=folder, num_tokens=num_tokens, text_size=heads * head_size, device=device
    )
