from hypothesis import given

from arachne.core.batch import Batch
from arachne.planner.stacking import stacked_cascades
from tests.planner.problems import batch_of, batches, stack_limits


def test_clips_of_one_shape_are_stacked_in_slot_order_up_to_the_limit():
    batch = batch_of("96x64x1", "96x64x33", "96x64x1", "96x64x1")

    stacks = [cascade.slots for cascade in stacked_cascades(batch, stack_tokens=48)]

    assert stacks == [(0, 2), (1,), (3,)]


def test_a_clip_above_the_limit_stands_alone():
    assert len(stacked_cascades(batch_of("96x64x33", "96x64x33"), stack_tokens=1)) == 2


@given(batch=batches, stack_tokens=stack_limits)
def test_every_clip_is_in_one_stack_of_its_shape(batch: Batch, stack_tokens: int):
    cascades = stacked_cascades(batch, stack_tokens)

    assert sorted(slot for c in cascades for slot in c.slots) == list(range(len(batch.clips)))
    for cascade in cascades:
        assert {batch.clips[slot].bucket for slot in cascade.slots} == {cascade.bucket}
        assert cascade.num_clips == 1 or cascade.num_clips * cascade.num_tokens <= stack_tokens
