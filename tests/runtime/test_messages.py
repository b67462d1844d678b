import pytest
import torch

from arachne.runtime.clock import HostClock
from arachne.runtime.launcher import run_ranks
from arachne.runtime.messages import HEAD_BYTES, gathered_texts, text_of_first
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.world import World

TEXTS = ["", "zwei Wörter →", "x" * 5000]


def exchange(world: World) -> tuple[list[str], str]:
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=HostClock())
    group = ProcessGroups(world, (1,), recorder).world
    text = TEXTS[world.rank]
    device = torch.device("cpu")
    return gathered_texts(text, group, device), text_of_first(text + "!", group, device)


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_gets_every_text_and_the_first_ones_text(world_size):
    for gathered, first in run_ranks(world_size, exchange, timeout_s=20.0):
        assert gathered == TEXTS[:world_size]
        assert first == "!"


LONG = ["→" * (HEAD_BYTES // 3) + end for end in ("", "1", "12", "→" * HEAD_BYTES)]
"""Up to the last byte of the first broadcast, past it, and with a letter on both sides of it."""


def first_of(world: World) -> list[tuple[str, int]]:
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=HostClock())
    group = ProcessGroups(world, (1,), recorder).world
    recorder.keeps_ledger = True
    found: list[tuple[str, int]] = []
    for text in LONG:
        recorder.ledger.clear()
        mine = text if world.rank == 0 else "not sent"
        found.append((text_of_first(mine, group, torch.device("cpu")), len(recorder.ledger)))
    return found


@pytest.mark.distributed
def test_a_text_that_is_longer_than_the_first_broadcast_takes_a_second_one():
    assert HEAD_BYTES % 3 == 1
    for found in run_ranks(2, first_of, timeout_s=20.0):
        assert found == [(LONG[0], 1), (LONG[1], 1), (LONG[2], 2), (LONG[3], 2)]
