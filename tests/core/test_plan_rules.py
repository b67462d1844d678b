import pytest

from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedPlan
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
        (plan_of(VIDEO, IMAGES, launch(3, ranks=(1,), start_s=1.0)), r"slots \[3\] that the batch"),
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
