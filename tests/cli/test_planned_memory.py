"""`arachne plan --memory`, encoders, and settings that can be planned with but not trained yet."""

import json
import re
from pathlib import Path

import pytest

from arachne.cli import clip_source, run_file
from arachne.cli.main import main
from arachne.core.families import FAMILIES

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "plan-hunyuanvideo-13b.toml")
WORDS = [EXAMPLE, "--clips", "panda70m", "--cluster", "h100x16"]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(clip_source, "NUM_DRAWN", 600)


def memory(capsys, *words: str) -> dict:
    assert main(["plan", *WORDS, "--memory", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def planned(capsys, *words: str) -> list[dict]:
    quick = ["--batch", "12", "--steps", "1", "--set", "planner.iterations=50"]
    assert main(["plan", *WORDS, "--json", *quick, *words]) == 0
    return json.loads(capsys.readouterr().out)["steps"]


def refusal(capsys, *words: str) -> str:
    assert main([*words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def modules(step: dict) -> list[tuple[str, int]]:
    launches = step["plan"]["launches"]
    return [(each["cascade"]["module"], each["cascade"]["steps_ahead"]) for each in launches]


def test_the_example_plans_a_large_model_without_any_data(capsys):
    (step,) = planned(capsys)

    assert 1.0 <= step["makespan_s"] / step["lower_bound_s"] < 1.2
    assert step["idle_ratio"] < 0.1
    assert any(each["mode"]["recompute_layers"] for each in step["plan"]["launches"])


def test_memory_is_told_item_by_item_for_the_longest_clip_on_every_degree(capsys):
    found = memory(capsys)

    assert (found["shape"], found["num_tokens"]) == ("720x400x129", 37125)
    assert [each["degree"] for each in found["launches"]] == [1, 2, 3, 4, 6, 8, 12, 16]
    for each in found["launches"]:
        use = each["use"]
        assert 25e9 < use["weights"] == use["gradients"] < 26e9  # 12.8 billion, 2 bytes each
        assert use["optimizer"] == pytest.approx(3 * 4 * use["weights"] / 2 / 16)
        assert each["fits"] == (sum(use.values()) <= found["memory_bytes"])
        assert use["activations"] <= each["all_kept_bytes"]
        assert each["total_bytes"] == pytest.approx(sum(use.values()))
    assert [each["fits"] for each in found["launches"]] == [False] + [True] * 7
    levels = [each["recomputed_blocks"] for each in found["launches"]]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] == found["num_blocks"] == 60
    assert found["advice"] == ""


def test_frozen_layers_have_neither_gradients_nor_optimizer_state(capsys):
    whole = memory(capsys)["launches"][-1]["use"]
    words = ["--set", 'model.train_only=["single_transformer_blocks.39.*"]']
    partly = memory(capsys, *words)["launches"][-1]["use"]

    share = partly["gradients"] / whole["gradients"]
    assert 0.005 < share < 0.02
    assert partly["optimizer"] == pytest.approx(share * whole["optimizer"])
    assert partly["weights"] == whole["weights"]
    assert partly["activations"] < 0.2 * whole["activations"]
    assert main(["plan", *WORDS, "--memory", "--set", 'model.freeze=["x"]']) == 2
    assert "model.freeze holds 'x', which is no parameter's name" in capsys.readouterr().err


def test_what_would_fit_is_said_where_nothing_does(capsys):
    found = memory(capsys, "--gradients", "float32", "--recompute", "none")

    assert not any(each["fits"] for each in found["launches"])
    assert {each["recomputed_blocks"] for each in found["launches"]} == {0}
    assert found["advice"] == (
        "training fits on no number of GPUs; with --recompute auto --gradients bfloat16 training "
        "fits on 2 GPUs"
    )
    advised = memory(capsys, "--gradients", "bfloat16", "--recompute", "auto")
    assert next(each["degree"] for each in advised["launches"] if each["fits"]) == 2


def test_a_model_that_fits_in_no_way_gets_other_advice(capsys):
    found = memory(capsys, "--cluster", "rtx4090x4")
    assert found["advice"] == (
        "training fits on no number of GPUs, whatever --recompute and --gradients say; training "
        "fits with lora.rank=16 and memory.base=fp8 (18.8 GB); or use GPUs with more memory"
    )


@pytest.mark.parametrize("verb_of_encoders", ["--encode", "--fill"])
def test_advice_counts_the_encoders(capsys, verb_of_encoders: str):
    found = memory(capsys, verb_of_encoders)
    assert found["advice"] == (
        "the text encoder does not fit; with --recompute auto --gradients host training fits on "
        "1 GPU, and encoding on one"
    )
    wide = memory(capsys, verb_of_encoders, "--gradients", "float32")
    assert wide["advice"] == (
        "training fits on no number of GPUs, and the text and vae encoders do not fit; with "
        "--recompute auto --gradients host training fits on 1 GPU, and encoding on one"
    )
    advised = memory(capsys, verb_of_encoders, "--gradients", "host", "--recompute", "auto")
    assert advised["advice"] == ""
    assert {each["fits"] for each in advised["launches"]} == {True}


def test_encoders_that_fit_in_no_way_are_to_run_before_training(capsys):
    found = memory(capsys, "--cluster", "rtx4090x4", "--encode")
    encoding = "encode before step 1 (leave out --encode and --fill)"
    assert found["advice"].endswith(
        f" say; do both: for the encoders: {encoding}; and for training: it fits with lora.rank=16 "
        "and memory.base=fp8 (18.8 GB); or use GPUs with more memory"
    )
    adapters = ["--set", "lora.rank=16", "--set", "memory.base=fp8"]
    trained = memory(capsys, "--cluster", "rtx4090x4", "--encode", *adapters)
    assert trained["advice"] == (
        "the text encoder does not fit, whatever --recompute and --gradients say; "
        f"{encoding}; or use GPUs with more memory"
    )


@pytest.mark.parametrize(
    ("words", "smaller"),
    [
        ((), "data.resolution or data.frame_buckets"),
        (("--frame-cap", "129"), "data.resolution or --frame-cap"),
        (("--resolutions", "720x400"), "the sizes of --resolutions or data.frame_buckets"),
        (("--resolutions", "720x400", "--frame-cap", "129"), "the sizes of --resolutions or --fr"),
    ],
)
def test_a_refusal_names_the_option_that_counts(capsys, words, smaller: str):
    # One GPU has room for what stays all the time, but not for a clip of 37,125 tokens.
    alone = ("--cluster", "h200x16", "--set", "planner.max_degree=1", "--gradients", "float32")
    error = refusal(capsys, "plan", *WORDS, *alone, "--recompute", "none", *words)
    assert f" lower {smaller}" in error


def test_encoders_are_listed_where_nothing_is_cached(capsys):
    assert {each["module"] for each in memory(capsys)["launches"]} == {"dit"}
    encoders = memory(capsys, "--encode")["launches"][-2:]
    assert [(each["module"], each["degree"]) for each in encoders] == [("text", 1), ("vae", 1)]
    assert encoders[0]["use"]["encoders"] > 1e10  # an 8-billion language model


@pytest.mark.parametrize(
    ("words", "counted"),
    [
        ((), "those that the family was published with: AutoencoderKLHunyuanVideo, "),
        (("--set", "data.encode=online"), "the run's own, which trains with data.encode=online: "),
    ],
)
def test_the_encoders_that_are_counted_are_named(capsys, words: tuple[str, ...], counted: str):
    found = memory(capsys, "--encode", *words)
    assert found["encoders"].startswith(f"encoders: {counted}")
    assert ("Llama" in found["encoders"]) != ("hashed" in found["encoders"])
    assert memory(capsys, *words)["encoders"] == ""
    assert main(["plan", *WORDS, "--memory", "--encode", *words]) == 0
    assert found["encoders"] in capsys.readouterr().out.splitlines()


def test_the_memory_table_reads_in_a_pipe(capsys):
    assert main(["plan", *WORDS, "--memory", "--fill", "--gradients", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "one GPU, for a clip of 720x400x129 (37,125 tokens); 73.6 GB may be used"
    assert re.match(r"all the time: weights 25.* GB \+ gradients 51.* GB \+ optimizer", lines[1])
    rows = [line for line in lines if re.match("(train|text|vae) on [0-9]+ GPU", line)]
    assert len(rows) == 8 + 2
    assert max(map(len, rows)) <= 80
    assert re.match(r"train on 1 GPU .* no +60 of 60 +14.5 GB of 368 GB", rows[0])
    assert lines[-4].endswith("the allocator's reserve take")  # sentences are not cut
    assert lines[-3].endswith("set run.max_groups = 4, or planner.max_degree lower")
    assert lines[-1].endswith("training fits on 1 GPU, and encoding on one")


@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("--gradients", "float32", "optimizer.gradients"),
        ("--recompute", "none", "planner.recompute"),
        ("--ring", "none", "planner.ring"),
    ],
)
def test_a_setting_that_an_option_would_override_is_refused(capsys, option, value, setting):
    words = [option, value, "--set", f"{setting}={value}"]
    error = refusal(capsys, "plan", *WORDS, *words)
    assert f"{option} sets {setting}, as --set does; leave one of them out" in error


def test_memory_has_no_page(tmp_path, capsys):
    error = refusal(capsys, "plan", *WORDS, "--memory", "--html", str(tmp_path / "x.html"))
    assert "--memory writes no page; leave out --html" in error
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(("option", "value"), [("--planner", "static_dp"), ("--steps", "8")])
def test_memory_takes_no_option_of_plans(capsys, option: str, value: str):
    error = refusal(capsys, "plan", *WORDS, "--memory", option, value)
    assert f"--memory plans no steps; leave out {option}, or --memory" in error


def test_clips_of_which_nothing_is_cached_are_encoded_in_their_own_step(capsys):
    words = ["--gradients", "host"]
    (cached,) = planned(capsys, *words)
    (step,) = planned(capsys, *words, "--encode")

    assert set(modules(cached)) == {("dit", 0)}
    assert set(modules(step)) == {("dit", 0), ("text", 0), ("vae", 0)}
    assert step["makespan_s"] > cached["makespan_s"]


def test_filling_encodes_the_next_steps_clips(capsys):
    (step,) = planned(capsys, "--gradients", "host", "--fill")
    assert set(modules(step)) == {("dit", 0), ("text", 1), ("vae", 1)}

    buckets = {
        (each["cascade"]["slots"][0], str(each["cascade"]["bucket"]))
        for each in step["plan"]["launches"]
        if each["cascade"]["module"] == "vae"
    }
    trained = planned(capsys, "--gradients", "host", "--steps", "2")[1]
    assert buckets == {
        (slot, str(each["cascade"]["bucket"]))
        for each in trained["plan"]["launches"]
        for slot in each["cascade"]["slots"]
        if slot in {first for first, _ in buckets}
    }


def test_a_ring_lets_more_gpus_share_a_clip_than_the_model_has_heads(capsys):
    words = ["--set", "model.num_heads=4", "--set", "model.head_size=768"]
    math = ("--set", "model.attention=math")
    degrees = [
        [each["degree"] for each in memory(capsys, *words, "--ring", ring, *kernel)["launches"]]
        for ring, kernel in (("none", ()), ("auto", ()), ("auto", math))
    ]
    # The fused kernels' rings take no mask, which HunyuanVideo has.
    assert degrees == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 6, 8, 12, 16]]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_planned_for(tmp_path, capsys, family: str):
    for preset in FAMILIES[family].presets:
        (tmp_path / "run.toml").write_text(
            f'[run]\ndir = "{tmp_path}/run"\nsteps = 1\n[data]\npath = "none"\ncache = "c"\n'
            "resolution = 256\nframe_buckets = [1]\n"
            f'[model]\nfamily = "{family}"\npreset = "{preset}"\n'
            'dtype = "bfloat16"\n[planner]\niterations = 10\nrecompute = "auto"\n'
            '[optimizer]\ngradients = "bfloat16"\n[batch]\nclips = 9\n'
        )
        words = ["--clips", "webvid10m", "--frame-cap", "41", "--steps", "1", "--json"]
        assert main(["plan", str(tmp_path / "run.toml"), "--cluster", "h200x8", *words]) == 0
        (step,) = json.loads(capsys.readouterr().out)["steps"]
        assert step["lower_bound_s"] <= step["makespan_s"] < 1e3


def test_8bit_moments_without_their_package_are_planned_for_but_not_trained(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(run_file, "find_spec", lambda name: None)
    (tmp_path / "run.toml").write_text(
        f'[run]\ndir = "{tmp_path}/run"\nsteps = 1\n[data]\npath = "{tmp_path}"\ncache = "c"\n'
        '[model]\npreset = "wan-1.3b"\n'
    )
    override = ("--set", "optimizer.name=adamw8bit")
    error = refusal(capsys, "train", str(tmp_path / "run.toml"), *override)
    assert "needs the package bitsandbytes, which is not installed" in error
    memory(capsys, *override)


def test_a_size_that_a_family_cannot_have_is_refused(capsys):
    words = ["--set", "model.family=ltx", "--set", "model.preset=''"]
    sizes = ["num_layers=4", "num_heads=4", "head_size=64", "ffn_size=100"]
    for size in sizes:
        words += ["--set", f"model.{size}"]
    error = refusal(capsys, "plan", *WORDS, *words)
    assert re.search(r"model.ffn_size is 100; a ltx model of width 256 has \d+", error)


@pytest.mark.parametrize("targets", ["attention", "attention+ffn"])
def test_a_lora_run_needs_gradients_of_its_adapters_only(capsys, targets):
    whole = memory(capsys)["launches"][0]["use"]
    found = memory(capsys, "--set", "lora.rank=16", "--set", f"lora.targets={targets}")

    use = found["launches"][0]["use"]
    num_adapters = use["gradients"] / 2  # the example's gradients are bfloat16
    exact = (20 * 8 + 40 * 3) * 2 * 3072 * 16  # of attention in 20 dual and 40 single blocks
    assert exact <= num_adapters <= (2 if targets == "attention" else 5) * exact
    assert use["weights"] == pytest.approx(whole["weights"] + 2 * num_adapters)
    assert use["optimizer"] == pytest.approx(3 * 4 * num_adapters / 16)
