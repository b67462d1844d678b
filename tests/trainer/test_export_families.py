"""Weights of every family leave and are read back, in every type, whatever the run's captions."""

from pathlib import Path

import pytest
import torch

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.models.diffusers_module import import_transformer
from arachne.models.families import TRANSFORMERS
from arachne.reporting.run_files import RESOLVED_CONFIG
from arachne.runtime.launcher import run_ranks
from arachne.trainer import export as export_module
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.export import ExportOptions, export
from tests.models.tiny_transformers import tiny_transformer
from tests.trainer.test_families_train import config_of, losses_of

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for float32


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_weights_that_only_float64_holds_are_exported_as_they_are(tmp_path, family):
    model = tiny_transformer(family)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(2.0**-40)
    needed = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    options = ExportOptions(to="diffusers", dtype="float64")
    export_module._write_weights(model, tmp_path, options)
    assert (tmp_path / "transformer" / "config.json").is_file()
    assert all(torch.equal(p, needed[name]) for name, p in model.module.named_parameters())


@pytest.mark.distributed
@pytest.mark.parametrize("family", ["wan", "cogvideox_2b"])
def test_a_float64_run_is_exported_in_every_type_and_by_itself_in_its_own(
    clips, tmp_path: Path, family, capsys
):
    import_transformer(family)
    config = config_of(family, clips, tmp_path / "run")
    assert config.model.num_text_tokens == 4
    run_ranks(1, losses_of, (config,))
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    for dtype in ("float64", "float32", "bfloat16"):
        options = ExportOptions(to="diffusers", dtype=dtype)
        assert export(config, checkpoint, tmp_path / dtype, options)
    write_resolved(config, Path(config.run.dir) / RESOLVED_CONFIG)
    assert main(["export", config.run.dir, str(tmp_path / "own"), "--to", "diffusers"]) == 0
    assert "in float64; written, read back and compared" in capsys.readouterr().out
