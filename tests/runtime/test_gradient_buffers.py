"""Three places for the sums of gradients, and what each of them keeps."""

import pytest
import torch
from torch import nn

from arachne.runtime.gradient_buffers import gradient_buffer
from arachne.runtime.launcher import run_ranks
from arachne.runtime.optimizers import AdamWOptions, MuonOptions
from tests.runtime.test_optimizers import ADAMW, muon_or_adamw, train_alone, train_sharded

STORAGES = ("float32", "bfloat16", "host")


def buffer_of(storage, dtype):
    """A buffer for two parameters, 3 and 2 elements, and a gap between them."""
    first, second = (nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (3, 2))
    buffer = gradient_buffer(torch.zeros(6, dtype=dtype), storage)
    buffer.receive(first, 0)
    buffer.receive(second, 4)
    return buffer, first, second


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_backward_passes_add_up_where_the_parameter_lies_until_they_are_cleared(storage, dtype):
    buffer, first, second = buffer_of(storage, dtype)
    for _ in range(2):
        for factor in (1.0, 2.0):
            (factor * first.sum()).backward()
        (-1.5 * second.sum()).backward()
        assert buffer.summed().tolist() == [3.0, 3.0, 3.0, 0.0, -1.5, -1.5]
        assert buffer.part(2, 5).tolist() == [3.0, 0.0, -1.5]
        buffer.clear()
        assert not buffer.summed().any()
    (4.0 * second.sum()).backward()
    assert buffer.summed().tolist() == [0.0, 0.0, 0.0, 0.0, 4.0, 4.0], "nothing old comes back"


@pytest.mark.parametrize("storage", STORAGES)
def test_a_parameter_without_elements_hides_no_other(storage):
    empty, first = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(3))
    buffer = gradient_buffer(torch.zeros(3), storage)
    buffer.receive(empty, 0)
    buffer.receive(first, 0)
    (2.0 * first.sum()).backward()
    empty.sum().backward()
    assert buffer.summed().tolist() == [2.0, 2.0, 2.0]


def test_a_gradient_for_which_there_was_no_memory_is_not_added_to_the_next(monkeypatch):
    first = nn.Parameter(torch.zeros(3))
    buffer = gradient_buffer(torch.zeros(3), "host")
    buffer.receive(first, 0)
    loss = 100.0 * first.sum()
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "copy_", full)
        with pytest.raises(MemoryError):
            loss.backward()
    buffer.clear()  # as at the end of a step that trained nothing
    first.sum().backward()
    assert buffer.summed().tolist() == [1.0, 1.0, 1.0]


def full(*_, **__):
    raise MemoryError("planted")


@pytest.mark.parametrize("storage", STORAGES)
def test_sums_over_ranks_are_taken_in_float32_or_wider(storage):
    assert buffer_of(storage, torch.bfloat16)[0].summed().dtype == torch.float32
    assert buffer_of(storage, torch.float64)[0].summed().dtype == torch.float64


def test_bfloat16_rounds_each_sum_and_the_others_do_not():
    found = {}
    for storage in STORAGES:
        buffer, first, _ = buffer_of(storage, torch.bfloat16)
        for _ in range(300):
            first.sum().backward()
        found[storage] = float(buffer.summed()[0])
    assert found == {"float32": 300.0, "host": 300.0, "bfloat16": 256.0}


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_on_the_host_train_as_those_on_the_device(world_size):
    choice = MuonOptions(
        options={"momentum": 0.9}, rest=AdamWOptions(weight_decay=0.2, decay_1d=False)
    )
    expected = train_alone(muon_or_adamw, 3)
    by_rank = run_ranks(world_size, train_sharded, (choice, {"gradients": "host"}, 3))
    for trained in by_rank:
        for name, value in trained.values.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-13, msg=name)


@pytest.mark.distributed
def test_bfloat16_gradients_train_as_others_where_nothing_is_rounded():
    """Eighths up to 4 times 2 have few enough digits for bfloat16."""
    sharded = [
        run_ranks(2, train_sharded, (ADAMW, {"gradients": storage}, 2))[1].values
        for storage in ("float32", "bfloat16")
    ]
    for name, value in sharded[0].items():
        assert torch.equal(value, sharded[1][name]), name
