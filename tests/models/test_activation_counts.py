"""Activations as the cost model counts them, against what autograd keeps in diffusers' classes."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

import diffusers
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from arachne.core.families import FAMILIES, family_named
from arachne.core.model_shape import ModelShape
from arachne.cost.activations import launch_activations
from tests.models.diffusers_classes import CLASSES

Grid = tuple[int, int, int]

GRIDS = {"video": (3, 8, 20), "picture": (1, 16, 28)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")  # Mochi asks for it
FAMILY = pytest.mark.parametrize("family_name", list(FAMILIES))
DTYPE = pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))


def small(family_name: str, num_layers: int = 4) -> ModelShape:
    family = family_named(family_name)
    preset = next(iter(family.presets.values()))
    optional = {"num_single_layers": 3, "num_refiner_layers": 2, "pooled_text_size": 26}
    return replace(
        preset,
        num_layers=num_layers,
        num_heads=4,
        head_size=48,
        ffn_size=family.fixed_ffn_size(192) if family.fixed_ffn_size else 640,
        latent_channels=8,
        text_size=40,
        text_tokens=12,
        **{name: size for name, size in optional.items() if getattr(preset, name)},
    )


def forward_of(
    shape: ModelShape, grid: Grid, dtype: torch.dtype
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The family's class on the CPU, and one forward of it on one clip."""
    made = CLASSES[shape.family]
    module: nn.Module = getattr(diffusers, made.name)(**made.options(shape))
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    inputs = tree_map_only(
        Tensor, lambda meta: torch.rand(meta.shape, dtype=dtype), made.inputs(shape, grid, 1)
    )
    if shape.family == "hunyuan_video15":
        for states, mask in (("", ""), ("_2", "_2")):
            num_tokens = inputs[f"encoder_hidden_states{states}"].shape[1]
            inputs[f"encoder_attention_mask{mask}"] = torch.ones(1, num_tokens)
    for name in inputs:
        if "mask" in name:
            inputs[name] = torch.ones(inputs[name].shape, dtype=torch.bool)
    if shape.family not in ("hunyuan_video", "hunyuan_video15", "mochi"):
        inputs["timestep"] = torch.full(inputs["timestep"].shape, 500.0)
    return module, lambda: made.output(module, inputs)


def kept_bytes(module: nn.Module, forward: Callable[[], Tensor], num_joint_tokens: int) -> int:
    """Bytes of all storages that autograd saves, each counted once; parameters are not counted.

    Nor are masks of all pairs of tokens, which training without padding does not need.
    """
    owned = {
        tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())
    }
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in owned and tensor.shape[-2:] != (num_joint_tokens, num_joint_tokens):
            saved[address] = tensor.detach()
        return tensor.detach()  # with its node it would hold the whole graph, for good

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = forward()
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


class Adapted(nn.Module):
    """A frozen linear layer with an adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int = 1):
        super().__init__()
        dtype = base.weight.dtype
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    for name in ("blocks", "transformer_blocks", "single_transformer_blocks"):
        yield from getattr(module, name, ())


def adapt(module: nn.Module) -> None:
    """Freeze everything; put adapters on the blocks' linear layers, their modulation excepted."""
    module.requires_grad_(False)
    for block in blocks_of(module):
        for name, layer in list(block.named_modules()):
            if isinstance(layer, nn.Linear) and "norm" not in name:
                block.set_submodule(name, Adapted(layer))


def num_tokens_of(shape: ModelShape, grid: Grid) -> int:
    patch = family_named(shape.family).geometry.patch
    return prod(side // of_patch for side, of_patch in zip(grid, patch, strict=True))


def filled(family_name: str, grid: Grid) -> Grid:
    """A grid whose frames fill the family's tokens."""
    step = family_named(family_name).geometry.patch[0]
    return -(-grid[0] // step) * step, *grid[1:]


def modelled(shape: ModelShape, grid: Grid, dtype: torch.dtype, *, is_adapted: bool = False):
    return launch_activations(shape, num_tokens_of(shape, grid), 1, 1, dtype.itemsize, is_adapted)


def counted(shape: ModelShape, grid: Grid, dtype: torch.dtype, *, is_adapted: bool = False) -> int:
    module, forward = forward_of(shape, grid, dtype)
    if is_adapted:
        adapt(module)
    joint_tokens = family_named(shape.family).flop_inputs(shape).joint_tokens
    return kept_bytes(module, forward, num_tokens_of(shape, grid) + joint_tokens)


@FAMILY
@DTYPE
@pytest.mark.parametrize("grid", list(GRIDS.values()), ids=list(GRIDS))
def test_training_keeps_what_autograd_saves(family_name: str, dtype: torch.dtype, grid: Grid):
    shape, grid = small(family_name), filled(family_name, grid)

    ours = modelled(shape, grid, dtype).kept_bytes(0)

    assert ours == pytest.approx(counted(shape, grid, dtype), rel=0.05)


@DTYPE
@pytest.mark.parametrize("is_adapted", [False, True])
@pytest.mark.parametrize(
    "family_name", [n for n, f in FAMILIES.items() if f.keeps_first_frame != "never"]
)
def test_noise_levels_of_each_token_are_kept_too(
    family_name: str, dtype: torch.dtype, is_adapted: bool
):
    shape, grid = replace(small(family_name), keeps_first_frame=True), GRIDS["video"]

    ours = modelled(shape, grid, dtype, is_adapted=is_adapted).kept_bytes(0)

    assert ours == pytest.approx(counted(shape, grid, dtype, is_adapted=is_adapted), rel=0.05)


@FAMILY
@DTYPE
def test_adapters_beside_frozen_weights_keep_what_autograd_saves(
    family_name: str, dtype: torch.dtype
):
    shape, grid = small(family_name), filled(family_name, GRIDS["video"])

    ours = modelled(shape, grid, dtype, is_adapted=True).kept_bytes(0)

    assert ours == pytest.approx(counted(shape, grid, dtype, is_adapted=True), rel=0.05)


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations made and nobody has let go of, and the most so far."""

    def __init__(self, but_not: Iterable[Tensor]):
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in but_not}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._see, made)
        return made

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self._known or not size:
            return
        self._known.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


@DTYPE
@pytest.mark.parametrize("recompute_layers", [0, 2, 4])
def test_recomputed_blocks_keep_their_inputs_and_one_block_works(
    dtype: torch.dtype, recompute_layers: int
):
    shape, grid = small("wan"), (3, 16, 40)
    module, forward = forward_of(shape, grid, dtype)
    for block in list(blocks_of(module))[:recompute_layers]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ours = modelled(shape, grid, dtype)

    owned = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters())]
    with LiveBytes(but_not=owned) as live:
        loss = forward().square().mean()
        after_forward, live.peak = live.now, live.now
        loss.backward()

    all_bytes = ours.kept_bytes(0)
    assert ours.kept_bytes(recompute_layers) == pytest.approx(after_forward, abs=0.05 * all_bytes)
    # Gradients of weights, which a small model holds beside little else, are not counted.
    assert ours.kept_bytes(recompute_layers) + ours.work_bytes > 0.9 * live.peak
