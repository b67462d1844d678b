"""Plans of `arachne` with encoders: what they reach, and what baselines do not."""

from random import Random

import pytest

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.encoder_search import plan_with_encoders
from arachne.planner.encoder_starts import Ways, encoders_first, encoders_last, even_out
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import BASELINES, plan_arachne
from arachne.planner.trees import Trees
from arachne.planner.variants import Variants
from tests.planner.dag_problems import (
    EncoderCosts,
    check_dag,
    dag_problem,
    encoded,
)
from tests.planner.problems import BUCKETS, batch_of

IMAGE, VIDEO, LONG = "96x64x1", "96x64x33", "224x96x81"  # 24, 216 and 1,764 tokens
BOTH = ("vae", "text")


def ways_of(problem: PlanningProblem) -> Ways:
    return Ways(Trees(Variants(problem)).of_all_kinds()[0])


def searched(problem: PlanningProblem) -> Plan:
    """What the search finds by itself, without the baselines."""
    variants = Variants(problem)
    plan = plan_with_encoders(problem, variants, lower_bound_s(problem, variants), "test")
    assert plan is not None
    check_dag(plan, problem)
    return plan


def test_each_gpu_encodes_what_it_trains():
    problem = dag_problem(encoded(batch_of(*[VIDEO] * 4), BOTH), 4, EncoderCosts(hop_s=1000.0))

    plan = searched(problem)

    assert plan.makespan_s == 54.0 + 4.0 + 216.0
    assert all(launch.degree == 1 for launch in plan.launches)


def test_a_clip_that_is_encoded_late_trains_on_many_gpus():
    # 441 s of vae; on fewer GPUs the clip would end after 1,323 s, and the images fill the rest.
    batch = encoded(batch_of(LONG, *[IMAGE] * 64), ("vae",), *[()] * 64)
    problem = dag_problem(batch, 4, EncoderCosts())

    plan = searched(problem)

    (late,) = [x for x in plan.launches if x.cascade.bucket.frames == 81 and x.degree > 1]
    assert late.gpus == (0, 1, 2, 3)
    assert late.start_s >= 441.0
    assert plan.makespan_s == pytest.approx(lower_bound_s(problem), rel=0.01)


def test_images_train_while_a_long_clip_is_encoded():
    batch = encoded(batch_of(LONG, *[IMAGE] * 32), BOTH)
    problem = dag_problem(batch, 4, EncoderCosts(text_s=0.5))

    plan = searched(problem)

    # 441 s of vae and a fourth of 1,764; everything else fits beside it.
    assert plan.makespan_s == pytest.approx(882.0, rel=0.01)


def test_the_next_step_s_encoders_fill_idle_ends():
    # GPU 0 trains a video for 216 s; the others have 192 s left, and 4 videos to encode.
    following = encoded(batch_of(*[VIDEO] * 12, step=1), ("vae",))
    problem = PlanningProblem(
        batch=batch_of(VIDEO, IMAGE, IMAGE, IMAGE),
        next_batch=following,
        num_gpus=4,
        degrees=(1,),
        costs=EncoderCosts(),
    )

    plan = searched(problem)

    assert plan.makespan_s == 24.0 + 4 * 54.0  # 12 encoders on three GPUs
    assert min(baseline(problem).makespan_s for baseline in BASELINES) >= plan.makespan_s


@pytest.mark.parametrize("num_gpus", [6, 8, 16])
@pytest.mark.parametrize("is_filling", [False, True])
def test_realistic_steps_come_close_to_what_no_plan_can_beat(num_gpus: int, is_filling: bool):
    rng = Random(num_gpus)
    batches = [batch_of(*rng.choices(BUCKETS, k=4 * num_gpus), step=step) for step in (0, 1)]
    needing = encoded(batches[is_filling], BOTH)
    problem = dag_problem(
        batches[0] if is_filling else needing,
        num_gpus,
        EncoderCosts(vae_second_per_token=0.15, launch_s_each=10.0, hop_s=1.0),
        next_batch=needing if is_filling else None,
        iterations=1000,
        stack_tokens=1024,
    )

    plan = plan_arachne(problem)

    check_dag(plan, problem)
    assert plan.makespan_s <= 1.03 * lower_bound_s(problem)


def test_encoders_are_balanced_by_themselves_and_settled():
    problem = dag_problem(
        encoded(batch_of(*[VIDEO] * 4, *[IMAGE] * 4), ("vae",)), 4, EncoderCosts()
    )
    ways = ways_of(problem)

    start = encoders_first(ways, 300.0, is_split=False)

    leaves = [node for node, gpus in enumerate(ways.costs.tree.gpus) if len(gpus) == 1]
    of_leaf = [
        [start.assignment.counts[leaf][shape] for shape in ways.encoders[0]] for leaf in leaves
    ]
    assert of_leaf == [[1, 1]] * 4
    assert start.floor_s == 60.0
    movable = {shape for shapes in start.assignment.present for shape in shapes}
    assert movable == set(ways.trained)


