"""Runs that train adapters, or some parameters only: on every world, resumed, sampled."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arachne.cli.run_dir import write_resolved
from arachne.core.errors import CheckpointError, ConfigError
from arachne.core.strict_toml import load_toml
from arachne.models.codec import DctCodec
from arachne.models.diffusers_module import build_transformer
from arachne.models.hashed_text import HASHED_TEXT_SIZE, HashedTextEncoder
from arachne.models.lora import adapter_tensors, set_adapter_tensors
from arachne.models.lora_files import save_comfyui_lora, save_diffusers_lora
from arachne.runtime.launcher import run_ranks
from arachne.trainer.built_model import adapter_options, built_model, training_model
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.generate import trained_model
from arachne.trainer.loop import train
from arachne.trainer.settings.lora import LoraSettings
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

LORA = LoraSettings(rank=2, alpha=6.0, targets="all-linear")
ENCODERS = (DctCodec(), HashedTextEncoder(num_tokens=4))


def lora_config(clips, run_dir, **options) -> RunConfig:
    config = tiny_config(clips, run_dir, **options)
    return replace(changed(config, "optimizer", lr=0.02), lora=LORA)


def trained_on(world, config: RunConfig, resume: bool):
    """Losses of a run, the trained parameters' masters, and the frozen parameters' change."""
    with tiny_session(world, config) as (session, heard):
        frozen = {
            name: parameter.detach().clone()
            for name, parameter in session.model.module.named_parameters()
            if not parameter.requires_grad
        }
        train(session, heard.listener, resume=resume)
        now = dict(session.model.module.named_parameters())
        assert all(torch.equal(now[name], value) for name, value in frozen.items())
        dtypes = {str(p.values.dtype) for p in session.optimizer.pieces() if p.kind == "master"}
    return heard.losses, dtypes


@pytest.mark.distributed
def test_a_lora_run_has_one_loss_curve_on_every_world_and_resumed(clips, tmp_path):
    curves = {}
    for size in (1, 2, 3):
        config = with_manifest(lora_config(clips, tmp_path / str(size), steps=4))
        curves[size] = run_ranks(size, trained_on, (config, False), timeout_s=60.0)[0][0]
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)
    assert curves[3] == pytest.approx(curves[1], rel=1e-9)
    plain = tiny_config(clips, tmp_path / "1", steps=1)
    first = run_ranks(1, losses_alone, (with_manifest(plain),))[0]
    assert first[0] == pytest.approx(curves[1][0], rel=1e-12), "new adapters change nothing"

    part = lora_config(clips, tmp_path / "part", steps=2)
    run_ranks(3, trained_on, (with_manifest(part), False), timeout_s=60.0)
    rest = run_ranks(2, trained_on, (changed(part, "run", steps=4), True), timeout_s=60.0)[0][0]
    assert rest == pytest.approx(curves[1][2:], rel=1e-9)

    reader = CheckpointReader(newest(Path(part.run.dir), on_skip=print))
    assert all("lora_" in name for name in reader.parameters)
    assert reader.state.base == "random weights of seed 3"
    assert_sampled_model_is_the_trained_one(part, reader)


def losses_alone(world, config: RunConfig):
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    return heard.losses


def assert_sampled_model_is_the_trained_one(config: RunConfig, reader: CheckpointReader) -> None:
    model = trained_model(config, newest(Path(config.run.dir), on_skip=print), *ENCODERS)
    base = dict(built_model(config.model, config.run.seed, *ENCODERS).module.named_parameters())
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad:
            values = reader.read(name, "master", 0, parameter.numel())
            assert np.array_equal(parameter.detach().numpy().reshape(-1), values)
        else:
            assert torch.equal(parameter, base[name.replace(".base_layer", "")])
    learned = [p.detach() for n, p in model.module.named_parameters() if "lora_B" in n]
    assert all(float(p.abs().max()) > 0.0 for p in learned)


@pytest.mark.distributed
def test_adapters_over_a_bfloat16_model_have_float32_masters(clips, tmp_path):
    config = with_manifest(lora_config(clips, tmp_path / "run", steps=2, dtype="bfloat16"))
    for losses, dtypes in run_ranks(2, trained_on, (config, False), timeout_s=60.0):
        assert len(losses) == 2
        assert np.isfinite(losses).all()
        assert dtypes == {"torch.float32"}


def at_the_start(world, config: RunConfig):
    """Masters and averages before the first step, by name; this rank's parts, and parameters."""
    with tiny_session(world, config) as (session, _):
        pieces = [(p.name, p.kind, p.offset, p.values.clone()) for p in session.optimizer.pieces()]
        named = dict(session.model.module.named_parameters())
        assert session.model.unrounded == {}, "it is needed no more"
        return pieces, {name: p.detach().clone() for name, p in named.items() if p.requires_grad}


