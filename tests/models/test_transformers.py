"""What holds for the transformer of every family that can be built."""

import inspect
import json
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from arachne.core.errors import ConfigError
from arachne.core.families import FAMILIES, family_named
from arachne.models.diffusers_module import (
    TIMESTEP_SCALE,
    build_transformer,
    diffusers_class,
    load_transformer,
)
from arachne.models.families import TRANSFORMERS, transformer_named
from arachne.models.hunyuan_video import ffn_ratio
from arachne.models.text_padding import word_mask
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.settings.model import ModelSettings
from tests.models.tiny_transformers import tiny_inputs, tiny_shape, tiny_transformer

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for float32

every_family = pytest.mark.parametrize("name", TRANSFORMERS)

UNUSED = {
    "hunyuan_video15": (
        r"image_embedder|context_embedder_2|"
        r"transformer_blocks\.1\.(attn\.(add_q_proj|norm_added_q|to_add_out)|(ff|norm1)_context)"
    ),
    "mochi": r"transformer_blocks\.1\.attn1\.(add_q_proj|norm_added_q)",
}
"""Parts that no video token sees: glyphs and images that are not there, text in the last block."""


@every_family
def test_the_family_counts_the_parameters_exactly(name):
    model = tiny_transformer(name)
    frozen = model.family.frozen
    counted = {False: 0, True: 0}
    for part, parameter in model.module.named_parameters():
        counted[any(fnmatchcase(part, each) for each in frozen)] += parameter.numel()
    idle = family_named(name).num_idle_parameters
    assert family_named(name).num_parameters(model.shape) == counted[False]
    assert (idle(model.shape) if idle else 0) == counted[True]


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_prediction_has_the_latents_shape_and_dtype(name, dtype):
    model = tiny_transformer(name, dtype)
    latents, sigma, text = tiny_inputs(model, 2, torch.float32)
    predicted = model.predict(latents, sigma, text)
    assert predicted.shape == latents.shape
    assert predicted.dtype == latents.dtype
    assert 0.0 < float(predicted.detach().std()) < 0.5


@every_family
def test_a_token_of_the_prediction_lies_where_its_latents_lie(name):
    """Latents that change in one place change the prediction most in that place."""
    model = tiny_transformer(name)
    latents, sigma, text = tiny_inputs(model, 1)
    frames, height, width = latents.shape[2:]
    place = (frames - 2, height - 1, width - 1)
    changed = latents.clone()
    changed[(0, slice(None), *place)] += 3.0
    change = model.predict(changed, sigma, text) - model.predict(latents, sigma, text)
    change = change[0].norm(dim=0)
    patch = family_named(name).geometry.patch
    found = torch.unravel_index(change.argmax(), change.shape)
    assert [int(i) // size for i, size in zip(found, patch, strict=True)] == [
        i // size for i, size in zip(place, patch, strict=True)
    ]


@every_family
def test_every_parameter_learns_from_the_first_step(name):
    model = tiny_transformer(name)
    latents, sigma, text = tiny_inputs(model, 2)
    (model.predict(latents, sigma, text) - latents).square().mean().backward()
    gradients = {part: parameter.grad for part, parameter in model.module.named_parameters()}
    dead = [part for part, found in gradients.items() if found is None or not found.any()]
    expected = UNUSED.get(name, "nothing")
    frozen = model.family.frozen
    for part in dead:
        assert re.match(expected, part) or any(fnmatchcase(part, each) for each in frozen), part
    learning = gradients.keys() - set(dead)
    assert not any(fnmatchcase(part, each) for part in learning for each in frozen)


@every_family
def test_weights_depend_on_the_seed_alone(name):
    shape = tiny_shape(name)
    torch.manual_seed(1)
    first = build_transformer(shape, dtype=torch.float32, seed=5).module.state_dict()
    torch.manual_seed(2)
    second = build_transformer(shape, dtype=torch.float32, seed=5).module.state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@every_family
def test_a_saved_model_loads_with_its_shape_and_weights(tmp_path, name):
    model = tiny_transformer(name, torch.float32)
    model.module.save_pretrained(tmp_path / "transformer")
    inputs = tiny_inputs(model, 2, torch.float32)
    loaded = load_transformer(name, tmp_path, dtype=torch.float32, text_tokens=5)
    assert loaded.shape == model.shape
    torch.testing.assert_close(loaded.predict(*inputs), model.predict(*inputs))
    settings = ModelSettings(family=name, pretrained=str(tmp_path), text_tokens=5)
    assert planning_shape(settings) == model.shape


