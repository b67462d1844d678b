"""Validation losses, the best checkpoint and sample videos in whole tiny runs."""

import os
import re
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arachne.core.errors import CheckpointError, ConfigError
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import milestones
from arachne.trainer.checkpoint_files import Best, checkpoints_dir, known_best, step_folders
from arachne.trainer.config import RunConfig
from arachne.trainer.interval_samples import batch_of_prompts, drawn
from arachne.trainer.loop import train
from arachne.trainer.settings.validation import ValidationSettings
from arachne.trainer.validation import ValidationLoss
from tests.trainer.tiny_runs import changed, plan_of, tiny_config, tiny_session, with_manifest

PROMPTS = ("a", "a", "c")
SMALL_SAMPLES = {"sample_shape": "32x32x5", "sample_steps": 2}


@dataclass(kw_only=True)
class Seen:
    """What one rank was told."""

    begun: list[int] = field(default_factory=list)
    validated: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    videos: list[tuple[int, int, bytes]] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    stopped_by: int | None = None
    said: list[str] = field(default_factory=list)


def run(world: World, config: RunConfig, options: dict[str, Any]) -> Seen:
    """A run whose validation losses after 0, 1, 2, … steps are given."""
    seen = Seen()
    _ask_to_stop_within(world, *options.get("stop_within", ("", 0)))
    losses = options.get("losses")
    if losses is not None:
        plain = milestones.validation_loss

        def given(session, cluster, step, wants_stop):
            return replace(plain(session, cluster, step, wants_stop), loss=losses[step])

        milestones.validation_loss = given
    with tiny_session(world, config) as (session, heard):

        def on_validation(done: int, found: ValidationLoss) -> None:
            seen.validated.append(done)
            seen.losses.append(found.loss)

        def on_step(report: Any) -> None:
            seen.trained.append(report.outcome.loss)
            if report.step == options.get("stop_in"):
                os.kill(os.getpid(), signal.SIGTERM)

        listener = replace(
            heard.listener,
            on_step=on_step,
            on_begin=seen.begun.append,
            on_validation=on_validation,
            is_validated=lambda done: done in options.get("known", ()),
            on_samples=lambda done, videos: seen.videos.extend(
                (done, video.number, video.frames.tobytes()) for video in videos
            ),
            on_sampled=seen.sampled.append,
            is_sampled=lambda done: done in options.get("known", ()),
        )
        finished = train(session, listener, resume=options.get("resume", False))
        seen.stopped_by = finished.stopped_by
        seen.said = heard.said
    return seen


def _ask_to_stop_within(world: World, what: str, call: int) -> None:
    """The last rank alone gets a signal as it begins to validate or to sample for the n-th time."""
    if not what:
        return
    plain = getattr(milestones, what)
    calls = 0

    def asked(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*arguments)

    setattr(milestones, what, asked)


def config_of(clips: Path, run_dir: Path, **validation: Any) -> RunConfig:
    config = tiny_config(clips, run_dir, steps=4, batch=2)
    return with_manifest(changed(config, "validation", noises=1, clips=2, **validation))


def steps_of(config: RunConfig) -> list[int]:
    return sorted(folder.step for folder in step_folders(checkpoints_dir(Path(config.run.dir))))


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("share", "line"),
    [
        (0.0, r"data\.held_out = 0 holds no clip out: the validation loss is of clips that train"),
        (
            0.001,
            r"data\.held_out = 0\.001 holds no clip out: the validation loss is of clips that t",
        ),
        (0.7, r"[1-6] of 6 clips are held out"),
    ],
)
def test_a_run_that_validates_says_on_which_clips(clips, tmp_path, share, line):
    config = config_of(clips, tmp_path / "run", every=4)
    config = with_manifest(changed(config, "data", held_out=share))
    (seen,) = run_ranks(1, run, (config, {}))
    assert [text for text in seen.said if re.match(line, text)], seen.said


