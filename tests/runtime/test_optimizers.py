"""Any optimizer on shards is that optimizer in one process; its state goes from world to world."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from arachne.core.errors import ConfigError
from arachne.runtime.launcher import run_ranks
from arachne.runtime.optimizers import AdamWOptions, ClassOptions, MuonOptions, is_elementwise
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from tests.runtime.rank_groups import open_groups

SHAPES = {
    "embed": (6, 4),
    "blocks.0.to_q": (4, 4),
    "blocks.0.ffn": (8, 4),
    "blocks.0.bias": (8,),
    "blocks.0.table": (1, 6, 4),
    "blocks.1.to_q": (4, 4),
    "blocks.1.scale": (),
    "out": (4, 6),
}
MATRICES = ("blocks.0.to_q", "blocks.0.ffn", "blocks.1.to_q")
ADAMW = AdamWOptions(weight_decay=0.2)
NUM_UPDATES = 4
"""Before a checkpoint; more than what an optimizer's state is found out with."""


def flat(name: str) -> str:
    return name.replace(".", "/")  # names of parameters have no dots


class Parameters(nn.Module):
    """Parameters with the names of a model's, dots and all."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.by_name = {
            name: nn.Parameter(
                torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            )
            for name, shape in SHAPES.items()
        }

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return iter(self.by_name.items())


def gradient(name: str, step: int) -> torch.Tensor:
    """Multiples of 1/8, so that sums over ranks are exact whatever their order."""
    generator = torch.Generator().manual_seed(1000 * step + list(SHAPES).index(name))
    return torch.randint(-16, 17, SHAPES[name], generator=generator).double() / 8


def train(world, optimizer, module, steps) -> None:
    """Each step's gradient in parts: twice by the first rank, minus once by the last."""
    for step in steps:
        for name, parameter in module.by_name.items():
            whole = (parameter * gradient(name, step).to(parameter.dtype)).sum()
            if world.rank == 0:
                (whole * (2.0 if world.size > 1 else 1.0)).backward(retain_graph=True)
            if world.rank == world.size - 1 and world.size > 1:
                (-whole).backward()
        optimizer.reduce()
        optimizer.step(lr=0.1 / (step + 1))
        optimizer.share()
        optimizer.clear_gradients()


def values_of(module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.by_name.items()}


@dataclass
class Trained:
    values: dict[str, torch.Tensor]
    pieces: list[tuple[str, str, int, torch.Tensor]]
    numbers: dict[str, float]
    num_owned: int


def train_sharded(world, choice, options, num_steps) -> Trained:
    _, groups = open_groups(world)
    module = Parameters()
    optimizer = ShardedOptimizer(module, groups.world, choice, **options)
    train(world, optimizer, module, range(num_steps))
    return Trained(
        values=values_of(module),
        pieces=[(p.name, p.kind, p.offset, p.values.clone()) for p in optimizer.pieces()],
        numbers=optimizer.numbers(),
        num_owned=sum(stop - start for _, start, stop in optimizer.owned_ranges()),
    )


def train_alone(make_of, num_steps) -> dict[str, torch.Tensor]:
    """By torch's own optimizers, one for each parameter."""
    module = Parameters()
    optimizers = {name: make_of(name)([p]) for name, p in module.by_name.items()}
    for step in range(num_steps):
        for name, optimizer in optimizers.items():
            module.by_name[name].grad = gradient(name, step)
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
    return values_of(module)


def adamw_of(name, **changed):
    options = {"betas": ADAMW.betas, "eps": ADAMW.eps, "weight_decay": 0.2} | changed
    return lambda tensors: torch.optim.AdamW(tensors, **options)


def adamw_without_1d_decay(name):
    return adamw_of(name, weight_decay=0.2 if len(SHAPES[name]) > 1 else 0.0)


def muon_or_adamw(name):
    if name not in MATRICES:
        return adamw_without_1d_decay(name)
    return lambda tensors: torch.optim.Muon(
        tensors, momentum=0.9, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"
    )


def class_choice(name, **options):
    return ClassOptions(path=f"torch.optim.{name}", options=options)


