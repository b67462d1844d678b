import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_module import build_transformer, load_transformer
from arachne.models.wan import WAN_LAYOUT
from arachne.trainer.sampling import euler_steps, noise_of, walk

TINY = ModelShape(
    family="wan",
    num_layers=2,
    num_heads=3,
    head_size=12,
    ffn_size=40,
    latent_channels=4,
    text_size=16,
    text_tokens=5,
    freq_size=32,
)


def _inputs(num_clips=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    latents = torch.randn(num_clips, 4, 3, 4, 6, generator=generator).to(dtype)
    sigma = torch.rand(num_clips, generator=generator)
    text = torch.randn(num_clips, 5, 16, generator=generator)
    return latents, sigma, text


def test_the_velocity_has_the_latents_shape_and_dtype():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = build_transformer(TINY, dtype=dtype, seed=0)
        latents, sigma, text = _inputs()
        velocity = model.predict(latents, sigma, text)
        assert velocity.shape == latents.shape
        assert velocity.dtype == latents.dtype
        assert {parameter.dtype for parameter in model.module.parameters()} == {dtype}


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = build_transformer(TINY, dtype=torch.float32, seed=5).module.state_dict()
    torch.manual_seed(2)
    second = build_transformer(TINY, dtype=torch.float32, seed=5).module.state_dict()
    other = build_transformer(TINY, dtype=torch.float32, seed=6).module.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["patch_embedding.weight"], other["patch_embedding.weight"])


def test_building_leaves_the_global_generator_as_it_was():
    before = torch.get_rng_state()
    build_transformer(TINY, dtype=torch.float32, seed=5)
    assert torch.equal(before, torch.get_rng_state())


def test_every_dtype_starts_from_the_same_weights():
    wide = build_transformer(TINY, dtype=torch.float64, seed=0).module.state_dict()
    narrow = build_transformer(TINY, dtype=torch.bfloat16, seed=0).module.state_dict()
    assert all(torch.equal(wide[name].to(torch.bfloat16), narrow[name]) for name in wide)


def test_half_precision_keeps_the_rotary_tables_precise():
    buffers = dict(build_transformer(TINY, dtype=torch.bfloat16, seed=0).module.named_buffers())
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float32}


def test_every_parameter_learns_from_the_first_step():
    model = build_transformer(TINY, dtype=torch.float64, seed=0)
    latents, sigma, text = _inputs(dtype=torch.float64)
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(1))
    (model.predict(latents, sigma, text) - noise).square().mean().backward()
    dead = [
        name
        for name, parameter in model.module.named_parameters()
        if parameter.grad is None or parameter.grad.abs().max() < 1e-6
    ]
    assert dead == []


def test_the_start_is_close_to_predicting_nothing():
    latents, sigma, text = _inputs()
    velocity = build_transformer(TINY, dtype=torch.float32, seed=0).predict(latents, sigma, text)
    assert 0.0 < float(velocity.detach().std()) < 0.5


def test_the_family_counts_the_parameters_exactly():
    model = build_transformer(TINY, dtype=torch.float32, seed=0)
    counted = sum(parameter.numel() for parameter in model.module.parameters())
    assert family_named("wan").num_parameters(TINY) == counted


def test_noise_levels_within_one_thousandth_are_told_apart():
    model = build_transformer(TINY, dtype=torch.float64, seed=0)
    latents, _, text = _inputs(num_clips=1)
    first = model.predict(latents, torch.tensor([0.5002]), text)
    second = model.predict(latents, torch.tensor([0.5008]), text)
    assert not torch.allclose(first, second, rtol=0, atol=1e-7)


def test_noise_levels_do_not_lose_precision_in_a_half_precision_model():
    seen = []
    model = build_transformer(TINY, dtype=torch.bfloat16, seed=0)
    model.module.condition_embedder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    latents, _, text = _inputs(num_clips=1)
    model.predict(latents, torch.tensor([0.9871]), text)
    torch.testing.assert_close(seen[0], torch.tensor([987.1]))