@pytest.mark.parametrize("max_shard", ["5GB", "10KB"])
@pytest.mark.parametrize(("stored", "named"), [(torch.int8, "I8"), (torch.float8_e5m2, "F8_E5M2")])
def test_one_quantized_weight_of_a_folder_is_refused(tmp_path, max_shard, stored, named):
    model = tiny_transformer("wan", torch.float32)
    model.module.save_pretrained(tmp_path, max_shard_size=max_shard)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == (max_shard == "10KB")
    name = "blocks.1.attn1.to_q.weight"
    for file in files:
        tensors = load_file(file)
        if name in tensors:
            save_file(tensors | {name: tensors[name].to(stored)}, file, {"format": "pt"})
    words = rf"model\.pretrained '.*': '.*' has '{name}' as {named}; needed are floats of 16 bits"
    with pytest.raises(ConfigError, match=words):
        load_transformer("wan", tmp_path, dtype=torch.float32, text_tokens=5)


@every_family
def test_a_model_in_float64_loads_unrounded(tmp_path, name):
    model = tiny_transformer(name)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.0 + 2.0**-40)
            parameter.add_(2.0**-40)  # biases are zero
    model.module.save_pretrained(tmp_path)
    inputs = tiny_inputs(model, 2)
    loaded = load_transformer(name, tmp_path, dtype=torch.float64, text_tokens=5)
    assert type(loaded.module) is type(model.module)
    for key, parameter in model.module.named_parameters():
        assert torch.equal(loaded.module.get_parameter(key), parameter), key
    with torch.no_grad():
        found, needed = loaded.predict(*inputs), model.predict(*inputs)
    # Kernels may round by where in memory the weights lie.
    torch.testing.assert_close(found, needed, rtol=1e-13, atol=1e-13)


@every_family
def test_the_options_of_a_published_shape_give_it_back(tmp_path, name):
    transformer = transformer_named(name)
    preset = next(iter(FAMILIES[name].presets.values()))
    options = {"_class_name": transformer.class_name} | transformer.options(preset)
    (tmp_path / "config.json").write_text(json.dumps(options))
    settings = ModelSettings(family=name, pretrained=str(tmp_path), text_tokens=preset.text_tokens)
    assert planning_shape(settings) == preset
    if FAMILIES[name].keeps_first_frame == "always":
        kept = planning_shape(replace(settings, image_to_video=True))
        assert kept == replace(preset, keeps_first_frame=True)


@every_family
def test_an_option_that_is_not_built_is_named(tmp_path, name):
    transformer = transformer_named(name)
    for option, value in (("out_channels", 99), (transformer.fixed[0], 77)):
        options = {"_class_name": transformer.class_name} | transformer.options(tiny_shape(name))
        (tmp_path / "config.json").write_text(json.dumps(options | {option: value}))
        with pytest.raises(ConfigError, match=f"{option} = {value}, and training needs"):
            load_transformer(name, tmp_path, dtype=torch.float32, text_tokens=512)


@pytest.mark.parametrize(
    ("preset", "not_default"),
    [
        ("hunyuanvideo-13b", {}),
        ("hunyuanvideo-1.5-8b", {"task_type"}),
        ("ltx-video-2b", {}),
        ("ltx-2-19b", {"rope_type"}),
        ("mochi-10b", {}),
        ("cogvideox-2b", {}),
    ],
)
def test_published_shapes_have_the_defaults_of_their_class(preset, not_default):
    shape = next(f.presets[preset] for f in FAMILIES.values() if preset in f.presets)
    transformer = transformer_named(shape.family)
    defaults = inspect.signature(diffusers_class(transformer).__init__).parameters
    for option, value in transformer.options(shape).items():
        assert (value == defaults[option].default) == (option not in not_default), option


def test_a_feed_forward_width_comes_back_from_its_ratio():
    shape = replace(tiny_shape("hunyuan_video"), num_heads=7, head_size=14)
    for ffn_size in range(1, 400):
        ratio = ffn_ratio(replace(shape, ffn_size=ffn_size))
        assert int(shape.hidden_size * ratio) == ffn_size


def test_words_end_at_the_last_state_that_is_not_zero():
    text = torch.ones(4, 5, 2)
    text[0, 2:] = 0.0
    text[1, 1] = 0.0  # a zero between words
    text[2] = 0.0
    assert word_mask(text).sum(dim=1).tolist() == [2, 5, 1, 5]


@pytest.mark.parametrize("name", ["hunyuan_video", "hunyuan_video15", "ltx", "ltx2", "mochi"])
def test_padding_does_not_change_what_is_predicted(name):
    model = tiny_transformer(name)
    latents, sigma, text = tiny_inputs(model, 1)
    longer = torch.nn.functional.pad(text, (0, 0, 0, 3))
    torch.testing.assert_close(
        model.predict(latents, sigma, longer), model.predict(latents, sigma, text)
    )


