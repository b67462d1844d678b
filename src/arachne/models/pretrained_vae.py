"""Video autoencoders of diffusers behind our interface; the weights are loaded when first used.

Shape suffixes:
  B batch (one clip)   C channels   F frames   H height   W width
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from arachne.core.errors import ConfigError, DataError
from arachne.core.units import count_text
from arachne.models.autoencoder_classes import AUTOENCODERS
from arachne.models.pretrained_folder import content_digest, loaded_part, read_config
from arachne.models.tile_grid import TileGrid

_SETTING = "model.video_encoder"

_NEEDED = f"'dct', or a diffusers folder with one of {', '.join(AUTOENCODERS)}"


@dataclass(frozen=True, kw_only=True)
class PretrainedVideoEncoder:
    """A video autoencoder of diffusers; `open_video_encoder` checks a folder and makes one.

    Latents are the mode of the encoder's distribution, or a sample of it, normalised as diffusers'
    pipelines undo it:

        latents = (mode − latents_mean) · scaling_factor / latents_std

    with what the folder has of these three: Wan and Mochi mean and deviation by channel in the
    config, LTX in the weights, CogVideoX and HunyuanVideo a factor alone.

    Attributes:
        class_name: The class in diffusers.
        folder: Where config.json and the weights lie.
        latent_channels: Channels of the latents.
        temporal_compression: Frames per latent frame, the first frame apart.
        spatial_compression: Pixels per latent, on each side.
        device: Where it runs.
        latents: The `mode`, which is the mean, or a `sample`, whose noise depends on the frames
            alone: a clip has the same latents wherever and whenever it is encoded.
        is_tiled: Whether frames larger than diffusers' tile of the class are encoded and decoded
            in tiles, which takes less memory and gives slightly other latents.
        condition_scale: What latents that show a first frame are multiplied by as well.
    """

    class_name: str
    folder: Path
    latent_channels: int
    temporal_compression: int
    spatial_compression: int
    device: str = "cpu"
    latents: Literal["mode", "sample"] = "mode"
    is_tiled: bool = False
    condition_scale: float = 1.0

    @property
    def fingerprint(self) -> str:
        """Digest of the config and of all weights, and what else its latents depend on."""
        sampled = "-sample" if self.latents == "sample" else ""
        return f"vae-{self._digest}{sampled}{'-tiled' if self.is_tiled else ''}"

    @cached_property
    def _digest(self) -> str:
        return content_digest(self.folder)

    @torch.no_grad()
    def encode(self, frames: np.ndarray) -> np.ndarray:
        """Latents float32 [C, f, h, w] of frames uint8 [F, H, W, 3].

        Raises:
            DataError: Frame count or sides do not fit the compression.
        """
        grid = self._grid(*frames.shape[1:3])
        if grid is not None:
            shares = [self.encode_tile(frames, index) for index in range(grid.num_tiles)]
            return self.join_tiles(frames, shares)
        return self._latents(frames, self._distribution(self._pixels(frames)))

    @property
    def can_share(self) -> bool:
        """See `TiledEncoder`."""
        return self.is_tiled

    def tile_shapes(self, num_frames: int, height: int, width: int) -> list[tuple[int, ...]]:
        """See `TiledEncoder`: mean and logarithm of the variance of each latent, [2C, f, h, w]."""
        grid = self._grid(height, width)
        boxes = [grid.box(index) for index in range(grid.num_tiles)] if grid else []
        sides = [(rows.stop - rows.start, cols.stop - cols.start) for rows, cols in boxes]
        frames = (num_frames - 1) // self.temporal_compression + 1
        side = self.spatial_compression
        return [
            (2 * self.latent_channels, frames, high // side, wide // side)
            for high, wide in sides or [(height, width)]
        ]

    @torch.no_grad()
    def encode_tile(self, frames: np.ndarray, index: int) -> np.ndarray:
        """See `TiledEncoder`.

        Raises:
            DataError: Frame count or sides do not fit the compression.
        """
        grid = self._grid(*frames.shape[1:3])
        self._check_frames(frames)
        if grid is not None:
            rows, columns = grid.box(index)
            frames = frames[:, rows, columns]
        self._vae.disable_tiling()
        try:
            return self._distribution(self._pixels(frames)).parameters[0].cpu().numpy()
        finally:
            self._vae.enable_tiling()

    @torch.no_grad()
    def join_tiles(self, frames: np.ndarray, tiles: Sequence[np.ndarray]) -> np.ndarray:
        """See `TiledEncoder`; neighbours are blended where they overlap, by diffusers' own."""
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

        parameters = [torch.tensor(tile, device=self.device)[None] for tile in tiles]
        grid = self._grid(*frames.shape[1:3])
        whole = parameters[0] if grid is None else self._blended(grid, parameters)
        return self._latents(frames, DiagonalGaussianDistribution(whole))

    def _blended(self, grid: TileGrid, tiles: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor of overlapping tiles [B, 2C, f, h, w]; changes them."""
        side, across = self.spatial_compression, len(grid.lefts)
        high, wide = grid.stride_height // side, grid.stride_width // side
        lap_high, lap_wide = grid.tile_height // side - high, grid.tile_width // side - wide
        rows: list[torch.Tensor] = []
        for first in range(0, len(tiles), across):
            row: list[torch.Tensor] = []
            for index in range(first, first + across):
                tile = tiles[index]
                if first:
                    tile = self._vae.blend_v(tiles[index - across], tile, lap_high)
                if index > first:
                    tile = self._vae.blend_h(tiles[index - 1], tile, lap_wide)
                row.append(tile[..., :high, :wide])
            rows.append(torch.cat(row, dim=-1))
        return torch.cat(rows, dim=-2)

    def _grid(self, height: int, width: int) -> TileGrid | None:
        """Where such frames are cut, as diffusers cuts them; None if they are not."""
        vae = self._vae if self.is_tiled else None
        if vae is None or (
            height <= vae.tile_sample_min_height and width <= vae.tile_sample_min_width
        ):
            return None

        def stride(side: str) -> int:
            given: int | None = getattr(vae, f"tile_sample_stride_{side}", None)
            if given:
                return given
            overlap: float | None = getattr(vae, "tile_overlap_factor", None)
            if overlap is None:
                overlap = float(getattr(vae, f"tile_overlap_factor_{side}"))
            return int(getattr(vae, f"tile_sample_min_{side}") * (1.0 - overlap))

        scale = vae.config.get("patch_size") if self.class_name == "AutoencoderKLWan" else None
        scale = scale or 1  # Wan 2.2 counts the sides of tiles in patches
        return TileGrid(
            height=height,
            width=width,
            tile_height=scale * vae.tile_sample_min_height,
            tile_width=scale * vae.tile_sample_min_width,
            stride_height=scale * stride("height"),
            stride_width=scale * stride("width"),
        )

    def _latents(self, frames: np.ndarray, distribution: Any) -> np.ndarray:
        """The distribution's mode, or a sample of it; normalised."""
        latents_BCFHW = distribution.mode()
        if self.latents == "sample":
            noise_BCFHW = _noise_of(frames, tuple(latents_BCFHW.shape)).to(self.device)
            latents_BCFHW = latents_BCFHW + distribution.std * noise_BCFHW
        return self._normalised(latents_BCFHW)

    @torch.no_grad()
    def encode_first(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """Latents of a clip that is `frame` [H, W, 3] first, and grey (0 of -1 … 1) for the rest.

        They are the mode's, and those of `encode` but for `condition_scale`.

        Raises:
            DataError: The frame's sides do not fit the compression.
        """
        first_BC1HW = self._pixels(frame[None])
        later = (num_frames - 1) // self.temporal_compression * self.temporal_compression
        pixels_BCFHW = torch.nn.functional.pad(first_BC1HW, (0, 0, 0, 0, 0, later))
        shown = self._normalised(self._distribution(pixels_BCFHW).mode())
        return shown * np.float32(self.condition_scale)

    def _pixels(self, frames: np.ndarray) -> torch.Tensor:
        """Pixels from -1 to 1, as one batch [B, C, F, H, W]."""
        self._check_frames(frames)
        pixels_FHWC = torch.from_numpy(frames).to(self.device)
        return pixels_FHWC.permute(3, 0, 1, 2)[None].to(torch.float32) / 127.5 - 1.0

    def _distribution(self, pixels_BCFHW: torch.Tensor) -> Any:
        return self._vae.encode(pixels_BCFHW.contiguous()).latent_dist

    def _normalised(self, latents_BCFHW: torch.Tensor) -> np.ndarray:
        mean, std = self._mean_and_std
        return ((latents_BCFHW - mean) / std)[0].cpu().numpy()

    @torch.no_grad()
    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Frames uint8 [F, H, W, 3] of latents [C, f, h, w]."""
        mean, std = self._mean_and_std
        latents_BCFHW = torch.from_numpy(latents.astype(np.float32))[None].to(self.device)
        # LTX's later decoders remove noise as well; none was added: its pipeline's default.
        timestep = (
            (torch.zeros(1, device=self.device),)
            if self._vae.config.get("timestep_conditioning")
            else ()
        )
        pixels_BCFHW = self._vae.decode(latents_BCFHW * std + mean, *timestep).sample
        pixels_FHWC = ((pixels_BCFHW[0].clamp(-1.0, 1.0) + 1.0) * 127.5).round().permute(1, 2, 3, 0)
        return pixels_FHWC.to(torch.uint8).cpu().numpy()

    def _check_frames(self, frames: np.ndarray) -> None:
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
            raise DataError(
                f"frames are {frames.dtype} of shape {frames.shape}; encoding needs uint8 "
                "[frames, height, width, 3]"
            )
        step, side = self.temporal_compression, self.spatial_compression
        below = (len(frames) - 1) // step * step + 1
        if below != len(frames):
            raise DataError(
                f"{len(frames)} frames are not {step}k+1; nearest that fit: "
                f"{below} or {below + step}"
            )
        if frames.shape[1] % side or frames.shape[2] % side:
            raise DataError(
                f"frames of {frames.shape[2]}x{frames.shape[1]} pixels: both sides must be "
                f"multiples of {side}"
            )

    @cached_property
    def _vae(self) -> Any:
        import diffusers

        loader = getattr(diffusers, self.class_name)
        vae = loaded_part(loader, self.folder, setting=_SETTING, torch_dtype=torch.float32)
        _check_scale(vae.config, self.latent_channels, self.folder)  # now with the class's defaults
        if self.is_tiled:
            vae.enable_tiling()
        return vae.to(self.device).eval().requires_grad_(False)

    @cached_property
    def _mean_and_std(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What is subtracted and divided by, shaped to broadcast over [B, C, F, H, W]."""

        def by_channel(name: str, otherwise: float) -> torch.Tensor:
            values = self._vae.config.get(name)
            if values is None:
                values = dict(self._vae.named_buffers()).get(name)
            found = torch.as_tensor([otherwise] if values is None else values)
            return found.to(self.device, torch.float32).view(1, -1, 1, 1, 1)

        factor = self._vae.config.get("scaling_factor", 1.0)
        return by_channel("latents_mean", 0.0), by_channel("latents_std", 1.0) / factor


def _noise_of(frames: np.ndarray, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard normal noise that depends on a clip's pixels and on nothing else."""
    digest = hashlib.sha256(frames.tobytes()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))


def open_video_encoder(
    folder: Path,
    *,
    device: str = "cpu",
    latents: Literal["mode", "sample"] = "mode",
    is_tiled: bool = False,
) -> PretrainedVideoEncoder:
    """The autoencoder in a diffusers pipeline's folder (`vae` in it), or in the folder itself.

    Reads only config.json; weights are loaded when the first clip is encoded.

    Raises:
        ConfigError: The folder holds no such autoencoder, or one that scales its latents by what
            is no scale.
    """
    if (folder / "vae" / "config.json").is_file():
        folder = folder / "vae"
    found = read_config(folder, setting=_SETTING, needed=_NEEDED)
    class_name = str(found.get("_class_name"))
    if class_name not in AUTOENCODERS:
        raise ConfigError(f"{_SETTING} {str(folder)!r} holds a {class_name}; name {_NEEDED}")
    kind = AUTOENCODERS[class_name]
    if is_tiled and not kind.can_tile:
        raise ConfigError(
            f"model.video_tiling is true, but diffusers misplaces the tiles of {class_name}; "
            "set it to false"
        )
    config = kind.whole(found)
    temporal, spatial = kind.compression(config)
    latent_channels = int(config[kind.channels])
    _check_scale(config, latent_channels, folder)
    return PretrainedVideoEncoder(
        class_name=class_name,
        folder=folder,
        latent_channels=latent_channels,
        temporal_compression=temporal,
        spatial_compression=spatial,
        device=device,
        latents=latents,
        is_tiled=is_tiled,
        condition_scale=_condition_scale(config),
    )


def _check_scale(config: Mapping[str, Any], latent_channels: int, folder: Path) -> None:
    """Refuse a mean, a deviation or a factor that latents cannot be normalised with.

    Raises:
        ConfigError: Names it.
    """
    counts = {"latents_mean": latent_channels, "latents_std": latent_channels, "scaling_factor": 1}
    for name, count in counts.items():
        found = config.get(name)
        if found is None and not (name == "scaling_factor" and name in config):
            continue
        values: Any = [found] if name == "scaling_factor" else found
        is_usable = (
            isinstance(values, (list, tuple))
            and len(values) == count
            and all(isinstance(value, (int, float)) and isfinite(value) for value in values)
        )
        if not is_usable or (name != "latents_mean" and min(values) <= 0.0):
            needed = count_text(count, "finite number")
            needed += "" if name == "latents_mean" else " above 0"
            raise ConfigError(
                f"{_SETTING} {str(folder)!r}: config.json has {name} = {found!r:.80}, but its "
                f"{count_text(latent_channels, 'latent channel')} need {needed}; take the "
                "config.json that was published with the weights"
            )


def _condition_scale(config: Mapping[str, Any]) -> float:
    """CogVideoX's image-to-video models were trained with first frames / factor, clips · factor.

    Source: `CogVideoXImageToVideoPipeline.prepare_latents`.
    """
    factor = config.get("scaling_factor", 1.0)
    return 1.0 / factor**2 if config.get("invert_scale_latents") else 1.0
