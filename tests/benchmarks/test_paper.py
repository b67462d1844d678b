"""The paper's figures, modelled: every system gets the same clips, and the file has its form."""

import json
from dataclasses import replace
from pathlib import Path

import paper
import paper_setting as setting
import pytest
from paper_setting import ARACHNE, STRONG_STATIC, Case

SMALL = replace(setting.STAGES[0], frame_cap=33)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, "STAGES", (SMALL,))
    monkeypatch.setattr(setting, "SCALED_STAGE", SMALL)
    monkeypatch.setattr(setting, "MODELS", ("wan-1.3b",))
    monkeypatch.setattr(setting, "FRAME_CAPS", (17,))
    monkeypatch.setattr(setting, "CLUSTER_SIZES", (16,))
    monkeypatch.setattr(setting, "CLIPS_PER_GPU", 1)
    setting.drawn_clips.cache_clear()


@pytest.mark.usefixtures("small")
def test_the_file_has_the_papers_figures_beside_ours(tmp_path: Path, capsys) -> None:
    path = tmp_path / "out.json"
    assert paper.main(["--quick", "--json", str(path)]) == 0
    assert "Beside the full run of 2026-11-30 seconds of a step were off" in capsys.readouterr().out
    found = json.loads(path.read_text(encoding="utf-8"))
    systems = {system.name for system in setting.SYSTEMS}
    assert found["figure6"].keys() == found["idle_ratio"].keys() == systems
    assert found["paper"]["figure6"].keys() <= systems
    assert found["figure6"]["arachne"]["stage1"] > 0
    assert 0 <= found["idle_ratio"]["arachne"]["stage1"] < 1
    assert found["ablation"].keys() == found["paper"]["ablation"].keys()
    assert {"recompute_choice", "next_step_fill"} < found["beyond"].keys()
    assert len(found["figure10"]["arachne"]["tflops"]) == 16
    assert found["assumptions"] == setting.ASSUMPTIONS


@pytest.mark.usefixtures("small")
def test_arachne_is_never_longer_than_the_strong_static_system() -> None:
    for case in (Case(stage=SMALL), Case(stage=SMALL, is_cached=True)):
        mine, theirs = (paper.steps_of(system, case, 2) for system in (ARACHNE, STRONG_STATIC))
        assert paper.mean_step_s(mine) <= paper.mean_step_s(theirs) * (1 + 1e-9)


@pytest.mark.usefixtures("small")
def test_a_system_that_encodes_ahead_encodes_the_same_clips_within_few_steps() -> None:
    def encoded(system: setting.System, num_steps: int) -> list[str]:
        return sorted(
            str(launch.cascade.bucket)
            for plan, _ in paper.steps_of(system, Case(stage=SMALL), num_steps)
            for launch in plan.launches
            for _ in launch.cascade.slots
            if launch.cascade.module == "vae"
        )

    filled = setting.ADDITIONS["next_step_fill"]
    for num_steps in (1, 2):
        assert encoded(filled, num_steps) == encoded(ARACHNE, num_steps)


def test_windows_are_legal_and_end_at_the_cap() -> None:
    assert SMALL.windows(4) == (5, 9, 13, 17, 21, 25, 29, 33)
    assert setting.STAGES[2].windows(4)[-1] == 57
    assert all(window % 4 == 1 for stage in setting.STAGES for window in stage.windows(4))


def test_clips_that_are_encoded_ahead_are_the_same_clips() -> None:
    case = Case(stage=SMALL)
    here, ahead = case.batch(3, is_encoded=True), case.batch(3, is_encoded=False)
    assert [clip.bucket for clip in here.clips] == [clip.bucket for clip in ahead.clips]
    assert {clip.to_encode for clip in here.clips} == {()}
    assert {clip.to_encode for clip in ahead.clips} == {("vae",)}
