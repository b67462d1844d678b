"""What a user's environment holds for other programs gets into none of a run's files."""

import pytest

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

SECRET = "hf_planted0secret0value"
NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.distributed
def test_no_checkpoint_log_or_report_holds_a_planted_secret(tmp_path, monkeypatch, capfd):
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)
    clips = make_clips(tmp_path / "clips")
    config = tiny_config(clips, tmp_path / "run", steps=2, dtype="float32")
    config = changed(changed(config, "run", ranks=1), "validation", every=1)
    write_resolved(config, tmp_path / "run.toml")
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert any(path.name == "report.html" for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
