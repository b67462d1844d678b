from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.simulator.events import EventQueue
from arachne.simulator.nics import SharedNics, Transfer, nics_used
from tests.mapper.encoder_plans import nodes


@dataclass(frozen=True)
class Sent:
    """A message: when it starts, what it would take alone, and the NICs of each node it uses."""

    start_s: float
    alone_s: float
    nics: dict[int, float]


sent_messages = st.lists(
    st.builds(
        Sent,
        st.floats(0.0, 10.0),
        st.floats(0.1, 5.0),
        st.dictionaries(st.integers(0, 3), st.sampled_from((0.5, 1.0, 2.0)), min_size=2),
    ),
    min_size=1,
    max_size=8,
)


def arrivals_s(messages: list[Sent], num_nics: int) -> list[float]:
    events = EventQueue()
    shared = SharedNics(events, num_nics)
    arrived: dict[int, float] = {}

    def send(index: int, message: Sent) -> None:
        shared.send(
            Transfer(
                nics=message.nics,
                end_s=events.now_s + message.alone_s,
                on_end=lambda: arrived.setdefault(index, events.now_s),
            )
        )

    for index, message in enumerate(messages):
        events.at(message.start_s, partial(send, index, message))
    events.run()
    return [arrived[index] for index in range(len(messages))]


def pace(message: Sent, active: list[Sent], num_nics: int) -> float:
    asked = [sum(other.nics.get(node, 0.0) for other in active) for node in message.nics]
    return min(1.0, num_nics / max(asked))


@given(messages=sent_messages, num_nics=st.sampled_from((1, 2, 4)))
@settings(max_examples=100, deadline=None)
def test_every_byte_is_sent_once_and_no_node_sends_more_than_its_nics(messages, num_nics):
    ends_s = arrivals_s(messages, num_nics)

    moments = sorted({m.start_s for m in messages} | set(ends_s))
    sent_s = [0.0] * len(messages)
    for begin_s, end_s in pairwise(moments):
        middle_s = (begin_s + end_s) / 2
        active = [
            index for index, m in enumerate(messages) if m.start_s <= middle_s <= ends_s[index]
        ]
        paces = {i: pace(messages[i], [messages[j] for j in active], num_nics) for i in active}
        for index in active:
            sent_s[index] += paces[index] * (end_s - begin_s)
        for node in range(4):
            used = sum(paces[index] * messages[index].nics.get(node, 0.0) for index in active)
            assert used <= num_nics * (1 + 1e-6)
    assert sent_s == pytest.approx([m.alone_s for m in messages], rel=1e-6)


@given(messages=sent_messages, num_nics=st.sampled_from((1, 2, 4)))
@settings(max_examples=50, deadline=None)
def test_company_delays_a_message_and_never_speeds_it_up(messages, num_nics):
    for message, end_s in zip(messages, arrivals_s(messages, num_nics), strict=True):
        assert end_s >= (message.start_s + message.alone_s) * (1 - 1e-12)


def test_messages_that_fit_beside_each_other_end_exactly_as_if_alone():
    messages = [Sent(0.1, 0.7, {0: 1.0, 1: 1.0}), Sent(0.3, 1.1, {1: 1.0, 2: 3.0})]

    assert arrivals_s(messages, 4) == [0.1 + 0.7, 0.3 + 1.1]


def test_a_group_uses_as_many_nics_as_its_price_says():
    cluster = nodes(3, nics=2)

    assert nics_used(cluster, (0, 1, 2, 3)) == {}
    assert nics_used(cluster, (0, 4)) == {0: 1.0, 1: 1.0}
    assert nics_used(cluster, (0, 1, 2, 3, 4, 8)) == {0: 2.0, 1: 0.5, 2: 0.5}
