"""Join and leave the world of ranks that torchrun or our launcher describes to each process."""

# pyright: reportPrivateImportUsage=false
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous

from arachne.core.errors import ConfigError
from arachne.core.held_signals import end_by_signals, ending_signals
from arachne.core.parent_watch import exit_with_starter
from arachne.runtime.machines import Machines, found_machines
from arachne.runtime.meeting import attempt_name
from arachne.runtime.torchrun import has_agent

DeviceKind = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One rank's view of all ranks.

    Attributes:
        rank: This rank.
        size: Ranks.
        machines: Which ranks run on one machine.
        device: Where this rank computes.
        store: Key-value store that all ranks reach.
        timeout_s: How long to wait for a rank that does not answer.
        folder: A folder that this machine's ranks and their launcher share while they run; None
            if they were started by something else.
    """

    rank: int
    size: int
    machines: Machines
    device: torch.device
    store: Store
    timeout_s: float
    folder: Path | None = None

    @property
    def ranks_here(self) -> range:
        """The ranks of this rank's machine, itself among them."""
        return self.machines.ranks_beside(self.rank)


def resolved_device_kind(kind: DeviceKind) -> Literal["cpu", "cuda"]:
    """`auto` becomes `cuda` where a GPU can be used.

    Raises:
        ConfigError: `cuda` was asked for but there is no GPU.
    """
    available = torch.cuda.is_available()
    if kind == "cuda" and not available:
        raise ConfigError("run.device is 'cuda' but torch finds no GPU; use 'auto' or 'cpu'")
    return "cuda" if kind != "cpu" and available else "cpu"


def default_num_ranks(kind: DeviceKind) -> int:
    """One rank per GPU; without GPUs one per CPU core, from 2 to 8 (cascades need company)."""
    if resolved_device_kind(kind) == "cuda":
        return torch.cuda.device_count()
    return min(max(len(os.sched_getaffinity(0)), 2), 8)


def join_world(
    kind: DeviceKind, timeout_s: float, store: Store | None = None, folder: Path | None = None
) -> World:
    """Join the world that RANK and WORLD_SIZE describe.

    Its ranks meet at `store`, or where torchrun's MASTER_ADDR and MASTER_PORT say. Every rank
    calls it once, before any other function of the runtime.

    Raises:
        ConfigError: There is no GPU for this rank, or ranks of a machine are no neighbours.
    """
    device = _device(kind, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    # Ranks wait for each other where no handler of Python's runs.
    end_by_signals(*(number for number in ending_signals() if number != signal.SIGINT))
    timeout = timedelta(seconds=timeout_s)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if store is None:
        if has_agent():
            exit_with_starter()
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        # torchrun keeps its store over restarts, with the addresses of ranks that are gone.
        store = PrefixStore(f"attempt {attempt_name(store, rank, size, timeout_s)}", store)
    if device.type == "cuda":
        # Collectives of different groups then run in the host's order (NCCL 2.26 and newer; older
        # ones do not know the variable).
        os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("groups", store),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    store.set_timeout(timeout)
    own_store = PrefixStore("arachne", store)
    return World(
        rank=rank,
        size=size,
        machines=found_machines(own_store, rank, size),
        device=device,
        store=own_store,
        timeout_s=timeout_s,
        folder=folder,
    )


def _device(kind: DeviceKind, local_rank: int) -> torch.device:
    if resolved_device_kind(kind) == "cpu":
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise ConfigError(
            f"rank {local_rank} of this machine needs a GPU of its own but there are {num_gpus}; "
            f"start at most {num_gpus} ranks, or set run.device to 'cpu'"
        )
    return torch.device("cuda", local_rank)


def leave_world() -> None:
    """Give up all process groups; every rank calls it last."""
    if dist.is_initialized():
        dist.destroy_process_group()
