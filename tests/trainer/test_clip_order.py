"""Epochs, steps and datasets of a run: what trains when, on any number of ranks."""

import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.ledger import LedgerRow
from arachne.core.model_shape import ModelShape
from arachne.cost.cluster_files import load_cluster
from arachne.cost.flops import training_flops
from arachne.trainer.clip_order import clip_order
from arachne.trainer.cluster_choice import fallback_plan
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData
from arachne.trainer.planning import run_costs, run_request
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.dataset import DatasetSettings
from tests.data.test_split import row_of
from tests.trainer.tiny_runs import changed, tiny_config

WAN = family_named("wan").geometry
SIZES = ((32, 32), (48, 32), (32, 48), (64, 48))
BUCKETS = [
    Bucket(width=width, height=height, frames=frames)
    for frames in (1, 5, 9, 13, 17, 21, 25)
    for width, height in SIZES
]
assert len(BUCKETS) == 28


def rows_of(buckets: list[Bucket], dataset: str = "") -> tuple[LedgerRow, ...]:
    return tuple(
        replace(row_of(number, dataset=dataset), bucket=bucket, num_tokens=WAN.num_tokens(bucket))
        for number, bucket in enumerate(buckets)
    )


CLIPS = rows_of([*BUCKETS, *BUCKETS[::2], *BUCKETS[:1] * 5, *BUCKETS[3:7] * 3])
"""59 clips, a prime number: 13 of the 28 buckets have a single one."""

LARGE = ModelShape(
    family="wan",
    num_layers=40,
    num_heads=40,
    head_size=128,
    ffn_size=13824,
    latent_channels=16,
    text_size=4096,
    text_tokens=512,
)


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return tiny_config(tmp_path / "clips", tmp_path / "run")


def shape_of(config: RunConfig) -> ModelShape:
    return config.model.shape(latent_channels=48, text_size=256)


def trained_in_an_epoch(config: RunConfig, rows: tuple[LedgerRow, ...], num_ranks: int) -> Counter:
    """How often each item is in a launch of the first epoch, in plans for so many ranks."""
    order = clip_order(rows, config, shape_of(config))
    data = TrainingData(
        rows=rows,
        cache_dir=None,  # pyright: ignore[reportArgumentType]
        fps=8.0,
        video_fingerprint="",
        text_fingerprint="",
    )
    costs = run_costs(config, shape_of(config), load_cluster(f"cpux{num_ranks}"), on_gpus=False)
    trained: Counter[int] = Counter()
    step = 0
    while (draws := order.draws(step))[0].epoch == 0:
        chosen = data.step_batch(step, draws)
        plan = fallback_plan(run_request(config, chosen.batch, costs))
        slots = sorted(slot for launch in plan.launches for slot in launch.cascade.slots)
        assert slots == list(range(len(draws)))
        trained.update(draws[slot].item for slot in slots if draws[slot].epoch == 0)
        step += 1
    return trained


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("batch_clips", [2, 7, 8, 32, 64])
def test_of_28_buckets_every_clip_trains_once_an_epoch_whatever_divides(
    config, num_ranks, batch_clips
):
    config = changed(config, "batch", clips=batch_clips)
    assert trained_in_an_epoch(config, CLIPS, num_ranks) == dict.fromkeys(range(59), 1)


@pytest.mark.parametrize("num_clips", [1, 2])
def test_one_clip_and_fewer_clips_than_ranks_train(config, num_clips):
    config = changed(config, "batch", clips=3)
    trained = trained_in_an_epoch(config, CLIPS[:num_clips], 4)
    assert trained == dict.fromkeys(range(num_clips), 1)


@pytest.mark.parametrize("batch", [{"tokens": 300}, {"tflops": 2e-5}])
def test_steps_of_tokens_or_flops_drop_nothing_and_are_that_large_in_the_mean(config, batch):
    config = replace(config, batch=BatchSettings(**batch))
    assert trained_in_an_epoch(config, CLIPS, 3) == dict.fromkeys(range(59), 1)
    order = clip_order(CLIPS, config, shape_of(config))
    num_steps = floor(40 * order.steps_per_epoch)
    tokens = [sum(CLIPS[d.item].num_tokens for d in order.draws(step)) for step in range(num_steps)]
    flops = [
        sum(training_flops(shape_of(config), CLIPS[d.item].num_tokens) for d in order.draws(step))
        for step in range(num_steps)
    ]
    mean = sum(tokens if "tokens" in batch else flops) / num_steps
    asked = config.batch.tokens or config.batch.tflops * 1e12
    assert mean == pytest.approx(asked, rel=0.02)
    assert order.clips_per_step == 59 / order.steps_per_epoch
    assert order.text(num_steps).startswith("one epoch is 59 clips in ")


