"""Weights and inputs that wait on the host: fetched for a block alone, and the gradient stays."""

import gc
import weakref

import pytest
import torch
from torch.autograd.graph import save_on_cpu

from arachne.core.launch_mode import LaunchMode
from arachne.models.lora import AdapterOptions, adapter_targets, add_adapters
from arachne.runtime import recompute
from arachne.runtime.host_blocks import move_to_device
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.models.tiny_transformers import tiny_inputs, tiny_transformer
from tests.runtime.rank_groups import recorder_alone
from tests.runtime.tiny_wan import float64_everywhere


@pytest.fixture(autouse=True)
def wide():
    with float64_everywhere():
        yield


def adapted():
    model = tiny_transformer("wan")
    names = adapter_targets(model.module, model.layout, "attention")
    add_adapters(model.module, names, AdapterOptions(rank=2, alpha=2.0), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=generator)
    return model


def gradients(model) -> dict[str, torch.Tensor]:
    """Of a launch on one rank whose blocks are all recomputed."""
    latents, sigma, text = tiny_inputs(model, 2)
    alone = RankGroup(ranks=(0,), index=0, handle=None, recorder=recorder_alone())
    with sequence_parallel(alone, LaunchMode(recompute_layers=2)):
        (model.predict(latents, sigma, text) - latents).pow(2).mean().backward()
    return {n: p.grad.clone() for n, p in model.module.named_parameters() if p.grad is not None}


def test_swapped_blocks_give_the_same_gradient_and_hold_weights_only_while_they_run():
    plain, swapped = adapted(), adapted()
    install(plain.module, plain.layout)
    move_to_device(swapped.module, swapped.layout, torch.device("cpu"), swapped_blocks=1)
    install(swapped.module, swapped.layout)
    first, second = swapped.module.blocks
    at_rest = first.ffn.net[2].weight.data_ptr()
    always = second.ffn.net[2].weight.data_ptr()
    fetched: list[weakref.ref[torch.UntypedStorage]] = []

    def note(module, _):
        if module is first.ffn.net[2]:
            assert module.weight.data_ptr() != at_rest
            fetched.append(weakref.ref(module.weight.untyped_storage()))
        else:
            assert module.weight.data_ptr() == always

    for block in (first, second):
        block.ffn.net[2].register_forward_pre_hook(note)
    found, needed = gradients(swapped), gradients(plain)
    assert len(fetched) == 2, "once for the forward, once for the backward"
    assert found.keys() == needed.keys()
    assert all(torch.equal(found[name], needed[name]) for name in needed)
    assert first.ffn.net[2].weight.data_ptr() == at_rest
    gc.collect()
    assert not any(storage() for storage in fetched), "the copies are gone"


def test_what_is_trained_stays_on_the_device():
    model = adapted()
    move_to_device(model.module, model.layout, torch.device("cpu"), swapped_blocks=9)
    layer = model.module.blocks[0].attn1.to_q
    lora, base = layer.lora_A["default"].weight, layer.base_layer.weight
    seen = []
    layer.register_forward_pre_hook(lambda *_: seen.append((lora.data_ptr(), base.data_ptr())))
    before = lora.data_ptr(), base.data_ptr()
    model.predict(*tiny_inputs(model, 1))
    assert seen[0][0] == before[0]
    assert seen[0][1] != before[1]


@pytest.mark.parametrize("inputs_on_host", [False, True])
def test_inputs_of_recomputed_blocks_wait_on_the_host_if_asked_for(monkeypatch, inputs_on_host):
    waiting = []

    class Counted(save_on_cpu):
        def __init__(self, **options):
            super().__init__(**options)
            waiting.append(self)
            pack, self.packed = self.pack_hook, 0

            def counted(tensor):
                self.packed += 1
                return pack(tensor)

            self.pack_hook = counted

    monkeypatch.setattr(recompute, "save_on_cpu", Counted)
    plain, other = adapted(), adapted()
    install(plain.module, plain.layout)
    needed = gradients(plain)
    install(other.module, other.layout, inputs_on_host=inputs_on_host)
    found = gradients(other)
    assert all(torch.equal(found[name], needed[name]) for name in needed)
    assert len(waiting) == (2 if inputs_on_host else 0)
    # A block's input, text and modulation, and the two tables of the rotary embedding.
    assert all(0 < each.packed <= 6 for each in waiting)
