"""State that goes to another number of ranks and comes back is the same, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from arachne.runtime.optimizers import OptimizerChoice
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from arachne.trainer.checkpoint import commit, write_shard
from arachne.trainer.checkpoint_files import Chunk, TrainState
from arachne.trainer.checkpoint_reader import CheckpointReader, verified
from arachne.trainer.optimizer_choice import optimizer_choice
from arachne.trainer.session import Session
from arachne.trainer.settings.optimizer import OptimizerSettings
from arachne.trainer.state import _take_over  # pyright: ignore[reportPrivateUsage]
from tests.runtime.rank_groups import recorder_alone

WORLDS = (1, 2, 3, 4)
SHAPES = {"blocks.0.w": (7, 5), "blocks.0.b": (7,), "blocks.1.w": (3, 11), "scale": (1,)}
NUM_UPDATES = 5


@dataclass(kw_only=True)
class Ranks:
    """All ranks of a world in one process; nobody meets anybody."""

    size: int
    choice: OptimizerChoice
    optimizers: list[ShardedOptimizer] = field(default_factory=list)

    def __post_init__(self) -> None:
        for rank in range(self.size):
            group = RankGroup(
                ranks=tuple(range(self.size)), index=rank, handle=None, recorder=recorder_alone()
            )
            self.optimizers.append(ShardedOptimizer(model(), group, self.choice, average_decay=0.9))

    def load(self, path: Path) -> None:
        """As each rank of a resumed run does."""
        for optimizer in self.optimizers:
            session = SimpleNamespace(
                optimizer=optimizer, base="", config=SimpleNamespace(model=None)
            )
            _take_over(cast(Session, session), CheckpointReader(path))

    def save(self, run_dir: Path) -> Path:
        """As all ranks of a run do."""
        for rank, optimizer in enumerate(self.optimizers):
            write_shard(run_dir, NUM_UPDATES, rank, list(chunks_of(optimizer)))
        state = TrainState(
            step=NUM_UPDATES,
            num_updates=NUM_UPDATES,
            seed=0,
            world_size=self.size,
            config_json="{}",
            numbers=self.optimizers[0].numbers(),
        )
        return commit(run_dir, NUM_UPDATES, parameters=SHAPES, state=state)


def model() -> nn.Module:
    """Parameters that no world divides evenly."""
    module = nn.Module()
    for block in (0, 1):
        inner = nn.Module()
        for name, shape in SHAPES.items():
            if name.startswith(f"blocks.{block}."):
                inner.register_parameter(name.rpartition(".")[2], nn.Parameter(torch.zeros(shape)))
        module.add_module(f"block{block}", inner)
    blocks = nn.ModuleList([module.get_submodule("block0"), module.get_submodule("block1")])
    whole = nn.Module()
    whole.add_module("blocks", blocks)
    whole.register_parameter("scale", nn.Parameter(torch.zeros(SHAPES["scale"])))
    return whole


def chunks_of(optimizer: ShardedOptimizer) -> Iterator[Chunk]:
    for piece in optimizer.pieces():
        yield Chunk(
            name=piece.name,
            kind=piece.kind,
            offset=piece.offset,
            total=prod(optimizer.shapes[piece.name]),
            values=piece.values.detach().numpy().copy(),
        )


def arrays_of(path: Path) -> dict[tuple[str, str], Any]:
    """Every array of a checkpoint, whole."""
    index = verified(path)
    reader = CheckpointReader(path)
    keys = {(place.name, place.kind) for shard in index.shards for place in shard.chunks}
    return {key: reader.read(*key, 0, prod(SHAPES[key[0]])) for key in sorted(keys)}


def trained_alone(choice: OptimizerChoice, run_dir: Path) -> Path:
    """A checkpoint of one rank whose arrays are all different from zero and each other."""
    alone = Ranks(size=1, choice=choice)
    (optimizer,) = alone.optimizers
    random = torch.Generator().manual_seed(1)
    for _ in range(NUM_UPDATES):
        for _, gradient in optimizer.gradients():
            gradient.copy_(torch.randn(gradient.shape, generator=random))
        optimizer.reduce()
        optimizer.step(lr=0.1)
        optimizer.clear_gradients()
    return alone.save(run_dir)


@pytest.mark.parametrize("name", ["adamw", "muon", "torch.optim.Adamax"])
def test_sixteen_pairs_of_worlds_lose_no_bit(tmp_path, name):
    choice = optimizer_choice(OptimizerSettings(name=name))
    origin = trained_alone(choice, tmp_path / "origin")
    needed = arrays_of(origin)
    assert all(np.abs(values).min() > 0.0 for values in needed.values())
    assert {kind for _, kind in needed} > {"master", "ema"}
    for there in WORLDS:
        for back in WORLDS:
            folder = tmp_path / f"{there}-{back}"
            ranks = Ranks(size=there, choice=choice)
            ranks.load(origin)
            again = Ranks(size=back, choice=choice)
            again.load(ranks.save(folder / "there"))
            found = arrays_of(again.save(folder / "back"))
            assert found.keys() == needed.keys()
            for key, values in found.items():
                assert values.tobytes() == needed[key].tobytes(), (there, back, key)
            assert again.optimizers[0].numbers() == ranks.optimizers[0].numbers()
            assert again.optimizers[0].num_updates == NUM_UPDATES
