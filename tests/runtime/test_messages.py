import pytest
import torch

from arachne.runtime.clock import HostClock
from arachne.runtime.launcher import run_ranks
from arachne.runtime.messages import gathered_texts, text_of_first
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
