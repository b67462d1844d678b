"""LoRA files of every naming are read as what they were, alpha included, or refused by name."""

import json
from pathlib import Path

import pytest
import torch
from diffusers.loaders.lora_conversion_utils import _convert_hunyuan_video_lora_to_diffusers
from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError
from arachne.models.lora import (
    AdapterOptions,
    adapted_layers,
    adapter_tensors,
    set_adapter_tensors,
)
from arachne.models.lora_files import load_adapters, save_comfyui_lora, save_diffusers_lora
from arachne.models.lora_names import AdapterNames, published_layer
from tests.models.test_lora import adapted, error, output_of

THEIRS = AdapterOptions(rank=2, alpha=6.0)
OURS = AdapterOptions(rank=2, alpha=1.0)
TO_Q = "transformer.blocks.0.attn1.to_q"


def write_peft(model, folder: Path) -> Path:
    state = get_peft_model_state_dict(model.module, adapter_name="default")
    tensors = {f"base_model.model.{name}": value for name, value in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 6}))
    return folder


def write_diffusers(model, folder: Path) -> Path:
    save_diffusers_lora(model.module, THEIRS, folder, torch.float64)
    return folder


def write_comfyui(model, folder: Path) -> Path:
    return save_comfyui_lora(model, THEIRS, folder, torch.float64)


def write_kohya(model, folder: Path) -> Path:
    state = adapter_tensors(model.module)
    tensors = {}
    for layer, _ in adapted_layers(model.module):
        name = "lora_unet_" + published_layer("wan", layer).replace(".", "_")
        tensors[f"{name}.lora_down.weight"] = state[f"{layer}.lora_A.weight"]
        tensors[f"{name}.lora_up.weight"] = state[f"{layer}.lora_B.weight"]
        tensors[f"{name}.alpha"] = torch.tensor(6.0)
    save_file(tensors, folder / "kohya.safetensors")
    return folder


WRITERS = (write_peft, write_diffusers, write_comfyui, write_kohya)


@pytest.mark.parametrize("write", WRITERS)
def test_a_lora_of_any_naming_has_the_effect_that_it_had(write, tmp_path):
    trained = adapted("wan", "attention+ffn", THEIRS)
    path = write(trained, tmp_path)
    model = adapted("wan", "attention+ffn", OURS, seed=9)
    assert error(output_of(model), output_of(trained)) > 1e-3

    load_adapters(model, str(path), OURS, setting="lora.init_from")

    assert error(output_of(model), output_of(trained)) < 1e-12


def published_layers(shape):
    """HunyuanVideo's layers by the names of its authors, and the layers of diffusers in each."""
    for number in range(shape.num_layers):
        ours, theirs = f"transformer_blocks.{number}", f"double_blocks.{number}"
        yield f"{theirs}.img_attn_qkv", [f"{ours}.attn.to_{part}" for part in "qkv"]
        yield f"{theirs}.txt_attn_qkv", [f"{ours}.attn.add_{part}_proj" for part in "qkv"]
        yield f"{theirs}.img_attn_proj", [f"{ours}.attn.to_out.0"]
        yield f"{theirs}.txt_attn_proj", [f"{ours}.attn.to_add_out"]
        for stream, feed_forward in (("img", "ff"), ("txt", "ff_context")):
            yield f"{theirs}.{stream}_mlp.fc1", [f"{ours}.{feed_forward}.net.0.proj"]
            yield f"{theirs}.{stream}_mlp.fc2", [f"{ours}.{feed_forward}.net.2"]
    for number in range(shape.num_single_layers):
        ours, theirs = f"single_transformer_blocks.{number}", f"single_blocks.{number}"
        joined = [*(f"{ours}.attn.to_{part}" for part in "qkv"), f"{ours}.proj_mlp"]
        yield f"{theirs}.linear1", joined
        yield f"{theirs}.linear2", [f"{ours}.proj_out"]