def test_sizes_that_a_class_cannot_have_are_refused():
    for name, changes, message in (
        ("cogvideox", {"head_size": 24, "ffn_size": 288}, "multiple of 16"),
        ("cogvideox", {"ffn_size": 40}, "model.ffn_size is 40"),
        ("cogvideox_2b", {"head_size": 8, "ffn_size": 96}, "sines and cosines .* multiple of 16"),
        ("cogvideox15", {"head_size": 24, "ffn_size": 288}, "multiple of 16"),
        ("cogvideox15", {"condition_channels": 3}, "takes 3 channels beside its 4 latent ones"),
        ("cogvideox_2b", {"condition_channels": 4}, "family 'cogvideox_2b' has 0 there"),
        ("hunyuan_video", {"condition_channels": 4}, "family 'hunyuan_video' has 0 or 5 there"),
        ("hunyuan_video", {"pooled_text_size": 0}, "name a model.preset: hunyuanvideo-13b"),
        ("hunyuan_video", {"head_size": 4}, "at least 6"),
        ("hunyuan_video15", {"head_size": 4}, "at least 6"),
        ("hunyuan_video15", {"condition_channels": 5}, "makes states 0 wide, .* needs 1152 here"),
        ("mochi", {"text_size": 12}, "pools them with 8 heads"),
        ("ltx", {"head_size": 7, "ffn_size": 84}, "needs it even"),
        ("ltx2", {"head_size": 6, "ffn_size": 72}, "need a multiple of 4"),
        ("skyreels_v2", {"head_size": 5}, "at least 6"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_transformer(replace(tiny_shape(name), **changes), dtype=torch.float32, seed=0)


def test_a_table_of_positions_for_other_text_names_the_setting(tmp_path):
    model = tiny_transformer("cogvideox_2b", torch.float32)
    model.module.save_pretrained(tmp_path / "transformer")
    with pytest.raises(
        ConfigError, match=r"takes 5 text tokens, and model\.text_tokens is 512; set"
    ):
        load_transformer("cogvideox_2b", tmp_path, dtype=torch.float32, text_tokens=512)


def test_every_family_that_is_planned_for_can_be_built():
    assert set(TRANSFORMERS) == set(FAMILIES)


def test_a_family_without_a_transformer_is_named():
    with pytest.raises(ConfigError, match="'latte' cannot be built yet; families that can: wan"):
        transformer_named("latte")


@pytest.mark.parametrize("name", ["hunyuan_video15", "mochi"])
def test_a_mask_over_keys_gives_what_the_class_itself_gives(name):
    model = tiny_transformer(name)
    plain = diffusers_class(model.family)(**model.family.options(model.shape)).double()
    plain.load_state_dict(model.module.state_dict())
    latents, sigma, text = tiny_inputs(model, 2)
    expected = model.family.forward(plain, latents, sigma * TIMESTEP_SCALE, text)
    torch.testing.assert_close(model.predict(latents, sigma, text), expected, rtol=1e-9, atol=1e-12)


def test_mochi_runs_from_noise_to_clean_and_is_turned_around():
    model = tiny_transformer("mochi")
    latents, sigma, text = tiny_inputs(model, 2)
    seen = []
    model.module.register_forward_hook(
        lambda _, args, kwargs, output: seen.extend([kwargs["timestep"], output[0]]),
        with_kwargs=True,
    )
    velocity = model.predict(latents, sigma, text)
    torch.testing.assert_close(seen[0], 1000.0 * (1.0 - sigma))
    torch.testing.assert_close(velocity, -seen[1])


@every_family
def test_the_layout_names_modules_that_exist(name):
    model = tiny_transformer(name)
    splits = (*model.layout.split_inputs, *model.layout.split_outputs, model.layout.gather)
    assert {split.module for split in splits} <= {n for n, _ in model.module.named_modules()}
    assert type(model.module) is diffusers_class(model.family)


@every_family
def test_a_family_says_whether_its_attention_over_the_video_masks_keys(name, monkeypatch):
    model = tiny_transformer(name)
    latents, sigma, text = tiny_inputs(model, 2)
    is_masked: list[bool] = []
    attend = functional.scaled_dot_product_attention

    def noted(query: Tensor, key: Tensor, *others: Any, attn_mask: Any = None, **options: Any):
        if query.shape[-2] == key.shape[-2] >= 25:
            is_masked.append(attn_mask is not None)
        return attend(query, key, *others, attn_mask=attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    model.predict(latents, sigma, text)
    assert is_masked
    assert set(is_masked) == {FAMILIES[name].masks_keys}


def test_a_folder_of_another_family_is_named_by_its_class(tmp_path):
    tiny_transformer("wan").module.save_pretrained(tmp_path)
    settings = ModelSettings(family="hunyuan_video", pretrained=str(tmp_path))
    message = "holds a WanTransformer3DModel; family 'hunyuan_video' needs a HunyuanVideoTrans"
    with pytest.raises(ConfigError, match=message):
        planning_shape(settings)
