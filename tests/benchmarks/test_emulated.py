"""Emulated ranks: the benchmark's figures are there and make sense, and many plans leave nothing.

The slow test takes 10,000 plans, or as many as ARACHNE_NUM_PLANS says.
"""

import os

import emulated
import emulated_rank
import pytest

from arachne.runtime.emulation import EmulatedRank
from arachne.runtime.launcher import run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture
def short_steps(monkeypatch):
    for module in (emulated, emulated_rank):
        monkeypatch.setattr(module, "STEP_S", 0.2)


def test_a_world_is_measured_against_the_simulator_and_against_bare_collectives(short_steps):
    row = emulated.run_world(4, 2, 1)

    by_disturbance = row["measured_over_predicted_by_disturbance"]
    assert {name: len(ratios) for name, ratios in by_disturbance.items()} == {
        "none": 2,
        "jitter": 1,
        "slow rank": 1,
    }
    # Wide, since other work on the machine may slow down the step, or what is predicted from.
    assert all(0.5 < ratio < 5.0 for ratios in by_disturbance.values() for ratio in ratios)
    assert row["step_s"] > 0.2
    sent, vote, floor = (row["coordination_s"][name] for name in ("send", "vote", "floor"))
    assert row["coordination_share"] == pytest.approx((sent + vote) / row["step_s"])
    assert row["coordination_over_floor"] == pytest.approx((sent + vote) / floor)


def test_many_plans_make_no_groups_files_or_memory():
    growth = emulated.run_many(4, 100)["growth"]
    assert (growth["groups"], growth["file_descriptors"]) == (0, 0)
    assert growth["memory_kib"] < 4096


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_10_000_plans_on_four_ranks_make_no_groups_files_or_memory():
    num_plans = int(os.environ.get("ARACHNE_NUM_PLANS", "10000"))
    growth = emulated.run_many(4, num_plans)["growth"]
    assert (growth["groups"], growth["file_descriptors"]) == (0, 0)
    assert growth["memory_kib"] < 4096


def leaks(world, texts):
    """As `many_plans`, on ranks that leave a file open in each step."""
    run_step, left_open = EmulatedRank.run_step, []

    def leaking(self, plan):
        left_open.append(open("/dev/null", "rb"))  # noqa: SIM115  that is the point
        return run_step(self, plan)

    EmulatedRank.run_step = leaking
    grown = emulated.many_plans(world, texts, 20)
    for file in left_open:
        file.close()
    return grown


def test_a_file_that_stays_open_is_seen():
    texts = [emulated.plan_of(0, emulated.cost_model(4)).to_json()]
    for grown in run_ranks(4, leaks, (texts,), timeout_s=30.0):
        assert grown["file_descriptors"] == 18