def write_fused_kohya(model, folder: Path) -> Path:
    """As kohya's musubi-tuner names what it trains of HunyuanVideo."""
    state = adapter_tensors(model.module)
    tensors = {}
    for published, layers in published_layers(model.shape):
        name = "lora_unet_" + published.replace(".", "_")
        tensors[f"{name}.lora_down.weight"] = state[f"{layers[0]}.lora_A.weight"].contiguous()
        ups = [state[f"{layer}.lora_B.weight"] for layer in layers]
        tensors[f"{name}.lora_up.weight"] = torch.cat(ups)
        tensors[f"{name}.alpha"] = torch.tensor(6.0)
    save_file(tensors, folder / "kohya.safetensors")
    return folder


def fused(options, seed=7):
    """A HunyuanVideo whose adapters share A where its authors' layers are one."""
    model = adapted("hunyuan_video", "attention+ffn", options, seed=seed)
    state = adapter_tensors(model.module)
    for _, (first, *others) in published_layers(model.shape):
        for other in others:
            state[f"{other}.lora_A.weight"] = state[f"{first}.lora_A.weight"]
    set_adapter_tensors(model.module, state)
    return model


def test_layers_that_are_one_in_a_kohya_file_are_cut_apart(tmp_path):
    trained = fused(THEIRS)
    model = adapted("hunyuan_video", "attention+ffn", OURS, seed=9)
    write_fused_kohya(trained, tmp_path)
    assert error(output_of(model), output_of(trained)) > 1e-3
    load_adapters(model, str(tmp_path), OURS, setting="lora.init_from")
    assert error(output_of(model), output_of(trained)) < 1e-12


def test_a_kohya_file_with_more_parts_than_adapters_names_them(tmp_path):
    write_fused_kohya(fused(THEIRS), tmp_path)
    model = adapted("hunyuan_video", "attention", OURS)
    words = r"single_blocks_0_linear1.* of shape \(\d+, 2\), .*to_v have 144 outputs; set lora"
    path = tmp_path / "kohya.safetensors"
    tensors = {n: t for n, t in load_file(path).items() if "single_blocks_0_linear1" in n}
    save_file(tensors, path)
    with pytest.raises(ConfigError, match=words):
        load_adapters(model, str(tmp_path), OURS, setting="lora.init_from")


def test_published_parts_of_hunyuan_video_are_those_that_diffusers_makes_of_them(tmp_path):
    trained = fused(AdapterOptions(rank=2, alpha=2.0))
    write_fused_kohya(trained, tmp_path)
    layers = [name for name, _ in adapted_layers(trained.module)]
    names = AdapterNames("hunyuan_video", layers)
    for number in (0, 1):
        for theirs, ours in (("img_attn_qkv", "to_q"), ("txt_attn_qkv", "add_q_proj")):
            key = f"double_blocks.{number}.{theirs}.lora_A.weight"
            made = _convert_hunyuan_video_lora_to_diffusers({key: torch.zeros(2, 48)})
            found = names.find(key)
            assert found is not None
            assert [f"transformer.{each}.lora_A.weight" for each in found.layers] == list(made)
            assert found.layers[0] == f"transformer_blocks.{number}.attn.{ours}"
    key = "single_blocks.0.linear1.lora_A.weight"
    made = _convert_hunyuan_video_lora_to_diffusers({key: torch.zeros(2, 48)})
    found = names.find(key)
    assert found is not None
    assert [f"transformer.{each}.lora_A.weight" for each in found.layers] == list(made)


def test_a_lora_without_any_alpha_counts_once(tmp_path):
    rank_is_alpha = AdapterOptions(rank=2, alpha=2.0)
    trained = adapted("wan", "attention", rank_is_alpha)
    save_file(adapter_tensors(trained.module), tmp_path / "plain.safetensors")
    model = adapted("wan", "attention", OURS, seed=9)
    load_adapters(model, str(tmp_path / "plain.safetensors"), OURS, setting="lora.init_from")
    assert error(output_of(model), output_of(trained)) < 1e-12