def test_a_step_that_its_largest_clip_overfills_is_refused_with_the_least_that_works(config):
    largest = max(row.num_tokens for row in CLIPS)
    config = replace(config, batch=BatchSettings(tokens=largest - 1))
    words = rf"clip '27.mp4' \(64x48x25\) alone has {largest} .* at least {largest}, or lower "
    with pytest.raises(ConfigError, match=words + r"data.resolution or data.frame_buckets$"):
        clip_order(CLIPS, config, shape_of(config))
    full = replace(config, data=replace(config.data, frame_extraction="full"))
    with pytest.raises(ConfigError, match=words + r"data.resolution or data.max_frames$"):
        clip_order(CLIPS, full, shape_of(config))
    with pytest.raises(ConfigError, match=words + r"the sizes of --resolutions$"):
        clip_order(CLIPS, config, shape_of(config), shape_settings="the sizes of --resolutions")
    clip_order(CLIPS, replace(config, batch=BatchSettings(tokens=largest)), shape_of(config))


def test_the_least_tflops_that_a_refusal_names_are_taken(config):
    rows = rows_of([Bucket(width=832, height=480, frames=frames) for frames in range(5, 165, 4)])
    for row in rows:
        refused = replace(config, batch=BatchSettings(tflops=1e-4))
        with pytest.raises(ConfigError, match="at least") as error:
            clip_order((row,), refused, LARGE)
        least = re.search(r"at least ([0-9.]+),", str(error.value))
        assert least is not None
        taken = replace(config, batch=BatchSettings(tflops=float(least[1])))
        clip_order((row,), taken, LARGE)


def test_of_clips_tokens_and_tflops_one_counts():
    assert BatchSettings() == BatchSettings(clips=8)
    assert BatchSettings(tokens=5).text == "5 tokens"
    with pytest.raises(ConfigError, match=r"batch.clips and batch.tokens are both set"):
        BatchSettings(clips=1, tokens=5)


def mixed(config: RunConfig, **stills) -> RunConfig:
    others = (DatasetSettings(path="some/stills", **stills),)
    return changed(config, "data", others=others)


def test_datasets_come_up_as_often_as_their_repeats_say(config):
    config = mixed(config, repeats=2.5)
    rows = (*rows_of(BUCKETS[:3]), *rows_of(BUCKETS[:2], dataset="stills"))
    order = clip_order(rows, config, shape_of(config))
    assert order.stream.items_per_epoch == 3 + 5
    drawn = Counter(draw.item for step in range(8) for draw in order.draws(step) if draw.epoch < 4)
    assert drawn == {0: 4, 1: 4, 2: 4, 3: 10, 4: 10}


def test_weights_say_how_much_of_what_trains_is_of_each_dataset(config):
    stills = DatasetSettings(path="some/stills", weight=3.0)
    config = changed(config, "data", weight=1.0, others=(stills,))
    rows = (*rows_of(BUCKETS[:6]), *rows_of(BUCKETS[:2], dataset="stills"))
    groups = clip_order(rows, config, shape_of(config)).stream.groups
    assert [(g.num_items, g.repeats) for g in groups] == [(6, 1), (2, Fraction(9))]


@pytest.mark.parametrize(("weights", "repeats"), [((0.0003, 0.3), 1000), ((0.1, 0.7), 7)])
def test_weights_count_as_they_are_written(config, weights, repeats):
    stills = DatasetSettings(path="some/stills", weight=weights[1])
    config = changed(config, "data", weight=weights[0], others=(stills,))
    rows = (*rows_of(BUCKETS[:2]), *rows_of(BUCKETS[:2], dataset="stills"))
    groups = clip_order(rows, config, shape_of(config)).stream.groups
    assert [group.repeats for group in groups] == [1, repeats]


@pytest.mark.parametrize(
    ("weights", "times"), [((1.0, 1001.0), "1,001"), ((1e-300, 1e9), "countless")]
)
def test_a_weight_that_would_repeat_clips_without_end_is_refused(config, weights, times):
    stills = DatasetSettings(path="some/stills", weight=weights[1])
    config = changed(config, "data", weight=weights[0], others=(stills,))
    rows = (*rows_of(BUCKETS[:2]), *rows_of(BUCKETS[:2], dataset="stills"))
    with pytest.raises(ConfigError, match=f"each of the 2 clips of 'stills' come up {times} times"):
        clip_order(rows, config, shape_of(config))


def test_epochs_and_steps_are_told(config):
    order = clip_order(CLIPS, changed(config, "batch", clips=4), shape_of(config))
    assert order.text(30) == ("one epoch is 59 clips in 14.75 steps; the run's 30 are 2.03 epochs")


def test_a_dataset_without_a_usable_clip_is_no_trouble_but_told(config):
    order = clip_order(rows_of(BUCKETS), mixed(config), shape_of(config))
    assert [group.num_items for group in order.stream.groups] == [28]
    assert order.text(7).endswith("; no clip of 'stills' trains")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeats": 0.0}, r"data\.repeats is 0; it must be between 0\.001 and 1000"),
        ({"repeats": 2.0, "weight": 1.0}, r"data\.weight and data\.repeats are both set"),
        ({"weight": 1.0, "others": (DatasetSettings(path="b"),)}, r"some have none"),
        (
            {"others": (DatasetSettings(path="x/b"), DatasetSettings(path="y/b"))},
            r"two entries of data\.others are called 'b'",
        ),
    ],
)
def test_settings_of_datasets_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        DataSettings(path="a", cache="c", **settings)
