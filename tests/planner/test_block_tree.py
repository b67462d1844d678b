from hypothesis import given
from hypothesis import strategies as st

from arachne.core.blocks import allowed_degrees, ladders, plan_blocks
from arachne.planner.block_tree import TreeLoads, block_tree, widest_tree


def test_left_over_gpus_hang_under_smaller_blocks():
    tree = block_tree(7, (1, 2, 4))

    top = [tree.gpus[node] for node in tree.children[0]]
    assert top == [(0, 1, 2, 3), (4, 5), (6,)]


@given(st.integers(1, 24), st.data())
def test_loads_agree_with_adding_up_each_gpu(num_gpus: int, data: st.DataObject):
    ladder = data.draw(st.sampled_from(ladders(num_gpus, allowed_degrees(num_gpus, num_gpus))))
    tree = block_tree(num_gpus, ladder)
    loads = TreeLoads(tree)
    by_gpu = [0] * num_gpus
    nodes = st.integers(1, tree.num_nodes - 1)
    for node, seconds in data.draw(st.lists(st.tuples(nodes, st.integers(-9, 9)), max_size=20)):
        loads.add(node, seconds)
        for gpu in tree.gpus[node]:
            by_gpu[gpu] += seconds
        peaks_s = loads.peaks_s()

        assert loads.makespan_s == max(by_gpu)
        for other, gpus in enumerate(tree.gpus[1:], start=1):
            assert peaks_s[other] == max(by_gpu[gpu] for gpu in gpus)
        leaf_gpus = tree.gpus[loads.critical_path()[-1]]
        assert max(by_gpu[gpu] for gpu in leaf_gpus) == max(by_gpu)


def test_a_six_lies_beside_a_four_and_left_over_gpus_get_smaller_blocks():
    tree = widest_tree(7, allowed_degrees(7, 6), [tuple(range(6))])
    assert [tree.gpus[node] for node in tree.children[0]] == [(0, 1, 2, 3, 4, 5), (6,)]

    tree = widest_tree(16, (1, 2, 3, 4, 6, 12), [tuple(range(6)), tuple(range(6, 12))])
    tops = [tree.gpus[node] for node in tree.children[0]]
    assert [len(gpus) for gpus in tops] == [12, 4]
    assert [len(tree.gpus[node]) for node in tree.children[1]] == [6, 6]


def test_large_blocks_come_before_small_ones_that_cross_them():
    tree = widest_tree(8, (1, 2, 3, 4, 6, 8))

    assert [tree.gpus[node] for node in tree.children[1]] == [(0, 1, 2, 3, 4, 5), (6, 7)]


@given(st.integers(1, 40), st.data())
def test_no_block_can_be_added_to_a_widest_tree(num_gpus: int, data: st.DataObject):
    degrees = allowed_degrees(num_gpus, num_gpus)
    everything = [b for of_degree in plan_blocks(num_gpus, degrees).values() for b in of_degree]
    preferred = data.draw(st.lists(st.sampled_from(everything), max_size=4))

    tree = widest_tree(num_gpus, degrees, preferred)

    family = [set(gpus) for gpus in tree.gpus[1:]]
    assert not preferred or preferred[0] in tree.gpus
    for block in map(set, everything):
        nests = all(block <= other or other <= block or not block & other for other in family)
        assert nests == (block in family)
    for node, parent in enumerate(tree.parents[1:], start=1):
        assert parent == 0 or family[node - 1] < family[parent - 1]