@pytest.mark.distributed
def test_the_checkpoint_of_the_lowest_loss_is_written_and_outlives_pruning(clips, tmp_path):
    config = config_of(clips, tmp_path / "run", every=1, keep_best=True)
    config = changed(config, "checkpoint", every=1, keep=1)
    run_ranks(2, run, (config, {"losses": (1.0, 4.0, 3.0, 6.0, 7.0)}))
    best = known_best(checkpoints_dir(tmp_path / "run"))
    assert best is not None
    assert (best.step, best.loss) == (2, 3.0)
    assert steps_of(config) == [2, 4]

    more = changed(config, "run", steps=6)
    run_ranks(2, run, (more, {"losses": (0.0,) * 5 + (3.5, 3.2), "resume": True, "known": (4,)}))
    assert known_best(checkpoints_dir(tmp_path / "run")) == best
    assert steps_of(config) == [2, 6]


@pytest.mark.distributed
def test_the_best_before_does_not_stay_beside_the_new_one(clips, tmp_path):
    config = config_of(clips, tmp_path / "run", every=1, keep_best=True)
    config = changed(config, "checkpoint", every=1, keep=1)
    run_ranks(2, run, (config, {"losses": (9.0, 4.0, 3.0, 6.0, 2.0)}))
    assert known_best(checkpoints_dir(tmp_path / "run")) == Best(step=4, loss=2.0)
    assert steps_of(config) == [4]


@pytest.mark.distributed
@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_best_checkpoint_that_cannot_be_named_is_told_with_its_file(
    clips, tmp_path, capfd, on_error
):
    config = config_of(clips, tmp_path / "run", every=1, keep_best=True)
    config = changed(config, "checkpoint", every=1, on_error=on_error)
    (tmp_path / "run/checkpoints/best.json.partial").mkdir(parents=True)  # in the way
    told = r"best\.json' cannot be written: .*"
    if on_error == "stop":
        with pytest.raises(CheckpointError, match=told):
            run_ranks(2, run, (config, {"losses": (1.0, 4.0, 3.0, 6.0, 7.0)}))
        return
    run_ranks(2, run, (config, {"losses": (1.0, 4.0, 3.0, 6.0, 7.0)}))
    assert known_best(checkpoints_dir(tmp_path / "run")) is None
    assert steps_of(config)[-1] == 4


@pytest.mark.distributed
def test_what_was_due_when_a_run_was_stopped_is_done_when_it_goes_on(clips, tmp_path):
    config = config_of(
        clips, tmp_path / "run", every=2, sample_every=2, prompts=PROMPTS, **SMALL_SAMPLES
    )
    first = run_ranks(2, run, (config, {"stop_in": 0}))
    assert [seen.validated for seen in first] == [[0], [0]]
    assert steps_of(config) == [2]
    again = run_ranks(2, run, (config, {"resume": True}))
    assert [seen.begun for seen in again] == [[2], [2]]
    assert [seen.validated for seen in again] == [[2, 4], [2, 4]]
    assert again[0].sampled == [2, 4]
    known = run_ranks(1, run, (config, {"resume": True, "known": (4,)}))[0]
    assert (known.validated, known.sampled) == ([], [])


@pytest.mark.distributed
@pytest.mark.parametrize("what", ["validation_loss", "sample_videos"])
def test_a_signal_while_a_run_validates_or_samples_ends_it_there_with_a_checkpoint(
    clips, tmp_path, what
):
    config = config_of(
        clips, tmp_path / "run", every=2, sample_every=2, prompts=PROMPTS, **SMALL_SAMPLES
    )
    before = run_ranks(2, run, (config, {"stop_within": (what, 1)}))
    assert [seen.stopped_by for seen in before] == [signal.SIGTERM] * 2
    assert [seen.trained for seen in before] == [[], []]
    stopped = run_ranks(2, run, (config, {"stop_within": (what, 2)}))
    assert [seen.stopped_by for seen in stopped] == [signal.SIGTERM] * 2
    assert stopped[0].validated == ([0] if what == "validation_loss" else [0, 2])
    assert stopped[0].sampled == [0]
    assert steps_of(config) == [2], "without another step"
    again = run_ranks(2, run, (config, {"resume": True}))[0]
    assert (again.validated, again.sampled, len(again.trained)) == ([2, 4], [2, 4], 2)