CHOICES = {
    "no decay of 1-D": (
        AdamWOptions(weight_decay=0.2, decay_1d=False),
        adamw_without_1d_decay,
        {"exp_avg", "exp_avg_sq"},
        {"step"},
    ),
    "muon": (
        MuonOptions(options={"momentum": 0.9}, rest=AdamWOptions(weight_decay=0.2, decay_1d=False)),
        muon_or_adamw,
        {"exp_avg", "exp_avg_sq", "momentum_buffer"},
        {"step"},
    ),
    "sgd": (
        class_choice("SGD", momentum=0.9, nesterov=True),
        lambda _: lambda tensors: torch.optim.SGD(tensors, momentum=0.9, nesterov=True),
        {"momentum_buffer"},
        set(),
    ),
    "nadam": (
        class_choice("NAdam"),
        lambda _: torch.optim.NAdam,
        {"exp_avg", "exp_avg_sq"},
        {"step", "mu_product"},
    ),
    "whole rmsprop": (
        ClassOptions(path="torch.optim.RMSprop", options={"momentum": 0.5}, is_whole=True),
        lambda _: lambda tensors: torch.optim.RMSprop(tensors, momentum=0.5),
        {"square_avg", "momentum_buffer"},
        {"step"},
    ),
}


def joined(by_rank: list[Trained], kinds: set[str]) -> dict[str, dict[str, torch.Tensor]]:
    """All pieces by kind and name; each element is there once."""
    whole: dict[str, dict[str, torch.Tensor]] = {}
    covered: dict[tuple[str, str], torch.Tensor] = {}
    for trained in by_rank:
        for name, kind, offset, values in trained.pieces:
            size = math.prod(SHAPES[name])
            into = whole.setdefault(kind, {}).setdefault(name, torch.zeros(size).double())
            count = covered.setdefault((kind, name), torch.zeros(size))
            into[offset : offset + len(values)] = values
            count[offset : offset + len(values)] += 1
    assert set(whole) == kinds | {"master"}
    assert all(bool((count == 1).all()) for count in covered.values())
    assert set(whole["master"]) == set(SHAPES)
    return whole


def resume(world, choice, state, numbers, num_updates) -> dict[str, torch.Tensor]:
    """Load over other state, then one more step."""
    _, groups = open_groups(world)
    module = Parameters()
    optimizer = ShardedOptimizer(module, groups.world, choice)
    train(world, optimizer, module, range(5, 7))
    ranges = {name: (start, stop) for name, start, stop in optimizer.owned_ranges()}
    pieces = {
        kind: {
            name: tensor[slice(*ranges[name])] for name, tensor in tensors.items() if name in ranges
        }
        for kind, tensors in state.items()
    }
    optimizer.load(pieces, num_updates, numbers)
    optimizer.share()
    train(world, optimizer, module, [num_updates])
    return values_of(module)


@pytest.mark.distributed
@pytest.mark.parametrize("chosen", CHOICES)
def test_any_optimizer_on_any_world_is_that_of_one_process_and_goes_on_in_another(chosen):
    choice, make_of, kinds, numbers = CHOICES[chosen]
    expected, later = (train_alone(make_of, n) for n in (NUM_UPDATES, NUM_UPDATES + 1))
    for world_size in (1, 2, 3):
        by_rank = run_ranks(world_size, train_sharded, (choice, {}, NUM_UPDATES))
        for trained in by_rank:
            for name, value in trained.values.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-13, msg=name)
    state = joined(by_rank, kinds)  # of three ranks
    assert set(by_rank[0].numbers) == numbers
    arguments = (choice, state, by_rank[0].numbers, NUM_UPDATES)
    for values in run_ranks(2, resume, arguments):
        for name, value in values.items():
            torch.testing.assert_close(value, later[name], rtol=1e-12, atol=1e-13, msg=name)


@pytest.mark.distributed
def test_matrices_are_owned_whole_and_no_rank_owns_much_more_than_another():
    choice = CHOICES["whole rmsprop"][0]
    by_rank = run_ranks(3, train_sharded, (choice, {}, 1), timeout_s=60.0)
    owned = [
        {(name, offset, len(values)) for name, kind, offset, values in t.pieces if kind == "master"}
        for t in by_rank
    ]
    assert set().union(*owned) == {(name, 0, math.prod(s)) for name, s in SHAPES.items()}
    sizes = [trained.num_owned for trained in by_rank]
    assert max(sizes) - min(sizes) <= max(math.prod(shape) for shape in SHAPES.values())


