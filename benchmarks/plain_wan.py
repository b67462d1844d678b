"""A transformer of Wan's size in plain torch, of which one GPU can run its share of any degree.

Written after the paper (arXiv 2503.20314): self-attention with rotary positions, cross-attention to
text, a feed-forward layer, all modulated by the timestep. It stands in for diffusers' model where
only torch is installed: products, kernels and what the backward keeps are alike; its numbers are
not compared with anyone's.

Shape suffixes:
  B batch   S tokens of the clip   L tokens of this rank   N heads   M heads of this rank
  H head size   D width   T text tokens
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, rms_norm, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

_PATCH_CHANNELS = 64
"""16 channels of a 1 × 2 × 2 patch."""

_TIMESTEP_SIZE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WanSize:
    """The sizes of a Wan transformer; the defaults are the 1.3B's."""

    num_layers: int = 30
    num_heads: int = 12
    head_size: int = 128
    ffn_size: int = 8960
    text_size: int = 4096
    text_tokens: int = 512

    @property
    def width(self) -> int:
        """Of the model."""
        return self.num_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one of `degree` ranks computes: its tokens in products, its heads in attention.

    Exchanges are left out: what a rank would receive is made of what it has.

    Attributes:
        degree: Ranks of the launch.
        recompute_layers: Blocks that are computed again in the backward.
    """

    degree: int = 1
    recompute_layers: int = 0


class _Attention(nn.Module):
    def __init__(self, size: WanSize) -> None:
        super().__init__()
        self.size = size
        self.query, self.key, self.value, self.out = (
            nn.Linear(size.width, size.width) for _ in range(4)
        )
        self.query_norm = nn.Parameter(torch.ones(size.width))
        self.key_norm = nn.Parameter(torch.ones(size.width))

    def projected(self, x_BLD: Tensor, other_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of one, keys and values of the other, as [B, N, L or T, H]."""
        width = (self.size.width,)
        query = rms_norm(self.query(x_BLD), width, self.query_norm)
        key = rms_norm(self.key(other_BTD), width, self.key_norm)
        by_head = (self.size.num_heads, self.size.head_size)
        of_query, of_key, of_value = (
            tensor.unflatten(-1, by_head).transpose(1, 2)
            for tensor in (query, key, self.value(other_BTD))
        )
        return of_query, of_key, of_value


class _Block(nn.Module):
    def __init__(self, size: WanSize) -> None:
        super().__init__()
        self.size = size
        self.attention = _Attention(size)
        self.cross_attention = _Attention(size)
        self.cross_norm = nn.LayerNorm(size.width, eps=1e-6)
        self.up = nn.Linear(size.width, size.ffn_size)
        self.down = nn.Linear(size.ffn_size, size.width)
        self.modulation = nn.Parameter(torch.zeros(1, 6, size.width))

    def forward(
        self, x_BLD: Tensor, text_BTD: Tensor, time_B6D: Tensor, turn_LH: Tensor, degree: int
    ) -> Tensor:
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (
            part.float() for part in (self.modulation + time_B6D).chunk(6, dim=1)
        )
        width = (self.size.width,)
        normed = (layer_norm(x_BLD.float(), width, eps=1e-6) * (1 + scale) + shift).type_as(x_BLD)
        mixed = self._self_attention(normed, turn_LH, degree)
        x_BLD = (x_BLD.float() + self.attention.out(mixed).float() * gate).type_as(x_BLD)
        query, key, value = self.cross_attention.projected(self.cross_norm(x_BLD), text_BTD)
        seen = scaled_dot_product_attention(query, key, value)
        x_BLD = x_BLD + self.cross_attention.out(seen.transpose(1, 2).flatten(2))
        normed = layer_norm(x_BLD.float(), width, eps=1e-6) * (1 + ffn_scale) + ffn_shift
        fed = self.down(gelu(self.up(normed.type_as(x_BLD)), approximate="tanh"))
        return (x_BLD.float() + fed.float() * ffn_gate).type_as(x_BLD)

    def _self_attention(self, x_BLD: Tensor, turn_LH: Tensor, degree: int) -> Tensor:
        query, key, value = self.attention.projected(x_BLD, x_BLD)
        query, key = _turned(query, turn_LH), _turned(key, turn_LH)
        if degree == 1:
            return scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        my_heads = ceil(self.size.num_heads / degree)
        query, key, value = (_as_heads(tensor, my_heads, degree) for tensor in (query, key, value))
        mixed = scaled_dot_product_attention(query, key, value)
        return mixed.reshape(mixed.shape[0], -1)[:, : x_BLD[0].numel()].view_as(x_BLD)