@pytest.mark.distributed
def test_each_prompt_is_drawn_once_and_the_same_on_any_number_of_ranks(clips, tmp_path):
    drawn: dict[int, dict[tuple[int, int], np.ndarray]] = {}
    for size in (1, 2):
        config = config_of(
            clips, tmp_path / str(size), sample_every=4, prompts=PROMPTS, **SMALL_SAMPLES
        )
        runs = run_ranks(size, run, (config, {}))
        videos = [video for seen in runs for video in seen.videos]
        assert sorted((done, number) for done, number, _ in videos) == [
            (done, number) for done in (0, 4) for number in range(3)
        ]
        assert [seen.sampled for seen in runs] == [[0, 4]] + [[]] * (size - 1)
        drawn[size] = {
            (done, number): np.frombuffer(pixels, np.uint8).astype(int)
            for done, number, pixels in videos
        }
    for key, pixels in drawn[1].items():
        assert pixels.size == 5 * 32 * 32 * 3
        assert np.abs(pixels - drawn[2][key]).max() <= 1, "rounding may move a pixel by one"
    assert (drawn[1][4, 0] != drawn[1][0, 0]).any(), "the weights have changed"
    assert (drawn[1][0, 1] != drawn[1][0, 0]).any(), "the same text twice has two noises"


def drawn_as_planned(
    world: World, config: RunConfig, launches: list[Any], steps_till_stop: int | None
) -> dict[int, bytes] | None:
    """Videos of this rank, drawn as a plan by hand says; the last rank may be asked to stop."""
    calls = 0

    def wants_stop() -> bool:
        nonlocal calls
        calls += 1
        is_last = world.rank == world.size - 1
        return steps_till_stop is not None and is_last and calls > steps_till_stop

    with tiny_session(world, config) as (session, _):
        plan = plan_of(batch_of_prompts(config, 0), world.size, launches)
        videos = drawn(session, plan, wants_stop)
    return None if videos is None else {video.number: video.frames.tobytes() for video in videos}


@pytest.mark.distributed
@pytest.mark.parametrize("steps_till_stop", [None, 0, 3])
def test_ranks_that_share_a_video_draw_what_one_draws_and_stop_together(
    clips, tmp_path, steps_till_stop
):
    config = config_of(
        clips, tmp_path / "run", sample_every=4, prompts=PROMPTS, guidance=3.0, **SMALL_SAMPLES
    )
    alone = [((number,), (0,)) for number in range(3)]
    needed = run_ranks(1, drawn_as_planned, (config, alone, None))[0]
    shared = [((0, 1), (0, 1, 2)), ((2,), (0, 1))]
    found = run_ranks(3, drawn_as_planned, (config, shared, steps_till_stop))
    if steps_till_stop is not None:
        assert found == [None] * 3
        return
    assert [sorted(videos) for videos in found] == [[0, 2], [1], []], "decoded by one rank each"
    for number, pixels in {**found[0], **found[1]}.items():
        of_one = np.frombuffer(needed[number], np.uint8).astype(int)
        assert np.abs(np.frombuffer(pixels, np.uint8) - of_one).max() <= 1


@pytest.mark.distributed
def test_a_moving_average_is_judged_and_does_not_disturb_the_training(clips, tmp_path):
    runs: list[Seen] = []
    for name, decay in (("plain", 0.0), ("average", 0.9)):
        config = config_of(clips, tmp_path / name, every=2)
        runs.append(run_ranks(2, run, (changed(config, "optimizer", ema_decay=decay), {}))[0])
    plain, average = runs
    assert average.trained == plain.trained
    assert average.losses[0] == plain.losses[0]
    assert all(a != b for a, b in zip(average.losses[1:], plain.losses[1:], strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_best": True}, r"keep_best needs validation losses, but validation.every is 0"),
        ({"sample_every": 5}, r"validation.sample_every is 5, but validation.prompts is empty"),
        ({"sample_every": 5, "prompts": ("a",)}, r"sample_shape is empty; write WxHxF"),
        (
            {"sample_every": 5, "prompts": ("a",), "sample_shape": "5x5"},
            r"'5x5' is not WIDTHxHEIGHTxFRAMES",
        ),
    ],
)
def test_settings_that_cannot_work_are_one_line(settings, message):
    with pytest.raises(ConfigError, match=message):
        ValidationSettings(**settings)


def test_a_sample_shape_that_the_model_cannot_have_is_refused_before_the_run(tmp_path):
    config = tiny_config(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="32x32x6"):
        changed(config, "validation", sample_every=1, prompts=("a",), sample_shape="32x32x6")
