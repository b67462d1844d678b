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


@pytest.mark.parametrize(
    "secret",
    [
        "https://user:pa/55word@host/clips",
        "https://host/clips?secret=abc",
        "https://host/clips?a=b&AWSAccessKeyId=abc&key=abc",
        "https://host/clips?pwd=abc",
        "github_pat_11ABCDEFG0abcdefghijklmnop",
        "glpat-abcdefghij1234567890",
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "xoxb-123456789012-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
    ],
)
def test_secrets_of_well_known_forms_are_found(secret: str):
    assert setting_with_credential({"data": {"path": secret}}) == "data.path"


def test_paths_addresses_and_commits_are_no_secrets():
    table = {
        "a": "hub/models--Wan-AI--Wan2.1/snapshots/0fad780a534b6463e45facd96134c9f345acfa5b",
        "b": ["http://127.0.0.1:8080/clips", "user@host:/data", "hf_cache/x", "a cat? yes & no"],
        "f": ["/runs/sk-proj-landscape_video_large_2024x/", "sk-ant-colony-documentary-2024"],
        "g": ["https://[::1]:80/a@b", "https://h/x?sort_key=name", "https://h/x?monkey=banana"],
        "e": ["s3://bucket/a@b/c", "https://host:8080/a@b", "what key=4? a task-force", "sk-8"],
        "c": {"d": str(Path.home()), "e": 3},
    }
    assert setting_with_credential(table) is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ["a", "eyJ", "?a-", "a://b:"])
def test_long_texts_are_looked_at_in_a_moment(part: str):
    assert setting_with_credential({"a": part * (200_000 // len(part))}) is None


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
