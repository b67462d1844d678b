"""What a user's environment holds for other programs gets into none of a run's files."""

from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.core.credentials import setting_with_credential
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

SECRET = "hf_plantedSecretValue0123456789"
NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("data.path", f"s3://user:{SECRET}@bucket/clips"),
        ("model.pretrained", f"https://{SECRET}@huggingface.co/Wan-AI/Wan2.1"),
        ("model.pretrained", f"https://host/model?X-Amz-Signature={SECRET}"),
        ("validation.prompts", f'["a cat", "{SECRET}"]'),
        ("logging.wandb", "AKIAIOSFODNN7EXAMPLE"),
        ("data.cache", f"folder/{SECRET}"),
    ],
)
def test_a_secret_in_a_run_file_is_refused_and_not_repeated(tmp_path, setting, value, capfd):
    config = tiny_config(tmp_path / "clips", tmp_path / "run")
    write_resolved(config, tmp_path / "run.toml")
    assert main(["train", str(tmp_path / "run.toml"), "--set", f"{setting}={value}"]) == 2
    printed = capfd.readouterr()
    assert f"{setting!r} holds a password or token" in printed.err
    assert SECRET not in printed.out + printed.err
    assert not (tmp_path / "run").exists()


def test_paths_addresses_and_commits_are_no_secrets():
    table = {
        "a": "hub/models--Wan-AI--Wan2.1/snapshots/0fad780a534b6463e45facd96134c9f345acfa5b",
        "b": ["http://127.0.0.1:8080/clips", "user@host:/data", "hf_cache/x", "a cat? yes & no"],
        "c": {"d": str(Path.home()), "e": 3},
    }
    assert setting_with_credential(table) is None


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
