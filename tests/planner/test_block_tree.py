from hypothesis import given
from hypothesis import strategies as st

from arachne.core.blocks import allowed_degrees, ladders
from arachne.planner.block_tree import TreeLoads, block_tree


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
