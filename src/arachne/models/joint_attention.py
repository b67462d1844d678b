"""Joint attention that masks padded text as keys, for classes that do it in a way no split can.

Mochi drops padding clip by clip, HunyuanVideo 1.5 masks pairs of tokens; both look at the tokens
that they happen to hold. A mask over the keys of all tokens gives video and words the same, and can
be split: padding is seen by no one, so that what it sees itself does not matter.

Shape suffixes:
  B batch   L tokens held of a stream   D width   N heads   H head size
  S all tokens of video and text
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Rotate = Callable[[Tensor, Any], Tensor]
"""Turns queries or keys [B, L, N, H] by the model's rotary embedding."""


@dataclass(slots=True)
class _Clip:
    """The clips of the forward pass that runs just now."""

    num_video_tokens: int = 0


def mask_keys(module: nn.Module, *, patch_size: int, mask_argument: str, rotate: Rotate) -> None:
    """Make a model's blocks attend with a mask over keys, made of the text mask [B, L] they get.

    Args:
        module: Has `transformer_blocks`, whose attention module is the one with `add_k_proj`.
        patch_size: Latents per video token.
        mask_argument: Name of the text mask in a block's forward.
        rotate: The model's rotary embedding.
    """
    clip = _Clip()

    def count_video(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clip.num_video_tokens = kwargs["hidden_states"][0, 0].numel() // patch_size

    module.register_forward_pre_hook(count_video, with_kwargs=True)
    blocks: Any = module.get_submodule("transformer_blocks")
    position = list(inspect.signature(blocks[0].forward).parameters).index(mask_argument)

    def mask_all(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        text_BL = args[position] if position < len(args) else kwargs[mask_argument]
        shape = (len(text_BL), clip.num_video_tokens)
        video_BL = torch.ones(shape, dtype=torch.bool, device=text_BL.device)
        mask_B11S = torch.cat([video_BL, text_BL.bool()], dim=1)[:, None, None]
        if position < len(args):
            return (*args[:position], mask_B11S, *args[position + 1 :]), kwargs
        return args, kwargs | {mask_argument: mask_B11S}

    for block in blocks:
        block.register_forward_pre_hook(mask_all, with_kwargs=True)
        for attention in block.modules():
            if hasattr(attention, "add_k_proj"):
                attention.processor = KeyMaskedAttention(rotate)


class KeyMaskedAttention:
    """An attention processor of diffusers: video and text, one after the other, attend to both."""

    def __init__(self, rotate: Rotate) -> None:
        self.rotate = rotate

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor,
        image_rotary_emb: Any,
    ) -> tuple[Tensor, Tensor]:
        """Video and text [B, L, D], as `hidden_states` and `encoder_hidden_states` came in.

        diffusers reads these names; `attention_mask` is [B, 1, 1, S].
        """

        def heads(layer: nn.Module, tokens_BLD: Tensor) -> Tensor:
            return layer(tokens_BLD).unflatten(2, (attn.heads, -1))

        video_q = self.rotate(attn.norm_q(heads(attn.to_q, hidden_states)), image_rotary_emb)
        video_k = self.rotate(attn.norm_k(heads(attn.to_k, hidden_states)), image_rotary_emb)
        text_q = attn.norm_added_q(heads(attn.add_q_proj, encoder_hidden_states))
        text_k = attn.norm_added_k(heads(attn.add_k_proj, encoder_hidden_states))
        video_v = heads(attn.to_v, hidden_states)
        text_v = heads(attn.add_v_proj, encoder_hidden_states)
        query_BNLH, key_BNLH, value_BNLH = (
            torch.cat(streams, dim=1).transpose(1, 2)
            for streams in ((video_q, text_q), (video_k, text_k), (video_v, text_v))
        )
        mixed_BNLH = nn.functional.scaled_dot_product_attention(
            query_BNLH, key_BNLH, value_BNLH, attn_mask=attention_mask
        )
        lengths = [hidden_states.shape[1], encoder_hidden_states.shape[1]]
        video, text = mixed_BNLH.transpose(1, 2).flatten(2).split(lengths, dim=1)
        is_last = getattr(attn, "to_add_out", None) is None
        return attn.to_out[0](video), text if is_last else attn.to_add_out(text)
