"""Training loss by bucket and by noise level."""

import pytest

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.trainer.loss_means import LossMeans, quarter_of

SMALL, LARGE = Bucket(width=32, height=32, frames=1), Bucket(width=64, height=64, frames=5)


def batch(*buckets: Bucket) -> Batch:
    clips = [BatchClip(name=str(i), bucket=b, num_tokens=4) for i, b in enumerate(buckets)]
    return Batch(step=0, clips=tuple(clips))


def test_each_clip_counts_in_its_bucket_and_in_the_quarter_of_its_noise_level():
    means = LossMeans()
    means.take(batch(SMALL, LARGE, SMALL), (0.1, 0.9, 0.3), (1.0, 2.0, 4.0), (True,) * 3)
    assert means.by_bucket == {"32x32x1": 2.5, "64x64x5": 2.0}
    assert means.by_sigma == {"q1": 1.0, "q2": 4.0, "q4": 2.0}


def test_clips_that_were_left_out_or_have_no_loss_do_not_count():
    means = LossMeans()
    kept = (True, False, True)
    means.take(batch(SMALL, SMALL, LARGE), (0.1, 0.1, 0.1), (1.0, 0.0, float("nan")), kept)
    assert means.by_bucket == {"32x32x1": 1.0}
    assert means.by_sigma == {"q1": 1.0}


def test_a_mean_follows_the_training():
    means = LossMeans()
    for loss in [9.0] * 64 + [1.0] * 32:
        means.take(batch(SMALL), (0.5,), (loss,), (True,))
    assert means.by_bucket["32x32x1"] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("sigma", "quarter"), [(0.0, "q1"), (0.2499, "q1"), (0.25, "q2"), (0.75, "q4"), (1.0, "q4")]
)
def test_the_whole_range_of_noise_levels_has_a_quarter(sigma, quarter):
    assert quarter_of(sigma) == quarter
