import argparse
import base64
import io
import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arachne.cli.inspect import add_parser
from arachne.cli.main import main
from arachne.core.errors import ConfigError, DataError
from tests.data.media import Look, write_ramp
from tests.data.media_corpus import CORPUS, write_corpus


def _inspect(*words: object) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["inspect", *map(str, words)])
    return arguments.run(arguments)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "160")
    root = tmp_path / "clips"
    write_ramp(root / "a.mp4", 40)
    (root / "a.txt").write_text("a [red] ramp")
    return root


def test_the_ledger_is_printed_and_nothing_is_written(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(dataset.parent.rglob("*"))
    assert _inspect(dataset, "--resolution", 64, "--frame-buckets", "1,17,33") == 0
    printed = capsys.readouterr().out
    assert "layout: sidecar captions" in printed
    assert "40f@16 → 40f@16 → 33" in printed
    assert "64x48x33" in printed
    assert "1 clip: 0 kept, 1 trimmed, 0 rejected" in printed
    assert sorted(dataset.parent.rglob("*")) == before


def test_an_address_is_inspected_like_a_folder(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = shutil.make_archive(str(dataset.parent / "all"), "zip", dataset.parent, "clips")
    words = ("--json", "--resolution", 64, "--frame-buckets", "1,17,33")
    assert _inspect(dataset, *words) == 0
    local = capsys.readouterr().out
    assert _inspect(f"zip://clips::{archive}", *words) == 0
    assert capsys.readouterr().out == local


def test_a_rejected_clip_gives_exit_code_3(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "bad.mp4").touch()
    assert _inspect(dataset, "--missing-caption", "empty", "--workers", 1) == 3
    assert "the file has 0 bytes" in capsys.readouterr().out


def test_json_has_every_row(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _inspect(dataset, "--json", "--frame-buckets", "1,33", "--resolution", 64) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "sidecar captions"
    assert found["counts"] == {"kept": 0, "trimmed": 1, "rejected": 0}
    (row,) = found["rows"]
    assert row["clip"]["caption"] == "a [red] ramp"
    assert row["bucket"] == {"width": 64, "height": 48, "frames": 33}


def test_the_cost_of_buckets_is_shared_out_for_a_model_that_is_named(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ramp(dataset / "b.mp4", 20)
    (dataset / "b.txt").write_text("b")
    words = [dataset, "--frame-buckets", "17,33", "--resolution", 64]
    assert _inspect(*words) == 0
    assert "training wan-1.3b, forward and backward" in capsys.readouterr().out
    assert _inspect(*words, "--json", "--preset", "wan-14b") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["preset"] == "wan-14b"
    assert [bucket["num_tokens"] for bucket in found["buckets"]] == [108, 60]
    assert [bucket["token_share"] for bucket in found["buckets"]] == pytest.approx([9 / 14, 5 / 14])
    assert sum(bucket["flops_share"] for bucket in found["buckets"]) == pytest.approx(1.0)
    with pytest.raises(ConfigError, match=r"--preset 'wan-3b' is not known; presets of wan: wan-1"):
        _inspect(*words, "--preset", "wan-3b")


def test_one_clip_is_shown_with_every_step_of_its_arithmetic(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "metadata.csv").write_text(
        "video,caption,start,end\na.mp4,x,0.5,2\na.mp4,y,,\nnone.mp4,z,,\n"
    )
    words = ["--frame-buckets", "1,17", "--resolution", 40]
    assert _inspect(dataset, *words, "--clip", "a.mp4@0.50-2.00s") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "40 frames in 2.500 s (16.000 fps), 64x48 upright",
        "0.5 s to 2 s: frames 8 to 31, 24 frames shown from 0.500 s to 2.000 s",
        "24 frames / 16.000 fps = 1.500 s; 1.500 s x 16 fps = 24.00, so 24",
        "17, the longest of 1, 17 that 24 frames fill; 7 frames left over",
        "64 x 48 = 3,072 pixels, over 40 x 40 = 1,600: scaled by 0.7217 to 46.2x34.6",
        "48x32, the nearest in multiples of 16 and 16; scaled to 48x36, then 11.1 % cropped evenly",
        "5 x 4 x 6 (frames x height x width)",
        "5 x 2 x 3 = 30",
        "7 frames at the end are not used",
    ):
        assert text in printed, text
    assert _inspect(dataset, *words, "--clip", "none.mp4") == 3
    assert "'none.mp4' is not a file" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"no clip of the 3 is called 'none\.mp'; .* 'none\.mp4'"):
        _inspect(dataset, "--clip", "none.mp")
    with pytest.raises(ConfigError, match="--clip prints one clip"):
        _inspect(dataset, "--clip", "a.mp4", "--json")


def test_a_clip_that_is_too_short_is_said_with_its_arithmetic_and_what_would_fit(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = Look(fps=Fraction(24000, 1001))
    write_ramp(dataset / "a.mp4", 101, film)
    assert _inspect(dataset, "--resolution", 64, "--frame-buckets", "65,81") == 0
    assert "101f@23.976 → 67f@16 → 65" in capsys.readouterr().out
    assert _inspect(dataset, "--resolution", 64, "--frame-buckets", "81", "--json") == 3
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["arithmetic"] == "101f@23.976 → 67f@16"
    assert row["reason"] == (
        "101 frames at 23.976 fps give 67 at 16 fps; the shortest length in data.frame_buckets "
        "needs 81; nearest that fits: 65"
    )


def test_a_file_name_shows_all_clips_of_the_file(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "metadata.csv").write_text("video,caption,start,end\na.mp4,x,0,1\na.mp4,y,1,2\n")
    assert _inspect(dataset, "--clip", "a.mp4") == 0
    printed = capsys.readouterr().out
    assert "a.mp4@0.00-1.00s" in printed
    assert "a.mp4@1.00-2.00s" in printed


def test_the_page_shows_first_frames_as_the_model_will_see_them(dataset: Path) -> None:
    picture = np.zeros((48, 112, 3), np.uint8)
    picture[:, :, 0] = 255
    picture[:, :7] = (0, 255, 0)  # cropped away
    Image.fromarray(picture).save(dataset / "p.png")
    (dataset / "p.txt").write_text("a <script>red</script> field")
    (dataset / "bad.mp4").touch()
    (dataset / "bad.txt").write_text("nothing")
    page = dataset.parent / "page.html"
    words = ["--frame-buckets", "1,33", "--resolution", 48, "--html", page]
    assert _inspect(dataset, *words) == 3
    text = page.read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;red" in text
    assert "Predicted for wan-1.3b" in text
    assert "the file has 0 bytes" in text
    assert "Idle ratio" not in text
    jpegs = re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    images = [Image.open(io.BytesIO(base64.b64decode(jpeg))) for jpeg in jpegs]
    assert [image.size for image in images] == [(48, 48), (64, 32)]
    left = np.asarray(images[1])[16, 0].astype(int)
    assert left == pytest.approx([255, 0, 0], abs=60)


def test_letterboxed_frames_and_several_areas_are_shown_with_their_arithmetic(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = dataset.parent / "page.html"
    words = ["--frame-buckets", "1,17", "--resolution", "256,40", "--fit", "letterbox"]
    assert _inspect(dataset, *words, "--html", page) == 0
    assert "at most 40 x 40 or 256 x 256 pixels a frame" in page.read_text()
    (jpeg,) = re.findall(r"data:image/jpeg;base64,([^\"]+)", page.read_text())
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(jpeg)))).astype(int)
    assert shown.shape[:2] == (32, 48)
    assert shown[:, :1].max() < 8 < shown[:, 4:-4].min()
    capsys.readouterr()
    assert _inspect(dataset, *words, "--clip", "a.mp4") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "over 40 x 40 = 1,600 (the largest of 40, 256 that it reaches): scaled by 0.7217",
        "scaled to 43x32, set in the middle, 11.1 % black",
    ):
        assert text in printed, text
    assert _inspect(dataset, *words, "--resolution", "256,128", "--clip", "a.mp4") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "within 128 x 128 = 16,384 (the least of 128, 256, of which it reaches none)" in printed