def test_magnitudes_travel_too(tmp_path):
    options = AdapterOptions(rank=2, alpha=6.0, use_dora=True)
    trained = adapted("wan", "attention", options)
    save_diffusers_lora(trained.module, options, tmp_path, torch.float64)
    model = adapted("wan", "attention", options, seed=9)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "magnitude" in name:
                parameter.mul_(3.0)
    load_adapters(model, str(tmp_path), options, setting="lora.init_from")
    assert torch.equal(output_of(model), output_of(trained))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t | {"transformer.blocks.7.attn1.to_q.lora_A.weight": torch.ones(2, 48)},
            r"has keys of no adapter of this run: transformer\.blocks\.7\.attn1\.to_q\.lora_A",
        ),
        (
            lambda t: t | {"transformer.blocks.0.ffn.net.2.lora_A.weight": torch.ones(2, 40)},
            r"keys of no adapter of this run: .*ffn.net.2.*; set lora\.targets",
        ),
        (
            lambda t: t | {"text_encoder.wte.lora_A.weight": torch.ones(2, 48)},
            r"has adapters of a text encoder, .*: text_encoder\.wte\.lora_A\.weight; remove",
        ),
        (lambda t: dict(list(t.items())[2:]), r"lacks blocks\.0\.attn1\.to_k\.lora_A\.weight"),
        (
            lambda t: {n: torch.cat([v, v], int("_B" in n)) for n, v in t.items()},
            r"has rank 4, lora\.rank is 2; set lora\.rank to the file's",
        ),
        (
            lambda t: {n: v[..., :3] if "_A" in n else v for n, v in t.items()},
            r"of shape \(2, 3\), the model needs \(2, 48\); it is a LoRA of another model",
        ),
        (
            lambda t: t | {f"{TO_Q}.dora_scale": torch.ones(48, 1)},
            r"tensors that no plain LoRA has: transformer\.blocks\.0\.attn1\.to_q\.dora_sc",
        ),
        (
            lambda t: t | {f"{TO_Q}.alpha": torch.ones(2)},
            r"\.alpha = \[1\.0, 1\.0\]; an alpha is one",
        ),
        (
            lambda t: t | {f"{TO_Q}.alpha": torch.zeros(())},
            r"alpha = 0\.0; an alpha is one number ab",
        ),
        (
            lambda t: t | {f"{TO_Q}.alpha": torch.ones(())},
            r"has an alpha of other layers, and none of blocks\.0\.attn1\.to_k, ",
        ),
        (
            lambda t: t | {f"{TO_Q}.lora_A.weight": torch.full((2, 48), torch.nan)},
            r"to_q\.lora_A\.weight with values that are no finite floats",
        ),
        (
            lambda t: t | {f"{TO_Q}.lora_A.weight": torch.ones(())},
            r"to_q\.lora_A\.weight of shape \(\); an adapter has matrices",
        ),
        (
            lambda t: (
                t | {"diffusion_model.blocks.0.self_attn.q.lora_down.weight": torch.ones(2, 48)}
            ),
            r"has both .*, which are the same tensor; leave one out",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(change, words, tmp_path):
    model = adapted("wan", "attention", THEIRS)
    path = save_diffusers_lora(model.module, THEIRS, tmp_path, torch.float64)
    save_file({n: v.contiguous() for n, v in change(load_file(path)).items()}, path)
    before = adapter_tensors(model.module)["blocks.0.attn1.to_q.lora_B.weight"].clone()
    with pytest.raises(ConfigError, match=words) as caught:
        load_adapters(model, str(tmp_path), THEIRS, setting="lora.init_from")
    assert "\n" not in str(caught.value)
    after = adapter_tensors(model.module)["blocks.0.attn1.to_q.lora_B.weight"]
    assert torch.equal(after, before)


def test_what_is_no_lora_file_is_refused(tmp_path):
    model = adapted("wan", "attention", THEIRS)
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0")
    for path, words in (
        (tmp_path / "none", "no such file or folder; name one safetensors file"),
        (tmp_path, r"cannot read .*torn\.safetensors"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_adapters(model, str(path), THEIRS, setting="lora.init_from")
    write_peft(model, tmp_path)
    config = {"r": 2, "lora_alpha": 6, "use_rslora": True}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="has use_rslora = True"):
        load_adapters(model, str(tmp_path), THEIRS, setting="lora.init_from")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[]", "the settings of .* are no table"),
        ('{"lora_alpha": "6"}', "has lora_alpha = '6'; needed is a number above 0"),
        ('{"lora_alpha": null}', "has lora_alpha = None; needed is a number above 0"),
        ('{"lora_alpha": true}', "has lora_alpha = True; needed is a number above 0"),
        ('{"peft_type": "LOHA"}', "has peft_type = 'LOHA'; only LORA is read"),
        ('{"lora_alpha": 6, "use_dora": true}', "has use_dora = true and no magnitude"),
        ('{"lora_alpha": Infinity}', "has lora_alpha = inf; needed is a number above 0"),
    ],
)
def test_settings_of_peft_that_are_none_are_refused(settings, words, tmp_path):
    model = adapted("wan", "attention", THEIRS)
    write_peft(model, tmp_path)
    (tmp_path / "adapter_config.json").write_text(settings)
    with pytest.raises(ConfigError, match=words):
        load_adapters(model, str(tmp_path), THEIRS, setting="lora.init_from")


