"""HunyuanVideo's text encoder for image to video: LLaVA sees the first frame, then reads a caption.

A caption's states are then those of one clip. They come after some of the picture's own states, as
`HunyuanVideoImageToVideoPipeline` puts them together. A caption alone comes after a black picture:
so that pipeline makes the states that guidance compares to.

Shape suffixes:
  B batch   L text tokens   D text width   N tokens with the whole picture
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arachne.core.errors import ConfigError
from arachne.models.llava_sizes import (
    ASSISTANT_TOKENS,
    LLAVA,
    llava_text_size,
    num_picture_states,
    picture_side,
)
from arachne.models.pretrained_folder import (
    check_tokenizer,
    content_digest,
    loaded_part,
    loaded_tokenizer,
    need_transformers,
    read_config,
)
from arachne.models.pretrained_image import CLIP, centre, normalized, processor_of
from arachne.models.text_prompts import TextPrompt

_SETTING = "model.text_encoder"
_NEEDED = "a HunyuanVideo image-to-video pipeline's folder, with text_encoder/ and tokenizer/"
_END_OF_ROLE = "<|end_header_id|>"


@dataclass(frozen=True, kw_only=True)
class LlavaTextEncoder:
    """LLaVA with an instruction; `open_llava` checks a folder and makes one.

    Attributes:
        folder: Where config.json and the weights lie.
        tokenizer_folder: Where the tokenizer lies.
        num_tokens: Of a caption and all that follows it; a longer caption loses its end.
        text_size: Width of a token state.
        num_picture_states: What it makes of a picture.
        every: Of those every so many-th is taken.
        prompt: The instruction.
        side: Pixels on each side of what it sees.
        mean, std: Of a pixel's three colours, from 0 to 1.
        device: Where it runs.
    """

    folder: Path
    tokenizer_folder: Path
    num_tokens: int
    text_size: int
    num_picture_states: int
    every: int
    prompt: TextPrompt
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"

    @property
    def fingerprint(self) -> str:
        """Digest of config, weights and tokenizer, and all else that its states depend on."""
        colors = ",".join(f"{value:.4g}" for value in (*self.mean, *self.std))
        return f"text-{self.num_tokens}-{self.prompt.name}-{self.every}-{colors}-{self._digest}"

    @cached_property
    def _digest(self) -> str:
        return content_digest(self.folder, self.tokenizer_folder)

    def encode(self, caption: str) -> np.ndarray:
        """Token states float32 [L, D] of a caption after a black picture."""
        return self.encode_seeing(caption, np.zeros((self.side, self.side, 3), np.uint8))

    @torch.no_grad()
    def encode_seeing(self, caption: str, frame: np.ndarray) -> np.ndarray:
        """Token states float32 [L, D] of a caption after a picture uint8 [H, W, 3].

        The picture's come first; those after the caption's last token are zeros.
        """
        tokens = self._tokens(caption)
        ids_L, mask_L = tokens["input_ids"][0], tokens["attention_mask"][0]
        place = int(ids_L.eq(self._picture_token).nonzero()[0])
        ids_N = torch.cat(
            [
                ids_L[:place],
                ids_L.new_full((self.num_picture_states,), self._picture_token),
                ids_L[place + 1 :],
            ]
        )
        states_ND = self._states(ids_N, normalized(centre(frame, self.side), self.mean, self.std))
        shift = self.num_picture_states - 1
        words_LD = states_ND[shift:] * mask_L[:, None].to(states_ND)  # from the caption on
        answer = self._start_of_answer(ids_L)
        states_LD = torch.cat(
            [
                states_ND[place : place + self.num_picture_states : self.every],
                words_LD[self.prompt.num_leading : answer],
                words_LD[answer + ASSISTANT_TOKENS :],
            ]
        )
        return states_LD.cpu().numpy()

    def _tokens(self, caption: str) -> Any:
        """Tokens of the instruction and a caption, in which one stands for the picture."""
        mark = self._tokenizer.convert_ids_to_tokens(self._picture_token)
        while mark in caption:  # what is left may be one again
            caption = caption.replace(mark, "")
        tokens = self.prompt.tokens(self._tokenizer, caption, self.num_tokens)
        num_found = int(tokens["input_ids"].eq(self._picture_token).sum())
        if num_found != 1:
            raise ConfigError(
                f"{_SETTING}: the tokenizer in {str(self.tokenizer_folder)!r} finds {num_found} "
                f"pictures in HunyuanVideo's instruction, which has one; name {_NEEDED}"
            )
        return tokens

    def _start_of_answer(self, ids_L: torch.Tensor) -> int:
        """Where the tokens that begin the answer lie; the last ones of a caption that was cut."""
        ends = ids_L.eq(self._tokenizer.convert_tokens_to_ids(_END_OF_ROLE)).nonzero().flatten()
        after = int(ends[-1]) + 1 if len(ends) > 2 else len(ids_L)
        return after - ASSISTANT_TOKENS

    def _states(self, ids_N: torch.Tensor, pixels_B3HW: torch.Tensor) -> torch.Tensor:
        """States [N, D] of a layer before the last."""
        pad = getattr(self._encoder.config, "pad_token_id", None)
        mask_N = ids_N.ne(self._tokenizer.pad_token_id if pad is None else pad).long()
        places_N = (mask_N.cumsum(0) - 1).masked_fill(mask_N == 0, 1)
        layers = self._encoder(
            input_ids=ids_N[None].to(self.device),
            attention_mask=mask_N[None].to(self.device),
            position_ids=places_N[None].to(self.device),
            pixel_values=pixels_B3HW.to(self.device),
            output_hidden_states=True,
            logits_to_keep=1,  # none is wanted
        ).hidden_states
        return layers[-(self.prompt.num_skipped_layers + 1)][0].to("cpu", torch.float32)

    @cached_property
    def _picture_token(self) -> int:
        return int(self._encoder.config.image_token_id)

    @cached_property
    def _tokenizer(self) -> Any:
        return loaded_tokenizer(self.tokenizer_folder, setting=_SETTING)

    @cached_property
    def _encoder(self) -> Any:
        from transformers import LlavaForConditionalGeneration

        encoder = loaded_part(LlavaForConditionalGeneration, self.folder, setting=_SETTING)
        return encoder.to(self.device, torch.float32).eval().requires_grad_(False)


def is_llava(folder: Path) -> bool:
    """Whether a pipeline's folder has LLaVA as its text encoder."""
    if not (folder / "text_encoder" / "config.json").is_file():
        return False
    config = read_config(folder / "text_encoder", setting=_SETTING, needed=_NEEDED)
    return config.get("model_type") == LLAVA