def test_elementwise_optimizers_are_told_from_others():
    def normed(tensors):
        class Normed(torch.optim.SGD):
            def step(self, closure=None):
                for parameter in self.param_groups[0]["params"]:
                    parameter.grad = parameter.grad / parameter.grad.norm()
                return super().step(closure)

        return Normed(tensors, lr=0.1)

    assert is_elementwise(torch.optim.AdamW)
    assert is_elementwise(torch.optim.Adagrad)
    assert not is_elementwise(normed)
    assert not is_elementwise(torch.optim.Adafactor)


class ChangesItself(torch.optim.SGD):
    """Keeps a distance among its settings, as Prodigy does."""

    def step(self, closure=None):
        self.param_groups[0]["distance"] = self.param_groups[0].get("distance", 0.0) + 1.0
        return super().step(closure)


class CountsByGradient(torch.optim.SGD):
    """Keeps a number for each tensor that depends on its gradient."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["largest"] = float(parameter.grad.abs().max())
        return super().step(closure)


class RemembersInfinity(torch.optim.SGD):
    """Keeps a number that no JSON can hold."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["best"] = float("inf")
        return super().step(closure)


class OnlyFloat32(torch.optim.SGD):
    """Does not update tensors of other types."""

    def step(self, closure=None):
        if any(p.dtype != torch.float32 for p in self.param_groups[0]["params"]):
            raise TypeError("no float64 here")
        return super().step(closure)


def test_a_class_without_weight_decay_is_refused_where_some_parameters_are_to_have_none():
    choice = ClassOptions(path="torch.optim.Rprop", decay_1d=False)
    with pytest.raises(ConfigError, match=r"as optimizer\.decay_1d is false, cannot be used"):
        choice.rules(torch.float32)
    assert ClassOptions(path="torch.optim.Rprop").rules(torch.float32)


@pytest.mark.parametrize(
    ("path", "options", "is_whole", "message"),
    [
        (f"{__name__}.ChangesItself", {}, False, "changes its own settings"),
        (f"{__name__}.CountsByGradient", {}, False, "a number for each tensor that depends on"),
        (f"{__name__}.RemembersInfinity", {}, False, "keeps 'best', which is inf"),
        ("torch.optim.Sgd", {}, False, "'torch.optim.Sgd' cannot be imported"),
        ("no_such_package.Lion", {}, False, "'no_such_package.Lion' cannot be imported"),
        ("torch.optim", {}, False, "'torch.optim' is a module, no class; name a class such as"),
        ("os.path.join", {}, False, "'os.path.join' is a function, no class"),
        ("torch.optim.lr_scheduler.StepLR", {}, False, "cannot be used: TypeError"),
        ("torch.optim.Optimizer", {}, False, "cannot be used: TypeError"),
        (".", {}, False, "'.' cannot be imported: Empty module name"),
        (".torch.SGD", {}, False, "'.torch.SGD' cannot be imported"),
        (f"{__name__}.OnlyFloat32", {}, False, "cannot be tried out in float64: TypeError: no"),
        ("torch.optim.SGD", {"speed": 1.0}, False, "unexpected keyword argument 'speed'"),
        ("torch.optim.LBFGS", {}, False, "cannot be used: "),
        ("torch.optim.Adafactor", {}, False, "set optimizer.whole_matrices = true"),
        ("torch.optim.Adafactor", {}, True, r"keeps 'row_var' of shape \(3, 1\)"),
        ("torch.optim.Muon", {}, False, "Muon only supports 2D"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(path, options, is_whole, message):
    choice = ClassOptions(path=path, options=options, is_whole=is_whole)
    with pytest.raises(ConfigError, match=message) as caught:
        choice.rules(torch.float32)
    assert "\n" not in str(caught.value)


def test_muon_that_torch_does_not_have_and_options_that_it_does_not_know_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"'muon' cannot be used: .*'speed'"):
        run_ranks(1, train_sharded, (MuonOptions(options={"speed": 1}), {}, 1))
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ConfigError, match=r"torch has from 2\.9 on"):
        MuonOptions().rules(torch.float32)