def test_a_peft_file_that_was_renamed_keeps_the_alpha_beside_it(tmp_path):
    trained = adapted("wan", "attention", THEIRS)
    write_peft(trained, tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "mine.safetensors")
    model = adapted("wan", "attention", OURS, seed=9)
    load_adapters(model, str(tmp_path), OURS, setting="lora.init_from")
    assert error(output_of(model), output_of(trained)) < 1e-12


def test_settings_in_finetrainers_metadata_count(tmp_path):
    trained = adapted("wan", "attention", THEIRS)
    path = save_diffusers_lora(trained.module, THEIRS, tmp_path, torch.float64)
    settings = json.dumps({"r": 2, "lora_alpha": 6, "init_lora_weights": True})
    save_file(load_file(path), path, {"format": "pt", "lora_config": settings})
    model = adapted("wan", "attention", OURS, seed=9)
    load_adapters(model, str(path), OURS, setting="lora.init_from")
    assert error(output_of(model), output_of(trained)) < 1e-12


def test_alphas_may_be_whole_numbers(tmp_path):
    trained = adapted("wan", "attention", THEIRS)
    path = write_kohya(trained, tmp_path) / "kohya.safetensors"
    tensors = load_file(path)
    save_file({n: t.long() if n.endswith(".alpha") else t for n, t in tensors.items()}, path)
    model = adapted("wan", "attention", OURS, seed=9)
    load_adapters(model, str(path), OURS, setting="lora.init_from")
    assert error(output_of(model), output_of(trained)) < 1e-12


def test_matrices_of_layers_that_were_taken_for_convolutions_are_read(tmp_path):
    trained = adapted("wan", "attention", THEIRS)
    path = save_comfyui_lora(trained, THEIRS, tmp_path, torch.float64)
    tensors = {n: t[..., None, None] if t.ndim == 2 else t for n, t in load_file(path).items()}
    save_file(tensors, path)
    model = adapted("wan", "attention", OURS, seed=9)
    load_adapters(model, str(path), OURS, setting="lora.init_from")
    assert error(output_of(model), output_of(trained)) < 1e-12


def test_every_layer_has_names_of_its_own():
    model = adapted("wan", "all-linear", THEIRS)
    layers = [name for name, _ in adapted_layers(model.module)]
    names = AdapterNames("wan", layers)
    for layer in layers:
        for prefix, name in (
            ("", layer),
            ("transformer.", layer),
            ("diffusion_model.", published_layer("wan", layer)),
            ("lora_unet_", published_layer("wan", layer).replace(".", "_")),
        ):
            found = names.find(f"{prefix}{name}.lora_up.weight")
            assert found is not None, name
            assert (found.layers, found.part) == ((layer,), "lora_B")
    assert names.find("blocks.0.attn1.to_q.weight") is None