@pytest.mark.distributed
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("is_lora", [False, True])
def test_masters_of_a_bfloat16_run_begin_at_the_file_s_own_float32(
    clips, tmp_path, is_lora, optimizer
):
    base = pretrained_folder(tmp_path / "base", seed=1)
    config = tiny_config(clips, tmp_path / "run", steps=2, dtype="bfloat16")
    if is_lora:
        config = lora_config(clips, tmp_path / "run", steps=2, dtype="bfloat16")
        first = training_model(changed(config, "model", dtype="float32"), *ENCODERS)
        adapters = {n: torch.randn_like(t) for n, t in adapter_tensors(first.module).items()}
        set_adapter_tensors(first.module, adapters)
        path = save_diffusers_lora(first.module, adapter_options(config), tmp_path, torch.float32)
        config = changed(config, "lora", init_from=str(path))
    config = changed(config, "model", pretrained=str(base))
    config = changed(config, "optimizer", name=optimizer, ema_decay=0.9)
    wide = training_model(changed(config, "model", dtype="float32"), *ENCODERS)
    needed = {n: p.detach() for n, p in wide.module.named_parameters() if p.requires_grad}
    for world_size in (1, 3):
        for pieces, parameters in run_ranks(world_size, at_the_start, (with_manifest(config),)):
            for name, kind, offset, values in pieces:
                if kind in ("master", "ema"):
                    begun = needed[name].reshape(-1)[offset : offset + len(values)]
                    assert torch.equal(values, begun), (name, kind)
            for name, values in parameters.items():
                assert torch.equal(values, needed[name].bfloat16()), name


def pretrained_folder(folder: Path, seed: int) -> Path:
    settings = tiny_config(folder, folder).model
    shape = settings.shape(latent_channels=DctCodec().latent_channels, text_size=HASHED_TEXT_SIZE)
    model = build_transformer(shape, dtype=torch.float32, seed=seed)
    model.module.save_pretrained(folder / "transformer")
    return folder


@pytest.mark.distributed
def test_a_checkpoint_does_not_go_onto_other_pretrained_weights(clips, tmp_path):
    folder = pretrained_folder(tmp_path / "base", seed=1)
    config = changed(lora_config(clips, tmp_path / "run", steps=1), "model", pretrained=str(folder))
    run_ranks(2, trained_on, (with_manifest(config), False), timeout_s=60.0)
    checkpoint = newest(tmp_path / "run", on_skip=print)
    assert CheckpointReader(checkpoint).state.base.startswith("files ")
    trained_model(config, checkpoint, *ENCODERS)

    shutil.rmtree(folder)
    pretrained_folder(folder, seed=2)

    words = r"of step 1 was trained on files \w+, but the frozen weights are now files \w+; name"
    with pytest.raises(CheckpointError, match=words):
        trained_model(config, checkpoint, *ENCODERS)
    with pytest.raises(CheckpointError, match=words):
        run_ranks(1, trained_on, (changed(config, "run", steps=2), True), timeout_s=60.0)


def open_on_own_base(world, config: RunConfig, folders):
    with tiny_session(world, changed(config, "model", pretrained=folders[world.rank])):
        pass


@pytest.mark.distributed
def test_ranks_with_different_frozen_weights_do_not_start(clips, tmp_path):
    folders = [str(pretrained_folder(tmp_path / str(seed), seed)) for seed in (1, 2)]
    config = with_manifest(lora_config(clips, tmp_path / "run"))
    run_ranks(2, open_on_own_base, (config, [folders[0]] * 2))
    with pytest.raises(ConfigError, match=r"model\.pretrained holds different files on different"):
        run_ranks(2, open_on_own_base, (config, folders))