def _turned(x_BNLH: Tensor, turn_LH: Tensor) -> Tensor:
    """Rotary positions: pairs of channels are turned by an angle of the token's place."""
    cosine, sine = turn_LH.chunk(2, dim=-1)
    first, second = x_BNLH.float().chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return turned.type_as(x_BNLH)


def _as_heads(x_BNLH: Tensor, my_heads: int, degree: int) -> Tensor:
    """As large as all tokens of this rank's heads [B, M, S, H], out of its tokens of all heads."""
    batch, _, tokens, head_size = x_BNLH.shape
    flat = x_BNLH.reshape(batch, -1)
    needed = my_heads * tokens * degree * head_size
    # The rank with most heads holds more than its even share.
    flat = flat.repeat(1, ceil(needed / flat.shape[1])) if needed > flat.shape[1] else flat
    return flat[:, :needed].view(batch, my_heads, tokens * degree, head_size)


class PlainWan(nn.Module):
    """The transformer on the tokens that one rank has."""

    def __init__(self, size: WanSize) -> None:
        super().__init__()
        self.size = size
        width = size.width
        self.patch = nn.Linear(_PATCH_CHANNELS, width)
        self.text_in, self.text_out = nn.Linear(size.text_size, width), nn.Linear(width, width)
        self.time_in, self.time_out = nn.Linear(_TIMESTEP_SIZE, width), nn.Linear(width, width)
        self.time_blocks = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.num_layers))
        self.modulation = nn.Parameter(torch.zeros(1, 2, width))
        self.head = nn.Linear(width, _PATCH_CHANNELS)

    def forward(
        self, patches_BSC: Tensor, text_BTE: Tensor, time_BE: Tensor, share: Share
    ) -> Tensor:
        """This rank's part of the prediction [B, L, 64], from the whole clip's patches."""
        mine = ceil(patches_BSC.shape[1] / share.degree)
        x_BLD = self.patch(patches_BSC)[:, :mine]  # every rank embeds the whole clip
        text_BTD = self.text_out(gelu(self.text_in(text_BTE), approximate="tanh"))
        time_BD = self.time_out(silu(self.time_in(time_BE)))
        time_B6D = self.time_blocks(silu(time_BD)).unflatten(-1, (6, -1))
        turn_LH = _angles(mine, self.size.head_size, patches_BSC.device)
        for index, block in enumerate(self.blocks):
            inputs = (x_BLD, text_BTD, time_B6D, turn_LH, share.degree)
            if index < share.recompute_layers:
                x_BLD = checkpoint(block, *inputs, use_reentrant=False)
            else:
                x_BLD = block(*inputs)
        shift, scale = (self.modulation + time_BD.unsqueeze(1)).float().chunk(2, dim=1)
        normed = layer_norm(x_BLD.float(), (self.size.width,), eps=1e-6) * (1 + scale) + shift
        return self.head(normed.type_as(x_BLD))


def _angles(num_tokens: int, head_size: int, device: torch.device) -> Tensor:
    """Cosines and sines [L, H] of tokens in a row: the places do not change what work costs."""
    rates = 1e4 ** (-torch.arange(0, head_size, 2, device=device) / head_size)
    angles = torch.arange(num_tokens, device=device)[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def made_inputs(
    size: WanSize, num_tokens: int, num_clips: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Patches, text states and timestep embedding of random clips."""
    shapes = (
        (num_clips, num_tokens, _PATCH_CHANNELS),
        (num_clips, size.text_tokens, size.text_size),
        (num_clips, _TIMESTEP_SIZE),
    )
    first, second, third = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
    return first, second, third
