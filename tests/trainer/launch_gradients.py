"""A launch's losses and gradient against a plain step: the class as it is, clip by clip."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from arachne.core.families import family_named
from arachne.models.diffusers_module import VideoTransformer, diffusers_class
from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.sequence_parallel import install, sequence_parallel
from arachne.trainer.ddpm import Ddpm
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.objective import ClipSample, clip_losses
from arachne.trainer.settings.objective import ObjectiveSettings


def launch_errors(
    group: RankGroup,
    model: VideoTransformer,
    samples: Sequence[ClipSample],
    plain_loss: Callable[[nn.Module, int], Tensor],
) -> tuple[float, float]:
    """Relative errors of the losses and of the gradient, over all ranks of one launch.

    `plain_loss` gives that of a clip, by its number, from the class as diffusers has it.
    """
    plain: Any = diffusers_class(model.family)(**model.family.options(model.shape)).double()
    plain.load_state_dict(model.module.state_dict())
    expected_losses = torch.stack([plain_loss(plain, clip) for clip in range(len(samples))])
    expected = torch.autograd.grad(
        expected_losses.sum(), list(plain.parameters()), materialize_grads=True
    )
    settings, family = ObjectiveSettings(), family_named(model.family.name)
    objective = (
        FlowMatching(settings=settings)
        if family.objective == "flow_matching"
        else Ddpm(settings=settings, auto_snr_shift=family.snr_shift)
    )
    install(model.module, model.layout)
    with sequence_parallel(group):
        losses = clip_losses(
            model,
            samples,
            objective=objective,
            null_text=torch.zeros(model.shape.text_rows, model.shape.text_size),
            device=torch.device("cpu"),
            dtype=torch.float64,
        )
        (losses.sum() / group.size).backward()
    squares = torch.zeros(2, dtype=torch.float64)
    for parameter, wanted in zip(model.module.parameters(), expected, strict=True):
        total = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        collectives.all_reduce_sum(total, group)
        squares += torch.stack([(total - wanted).pow(2).sum(), wanted.pow(2).sum()])
    off = (losses.detach() - expected_losses.detach()) / expected_losses.detach()
    return float(off.abs().max()), float((squares[0] / squares[1]).sqrt())
