"""The card of exported weights says how they are loaded, what was trained, and on what clips."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from arachne.core.families import family_named
from arachne.models.diffusers_module import diffusers_class, pipeline_class
from arachne.models.families import TRANSFORMERS
from arachne.models.lora import AdapterOptions
from arachne.models.lora_files import save_diffusers_lora
from arachne.trainer.checkpoint_files import TrainState
from arachne.trainer.config import RunConfig
from arachne.trainer.model_card import model_card
from tests.models.test_lora import adapted
from tests.models.tiny_autoencoders import CLASS_OF_FAMILY, tiny_autoencoder
from tests.models.tiny_transformers import tiny_transformer
from tests.trainer.tiny_runs import changed, tiny_config

LORA = AdapterOptions(rank=2, alpha=6.0)


def card(config: RunConfig, what: str = "weights", to: str = "diffusers") -> str:
    state = TrainState(step=3, num_updates=3, seed=0, world_size=1, config_json="{}")
    shown = {"what": what, "to": to, "dtype": "float32", "weights": "raw"}
    return model_card(config, state, **shown, num_trained=20)


def of_family(folder: Path, family: str) -> RunConfig:
    config = tiny_config(folder, folder / "run")
    frames = family_named(family).geometry.legal_frames_up_to(33)
    return replace(
        config,
        data=replace(config.data, frame_buckets=(frames,)),
        model=replace(config.model, family=family),
        lora=replace(config.lora, rank=2, alpha=6.0),
    )


def of_second_expert(folder: Path) -> RunConfig:
    config = changed(of_family(folder, "wan"), "objective", timestep_range=(0.0, 0.875))
    place = "models/Wan2.2-T2V-A14B-Diffusers/transformer_2"
    return changed(config, "model", pretrained=place, video_encoder=f"{Path(place).parent}/vae")


def test_it_names_what_the_run_froze(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, tmp_path / "run")
    whole = card(config)
    assert "trained alone" not in whole
    assert "not trained" not in whole
    part = card(changed(config, "model", freeze=("*.norm*", "*.bias"), train_only=("blocks.0.*",)))
    assert "| trained alone | `blocks.0.*` |\n| not trained | `*.norm*`, `*.bias` |" in part


def test_it_names_the_lengths_that_count(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, tmp_path / "run")
    assert "| lengths in frames | 1, 5, 9 |" in card(config)
    whole_clips = changed(config, "data", frame_extraction="full", max_frames=17)
    assert "| lengths in frames | at most 17 |" in card(whole_clips)


def code_of(text: str) -> str:
    """The card's Python."""
    (found,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return found


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_it_calls_what_the_pipeline_of_the_family_has(tmp_path: Path, family: str) -> None:
    transformer = diffusers_class(TRANSFORMERS[family])
    pipeline = pipeline_class(TRANSFORMERS[family])
    parts = inspect.signature(pipeline.__init__).parameters
    assert transformer.__name__ in str(parts["transformer"].annotation)
    code = code_of(card(of_family(tmp_path, family), "lora"))
    is_of_transformer, method = re.findall(r"^pipeline\.(transformer\.)?(\w+)\(", code)[0]
    assert hasattr(transformer if is_of_transformer else pipeline, method)


def test_its_line_loads_a_lora_where_the_pipeline_cannot(tmp_path: Path) -> None:
    pipeline = diffusers.HunyuanVideo15Pipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=tiny_transformer("hunyuan_video15", torch.float32).module,
        vae=tiny_autoencoder(CLASS_OF_FAMILY["hunyuan_video15"]),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        text_encoder_2=None,
        tokenizer_2=None,
        guider=diffusers.ClassifierFreeGuidance(guidance_scale=1.0),
    )
    check_loads(pipeline, of_family(tmp_path, "hunyuan_video15"), tmp_path)
    assert pipeline.transformer.peft_config


def test_its_line_loads_a_lora_of_a_second_expert_into_that_one(tmp_path: Path) -> None:
    experts = [tiny_transformer("wan", torch.float32).module for _ in range(2)]
    pipeline = diffusers.WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=tiny_autoencoder("AutoencoderKLWan"),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        transformer=experts[0],
        transformer_2=experts[1],
        boundary_ratio=0.875,
    )
    check_loads(pipeline, of_second_expert(tmp_path), tmp_path)
    assert pipeline.transformer_2.peft_config
    assert not hasattr(pipeline.transformer, "peft_config")


def check_loads(pipeline: Any, config: RunConfig, folder: Path) -> None:
    trained = adapted(config.model.family, "attention", LORA)
    save_diffusers_lora(trained.module, LORA, folder, torch.float32)
    exec(code_of(card(config, "lora")).replace("FOLDER", str(folder)), {"pipeline": pipeline})


def test_it_says_which_expert_was_trained_and_of_which_model(tmp_path: Path) -> None:
    second = of_second_expert(tmp_path)
    found = card(second, "merged")
    assert "| base model | `Wan2.2-T2V-A14B-Diffusers/transformer_2` |" in found
    assert "| noise levels | 0 to 0.875, where 1 is noise alone |" in found
    assert "encoders named below, as its `transformer_2`." in found
    assert "| video encoder | `Wan2.2-T2V-A14B-Diffusers/vae` |" in found
    for what in ("lora", "merged"):
        assert "model of low noise levels" in card(second, what, "comfyui")

    exported = changed(second, "model", pretrained="exports/low", other_expert="exports/high")
    assert "load_into_transformer_2=True" in card(exported, "lora")
    assert "| base model | `low` |" in card(exported, "lora")

    first = changed(second, "objective", timestep_range=(0.875, 1.0))
    first = changed(first, "model", pretrained=exported.model.other_expert)
    assert "transformer_2" not in card(first, "lora")
    assert "| noise levels | 0.875 to 1, where 1 is noise alone |" in card(first, "lora")
    assert "noise levels" not in card(of_family(tmp_path, "wan"), "lora")


def test_a_snapshot_of_the_hub_is_named_by_its_repository(tmp_path: Path) -> None:
    snapshot = "hub/models--Wan-AI--Wan2.2-T2V-A14B-Diffusers/snapshots/5be7df9619b54f4e"
    config = tiny_config(tmp_path, tmp_path / "run")
    for part in ("", "/transformer_2"):
        found = card(changed(config, "model", pretrained=snapshot + part))
        assert f"| base model | `Wan-AI/Wan2.2-T2V-A14B-Diffusers{part}` |" in found
    relative = card(changed(config, "model", pretrained="transformer_2"))
    assert "| base model | `transformer_2` |" in relative