def test_a_page_that_cannot_be_written_is_refused(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arachne.data.layouts.read_clips", None)  # it is not got to
    for page, message in (
        (dataset, "it is a folder; name a file in it"),
        (dataset / "none" / "page.html", r"there is no folder '.*none'; choose another"),
    ):
        with pytest.raises(DataError, match=f"cannot write '{page}': {message}"):
            _inspect(dataset, "--html", page)


def test_a_page_shows_at_most_the_rows_asked_for(dataset: Path) -> None:
    for index in range(4):
        Image.new("RGB", (64, 48)).save(dataset / f"{index}.png")
    page = dataset.parent / "page.html"
    assert _inspect(dataset, "--missing-caption", "empty", "--rows", 2, "--html", page) == 0
    text = page.read_text()
    assert text.count("data:image/jpeg") == 2
    assert "3 clips more; --rows 5 shows all." in text


def test_a_run_file_gives_the_settings_and_options_change_them(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(
        f"[run]\ndir = 'out'\nsteps = 1\n"
        f"[data]\npath = '{dataset}'\ncache = 'cache'\nfps = 8.0\nresolution = 64\n"
        "frame_buckets = [1, 17]\n"
    )
    assert _inspect(run_file) == 0
    assert "40f@16 → 20f@8 → 17" in capsys.readouterr().out
    assert _inspect(run_file, "--fps", 16, "--set", "data.frame_buckets=[33]") == 0
    assert "40f@16 → 40f@16 → 33" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frame-buckets", "1,16"], "use 13 or 17"),
        (["--frame-buckets", "1;17"], "write for example 1,17,33"),
        (["--resolution", "3"], "data.resolution"),
        (["--resolution", "480p"], "--resolution '480p' is not a list of numbers"),
        (["--fps", "0"], "data.fps"),
        (["--workers", "0"], "--workers"),
        (["--set", "data.fps=3"], "--set changes settings of a run file"),
    ],
)
def test_options_that_cannot_work_are_refused(
    dataset: Path, words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _inspect(dataset, *words)


def test_a_dataset_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        _inspect(tmp_path / "none")


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _inspect("--help")
    assert "arachne inspect clips/ --fps 16" in capsys.readouterr().out


def test_the_verb_needs_neither_torch_nor_pyav_until_it_runs() -> None:
    code = (
        "import sys, arachne.cli.inspect; "
        "assert 'av' not in sys.modules and 'torch' not in sys.modules; "
        "import arachne.data.inspect, arachne.data.prepare, arachne.data.loader; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_decoding_finds_what_packets_do_not_show(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = [case for case in CORPUS if case.name == "grows.h264"]
    write_corpus(dataset, [case])
    (dataset / "grows.txt").write_text("x")
    words = [dataset, "--frame-buckets", "1,17", "--resolution", 64, "--workers", 1, "--json"]
    assert _inspect(*words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["counts"]["rejected"], found["frames_are"]) == (0, "estimated")
    assert _inspect(*words, "--decode") == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["counts"]["rejected"], found["frames_are"]) == (1, "decoded")
    (reason,) = [row["reason"] for row in found["rows"] if row["status"] == "rejected"]
    assert re.search(case.reason, reason)
    (good,) = [row for row in found["rows"] if row["status"] != "rejected"]
    assert (good["num_frames"], good["is_decoded"]) == (40, True)


def test_the_largest_shape_is_held_against_the_memory_model(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [dataset, "--frame-buckets", "17,33", "--resolution", 64, "--workers", 1]
    assert _inspect(*words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "largest shape 64x48x33 (108 tokens): on one GPU in bfloat16" in printed
    assert "with all blocks recomputed" in printed
    assert "frames are estimated from packets; --decode decodes every clip" in printed
    assert _inspect(*words, "--json") == 0
    largest = json.loads(capsys.readouterr().out)["largest"]
    # 16 bytes a weight: itself and its gradient in bfloat16, and three more in float32
    assert largest["resident_bytes"] / 16 == pytest.approx(1.42e9, rel=0.2)
    assert 0 < largest["recomputed_bytes"] < largest["kept_bytes"]


@pytest.mark.parametrize(
    "address", ["ftp://user:PLANTED@127.0.0.1:9/x", "https://host/clips?token=PLANTED"]
)
def test_an_address_with_a_password_is_refused_and_not_repeated(address, capfd):
    assert main(["inspect", address]) == 2
    printed = capfd.readouterr()
    assert "DATA holds a password or token" in printed.err
    assert "PLANTED" not in printed.out + printed.err


def test_half_a_character_in_a_caption_is_no_traceback_in_json(tmp_path, capfd):
    rows = [{"video": "a.mp4", "caption": "cut \ud83d"}]
    (tmp_path / "metadata.json").write_text(json.dumps(rows))
    assert main(["inspect", str(tmp_path), "--json"]) == 3
    (row,) = json.loads(capfd.readouterr().out)["rows"]
    assert row["reason"] == "its caption holds half a character, \\ud83d; remove it"


def test_a_page_does_not_replace_a_clip(dataset, capfd):
    (clip, *_) = sorted(dataset.glob("*.mp4"))
    before = clip.read_bytes()
    assert main(["inspect", str(dataset), "--html", str(clip)]) == 2
    assert "choose another name, such as page.html" in capfd.readouterr().err
    assert clip.read_bytes() == before


def test_a_negative_number_of_rows_is_refused(dataset, capfd):
    assert main(["inspect", str(dataset), "--rows", "-1"]) == 2
    assert "--rows is -1; it must be at least 0" in capfd.readouterr().err
