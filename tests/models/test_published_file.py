"""A Wan in one file with its published names is the model that diffusers' folder holds."""

from dataclasses import replace

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError
from arachne.models.diffusers_module import build_transformer, load_published_transformer
from arachne.models.published_file import HEAD_SIZE, published_shape
from arachne.models.wan_names import published_name
from tests.models.tiny_transformers import HEAD_SIZE as TINY_HEAD_SIZE
from tests.models.tiny_transformers import (
    refuse_memory,
    tiny_inputs,
    tiny_shape,
    tiny_transformer,
)


@pytest.fixture
def file(tmp_path):
    model = tiny_transformer("wan", torch.float32)
    tensors = {published_name(n): p.detach() for n, p in model.module.named_parameters()}
    save_file(tensors, tmp_path / "wan.safetensors")
    return tmp_path / "wan.safetensors"


def loaded(file, family="wan"):
    return load_published_transformer(
        family, file, dtype=torch.float32, text_tokens=5, head_size=TINY_HEAD_SIZE
    )


def rewritten(file, change):
    tensors = change(load_file(file))
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    return file


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_the_file_gives_the_same_shape_and_the_same_output(file, prefix):
    model = tiny_transformer("wan", torch.float32)
    rewritten(file, lambda tensors: {prefix + name: value for name, value in tensors.items()})

    found = loaded(file)

    assert found.shape == model.shape
    inputs = tiny_inputs(model, 2, torch.float32)
    with torch.no_grad():
        assert torch.equal(found.predict(*inputs), model.predict(*inputs))


def test_a_file_in_float64_is_read_unrounded(file):
    change = 1.0 + 2.0**-40
    rewritten(file, lambda t: {name: values.double() * change for name, values in t.items()})
    found = load_published_transformer(
        "wan", file, dtype=torch.float64, text_tokens=5, head_size=TINY_HEAD_SIZE
    )
    for name, values in tiny_transformer("wan").module.named_parameters():
        assert torch.equal(found.module.get_parameter(name), values * change), name


@pytest.mark.parametrize("sees_states", [False, True])
def test_a_file_of_image_to_video_is_found_to_be_one(tmp_path, sees_states):
    shape = replace(tiny_shape("wan"), condition_channels=8, text_tokens=512)
    if sees_states:
        shape = replace(shape, image_size=6, image_tokens=257)
    model = build_transformer(shape, dtype=torch.float32, seed=0)
    tensors = {published_name(n): p.detach() for n, p in model.module.named_parameters()}
    assert ("img_emb.proj.1.weight" in tensors) == sees_states
    back = convert_wan_transformer_to_diffusers(dict(tensors))
    assert back.keys() == dict(model.module.named_parameters()).keys()
    save_file(tensors, tmp_path / "wan.safetensors")
    found = load_published_transformer(
        "wan",
        tmp_path / "wan.safetensors",
        dtype=torch.float32,
        text_tokens=512,
        head_size=TINY_HEAD_SIZE,
    )
    assert found.shape == shape
    for name, parameter in model.module.named_parameters():
        assert torch.equal(found.module.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t | {"ref_conv.weight": torch.ones(3)},
            r"has 'ref_conv\.weight'; training needs",
        ),
        (lambda t: {n: t[n] for n in t if "1.ffn.2.bias" not in n}, r"lacks 'blocks\.1\.ffn\.2"),
        (lambda t: {n: t[n] for n in t if "_emb" not in n}, r"lacks 'patch_embedding\.weight'; it"),
        (
            lambda t: {n: v.to(torch.float8_e4m3fn) if v.dim() == 2 else v for n, v in t.items()},
            r"as torch\.float8_e4m3fn of shape .*; needed are floats of 16 bits",
        ),
        (
            lambda t: t | {"blocks.1.ffn.2.bias": t["blocks.1.ffn.2.bias"].int()},
            r"has 'blocks\.1\.ffn\.2\.bias' as torch\.int32 of shape .*; needed are floats of 16",
        ),
        (
            lambda t: t | {"blocks.0.self_attn.q.weight": torch.ones(())},
            r"has 'blocks\.0\.self_attn\.q\.weight' of shape \(\); needed are 2 sides",
        ),
        (
            lambda t: t | {"patch_embedding.weight": torch.ones(48)},
            r"has 'patch_embedding\.weight' of shape \(48,\); needed are 5 sides",
        ),
        (
            lambda t: t | {"blocks.1.ffn.2.bias": torch.ones(())},
            r"has 'blocks\.1\.ffn\.2\.bias' as torch\.float32 of shape \(\); needed are floats",
        ),
        (lambda t: {"a": torch.ones(1)}, r"has no 'blocks\.0\.self_attn\.q\.weight', so it is no"),
    ],
)
def test_a_file_of_something_else_is_refused(file, change, words):
    with pytest.raises(ConfigError, match=words):
        loaded(rewritten(file, change))


def test_a_file_is_refused_before_the_model_takes_memory(file, monkeypatch):
    rewritten(file, lambda t: {n: t[n] for n in t if n != "blocks.1.ffn.2.bias"})
    refuse_memory(monkeypatch)
    with pytest.raises(ConfigError, match=r"lacks 'blocks\.1\.ffn\.2\.bias'"):
        loaded(file)


def test_what_is_no_file_of_the_family_is_refused(file):
    assert HEAD_SIZE == 128
    with pytest.raises(ConfigError, match=r"48 wide, which heads of 128 do not fill; set model\."):
        published_shape(file, family="wan", text_tokens=5)
    file.write_bytes(b"\x10\0\0")
    with pytest.raises(ConfigError, match=r"cannot read .*wan\.safetensors"):
        loaded(file)
