"""HunyuanVideo of `token_replace`: the first frame's tokens, wherever they lie, and pictures."""

from dataclasses import replace

import pytest
import torch

from arachne.core.launch_mode import LaunchMode
from arachne.models.diffusers_module import build_transformer
from arachne.models.interface import FirstFrames
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.models.tiny_transformers import tiny_shape
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere

NUM_FRAMES = (2, 1)
"""Of 7 tokens each: of 14 on three ranks, the first two hold the first frame's; a picture's 7."""


def model_of(*, keeps: bool):
    shape = replace(tiny_shape("hunyuan_video"), keeps_first_frame=keeps)
    return build_transformer(shape, dtype=torch.float64, seed=0)


def inputs_of(model, num_frames):
    generator = torch.Generator().manual_seed(num_frames)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    latents = normal(2, model.shape.latent_channels, num_frames, 2, 14)
    text = normal(2, model.shape.text_rows, model.shape.text_size)
    return latents, torch.tensor([0.7, 0.3], dtype=torch.float64), text


def errors_of_gradients(world):
    """By ring and number of frames, of all ranks together against one process."""
    _, groups = open_groups(world)
    errors = {}
    with float64_everywhere():
        model = model_of(keeps=True)
        parameters = list(model.module.parameters())

        def loss(num_frames):
            latents, sigma, text = inputs_of(model, num_frames)
            first = FirstFrames(latents=latents[:, :, :1] + 0.5)
            return (model.predict(latents, sigma, text, first) - latents).pow(2).mean()

        expected = {
            each: torch.autograd.grad(loss(each), parameters, materialize_grads=True)
            for each in NUM_FRAMES
        }
        install(model.module, model.layout)
        for ring in (1, world.size):
            for each in NUM_FRAMES:
                model.module.zero_grad()
                mode = LaunchMode(ring=ring, recompute_layers=model.shape.num_blocks)
                with sequence_parallel(groups.world, mode):
                    (loss(each) / world.size).backward()
                squares = torch.zeros(2, dtype=torch.float64)
                for parameter, wanted in zip(parameters, expected[each], strict=True):
                    total = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
                    collectives.all_reduce_sum(total, groups.world)
                    squares += torch.stack([(total - wanted).pow(2).sum(), wanted.pow(2).sum()])
                errors[ring, each] = float((squares[0] / squares[1]).sqrt())
    return errors


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_first_frame_on_several_ranks_has_the_gradient_of_one_process(world_size):
    for errors in run_ranks(world_size, errors_of_gradients):
        assert len(errors) == 4
        assert max(errors.values()) < 1e-12, errors


def test_a_picture_is_predicted_as_by_a_model_of_text_to_video():
    with float64_everywhere():
        kept, plain = model_of(keeps=True), model_of(keeps=False)
        kept.module.load_state_dict(plain.module.state_dict())
        latents, sigma, text = inputs_of(kept, 1)
        first = FirstFrames(latents=latents + 0.5)
        needed = plain.predict(latents, sigma, text)
        torch.testing.assert_close(kept.predict(latents, sigma, text, first), needed)
        latents, sigma, text = inputs_of(kept, 2)
        found = kept.predict(latents, sigma, text, first)
        assert not torch.allclose(found, plain.predict(latents, sigma, text))
