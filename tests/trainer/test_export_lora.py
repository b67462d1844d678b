"""LoRAs and merged weights of a run: what other programs load computes what was trained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from arachne.core.errors import ConfigError, DataError
from arachne.models.codec import DctCodec
from arachne.models.hashed_text import HashedTextEncoder
from arachne.models.lora import adapter_tensors
from arachne.runtime.launcher import run_ranks
from arachne.trainer import export as export_module
from arachne.trainer import export_check
from arachne.trainer.built_model import training_model
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.config import RunConfig
from arachne.trainer.export import ExportOptions, export
from arachne.trainer.export_check import probe_output
from arachne.trainer.generate import trained_model
from arachne.trainer.settings.lora import LoraSettings
from tests.trainer.test_lora_runs import losses_alone, pretrained_folder
from tests.trainer.tiny_runs import changed, tiny_config, with_manifest

ENCODERS = (DctCodec(), HashedTextEncoder(num_tokens=4))
LORA = LoraSettings(rank=2, alpha=6.0, targets="attention+ffn")


def lora_run(clips: Path, folder: Path, lora: LoraSettings) -> RunConfig:
    """A run that trained three steps of a LoRA on a pretrained model."""
    base = pretrained_folder(folder / "base-model", seed=1)
    config = tiny_config(clips, folder / "run", steps=3, dtype="float32")
    config = replace(changed(config, "optimizer", lr=0.05), lora=lora)
    config = changed(config, "model", pretrained=str(base))
    run_ranks(1, losses_alone, (with_manifest(config),), timeout_s=60.0)
    return config


@pytest.fixture(scope="module")
def config(clips, tmp_path_factory) -> RunConfig:
    return lora_run(clips, tmp_path_factory.mktemp("lora"), LORA)


def checkpoint_of(config: RunConfig) -> Path:
    return newest(Path(config.run.dir), on_skip=print)


def exported(config: RunConfig, folder: Path, **options) -> list[str]:
    files = export(config, checkpoint_of(config), folder, ExportOptions(**options))
    return [str(path.relative_to(folder)) for path in files]


def outputs(config: RunConfig):
    """Of the trained model, and of the plain base in diffusers' class."""
    model = trained_model(config, checkpoint_of(config), *ENCODERS)
    plain = WanTransformer3DModel.from_pretrained(Path(config.model.pretrained) / "transformer")
    return probe_output(model), replace(model, module=plain)


def error(found, needed):
    return float((found - needed).norm() / needed.norm())


