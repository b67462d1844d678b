"""A first frame that is kept goes in clean at timestep 0; a picture has nothing after it."""

import torch

from arachne.models.interface import FirstFrames
from arachne.models.kept_frame import (
    drawn,
    timesteps_of_tokens,
    towards_kept,
    with_kept_frame,
)


def normal(frames: int) -> torch.Tensor:
    return torch.randn(2, 3, frames, 4, 5, generator=torch.Generator().manual_seed(frames))


def test_the_first_frame_is_the_clips_own_at_timestep_0():
    latents, first = normal(3), FirstFrames(latents=normal(1))
    found = with_kept_frame(latents, first)
    timestep = timesteps_of_tokens(torch.tensor([700.0, 300.0]), 3, tokens_per_frame=4)
    assert torch.equal(found[:, :, :1], first.latents)
    assert torch.equal(found[:, :, 1:], latents[:, :, 1:])
    assert timestep.tolist() == [[0.0] * 4 + [level] * 8 for level in (700.0, 300.0)]
    assert torch.equal(drawn(latents), latents[:, :, 1:])


def test_a_picture_is_drawn_as_any_picture():
    latents, first = normal(1), FirstFrames(latents=normal(2)[:, :, :1])
    found = with_kept_frame(latents, first)
    timestep = timesteps_of_tokens(torch.tensor([700.0, 300.0]), 1, tokens_per_frame=2)
    assert torch.equal(found, latents)
    assert timestep.tolist() == [[700.0] * 2, [300.0] * 2]
    assert torch.equal(drawn(latents), latents)
    assert torch.equal(towards_kept(latents, latents, 0.5, first), latents)


def test_steps_of_any_length_end_at_the_kept_frame():
    latents, first = normal(3), FirstFrames(latents=normal(1))
    predicted = torch.ones_like(latents)
    for level, following in ((1.0, 0.7), (0.7, 0.1), (0.1, 0.0)):
        velocity = towards_kept(predicted, latents, level, first)
        assert torch.equal(velocity[:, :, 1:], predicted[:, :, 1:])
        latents = latents + (following - level) * velocity
    torch.testing.assert_close(latents[:, :, :1], first.latents)
