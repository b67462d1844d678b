from dataclasses import replace

import pytest

from arachne.core.batch import Batch
from arachne.core.cascade import Encoder
from arachne.core.errors import InfeasibleError
from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from tests.core.plans import batch, launch, plan_of, valid_plan

VIDEO = launch(0, ranks=(0, 1), start_s=0.0)
IMAGES = launch(1, 2, ranks=(0,), start_s=1.0)
IMAGES_FIRST = launch(1, 2, ranks=(0,), start_s=0.0)


def test_a_valid_plan_passes():
    check_placed_plan(valid_plan(), batch(), 2)
    check_placed_plan(plan_of(VIDEO, IMAGES), batch(), 2)
    after_barrier = launch(0, ranks=(1,), start_s=1.0, phase=1)
    check_placed_plan(plan_of(IMAGES_FIRST, after_barrier), batch(), 2)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(VIDEO, IMAGES, step=8), "is for step 8"),
        (plan_of(VIDEO, IMAGES, world_size=3), "is for 3 ranks, not 2"),
        (plan_of(VIDEO), "trains clip 'b.png' 0 times"),
        (plan_of(VIDEO, IMAGES, launch(2, ranks=(1,), start_s=1.0)), "trains clip 'c.png' 2 times"),
        (plan_of(VIDEO, IMAGES, launch(3, ranks=(1,), start_s=1.0)), "trains slot 3, which the"),
        (plan_of(launch(0, 1, 2, ranks=(0,), start_s=0.0)), "stacks clip 'b.png' with clips of an"),
        (plan_of(VIDEO, launch(1, 2, ranks=(), start_s=1.0)), r"launch 1 whose ranks \(\) are not"),
        (plan_of(VIDEO, launch(1, 2, ranks=(1, 0), start_s=1.0)), r"ranks \(1, 0\) are not ascend"),
        (plan_of(VIDEO, launch(1, 2, ranks=(0, 0), start_s=1.0)), r"ranks \(0, 0\) are not ascend"),
        (plan_of(VIDEO, launch(1, 2, ranks=(2,), start_s=1.0)), r"ranks \(2,\) outside 0…1"),
        (plan_of(VIDEO, launch(1, 2, ranks=(0,), start_s=-1.0)), "launch 1 with a negative time"),
        (plan_of(IMAGES, VIDEO), "does not list its launches in order of start"),
        (
            plan_of(VIDEO, launch(1, 2, ranks=(0,), start_s=0.5)),
            "starts launch 1 on rank 0 before that rank is free",
        ),
        (
            plan_of(IMAGES_FIRST, launch(0, ranks=(1,), start_s=0.5, phase=1)),
            "starts launch 1 of phase 1 before the phase before it has ended",
        ),
        (
            plan_of(launch(0, ranks=(1,), start_s=0.0, phase=1), IMAGES),
            "lists launch 1 of phase 0 after one of phase 1",
        ),
        (plan_of(VIDEO, launch(1, 2, ranks=(0,), start_s=1.0, phase=-1)), "a negative phase"),
    ],
)
def test_a_broken_rule_is_named(plan: PlacedPlan, message: str):
    with pytest.raises(InfeasibleError, match=message):
        check_placed_plan(plan, batch(), 2)


def encoding(
    module: Encoder, *slots: int, ranks: tuple[int, ...], start_s: float, steps_ahead: int = 0
) -> PlacedLaunch:
    trained = launch(*slots, ranks=ranks, start_s=start_s)
    cascade = replace(trained.cascade, module=module, steps_ahead=steps_ahead)
    return replace(trained, cascade=cascade)


def uncached_batch() -> Batch:
    """The video is not encoded yet, the images are."""
    video, *images = batch().clips
    return Batch(step=7, clips=(replace(video, to_encode=("text", "vae")), *images))


ENCODED = (
    encoding("vae", 0, ranks=(0,), start_s=0.0),
    encoding("text", 0, ranks=(1,), start_s=0.0),
)
TRAINED = (launch(0, ranks=(0, 1), start_s=1.0), launch(1, 2, ranks=(0,), start_s=2.0))


def test_a_clip_trains_after_its_encoders():
    check_placed_plan(plan_of(*ENCODED, *TRAINED), uncached_batch(), 2)


def test_the_next_steps_encoders_fill_this_step():
    fill = encoding("vae", 0, ranks=(1,), start_s=2.0, steps_ahead=1)
    text = encoding("text", 0, ranks=(1,), start_s=3.0, steps_ahead=1)
    trained = (launch(0, ranks=(0, 1), start_s=1.0), launch(1, 2, ranks=(0,), start_s=2.0))
    plan = plan_of(*trained, fill, text)
    check_placed_plan(plan, batch(), 2, next_batch=uncached_batch())
    with pytest.raises(InfeasibleError, match=r"'a\.mp4' 0 times"):
        check_placed_plan(plan_of(*trained, fill), batch(), 2, next_batch=uncached_batch())
    with pytest.raises(InfeasibleError, match="slot 0 of the next step, which the batch has no"):
        check_placed_plan(plan, batch(), 2)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(ENCODED[0], *TRAINED), "encodes the caption of clip 'a.mp4' 0 times"),
        (
            plan_of(*ENCODED, encoding("vae", 1, ranks=(1,), start_s=1.0), TRAINED[1]),
            "trains clip 'a.mp4' 0 times",
        ),
        (
            plan_of(*ENCODED, *TRAINED, encoding("vae", 1, ranks=(1,), start_s=2.0)),
            "encodes the video of slot 1, which the batch has no such work for",
        ),
        (
            plan_of(
                launch(0, ranks=(1,), start_s=0.0),
                encoding("vae", 0, ranks=(0,), start_s=0.0),
                encoding("text", 0, ranks=(0,), start_s=1.0),
                launch(1, 2, ranks=(0,), start_s=2.0),
            ),
            r"starts launch \d before clip 'a.mp4' is encoded",
        ),
        (
            plan_of(
                *ENCODED,
                replace(TRAINED[0], mode=LaunchMode(ring=3)),
                TRAINED[1],
            ),
            "launch 2 of 2 ranks in rings of 3",
        ),
    ],
)
def test_a_broken_rule_of_encoders_is_named(plan: PlacedPlan, message: str):
    launches = tuple(sorted(plan.launches, key=lambda made: (made.start_s, made.ranks)))
    with pytest.raises(InfeasibleError, match=message):
        check_placed_plan(replace(plan, launches=launches), uncached_batch(), 2)