def test_a_model_can_be_sampled_from():
    model = build_transformer(TINY, dtype=torch.bfloat16, seed=0)
    noise = noise_of((1, 4, 3, 4, 6), seed=1)
    text = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(2))
    null = torch.zeros(5, 16)
    plain, guided = (
        walk(
            model.predict,
            noise,
            text,
            null_text_LD=null,
            steps=euler_steps(2, 3.0),
            guidance=guidance,
        )
        for guidance in (1.0, 9.0)
    )
    assert plain.shape == noise.shape
    assert plain.dtype == torch.float32
    assert torch.isfinite(guided).all()
    assert not torch.equal(plain, guided)


def test_the_layout_names_modules_that_exist():
    modules = dict(build_transformer(TINY, dtype=torch.float32, seed=0).module.named_modules())
    named = [split.module for split in (*WAN_LAYOUT.split_inputs, *WAN_LAYOUT.split_outputs)]
    assert {*named, WAN_LAYOUT.gather.module} <= set(modules)


def test_a_saved_model_loads_with_its_shape_and_weights(tmp_path):
    model = build_transformer(TINY, dtype=torch.float32, seed=3)
    model.module.save_pretrained(tmp_path / "transformer")
    latents, sigma, text = _inputs()
    for folder in (tmp_path, tmp_path / "transformer"):
        loaded = load_transformer("wan", folder, dtype=torch.float32, text_tokens=5)
        assert loaded.shape == TINY
        assert loaded.module.training
        torch.testing.assert_close(
            loaded.predict(latents, sigma, text), model.predict(latents, sigma, text)
        )


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"'.*nowhere': no such folder; name a diffusers"):
        load_transformer("wan", tmp_path / "nowhere", dtype=torch.float32, text_tokens=512)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_transformer("wan", tmp_path, dtype=torch.float32, text_tokens=512)


def _config(**changes):
    config = {"_class_name": "WanTransformer3DModel", "in_channels": 16, "out_channels": 16}
    return json.dumps(config | changes)


def test_models_that_we_cannot_train_are_refused_with_what_was_found(tmp_path):
    for text, message in (
        (_config(_class_name="MochiTransformer3DModel"), "holds a MochiTransformer3DModel"),
        (_config(image_dim=1280), "added_kv_proj_dim = None, and training needs 5120"),
        (_config(in_channels=48), "takes 32 channels beside its 16 latent ones"),
        (_config(patch_size=[1, 1, 1]), r"patch_size = \[1, 1, 1\]"),
        ("{", "cannot read"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_transformer("wan", tmp_path, dtype=torch.float32, text_tokens=512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("blocks.1.attn1.to_q.weight"), "lack 'blocks.1.attn1.to_q.we"),
        (
            lambda tensors: tensors.update({"blocks.2.ffn.net.2.bias": torch.zeros(3)}),
            "have 'blocks.2.ffn.net.2.bias', which does not fit config.json",
        ),
    ],
    ids=["lacks one", "has another"],
)
def test_files_whose_weights_are_not_those_of_their_configuration_are_refused(
    tmp_path, change, message
):
    build_transformer(TINY, dtype=torch.float32, seed=0).module.save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    load_transformer("wan", tmp_path, dtype=torch.float32, text_tokens=4)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"model.pretrained .*: the files {message}"):
        load_transformer("wan", tmp_path, dtype=torch.float32, text_tokens=4)


def test_missing_weights_are_an_error_of_the_configuration(tmp_path):
    (tmp_path / "config.json").write_text(_config(num_layers=1, num_attention_heads=1))
    with pytest.raises(ConfigError, match="weights cannot be loaded"):
        load_transformer("wan", tmp_path, dtype=torch.float32, text_tokens=512)


@pytest.mark.parametrize(("field", "size"), [("head_size", 7), ("head_size", 4), ("freq_size", 5)])
def test_sizes_that_the_embeddings_cannot_have_are_refused(field, size):
    with pytest.raises(ConfigError, match=f"model.{field} is {size}"):
        build_transformer(replace(TINY, **{field: size}), dtype=torch.float32, seed=0)
