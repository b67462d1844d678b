"""Charts of losses broken down, utilisation and unevenness."""

from arachne.core.bucket import Bucket
from arachne.reporting.run_files import Metrics, StepMetrics
from arachne.reporting.shape_colours import shape_paints
from arachne.reporting.watching_charts import (
    bucket_loss_figure,
    noise_level_figure,
    unevenness_figure,
    utilisation_figure,
)

BUCKETS = [Bucket(width=32 * side, height=32, frames=1) for side in range(1, 11)]
ROWS = tuple(
    StepMetrics(
        step=step,
        loss=1.0,
        mfu=0.25,
        flop_rate_cv=0.1,
        load_share=0.02,
        bucket_losses={str(bucket): float(step) for bucket in BUCKETS},
        sigma_losses={f"q{number}": float(number) for number in range(1, 11)},
    )
    for step in range(3)
)


def names(figure) -> list[str]:
    return [line["name"] for line in figure["data"]]


def test_noise_levels_come_in_order_and_say_which_end_is_which():
    figure = noise_level_figure(ROWS)
    assert figure is not None
    shown = names(figure)
    assert (shown[0], shown[1], shown[-1]) == ("q1 (least noise)", "q2", "q10 (most noise)")
    assert [line["y"][0] for line in figure["data"]] == [float(n) for n in range(1, 11)]


def test_the_largest_shapes_are_drawn_in_the_colours_of_the_page():
    paints = shape_paints(BUCKETS)
    figure = bucket_loss_figure(ROWS, paints)
    assert figure is not None
    assert names(figure) == [str(bucket) for bucket in reversed(BUCKETS[2:])]
    for line in figure["data"]:
        paint = paints[Bucket.parse(line["name"])]
        assert line["line"]["color"] == paint.colour
        assert line["line"]["dash"] == ("dot" if paint.hatch else "solid")


def test_a_shape_that_no_plan_tells_of_is_drawn_all_the_same():
    figure = bucket_loss_figure(ROWS, {})
    assert figure is not None
    assert len(figure["data"]) == 8


def test_shares_are_per_cent():
    utilisation, unevenness = (
        utilisation_figure(Metrics(train=ROWS)),
        unevenness_figure(Metrics(train=ROWS)),
    )
    assert utilisation is not None
    assert utilisation["data"][0]["y"] == [25.0] * 3
    assert unevenness is not None
    assert [line["y"] for line in unevenness["data"]] == [[10.0] * 3, [2.0] * 3]


def test_rows_without_figures_have_no_charts():
    bare = tuple(StepMetrics(step=step, loss=1.0) for step in range(3))
    assert noise_level_figure(bare) is None
    assert bucket_loss_figure(bare, {}) is None
    assert utilisation_figure(Metrics(train=bare)) is None
    assert unevenness_figure(Metrics(train=bare)) is None