def test_a_folder_beside_the_export_is_left_alone(tmp_path, config):
    other = tmp_path / "out.partial"
    other.mkdir()
    (other / "mine.txt").write_text("")
    exported(config, tmp_path / "out", to="comfyui", what="lora")
    assert (other / "mine.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]


@pytest.mark.parametrize("use_dora", [False, True])
def test_diffusers_own_loader_gives_the_trained_models_output(clips, tmp_path, config, use_dora):
    if use_dora:
        config = lora_run(clips, tmp_path, replace(LORA, use_dora=True))
    files = exported(config, tmp_path / "out", to="diffusers")
    assert files == ["README.md", "pytorch_lora_weights.safetensors"]
    assert all(
        name.startswith("transformer.blocks.") and ".lora_" in name
        for name in load_file(tmp_path / "out" / files[1])
    )

    needed, plain = outputs(config)
    assert error(probe_output(plain), needed) > 1e-2, "the LoRA does something"
    plain.module.load_lora_adapter(str(tmp_path / "out"), weight_name=files[1])

    assert error(probe_output(plain), needed) < 1e-5


def test_comfyui_gets_published_names_and_an_alpha_for_each(tmp_path, config):
    files = exported(config, tmp_path / "out", to="comfyui", what="lora")
    assert files == ["README.md", "lora.safetensors"]
    tensors = load_file(tmp_path / "out" / "lora.safetensors")
    names = ("self_attn.q", "self_attn.o", "cross_attn.k", "cross_attn.v", "ffn.0", "ffn.2")
    for name in names:
        assert float(tensors[f"diffusion_model.blocks.0.{name}.alpha"]) == 6.0
        assert tensors[f"diffusion_model.blocks.0.{name}.lora_down.weight"].shape[0] == 2
        assert tensors[f"diffusion_model.blocks.0.{name}.lora_up.weight"].shape[1] == 2
    assert len(tensors) == 10 * 3

    needed, plain = outputs(config)
    state = WanLoraLoaderMixin.lora_state_dict(str(tmp_path / "out"), weight_name=files[1])
    plain.module.load_lora_adapter(state)

    assert error(probe_output(plain), needed) < 1e-5


@pytest.mark.parametrize("to", ["diffusers", "comfyui"])
def test_alpha_survives_export_and_import(tmp_path, config, to):
    exported(config, tmp_path / "out", to=to)
    trained = trained_model(config, checkpoint_of(config), *ENCODERS)
    for alpha in (6.0, 1.0):
        lora = replace(LORA, alpha=alpha, init_from=str(tmp_path / "out"))
        started = training_model(replace(config, lora=lora), *ENCODERS)
        assert error(probe_output(started), probe_output(trained)) < 1e-6
    same = training_model(replace(config, lora=replace(LORA, init_from=lora.init_from)), *ENCODERS)
    found, needed = adapter_tensors(same.module), adapter_tensors(trained.module)
    assert all(torch.equal(found[name], needed[name]) for name in needed)


def test_merged_weights_are_a_plain_model_with_the_trained_output(tmp_path, config):
    files = exported(config, tmp_path / "out", to="diffusers", what="merged")
    assert "transformer/config.json" in files
    needed, plain = outputs(config)
    merged, info = WanTransformer3DModel.from_pretrained(
        tmp_path / "out" / "transformer", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert error(probe_output(replace(plain, module=merged)), needed) < 1e-5
    assert exported(config, tmp_path / "comfy", to="comfyui", what="merged") == [
        "README.md",
        "diffusion_model.safetensors",
    ]


@pytest.mark.parametrize("to", ["diffusers", "comfyui"])
@pytest.mark.parametrize("what", ["lora", "merged"])
def test_bfloat16_is_taken_for_rounding(tmp_path, config, to, what):
    assert exported(config, tmp_path / "out", to=to, what=what, dtype="bfloat16")


def test_the_card_names_the_facts_and_no_paths(tmp_path, config):
    exported(config, tmp_path / "out", to="diffusers")
    card = (tmp_path / "out" / "README.md").read_text()
    for fact in (
        "| base model | `base-model` (files ",
        "| rank | 2 |",
        "| alpha | 6 |",
        "| adapted layers | attention+ffn |",
        "| steps | 3, of which 3 changed the weights |",
        "| clips that trained | 6 |",
        "| seed | 3 |",
        "- lora\n",
        "[objective]\n",
    ):
        assert fact in card
    assert str(tmp_path.parent) not in card
    assert config.model.pretrained not in card


@pytest.mark.parametrize(
    ("lora", "options", "words"),
    [
        (LoraSettings(), {"what": "lora"}, "this run trained no adapters"),
        (replace(LORA, use_dora=True), {"to": "comfyui"}, "cannot hold the magnitudes"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, config, lora, options, words):
    with pytest.raises(ConfigError, match=words):
        exported(replace(config, lora=lora), tmp_path / "out", **{"to": "diffusers", **options})
    assert not (tmp_path / "out").exists()


def test_comfyui_gets_no_adapters_outside_of_the_blocks(clips, tmp_path):
    config = lora_run(clips, tmp_path, replace(LORA, targets=("proj_out",)))
    with pytest.raises(ConfigError, match="trained one of 'proj_out'; export --what merge"):
        exported(config, tmp_path / "out", to="comfyui")
    assert not (tmp_path / "out").exists()
    exported(config, tmp_path / "out", to="diffusers")


@pytest.mark.parametrize("to", ["diffusers", "comfyui"])
@pytest.mark.parametrize("damage", ["alpha", "layer"])
def test_a_lora_with_another_effect_is_not_exported(tmp_path, config, monkeypatch, to, damage):
    name = f"save_{to}_lora"
    save = getattr(export_module, name)

    def damaged(model, options, folder, dtype):
        if damage == "alpha":
            return save(model, replace(options, alpha=options.alpha * 1.2), folder, dtype)
        path = save(model, options, folder, dtype)
        tensors = {n: v for n, v in load_file(path).items() if "to_v" not in n and ".v." not in n}
        save_file(tensors, path)
        return path

    monkeypatch.setattr(export_module, name, damaged)
    with pytest.raises(DataError, match="nothing was exported"):
        exported(config, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")]
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, config, monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(export_module, "save_diffusers_lora", refuse)
    with pytest.raises(ConfigError, match=r"out' cannot be written: No space left on device; "):
        exported(config, tmp_path / "out", to="diffusers")
    assert list(tmp_path.iterdir()) == []


def test_a_merge_that_changes_the_model_is_not_exported(tmp_path, config, monkeypatch):
    monkeypatch.setattr(export_module, "merge_adapters", export_check.remove_adapters)
    with pytest.raises(DataError, match="merging gives a model whose output differs"):
        exported(config, tmp_path / "out", to="diffusers", what="merged")