def open_llava(
    folder: Path, *, num_tokens: int, prompt: TextPrompt, every: int, device: str = "cpu"
) -> LlavaTextEncoder:
    """The text encoder of an image-to-video pipeline's folder.

    Reads only configuration files; weights are loaded when the first caption is encoded.

    Raises:
        ConfigError: A part is missing, or transformers is, or a caption gets too few tokens.
    """
    need_transformers(folder, setting=_SETTING)
    found, tokenizer = folder / "text_encoder", folder / "tokenizer"
    config = read_config(found, setting=_SETTING, needed=_NEEDED)
    check_tokenizer(tokenizer, setting=_SETTING, needed=_NEEDED)
    if num_tokens <= ASSISTANT_TOKENS:
        raise ConfigError(
            f"model.text_tokens is {num_tokens}, of which {ASSISTANT_TOKENS} are left out after a "
            "caption; set more, 256 for published models"
        )
    side = picture_side(config)
    processor = processor_of(folder, CLIP, setting=_SETTING, side=side)
    return LlavaTextEncoder(
        folder=found,
        tokenizer_folder=tokenizer,
        num_tokens=num_tokens,
        text_size=llava_text_size(config),
        num_picture_states=num_picture_states(config),
        every=every,
        prompt=prompt,
        side=side,
        mean=processor.mean,
        std=processor.std,
        device=device,
    )
