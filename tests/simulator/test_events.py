import pytest

from arachne.simulator.events import EventQueue


def test_actions_happen_in_order_of_time_then_priority_then_arrival():
    events, happened = EventQueue(), []
    for name, time_s, is_last in (
        ("late", 2.0, False),
        ("last of its moment", 1.0, True),
        ("first", 1.0, False),
        ("second", 1.0, False),
    ):
        events.at(time_s, lambda name=name: happened.append((events.now_s, name)), is_last=is_last)

    events.run()

    assert happened == [
        (1.0, "first"),
        (1.0, "second"),
        (1.0, "last of its moment"),
        (2.0, "late"),
    ]


def test_an_action_may_bring_about_others_but_none_in_the_past():
    events, happened = EventQueue(), []
    events.at(1.0, lambda: events.at(1.5, lambda: happened.append(events.now_s)))

    events.run()

    assert happened == [1.5]
    with pytest.raises(AssertionError, match=r"1\.0 s is over; it is 1\.5 s"):
        events.at(1.0, events.run)