@pytest.mark.parametrize(
    ("settings", "num_trained"),
    [
        ({"freeze": ("*",), "train_only": ()}, 0),
        ({"freeze": ("*.bias", "proj_out.*")}, None),
        ({"train_only": ("blocks.0.attn1.*",)}, 10),
        ({"train_only": ("blocks.0.attn1.*",), "freeze": ("*.bias",)}, 6),
    ],
)
def test_patterns_choose_what_is_trained(clips, tmp_path, settings, num_trained):
    config = changed(tiny_config(clips, tmp_path), "model", **settings)
    if num_trained == 0:
        with pytest.raises(ConfigError, match="leave no parameter to train"):
            training_model(config, *ENCODERS)
        return
    named = list(training_model(config, *ENCODERS).module.named_parameters())
    trained = {name for name, parameter in named if parameter.requires_grad}
    assert num_trained in (None, len(trained))
    assert trained
    assert not any(name.endswith(".bias") for name in trained if settings.get("freeze"))


@pytest.mark.parametrize("setting", ["freeze", "train_only"])
def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_name(clips, tmp_path, setting):
    config = changed(tiny_config(clips, tmp_path), "model", **{setting: ("block.0.attn1.to_q.*",)})
    words = rf"model\.{setting} holds 'block.0.attn1.to_q.\*', .*; did you mean 'blocks.0.attn1.to"
    with pytest.raises(ConfigError, match=words):
        training_model(config, *ENCODERS)


def trained_in_part(world, config: RunConfig):
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
        return heard.losses, sorted(session.optimizer.shapes)


@pytest.mark.distributed
def test_a_run_that_freezes_has_one_loss_curve_and_saves_what_it_trains(clips, tmp_path):
    found = {}
    for size in (1, 2):
        config = changed(
            tiny_config(clips, tmp_path / str(size), steps=2), "model", train_only=("*.attn1.*",)
        )
        found[size] = run_ranks(size, trained_in_part, (with_manifest(config),))[0]
    assert found[2][0] == pytest.approx(found[1][0], rel=1e-9)
    reader = CheckpointReader(newest(tmp_path / "2", on_skip=print))
    assert sorted(reader.parameters) == found[2][1]
    assert all(".attn1." in name for name in reader.parameters)
    assert reader.state.base == "random weights of seed 3"


def test_a_run_may_go_on_from_a_lora(clips, tmp_path):
    config = lora_config(clips, tmp_path / "run")
    trained = training_model(config, *ENCODERS)
    with torch.no_grad():
        for parameter in trained.module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.25)
    path = save_comfyui_lora(trained, adapter_options(config), tmp_path, torch.float64)

    started = training_model(changed(config, "lora", init_from=str(path)), *ENCODERS)

    found, needed = adapter_tensors(started.module), adapter_tensors(trained.module)
    assert all(torch.equal(found[name], needed[name]) for name in needed)


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"alpha": 4.0}, r"lora\.alpha is 4\.0, but lora\.rank is 0"),
        ({"init_from": "a"}, r"lora\.init_from is 'a', but lora\.rank is 0"),
        ({"rank": -1}, r"lora\.rank is -1"),
        (
            {"rank": 2, "targets": "attn"},
            r"lora\.targets is 'attn'; did you mean 'attention'\? choose ",
        ),
        ({"rank": 2, "targets": ()}, r"lora\.targets names no layer"),
    ],
)
def test_settings_that_cannot_work_are_refused(lora, words):
    with pytest.raises(ConfigError, match=words):
        LoraSettings(**lora)


def test_targets_in_a_run_file_are_a_name_or_a_list(tmp_path):
    file = tmp_path / "run.toml"
    start = '[run]\ndir = "a"\nsteps = 1\n[data]\npath = "b"\ncache = "c"\n[lora]\nrank = 4\n'
    for text, targets in (
        ("", "attention"),
        ('targets = ["to_q", "ffn.net.2"]', ("to_q", "ffn.net.2")),
    ):
        file.write_text(start + text)
        config = load_toml(file, RunConfig)
        assert config.lora.targets == targets
        assert config.lora.alpha_or_rank == 4.0
        write_resolved(config, tmp_path / "resolved.toml")
        assert load_toml(tmp_path / "resolved.toml", RunConfig) == config


def test_adapters_freeze_everything_else_already(clips, tmp_path):
    config = changed(tiny_config(clips, tmp_path), "model", freeze=("*.bias",))
    with pytest.raises(ConfigError, match=r"only adapters are trained; leave model\.freeze"):
        replace(config, lora=LORA)
