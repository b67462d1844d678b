"""One state of a whole caption beside those of its tokens, in one array; for HunyuanVideo.

So a caption is cached, handed over, dropped and guided as in families without such a state. The
first rows of the array hold the pooled state, filled up with zeros; those of the tokens follow.

Shape suffixes:
  L text tokens   D text width   P width of the pooled state   R rows of the array
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arachne.core.errors import ConfigError
from arachne.core.model_shape import pooled_rows
from arachne.models.interface import TextEncoder
from arachne.models.llava_text import LlavaTextEncoder
from arachne.models.pretrained_folder import (
    check_tokenizer,
    content_digest,
    loaded_part,
    loaded_tokenizer,
    need_transformers,
    read_config,
)

_SETTING = "model.text_encoder"
_NEEDED = (
    "a pipeline's folder that also has text_encoder_2/ and tokenizer_2/ with CLIP's text model"
)

_CLIP_TOKENS = 77
"""What `HunyuanVideoPipeline` pads and cuts a caption to; CLIP has no position beyond."""


@dataclass(frozen=True, kw_only=True)
class ClipTextPooler:
    """CLIP's text model, of which the state at the caption's end is taken; loaded when first used.

    Attributes:
        folder: Where config.json and the weights lie.
        tokenizer_folder: Where the tokenizer lies.
        pooled_size: Width of the state.
        device: Where it runs.
    """

    folder: Path
    tokenizer_folder: Path
    pooled_size: int
    device: str = "cpu"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of config, weights and tokenizer."""
        return content_digest(self.folder, self.tokenizer_folder)

    @torch.no_grad()
    def encode(self, caption: str) -> np.ndarray:
        """The pooled state float32 [P]."""
        tokens = self._tokenizer(
            caption,
            padding="max_length",
            max_length=_CLIP_TOKENS,
            truncation=True,
            return_tensors="pt",
        )
        found = self._encoder(tokens["input_ids"].to(self.device))
        return found.pooler_output[0].float().cpu().numpy()

    @cached_property
    def _tokenizer(self) -> Any:
        return loaded_tokenizer(self.tokenizer_folder, setting=_SETTING)

    @cached_property
    def _encoder(self) -> Any:
        from transformers import CLIPTextModel

        encoder = loaded_part(CLIPTextModel, self.folder, setting=_SETTING)
        return encoder.to(self.device, torch.float32).eval().requires_grad_(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledTextEncoder:
    """A text encoder whose array of a caption begins with a pooled state.

    Attributes:
        encoder: Makes the tokens' states.
        pooled_size: Width of the pooled state.
        pooler: Makes it; None takes the mean of the words' states, cut or filled up with zeros.
    """

    encoder: TextEncoder
    pooled_size: int
    pooler: ClipTextPooler | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of both encoders."""
        of_pooler = "mean" if self.pooler is None else self.pooler.fingerprint
        return f"pooled-{self.pooled_size}-{of_pooler}-{self.encoder.fingerprint}"

    @property
    def text_size(self) -> int:
        """Width of a token state, and of the array."""
        return self.encoder.text_size

    def encode(self, caption: str) -> np.ndarray:
        """The array float32 [R, D] of one caption."""
        states_LD = self.encoder.encode(caption)
        if self.pooler is None:
            num_words = max(1, int(np.flatnonzero(states_LD.any(axis=1)).max(initial=0)) + 1)
            mean_D = states_LD[:num_words].mean(axis=0)[: self.pooled_size]
            pooled_P = np.pad(mean_D, (0, self.pooled_size - len(mean_D)))
        else:
            pooled_P = self.pooler.encode(caption)
        return _after(pooled_P, states_LD)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledPictureReader:
    """The same of an encoder that also sees a picture, of which the pooled state knows nothing.

    Attributes:
        encoder: Makes the tokens' states.
        pooler: Makes the pooled state.
    """

    encoder: LlavaTextEncoder
    pooler: ClipTextPooler

    @property
    def fingerprint(self) -> str:
        """Digest of both encoders."""
        of_pooler = f"{self.pooler.pooled_size}-{self.pooler.fingerprint}"
        return f"pooled-{of_pooler}-{self.encoder.fingerprint}"

    @property
    def text_size(self) -> int:
        """Width of a token state, and of the array."""
        return self.encoder.text_size

    def encode(self, caption: str) -> np.ndarray:
        """The array float32 [R, D] of one caption after a black picture."""
        return _after(self.pooler.encode(caption), self.encoder.encode(caption))

    def encode_seeing(self, caption: str, frame: np.ndarray) -> np.ndarray:
        """The same after a picture uint8 [H, W, 3]."""
        return _after(self.pooler.encode(caption), self.encoder.encode_seeing(caption, frame))


def _after(pooled_P: np.ndarray, states_LD: np.ndarray) -> np.ndarray:
    """One array [R, D] with the states after the rows of the pooled one."""
    text_size = states_LD.shape[1]
    filled = np.zeros(pooled_rows(len(pooled_P), text_size) * text_size, np.float32)
    filled[: len(pooled_P)] = pooled_P
    return np.concatenate([filled.reshape(-1, text_size), states_LD])


def open_pooler(folder: Path, *, pooled_size: int, device: str = "cpu") -> ClipTextPooler:
    """CLIP's text model in a pipeline's folder, as its second text encoder.

    Reads only config.json; weights are loaded when the first caption is encoded.

    Raises:
        ConfigError: The folder holds none, or one of another width, or transformers is missing.
    """
    need_transformers(folder, setting=_SETTING)
    found, tokenizer = folder / "text_encoder_2", folder / "tokenizer_2"
    config: Mapping[str, Any] = read_config(found, setting=_SETTING, needed=_NEEDED)
    if config.get("model_type") != "clip_text_model":
        raise ConfigError(
            f"{_SETTING} {str(folder)!r} has a {config.get('model_type')!r} as text_encoder_2/; "
            f"name {_NEEDED}"
        )
    check_tokenizer(tokenizer, setting=_SETTING, needed=_NEEDED)
    if config.get("hidden_size") != pooled_size:
        raise ConfigError(
            f"{_SETTING} {str(found)!r} makes pooled states {config.get('hidden_size')} wide, and "
            f"the model takes {pooled_size}; name the encoders that it was trained with"
        )
    return ClipTextPooler(
        folder=found, tokenizer_folder=tokenizer, pooled_size=pooled_size, device=device
    )
