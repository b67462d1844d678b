"""The run file: what a user reads when something is wrong with it."""

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from arachne.core.errors import ConfigError
from arachne.core.strict_toml import load_toml
from arachne.trainer.config import RunConfig
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.dataset import DatasetSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from arachne.trainer.settings.optimizer import OptimizerSettings

MINIMAL = '[run]\ndir = "runs/a"\nsteps = 10\n[data]\npath = "clips"\ncache = "cache"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(MINIMAL)
    return file


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_toml(path, RunConfig, overrides=overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_four_settings_are_enough(path):
    config = load_toml(path, RunConfig)
    assert config.run.steps == 10
    assert config.planner.name == "arachne"
    assert config.data.frame_buckets == (1, 17, 33, 49, 65, 81)
    assert config.optimizer.betas == (0.9, 0.95)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("planner.stpes=3", "--set planner.stpes: unknown setting 'planner.stpes'; known here: "),
        ("planner.iteration=3", "'planner.iteration'; did you mean 'planner.iterations'?"),
        ("optimiser.lr=1", "unknown setting 'optimiser'; did you mean 'optimizer'?"),
        ("optimizer.max_gradnorm=1", "did you mean 'optimizer.max_grad_norm'?"),
        ("run.step=1", "unknown setting 'run.step'; did you mean 'run.steps'?"),
        ("data.heldout=0.1", "did you mean 'data.held_out'?"),
    ],
)
def test_a_typo_names_the_nearest_setting(path, override, words):
    assert words in refusal(path, override)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (48, "data.frame_buckets holds 48, but the model takes 4k+1 frames; use 45 or 49"),
        (80, "data.frame_buckets holds 80, but the model takes 4k+1 frames; use 77 or 81"),
        (2, "data.frame_buckets holds 2, but the model takes 4k+1 frames; use 1 or 5"),
        (0, "data.frame_buckets holds 0, but the model takes 4k+1 frames; use 1"),
        (-3, "data.frame_buckets holds -3, but the model takes 4k+1 frames; use 1"),
    ],
)
def test_an_illegal_frame_count_names_the_nearest_legal_ones(path, frames, words):
    assert refusal(path, f"data.frame_buckets=[1, {frames}]").startswith(words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.steps=0", "run.steps is 0; it must be at least 1"),
        ("run.seed=-1", "run.seed is -1; it must be at least 0"),
        ("run.timeout_s=nan", "run.timeout_s is nan; it must be at least 1"),
        ("run.device=tpu", "run.device: "),
        ("run.steps=many", "--set run.steps: expected int, got str"),
        ("data.fps=0", "data.fps is 0.0; it must be between 0.1 and 240"),
        ("data.resolution=8", "data.resolution is 8; it must be at least 16"),
        ("data.resolution=[480, 8]", "data.resolution is 8; it must be at least 16"),
        ("data.resolution=[]", "data.resolution is empty; name at least one, such as 480"),
        ("data.weight=2.0", "data.weight is 2, but the run has one dataset, and weights say"),
        (
            'data.others=["a"]',
            "expected object, got str; write a section for each, [[data.others]]",
        ),
        ('data.others={path="a"}', "got object; write a section for each, [[data.others]]"),
        (
            "data.others=[{repeats=2.0}]",
            "missing setting 'data.others[0].path'; add it to [[data.others]], text in quotes",
        ),
        ("data.fit=pad", "data.fit: invalid enum value 'pad'; choose 'crop' or 'letterbox'"),
        ("data.held_out=1.5", "data.held_out is 1.5; it must be between 0 and 1"),
        ("data.frame_buckets=[]", "data.frame_buckets is empty; name at least one length"),
        ("data.missing_caption=skip", "data.missing_caption: "),
        (
            "model.family=sora",
            "model.family 'sora' is not built; choose 'wan', 'wan_5b', 'cogvideox'",
        ),
        (
            "model.preset=wan-2b",
            "model.preset 'wan-2b' is none of family 'wan'; did you mean 'wan-",
        ),
        ("model.family=wann", "model.family 'wann' is not built; did you mean 'wan'?"),
        ("objective.shift=aut", "did you mean 'auto'? choose 'auto', or write a number, as 1.5"),
        ("optimizer.name=adam", "optimizer.name is 'adam'; did you mean 'adamw'? choose"),
        ("lora.targets=atention", "lora.targets is 'atention'; did you mean 'attention'?"),
        ("lora.targets=3", """write text in quotes, as "a" or a list, as ["a", "b"]"""),
        (
            "model.dtype=bfloat6",
            "model.dtype: invalid enum value 'bfloat6'; did you mean 'bfloat16'",
        ),
        (
            "model.attention=flash4",
            "unknown model.attention 'flash4'; did you mean 'flash'? choose",
        ),
        ("model.attention=sage", "'auto', 'cudnn', 'flash', 'flash3', 'math' or 'diffusers:"),
        (
            "validation.prompts=a",
            'validation.prompts: expected array, got str; write a list, as ["a',
        ),
        (
            "data.frame_buckets=5",
            "data.frame_buckets: expected array, got int; write a list, as [1",
        ),
        ("objective.prediction=noise", "objective.prediction is a setting of ddpm, and this run"),
        ("objective.caption_dropout=-0.1", "objective.caption_dropout is -0.1"),
        ("objective.shift=0", "objective.shift is 0.0; it must be above 0"),
        (
            "run.seed=99999999999999999999",
            "run.seed is 99,999,999,999,999,999,999; it must be at most 9,223,372,036,854,775,807",
        ),
        (f"run.steps={'9' * 400}", "run.steps is a number of 400 digits; it must be at most 1,"),
        ("objective.shift=1e4", "objective.shift is 10000; it must be at most 1000"),
        ("objective.shift=1e-4", "objective.shift is 0.0001; it must be at least 0.001"),
        ("objective.snr_shift=1e4", "objective.snr_shift is 10000; it must be at most 1000"),
        ("objective.logit_std=1e-200", "objective.logit_std is 1e-200; it must be at least 0.001"),
        ("objective.shift_exponents=[-8.0, 1.0]", "objective.shift_exponents is -8.0; it must be"),
        ("objective.max_shift=1e4", "objective.max_shift is 10000; it must be at most 1000"),
        ("batch.clips=-1", "batch.clips is -1; it must be at least 0"),
        ("planner.stack_tokens=-1", "planner.stack_tokens is -1; it must be at least 0"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas holds 1.0; each must be in [0, 1)"),
        ("optimizer.betas=[0.9]", "optimizer.betas: "),
        ("optimizer.lr=-1", "optimizer.lr is -1.0; it must be at least 0"),
        ("checkpoint.keep=-1", "checkpoint.keep is -1; it must be at least 0"),
        ("validation.noises=0", "validation.noises is 0; it must be at least 1"),
        ("logging.every=0", "logging.every is 0; it must be at least 1"),
        ("data.cache=s3://bucket/cache", "data.cache is 's3://bucket/cache', an address"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_dotted_name(path, override, words):
    assert words in refusal(path, override)


def test_what_a_step_trains_is_told_with_grouped_digits():
    assert BatchSettings(tokens=500_000).text == "500,000 tokens"
    assert BatchSettings(tflops=1_500_000.5).text == "1,500,000.5 TFLOPs"
    assert BatchSettings(clips=1).text == "1 clip"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "run.toml: missing setting 'run'"),
        ('[run]\ndir = "a"\n[data]\npath = "b"\ncache = "c"', "missing setting 'run.steps'"),
        ('[run]\ndir = "a"\nsteps = 1', "run.toml: missing setting 'data'"),
    ],
)
def test_a_missing_setting_is_named(path, text, words):
    path.write_text(text)
    assert words in refusal(path)


