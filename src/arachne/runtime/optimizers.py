"""Which optimizer updates which parameters, and whether it needs them whole.

An optimizer here is one of torch's, or any class with its interface, over the tensors that a rank
owns. Where it treats every element alike (AdamW, SGD), a rank owns an equal stretch of a flat
buffer, wherever parameters begin and end. Where it looks at a matrix as one (Muon), each parameter
belongs to one rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from arachne.core.errors import ConfigError
from arachne.runtime.eight_bit import EightBitState, adamw_8bit
from arachne.runtime.optimizer_state import Make, TorchState

_PROBE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """How some parameters are updated.

    Attributes:
        what: The optimizer, for messages.
        applies_to: Whether a parameter, by name and shape, is one of them.
        make: The optimizer of what a rank owns of them.
        is_whole: Each parameter belongs to one rank.
        state: How the optimizer's state is read and written.
    """

    what: str
    applies_to: Callable[[str, torch.Size], bool]
    make: Make
    is_whole: bool = False
    state: type[TorchState] = TorchState


_CPU = torch.device("cpu")


class OptimizerChoice(Protocol):
    """What a run chose."""

    def rules(self, dtype: torch.dtype, device: torch.device = _CPU) -> tuple[UpdateRule, ...]:
        """Rules for masters of a type on a device; the first that applies counts, and the last
        always does.

        Raises:
            ConfigError: The optimizer is not installed, or cannot do what is asked.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWOptions:
    """AdamW's constants; the learning rate arrives with each step.

    Attributes:
        decay_1d: Whether parameters of at most one dimension decay too.
        has_8bit_moments: Moments take a byte per element; the update is computed in float32.
    """

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01
    decay_1d: bool = True
    has_8bit_moments: bool = False

    def rules(self, dtype: torch.dtype, device: torch.device = _CPU) -> tuple[UpdateRule, ...]:
        """See `OptimizerChoice`."""
        options = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        rule = UpdateRule(
            what="AdamW",
            applies_to=_always,
            make=partial(torch.optim.AdamW, fused=True, **options),
        )
        if self.has_8bit_moments:
            rule = replace(rule, make=adamw_8bit(dtype, **options), state=EightBitState)
        return (rule,) if self.decay_1d else (_without_decay(rule), rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonOptions:
    """Muon for the matrices of the blocks, AdamW for everything else.

    Attributes:
        options: Arguments of `torch.optim.Muon`. Unless they say otherwise, updates have the size
            of AdamW's, 0.2·√max(rows, columns) times Muon's (arXiv 2502.16982), so that one
            learning rate and one weight decay serve both.
        rest: Of everything else.
    """

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rest: AdamWOptions = field(default_factory=AdamWOptions)

    def rules(self, dtype: torch.dtype, device: torch.device = _CPU) -> tuple[UpdateRule, ...]:
        """See `OptimizerChoice`."""
        muon = getattr(torch.optim, "Muon", None)
        if muon is None:
            raise ConfigError(
                f"optimizer.name is 'muon', which torch has from 2.9 on; found torch "
                f"{torch.__version__}; install a newer one, or choose 'adamw'"
            )
        defaults = {"adjust_lr_fn": "match_rms_adamw", "weight_decay": self.rest.weight_decay}
        matrices = UpdateRule(
            what="optimizer 'muon'",
            applies_to=is_matrix_of_block,
            make=partial(muon, **defaults | dict(self.options)),
            is_whole=True,
        )
        return (matrices, *self.rest.rules(dtype, device))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOptions:
    """Any optimizer with torch's interface.

    Attributes:
        path: Dotted path of the class.
        options: Its arguments, but for parameters and learning rate.
        is_whole: Each parameter belongs to one rank.
        decay_1d: Where False, `weight_decay` is 0 for parameters of at most one dimension.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_whole: bool = False
    decay_1d: bool = True

    def rules(self, dtype: torch.dtype, device: torch.device = _CPU) -> tuple[UpdateRule, ...]:
        """See `OptimizerChoice`."""
        rule = UpdateRule(
            what=f"optimizer {self.path!r}",
            applies_to=_always,
            make=partial(_class_at(self.path), **self.options),
            is_whole=self.is_whole,
        )
        num_dims, like = 2 if self.is_whole else 1, torch.empty(0, dtype=dtype, device=device)
        # Whatever cannot be made or run is told here, in one line.
        rule.state.kinds(rule.make, rule.what, num_dims, like)
        if not self.is_whole and not self._is_elementwise(rule, device):
            raise ConfigError(
                f"{rule.what} updates an element by others of its parameter, but a rank owns "
                "stretches of parameters; set optimizer.whole_matrices = true"
            )
        if self.decay_1d:
            return (rule,)
        undecayed = _without_decay(rule)
        what = f"{rule.what} with weight_decay = 0, as optimizer.decay_1d is false,"
        undecayed.state.kinds(undecayed.make, what, num_dims, like)
        return (undecayed, rule)

    @staticmethod
    def _is_elementwise(rule: UpdateRule, device: torch.device) -> bool:
        try:
            return is_elementwise(rule.make, device)
        except Exception as error:  # a class may know float32 alone, or one length
            raise ConfigError(
                f"{rule.what} cannot be tried out in float64: {type(error).__name__}: {error}; set "
                "optimizer.whole_matrices = true, or choose another"
            ) from error


def is_matrix_of_block(name: str, shape: torch.Size) -> bool:
    """Whether a parameter is a matrix inside a list of blocks: no embedding, no output layer."""
    return len(shape) == 2 and any(part.endswith("blocks") for part in name.split("."))


def is_elementwise(make: Make, device: torch.device = _CPU) -> bool:
    """Whether an optimizer treats eight elements as it treats three and five of them, apart."""
    generator = torch.Generator().manual_seed(0)

    def random() -> Tensor:
        return torch.randn(8, dtype=torch.float64, generator=generator).to(device)

    start = random()
    ways = [[start.clone()], [part.clone() for part in start.split([3, 5])]]
    optimizers = [make([tensor.requires_grad_() for tensor in tensors]) for tensors in ways]
    for _ in range(_PROBE_STEPS):
        gradient = random()
        for tensors, optimizer in zip(ways, optimizers, strict=True):
            parts = gradient.split([len(tensor) for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.grad = part.clone()
            optimizer.step()
    together, apart = (torch.cat(tensors).detach() for tensors in ways)
    return torch.allclose(together, apart, rtol=1e-12, atol=1e-12)


def _class_at(path: str) -> Callable[..., torch.optim.Optimizer]:
    module, _, name = path.rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as error:  # whatever a package that we do not know may raise
        raise ConfigError(
            f"optimizer.name {path!r} cannot be imported: {error}; name a class such as "
            "'torch.optim.SGD', and install its package"
        ) from error
    if not isinstance(found, type):
        raise ConfigError(
            f"optimizer.name {path!r} is a {type(found).__name__}, no class; name a class such as "
            "'torch.optim.SGD'"
        )
    return cast(Callable[..., torch.optim.Optimizer], found)


def _without_decay(rule: UpdateRule) -> UpdateRule:
    """The same for parameters of at most one dimension, without weight decay."""
    return replace(
        rule,
        applies_to=lambda _, shape: len(shape) <= 1,
        make=partial(rule.make, weight_decay=0.0),
    )


def _always(name: str, shape: torch.Size) -> bool:
    return True
