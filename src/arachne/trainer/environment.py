"""What a run's numbers depend on beside its settings: versions and device, never variables."""

import platform
from collections.abc import Mapping
from importlib.metadata import version

import torch

from arachne import __version__


def environment(device: torch.device) -> dict[str, str]:
    """Versions and device of this rank, by name."""
    is_gpu = device.type == "cuda"
    return {
        "arachne": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a class of its own, which is no JSON
        "diffusers": version("diffusers"),
        "device": torch.cuda.get_device_name(device) if is_gpu else platform.machine(),
    }


def changes_text(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What is other now than at a checkpoint; empty if nothing is, or nothing was written down."""
    return ", ".join(
        f"{name} was {before[name]}, is {value}"
        for name, value in now.items()
        if before.get(name, value) != value
    )
