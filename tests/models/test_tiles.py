"""Tiles of one clip that are encoded apart are what diffusers makes of them in one go."""

import diffusers
import numpy as np
import pytest
import torch

from arachne.models.autoencoder_classes import AUTOENCODERS
from arachne.models.pretrained_vae import open_video_encoder
from arachne.models.tile_grid import TileGrid
from tests.models.tiny_autoencoders import TINY, save_tiny_autoencoder, tiny_autoencoder

CLASSES = [name for name, found in AUTOENCODERS.items() if found.can_tile]


def noise(num_frames: int, side: int) -> np.ndarray:
    shape = (num_frames, side, side, 3)
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def check(vae, frames: np.ndarray, latents: np.ndarray) -> None:
    """Against diffusers' own tiles, blended where they overlap; to rounding."""
    vae.enable_tiling()
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    with torch.no_grad():
        raw = vae.encode(pixels).latent_dist.mean[0]
    mean = vae.config.get("latents_mean") or dict(vae.named_buffers()).get("latents_mean")
    std = vae.config.get("latents_std") or dict(vae.named_buffers()).get("latents_std")
    expected = raw * vae.config.get("scaling_factor", 1.0)
    if mean is not None:
        mean, std = (torch.as_tensor(v).view(-1, 1, 1, 1) for v in (mean, std))
        expected = (raw - mean) / std * vae.config.get("scaling_factor", 1.0)
    torch.testing.assert_close(torch.from_numpy(latents), expected, rtol=1e-5, atol=1e-5)


def test_tiles_lie_row_by_row_and_the_last_ones_are_smaller():
    grid = TileGrid(
        height=48, width=80, tile_height=32, tile_width=32, stride_height=24, stride_width=24
    )
    boxes = [(r.start, r.stop, c.start, c.stop) for r, c in map(grid.box, range(grid.num_tiles))]
    rows, columns = [(0, 32), (24, 48)], [(0, 32), (24, 56), (48, 80), (72, 80)]
    assert boxes == [(*row, *column) for row in rows for column in columns]


@pytest.mark.parametrize("class_name", CLASSES)
def test_tiles_that_were_encoded_apart_give_what_diffusers_makes_of_them_in_one_go(
    tmp_path, class_name
):
    """In two rows and two columns; of more frames than some classes encode at once."""
    vae = tiny_autoencoder(class_name).eval()
    tiled = open_video_encoder(save_tiny_autoencoder(class_name, tmp_path), is_tiled=True)
    num_frames = 17 if class_name == "AutoencoderKLHunyuanVideo" else 1 + tiled.temporal_compression
    side = tiled.spatial_compression
    down, across = (
        least // side + 1 for least in (vae.tile_sample_min_height, vae.tile_sample_min_width)
    )
    frames = np.tile(noise(num_frames, side), (1, down, across, 1))
    shapes = tiled.tile_shapes(*frames.shape[:3])
    tiles = [tiled.encode_tile(frames, index) for index in range(len(shapes))]
    assert len(tiles) == 4
    assert [tile.shape for tile in tiles] == shapes
    latents = tiled.join_tiles(frames, tiles)
    check(vae, frames, latents)
    assert np.array_equal(tiled.encode(frames), latents)


def test_a_wan_that_counts_in_patches_is_cut_where_diffusers_cuts_it(tmp_path):
    config = {**TINY["AutoencoderKLWan"], "patch_size": 2, "in_channels": 12, "out_channels": 12}
    config |= {"scale_factor_spatial": 16, "is_residual": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = diffusers.AutoencoderKLWan(**config).eval()
    vae.save_pretrained(tmp_path)
    encoder = open_video_encoder(tmp_path, is_tiled=True)
    for width in (304, 528):  # in one piece by patches, and in two
        frames = noise(5, 16).repeat(width // 16, axis=2)
        latents = encoder.encode(frames)
        check(vae, frames, latents)