@pytest.mark.parametrize(
    "setting", ["optimizer.lr", "optimizer.eps", "objective.shift", "planner.timeout_s"]
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_no_setting_may_be_infinite_or_no_number(path, setting, value):
    assert refusal(path, f"{setting}={value}").startswith(f"{setting} is {value}")


def test_sizes_change_a_preset_and_the_encoders_give_the_widths(path):
    overrides = ["model.preset=wan-1.3b", "model.num_layers=2"]
    config = load_toml(path, RunConfig, overrides=overrides)
    shape = config.model.shape(latent_channels=48, text_size=64)
    assert (shape.num_layers, shape.num_heads, shape.latent_channels) == (2, 12, 48)
    assert (shape.text_size, shape.text_tokens) == (64, 512)


def test_a_size_that_nothing_gives_is_refused(path):
    config = load_toml(path, RunConfig)
    with pytest.raises(ConfigError) as caught:
        config.model.shape(latent_channels=48, text_size=64)
    assert str(caught.value) == "model.num_layers is missing; set it, or name a model.preset"


def test_reading_a_run_file_loads_no_torch():
    code = "import sys, arachne.trainer.config; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
    )
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (ObjectiveSettings, {"max_shift": 3.0}, "max_shift does nothing here"),
        (ObjectiveSettings, {"mode_scale": 1.0}, "set objective.timestep_sampling = 'mode'"),
        (
            ObjectiveSettings,
            {"timestep_sampling": "uniform", "logit_mean": 1.0},
            "set objective.timestep_sampling = 'logit_normal'",
        ),
        (ObjectiveSettings, {"shift": "auto", "max_shift": 1.0}, "begins at 1.65 for few tokens"),
        (
            ObjectiveSettings,
            {"shift": "auto", "shift_exponents": (2.0, 1.0)},
            r"begins at 7.39 for few tokens, above its end \(2.72\)",
        ),
        (OptimizerSettings, {"min_lr_share": 0.5}, "schedule 'constant' never falls"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_a_slip_in_any_setting_names_the_right_one(path):
    hints = get_type_hints(RunConfig)
    settings = [(section, name) for section in hints for name in get_type_hints(hints[section])]
    assert len(settings) > 80
    for section, name in settings:
        slip = name[:-2] + name[-1] + name[-2] if len(name) > 3 else name + "s"
        if slip == name:
            slip = name + "s"
        message = refusal(path, f"{section}.{slip}=1")
        assert f"did you mean '{section}.{name}'?" in message, message


@pytest.mark.parametrize(
    ("shape", "words"),
    [("tall", "bucket 'tall' is not WIDTHxHEIGHT"), ("64x64x6", "6 frames are not 4k+1; use 5 or")],
)
def test_the_setting_of_a_sample_s_shape_is_named(path, shape, words):
    overrides = [
        "validation.sample_every=1",
        'validation.prompts=["a"]',
        f"validation.sample_shape={shape}",
    ]
    with pytest.raises(ConfigError, match=r"validation\.sample_shape: ") as caught:
        load_toml(path, RunConfig, overrides=overrides)
    assert words in str(caught.value)


def test_the_other_expert_needs_noise_levels_of_its_own(path):
    with pytest.raises(ConfigError, match=r"timestep_range is \[0\.0, 1\.0\]; train one end"):
        load_toml(path, RunConfig, overrides=["model.other_expert=a"])
    overrides = ["model.other_expert=a", "objective.timestep_range=[0.875, 1.0]"]
    assert load_toml(path, RunConfig, overrides=overrides).model.other_expert == "a"


def test_datasets_that_are_one_or_whose_names_would_be_misread_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "clips")
    for other in (tmp_path / "clips", tmp_path / "link"):
        with pytest.raises(ConfigError, match=r"a dataset that the run has already; .*repeats = 2"):
            DataSettings(
                path=f"{tmp_path}/clips/",
                cache="cache",
                others=(DatasetSettings(path=str(other)),),
            )
    for name in ("a:b", "../x"):
        with pytest.raises(
            ConfigError, match=r"data\.others\.name '.*' holds a sign .*; leave out"
        ):
            DatasetSettings(path="more", name=name)
