"""From `[optimizer]` to what updates the weights, and to the memory that it is planned with."""

from dataclasses import replace

import pytest
import torch

from arachne.core.errors import ConfigError
from arachne.core.strict_json import from_json, to_json
from arachne.core.strict_toml import load_toml
from arachne.cost.cluster_files import load_cluster
from arachne.cost.memory import resident_use
from arachne.cost.model_counts import model_counts
from arachne.runtime.optimizers import AdamWOptions, ClassOptions, MuonOptions
from arachne.trainer.config import RunConfig
from arachne.trainer.optimizer_choice import check_muon_applies, optimizer_choice
from arachne.trainer.planning import run_costs
from arachne.trainer.settings.optimizer import OptimizerSettings
from tests.trainer.tiny_runs import tiny_config


def test_every_name_leads_to_its_optimizer_with_the_settings_that_it_has():
    shared = {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3, "decay_1d": False}
    adamw = AdamWOptions(**shared)
    assert optimizer_choice(OptimizerSettings(**shared)) == adamw
    assert optimizer_choice(OptimizerSettings(name="adamw8bit", **shared)) == replace(
        adamw, has_8bit_moments=True
    )
    muon = OptimizerSettings(name="muon", options={"momentum": 0.9}, **shared)
    assert optimizer_choice(muon) == MuonOptions(options={"momentum": 0.9}, rest=adamw)
    sgd = OptimizerSettings(
        name="torch.optim.SGD", options={"momentum": 0.9}, whole_matrices=True, decay_1d=False
    )
    assert optimizer_choice(sgd) == ClassOptions(
        path="torch.optim.SGD", options={"momentum": 0.9}, is_whole=True, decay_1d=False
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adam"}, "'adamw8bit' or 'muon', or the path of a class"),
        ({"options": {"momentum": 0.9}}, "optimizer.options are for Muon and for classes"),
        ({"name": "muon", "options": {"lr": 0.9}}, "write it as optimizer.lr"),
        ({"whole_matrices": True}, "optimizer.whole_matrices is for classes"),
        ({"name": "torch.optim.SGD", "eps": 1e-6}, "optimizer.eps does not reach torch.optim.SGD"),
        ({"ema_decay": 1.0}, r"optimizer.ema_decay is 1.0; it must be in \[0, 1\)"),
        ({"min_lr_share": 2.0}, "optimizer.min_lr_share is 2.0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerSettings(**settings)


def test_options_of_a_class_are_read_from_the_run_file_in_their_types(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[run]\ndir = "r"\nsteps = 9\n[data]\npath = "d"\ncache = "c"\n'
        '[model]\npreset = "wan-1.3b"\n[optimizer]\nname = "torch.optim.SGD"\n'
        "options = { momentum = 0.9, nesterov = true, dampening = 0 }\n"
    )
    override = "optimizer.options.momentum=0.5"
    config = load_toml(path, RunConfig, overrides=[override])
    assert config.optimizer.options == {"momentum": 0.5, "nesterov": True, "dampening": 0}
    assert config.optimizer.options["nesterov"] is True
    again = from_json(to_json(config), RunConfig, what="run file")
    assert again == config


def test_memory_is_planned_for_the_optimizer_that_trains(tmp_path):
    config = tiny_config(tmp_path, tmp_path / "run", dtype="bfloat16")
    shape = config.model.shape(latent_channels=48, text_size=16)
    num_parameters = model_counts(shape).parameters

    def bytes_each(**settings) -> float:
        run = replace(config, optimizer=OptimizerSettings(**settings))
        costs = run_costs(run, shape, load_cluster("h100x4"), on_gpus=True)
        return resident_use(shape, 4, 2, costs.state).optimizer * 4 / num_parameters

    assert bytes_each() == pytest.approx(12.0)
    assert bytes_each(ema_decay=0.9) == pytest.approx(16.0)
    assert bytes_each(name="adamw8bit") == pytest.approx(4.0 + 2.0 + 2 * 4 / 256)
    assert 8.0 < bytes_each(name="muon") < 12.0
    assert bytes_each(name="torch.optim.SGD") == pytest.approx(12.0)


def test_muon_with_no_matrix_to_update_is_refused():
    module = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
    check_muon_applies(OptimizerSettings(name="muon"), module)
    module.blocks[0].weight.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"'muon', which updates matrices .* trains none of them"):
        check_muon_applies(OptimizerSettings(name="muon"), module)
    check_muon_applies(OptimizerSettings(name="adamw"), module)