def test_late_clips_are_put_where_they_end_in_time_and_settled():
    # From 441 s on, four GPUs take 441 s and two 882 s.
    batch = encoded(batch_of(LONG, *[IMAGE] * 8), ("vae",), *[()] * 8)
    ways = ways_of(dag_problem(batch, 4, EncoderCosts()))
    long, image = ways.trained

    start = encoders_first(ways, 1000.0, is_split=False)

    (node,) = [n for n, of_node in enumerate(start.assignment.counts) if of_node[long]]
    assert ways.costs.sizes[node] == 4
    assert start.floor_s == 441.0 + 441.0
    assert {shape for shapes in start.assignment.present for shape in shapes} == {image}


def test_late_clips_do_not_follow_each_other():
    # GPUs 4 to 15 encode nothing, and yet can train none of these clips before 441 s.
    problem = PlanningProblem(
        batch=encoded(batch_of(*[LONG] * 4), ("vae",)),
        num_gpus=16,
        degrees=(1, 2, 4),
        costs=EncoderCosts(),
    )

    start = encoders_first(ways_of(problem), 900.0, is_split=False)

    assert start.floor_s == 441.0 + 441.0
    (long,) = ways_of(problem).trained
    assert sorted(of_node[long] for of_node in start.assignment.counts)[-4:] == [1] * 4


def test_a_long_encoder_is_split_only_if_asked():
    batch = encoded(batch_of(LONG, *[IMAGE] * 3), ("vae",))
    problem = dag_problem(batch, 4, EncoderCosts(vae_degrees=(1, 2, 4)))
    ways = ways_of(problem)
    assert ways.can_split_encoders
    (long_vae, _) = ways.encoders[0]

    def degree(*, is_split: bool) -> int:
        counts = encoders_first(ways, 600.0, is_split=is_split).assignment.counts
        (node,) = [node for node, of_node in enumerate(counts) if of_node[long_vae]]
        return ways.costs.sizes[node]

    assert degree(is_split=False) == 1
    assert degree(is_split=True) == 4


def test_short_encoders_of_the_next_step_even_out_the_end():
    following = encoded(batch_of(LONG, *[IMAGE] * 40, step=1), ("vae",))
    problem = dag_problem(batch_of(*[VIDEO] * 8), 4, EncoderCosts(), next_batch=following)
    ways = ways_of(problem)
    long_vae, short_vae = ways.encoders[1]

    assignment = encoders_last(ways, 700.0).assignment
    counts = [sum(of_node[shape] for of_node in assignment.counts) for shape in ways.encoders[1]]
    assert counts == [1, 0]
    assert all(long_vae not in shapes for shapes in assignment.present)

    even_out(ways, assignment, 700.0)
    assert sum(of_node[short_vae] for of_node in assignment.counts) == 40
    assert any(long_vae in shapes for shapes in assignment.present)
    peaks_s = assignment.loads.peaks_s()
    leaves = [peaks_s[n] for n, gpus in enumerate(ways.costs.tree.gpus) if len(gpus) == 1]
    assert max(leaves) - min(leaves) <= 54.0


def test_encoders_that_need_two_gpus_get_them():
    problem = dag_problem(
        encoded(batch_of(*[VIDEO] * 3), ("vae",)), 4, EncoderCosts(vae_degrees=(2,))
    )

    plan = searched(problem)

    assert {x.degree for x in plan.launches if x.cascade.module == "vae"} == {2}


def test_a_step_with_nothing_to_train_may_still_encode():
    following = encoded(batch_of(IMAGE, VIDEO, step=1), BOTH)
    problem = dag_problem(Batch(step=0, clips=()), 2, EncoderCosts(), next_batch=following)

    plan = plan_arachne(problem)

    check_dag(plan, problem)
    assert plan.makespan_s == 54.0


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_blocks_that_exclude_others_are_found_where_a_clip_fits_on_no_others(steps_ahead):
    batch = batch_of(VIDEO, VIDEO, IMAGE, IMAGE)
    costs = EncoderCosts(vae_degrees=(3,))
    to_encode = encoded(batch_of(VIDEO, VIDEO, step=steps_ahead), ("vae",))
    if steps_ahead:
        problem = dag_problem(batch, 8, costs, next_batch=to_encode)
    else:
        problem = dag_problem(to_encode, 8, costs)

    plan = searched(problem)

    encoders = [launch for launch in plan.launches if launch.cascade.module == "vae"]
    assert {launch.degree for launch in encoders} == {3}


def test_clips_that_need_blocks_which_cross_are_refused_in_one_line():
    class Awkward(EncoderCosts):
        def fits(self, cascade, gpus):  # 6 and 4 of 8 GPUs are in no tree together
            if cascade.module == "vae":
                return len(gpus) == 6
            return len(gpus) == 4 and gpus[0] == 4 if cascade.module == "dit" else True

    problem = dag_problem(encoded(batch_of(VIDEO, IMAGE), ("vae",)), 8, Awkward())
    variants = Variants(problem)

    bound_s = lower_bound_s(problem, variants)

    assert plan_with_encoders(problem, variants, bound_s, "test") is None
    with pytest.raises(InfeasibleError, match="nested or apart"):
        plan_arachne(problem)
