"""FLOPs of partly frozen models as they are planned, against those that torch counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arachne.cost.rank_work import rank_work
from arachne.cost.training_state import TrainingState
from arachne.models.families import transformer_named
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.trained_parameters import choose_trained, trained_part
from tests.models.test_activation_counts import GRIDS, filled, forward_of, num_tokens_of, small
from tests.models.test_frozen_activations import CASES


@pytest.mark.parametrize("case", ["all of wan", *CASES])
def test_flops_are_those_that_torch_counts_of_forward_and_backward(case: str):
    family, pattern, _ = CASES.get(case, ("wan", "*", ()))
    shape, grid = small(family), filled(family, GRIDS["video"])
    module, forward = forward_of(shape, grid, torch.float32)
    choose_trained(module, ModelSettings(family=family, train_only=(pattern,)))
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # the counter knows no other one of the CPU
        forward().sum().backward()
    part = trained_part(module, transformer_named(family).layout)
    work = rank_work(shape, num_tokens_of(shape, grid), 1, 1, state=TrainingState(trained=part))
    counted = counter.get_total_flops()
    assert work.matmul_flops + work.attention_flops == pytest.approx(counted, rel=0.05)
