"""One optimizer step on one to three ranks; every plan must give the same step."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from arachne.core.errors import DataError
from arachne.core.rank_log import RankEvent
from arachne.data.cache import LatentCache
from arachne.data.prepare import keys_of
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.session import Session
from arachne.trainer.step import StepOutcome, run_step, sample_of_slot, slot_losses
from tests.trainer.tiny_runs import (
    plan_of,
    poisoned,
    step_batch,
    tiny_config,
    tiny_session,
    with_manifest,
)

# Items in the dataset's order: a b c d are videos, e f stills; c comes twice and may be stacked.
ITEMS = (0, 1, 2, 2, 4)
ALONE = [((slot,), (0,)) for slot in range(5)]
PLANS = {
    1: [ALONE, [((2, 3), (0,)), ((0,), (0,)), ((1,), (0,)), ((4,), (0,))]],
    2: [
        ALONE,  # rank 1 has no launch, and trains along
        [((0,), (0, 1)), ((2, 3), (0,)), ((1,), (1,)), ((4,), (1,))],
        [((0,), (0, 1)), ((1,), (0, 1)), ((2, 3), (0, 1)), ((4,), (0, 1))],
    ],
    3: [
        [((0,), (0, 1, 2)), ((2, 3), (0,)), ((1,), (2,)), ((4,), (0, 1, 2))],
        [((1,), (1,)), ((0,), (0,)), ((2,), (2,)), ((3,), (2,)), ((4,), (0,))],
    ],
}


@dataclass(kw_only=True)
class Seen:
    """A step, and the parameters around it."""

    outcome: StepOutcome
    before: torch.Tensor
    after: torch.Tensor


def parameters_of(session: Session) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in session.model.module.parameters()]).clone()


def step_on(session: Session, items: tuple[int, ...], launches: Any, **options: Any) -> Seen:
    chosen = step_batch(session, items)
    plan = plan_of(chosen.batch, session.world.size, launches)
    before = parameters_of(session)
    options = {"read": session.prepared.train.read, "lr": 1e-3, **options}
    outcome = run_step(session, chosen, plan, **options)
    return Seen(outcome=outcome, before=before, after=parameters_of(session))


def one_step(
    world: World, config: RunConfig, items: tuple[int, ...], launches: Any, **options: Any
) -> Seen:
    with tiny_session(world, config) as (session, _):
        return step_on(session, items, launches, **options)


@pytest.fixture(scope="module")
def config(clips, tmp_path_factory) -> RunConfig:
    return with_manifest(tiny_config(clips, tmp_path_factory.mktemp("step")))


def same_on_all_ranks(seen: list[Seen]) -> Seen:
    first = seen[0]
    for other in seen[1:]:
        assert other.outcome.loss == first.outcome.loss
        assert other.outcome.clip_losses == first.outcome.clip_losses
        assert other.outcome.grad_norm == first.outcome.grad_norm
        assert other.outcome.vote == first.outcome.vote
        assert torch.equal(other.after, first.after)
    return first


def reference(world: World, config: RunConfig, items: tuple[int, ...]) -> Any:
    """The same step without plan, optimizer or ranks: loss, clip losses, gradient norm."""
    with tiny_session(world, config) as (session, _):
        chosen = step_batch(session, items)
        samples = [
            sample_of_slot(session, chosen, slot, session.prepared.train.read(item))
            for slot, item in enumerate(items)
        ]
        losses = torch.cat([slot_losses(session, [sample]) for sample in samples])
        parameters = [p for p in session.model.module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(losses.mean(), parameters)
        norm = math.sqrt(sum(float(g.pow(2).sum()) for g in gradients))
        return losses.detach().mean().item(), losses.tolist(), norm


@pytest.fixture(scope="module")
def expected(config):
    return run_ranks(1, reference, (config, ITEMS))[0]


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_plan_gives_the_loss_norm_and_update_of_one_process(config, expected, world_size):
    loss, clip_losses, norm = expected
    updated = []
    for launches in PLANS[world_size]:
        seen = same_on_all_ranks(run_ranks(world_size, one_step, (config, ITEMS, launches)))
        assert seen.outcome.loss == pytest.approx(loss, rel=1e-12)
        assert seen.outcome.clip_losses == pytest.approx(clip_losses, rel=1e-12)
        assert seen.outcome.grad_norm == pytest.approx(norm, rel=1e-11)
        assert not torch.equal(seen.before, seen.after)
        updated.append(seen.after)
    for other in updated:
        torch.testing.assert_close(other, updated[0], rtol=0, atol=1e-9)


@pytest.mark.distributed
def test_one_clip_trains_on_three_ranks(config):
    for ranks in [(0,), (2,), (0, 1, 2)]:
        seen = same_on_all_ranks(run_ranks(3, one_step, (config, (1,), [((0,), ranks)])))
        assert seen.outcome.is_updated
        assert not torch.equal(seen.before, seen.after)


def damaged_step(world: World, config: RunConfig, damage: str) -> Seen:
    """A step whose third clip cannot be read by anybody."""
    with tiny_session(world, config) as (session, _):
        data = session.prepared.train
        key, _ = keys_of(data.rows[1], data.fps, data.video_fingerprint, data.text_fingerprint)
        path = LatentCache(data.cache_dir).path_of(key)
        torch.distributed.barrier()
        if world.rank == 0:
            if damage == "deleted":
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-7])
        torch.distributed.barrier()
        return step_on(session, ITEMS, [((0,), (0, 1)), ((2, 3), (0,)), ((1,), (1,)), ((4,), (1,))])


@pytest.mark.distributed
@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_an_unreadable_clip_is_left_out_on_all_ranks_and_the_others_count_more(
    own_clips, tmp_path, expected, damage
):
    own = with_manifest(tiny_config(own_clips, tmp_path / "run"))
    seen = same_on_all_ranks(run_ranks(2, damaged_step, (own, damage)))
    _, clip_losses, _ = expected
    others = [clip_losses[slot] for slot in (0, 2, 3, 4)]
    assert seen.outcome.vote.is_kept == (True, False, True, True, True)
    assert seen.outcome.loss == pytest.approx(sum(others) / 4, rel=1e-12)
    assert seen.outcome.is_updated


def step_that_one_rank_cannot_read(world: World, config: RunConfig, lost: set[int]) -> Seen:
    with tiny_session(world, config) as (session, _):

        def read(item: int) -> Any:
            if world.rank == 1 and item in lost:
                raise DataError("gone")
            return session.prepared.train.read(item)

        return step_on(session, ITEMS, PLANS[2][2], read=read)


@pytest.mark.distributed
def test_a_clip_that_one_member_of_a_launch_cannot_read_is_left_out_on_the_others_too(config):
    # Item 2 is a stack of two clips on both ranks, so the stack goes; item 0 would be alone.
    seen = same_on_all_ranks(run_ranks(2, step_that_one_rank_cannot_read, (config, {0, 2})))
    assert seen.outcome.vote.is_kept == (False, True, False, False, True)
    assert seen.outcome.is_updated


@pytest.mark.distributed
def test_a_step_without_any_readable_clip_changes_nothing(config):
    seen = same_on_all_ranks_but_nan(
        run_ranks(2, step_that_one_rank_cannot_read, (config, set(ITEMS)))
    )
    assert not any(seen.outcome.vote.is_kept)
    assert not seen.outcome.is_updated
    assert torch.equal(seen.before, seen.after)


def same_on_all_ranks_but_nan(seen: list[Seen]) -> Seen:
    assert all(math.isnan(one.outcome.loss) for one in seen)
    zeroed = [replace(one.outcome, loss=0.0, grad_norm=0.0, clip_losses=()) for one in seen]
    same_on_all_ranks([replace(one, outcome=o) for one, o in zip(seen, zeroed, strict=True)])
    return seen[0]


def step_with_nan(world: World, config: RunConfig, launches: Any) -> tuple[Seen, Seen]:
    """A step with one poisoned clip, and the same step with the clip healed."""
    with tiny_session(world, config) as (session, _):

        def read(item: int) -> Any:
            arrays = session.prepared.train.read(item)
            return poisoned(arrays) if item == 1 else arrays

        return step_on(session, ITEMS, launches, read=read), step_on(session, ITEMS, launches)


@pytest.mark.distributed
@pytest.mark.parametrize("launches", PLANS[2])
def test_a_clip_with_nan_skips_the_step_everywhere_and_leaves_nothing_behind(
    config, expected, launches
):
    results = run_ranks(2, step_with_nan, (config, launches))
    sick = same_on_all_ranks_but_nan([sick for sick, _ in results])
    healed = same_on_all_ranks([healed for _, healed in results])

    assert not sick.outcome.is_updated
    assert torch.equal(sick.before, sick.after)
    is_finite = [math.isfinite(loss) for loss in sick.outcome.clip_losses]
    assert is_finite == [True, False, True, True, True]
    assert healed.outcome.loss == pytest.approx(expected[0], rel=1e-12)
    assert healed.outcome.grad_norm == pytest.approx(expected[2], rel=1e-11)


def different_plans(world: World, config: RunConfig) -> list[RankEvent]:
    with tiny_session(world, config) as (session, _):
        with pytest.raises(RuntimeError, match="ranks hold different plans of step 0"):
            step_on(session, ITEMS, PLANS[2][world.rank])
        return list(session.recorder.finish(step=0, planner="").events)


@pytest.mark.distributed
def test_ranks_with_different_plans_stop_before_the_first_launch(config):
    for events in run_ranks(2, different_plans, (config,)):
        assert all(event.span.launch is None for event in events)


def clipped_updates(world: World, config: RunConfig, max_grad_norm: float) -> float:
    """Norm of the first moment after one step, which is (1 - beta1) times the used gradient."""
    config = replace(config, optimizer=replace(config.optimizer, max_grad_norm=max_grad_norm))
    with tiny_session(world, config) as (session, _):
        step_on(session, ITEMS, ALONE)
        squares = [p.values.pow(2).sum() for p in session.optimizer.pieces() if p.kind == "exp_avg"]
        return sum(map(float, squares))


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_gradient_is_scaled_down_to_the_limit_and_never_up(config, expected, world_size):
    norm = expected[2]
    for limit, used in [(norm / 10, norm / 10), (norm * 10, norm), (0.0, norm)]:
        squares = run_ranks(world_size, clipped_updates, (config, limit))
        beta1 = config.optimizer.betas[0]
        assert math.sqrt(sum(squares)) / (1 - beta1) == pytest.approx(used, rel=1e-9)


@pytest.mark.distributed
def test_a_request_to_stop_on_one_rank_is_heard_on_all(config):
    for world_size, stopping in [(1, 0), (3, 2)]:
        seen = run_ranks(world_size, _step_where_one_rank_stops, (config, stopping))
        assert all(one.outcome.wants_stop for one in seen)


def _step_where_one_rank_stops(world: World, config: RunConfig, stopping: int) -> Seen:
    return one_step(world, config, ITEMS, ALONE, wants_stop=lambda: world.rank == stopping)


class OnlyEngine:
    """What `Engine` promises of an optimizer, and nothing else of it."""

    def __init__(self, optimizer: Any) -> None:
        for name in ("settle", "reduce", "squared_norm_of_shard", "step_and_share"):
            setattr(self, name, getattr(optimizer, name))
        self.clear_gradients = optimizer.clear_gradients


def step_of_engine(world: World, config: RunConfig) -> Seen:
    with tiny_session(world, config) as (session, _):
        engine: Any = OnlyEngine(session.optimizer)
        return step_on(replace(session, optimizer=engine), ITEMS, PLANS[2][1])


@pytest.mark.distributed
def test_a_step_asks_no_more_of_its_engine_than_the_interface(config):
    expected = same_on_all_ranks(run_ranks(2, one_step, (config, ITEMS, PLANS[2][1])))
    found = same_on_all_ranks(run_ranks(2, step_of_engine, (config,)))
    assert found.outcome.loss == expected.outcome.loss
    assert torch.equal(found.after, expected.after)
    assert not torch.equal(found.after, found.before)
