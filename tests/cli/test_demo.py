"""The demo's dataset at every run; the whole demo, short, among the slow tests."""

import json
from pathlib import Path

import pytest

from arachne.cli.demo.dataset import SHOWN_CAPTION, SPANS, STILLS, make_dataset
from arachne.cli.demo.on_ranks import STRATEGIES, TOKEN_SPAN
from arachne.cli.demo.settings import demo_config
from arachne.cli.main import main
from arachne.core.families import WAN
from arachne.core.ledger import Ledger
from arachne.data.inspect import inspect_dataset


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> Ledger:
    config = demo_config(tmp_path_factory.mktemp("demo"), steps=4, ranks=2)
    make_dataset(Path(config.data.path))
    return inspect_dataset(
        Path(config.data.path), config.data.shape_rules, WAN.geometry, "error", num_workers=1
    )


def test_the_demos_dataset_is_heterogeneous_and_wholly_usable(ledger):
    assert len(SPANS) >= 24
    assert len(STILLS) >= 4
    assert ledger.counts["rejected"] == 0
    tokens = [row.num_tokens for row in ledger.usable]
    assert max(tokens) >= TOKEN_SPAN * min(tokens)
    buckets = {row.bucket for row in ledger.usable if row.bucket is not None}
    assert len({(bucket.width, bucket.height) for bucket in buckets}) >= 3
    assert len({bucket.frames for bucket in buckets}) >= 5
    assert len({row.arithmetic.split("@")[1].split(" ")[0] for row in ledger.rows[:-9]}) >= 2


def test_a_step_of_eight_clips_stays_small(ledger):
    longest = sorted((row.num_tokens for row in ledger.usable), reverse=True)[:8]
    assert sum(longest) <= 8000


def test_the_shown_caption_is_one_of_a_span():
    assert SHOWN_CAPTION in {caption for *_, caption in SPANS}


def test_a_folder_with_other_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")

    assert main(["demo", "--dir", str(tmp_path)]) == 2

    assert "holds files that no demo made" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("option", [["--steps", "0"], ["--race", "0"], ["--ranks", "-1"]])
def test_an_impossible_option_is_refused(option, tmp_path, capsys):
    assert main(["demo", "--dir", str(tmp_path / "d"), *option]) == 2
    assert "or more" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(400)
def test_the_whole_demo_keeps_its_promise(tmp_path):
    assert main(["demo", "--dir", str(tmp_path), "--steps", "24", "--race", "1"]) == 0

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["gradient_error_vs_one_process"] < 1e-5
    assert summary["resume_loss_error"] < 1e-5
    assert summary["loss_last"] < summary["loss_first"]
    for figures in ("step_s", "modelled_step_s", "idle_ratio"):
        assert set(summary[figures]) == set(STRATEGIES)
    assert set(summary["clips"]) == {"kept", "trimmed", "rejected"}
    assert summary["codec_psnr_db"] > 25.0
    for name in ("report.html", "samples/sample.mp4", "samples/sample.png", "run.toml"):
        assert (tmp_path / name).stat().st_size > 0
