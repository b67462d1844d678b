"""`arachne doctor`: what of this machine would stop or slow a training, and what to change.

Under torchrun it also lets all ranks meet: whether they reach each other, how long a small sum
takes, and how far the machines' clocks are apart.
"""

import argparse
import importlib.metadata
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arachne.cli.doctor_of_run import findings_of_run
from arachne.cli.finding import Finding
from arachne.cli.run_file import add_overrides
from arachne.core.errors import ConfigError
from arachne.core.local_path import local_path
from arachne.core.strict_json import to_json
from arachne.core.strict_toml import load_toml
from arachne.core.units import bytes_text, count_text, seconds_text
from arachne.trainer.config import RunConfig

_EXAMPLE = """example:
  arachne doctor
  arachne doctor --folder runs/ --json
  arachne doctor --run examples/one-gpu.toml     can this machine do that run?
  torchrun --nproc-per-node 8 -m arachne doctor     all ranks meet; with srun on several machines

exit code: 0 nothing stops a training, 2 something does"""

_PACKAGES = {
    "torch": "",
    "diffusers": "",
    "safetensors": "",
    "av": "",
    "pyarrow": "",
    "transformers": "text encoders and pretrained models; install arachne[pretrained]",
    "ortools": "`exact` plans only; install arachne[planner]",
}
"""Packages with what they are needed for where Arachne works without them."""

_LEAST_FREE_BYTES = 20e9
_LEAST_TEMPORARY_BYTES = 1e9
_LEAST_SHARED_BYTES = 1e9
_LEAST_OPEN_FILES = 4096
_MOST_CLOCK_SKEW_S = 0.5
_SLOW_MEETING_S = 0.02


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine, and say what to change",
        description="Check versions, devices, memory, disk and limits; under torchrun also that "
        "all ranks reach each other.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--folder", type=local_path, default=Path(), help="where runs and caches will be written"
    )
    parser.add_argument(
        "--run",
        dest="run_file",
        type=Path,
        metavar="RUN.toml",
        help="also check this run's folders, disk, cluster file and memory",
    )
    add_overrides(parser, "of --run: change one setting; may be given several times")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 2 if one of them is a fault, else 0.

    Raises:
        ConfigError: The run file cannot be read, or does not fit together.
    """
    if arguments.overrides and not arguments.run_file:
        raise ConfigError("--set changes a run's settings; name its file with --run")
    config = None
    if arguments.run_file:
        config = load_toml(arguments.run_file, RunConfig, overrides=arguments.overrides)
    findings = [
        *_packages(),
        *_devices(),
        _disk(arguments.folder),
        _temporary_folder(),
        _shared_memory(Path("/dev/shm")),
        _open_files(),
        *(findings_of_run(config, _gpu_bytes()) if config is not None else ()),
    ]
    rank, others = _meeting()
    findings += others
    if rank == 0:
        if arguments.json:
            print(to_json({"findings": findings}))
        else:
            _print_table(findings)
    return 2 if any(finding.verdict == "fault" for finding in findings) else 0


def _packages() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= (3, 11)
    yield Finding(
        what="python",
        verdict="good" if is_new else "fault",
        found=version,
        fix="" if is_new else "use Python 3.11 or newer",
    )
    for package, use in _PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            fix = f"needed for {use}" if use else f"install {package}"
            yield Finding(
                what=package, verdict="warning" if use else "fault", found="missing", fix=fix
            )
        else:
            yield Finding(what=package, verdict="good", found=found)


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding(what="devices", verdict="fault", found=str(error), fix="install torch")
        return
    cores = len(os.sched_getaffinity(0))
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory = bytes_text(pages * page_bytes)
    yield Finding(what="CPU", verdict="good", found=f"{count_text(cores, 'core')}, {memory}")
    if not torch.cuda.is_available():
        yield Finding(
            what="GPU",
            verdict="warning",
            found="none that torch can use; trainings run on CPU ranks",
            fix="install a CUDA build of torch and a driver for it, if there is a GPU",
        )
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found = f"{properties.name}, {bytes_text(properties.total_memory)}"
        yield Finding(what=f"GPU {index}", verdict="good", found=found)
    nccl: Any = getattr(torch.cuda, "nccl", None)
    yield Finding(what="NCCL", verdict="good", found=".".join(map(str, nccl.version())))
    yield _driver(str(torch.version.cuda))


def _gpu_bytes() -> list[int]:
    """Memory of each GPU that torch can use."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    return [torch.cuda.get_device_properties(index).total_memory for index in range(count)]


def _driver(needed: str) -> Finding:
    """The driver that is installed, and the CUDA that torch was built for."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20.0,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(
            what="driver",
            verdict="warning",
            found=f"nvidia-smi does not answer: {error}",
            fix="look at the driver; it may hang, or lie outside of the container",
        )
    is_one = len(set(found)) == 1
    return Finding(
        what="driver",
        verdict="good" if is_one else "warning",
        found=f"{', '.join(sorted(set(found)))}; torch is built for CUDA {needed}",
        fix="" if is_one else "install one driver for all GPUs",
    )


def _temporary_folder() -> Finding:
    """Where ranks' own files, and those of other libraries, lie for a while."""
    try:
        folder = tempfile.gettempdir()
    except OSError:
        return Finding(
            what="TMPDIR",
            verdict="fault",
            found="no temporary folder can be written",
            fix="set TMPDIR to a folder on a local disk",
        )
    free = shutil.disk_usage(folder).free
    is_enough = free >= _LEAST_TEMPORARY_BYTES
    return Finding(
        what="TMPDIR",
        verdict="good" if is_enough else "warning",
        found=f"{folder!r}, {bytes_text(free)} free",
        fix="" if is_enough else "free space there, or set TMPDIR to another local disk",
    )


def _disk(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
        is_writable = os.access(folder, os.W_OK)
    except OSError as error:
        return Finding(
            what="disk",
            verdict="fault",
            found=f"{str(folder)!r}: {error.strerror}",
            fix="name another --folder",
        )
    if not is_writable:
        return Finding(
            what="disk",
            verdict="fault",
            found=f"{str(folder.resolve())!r} cannot be written",
            fix="name another --folder",
        )
    is_enough = free >= _LEAST_FREE_BYTES
    return Finding(
        what="disk",
        verdict="good" if is_enough else "warning",
        found=f"{bytes_text(free)} free",
        fix="" if is_enough else "free space: caches and checkpoints of large models need more",
    )


def _shared_memory(folder: Path) -> Finding:
    total = shutil.disk_usage(folder).total if folder.is_dir() else 0
    is_enough = total >= _LEAST_SHARED_BYTES
    return Finding(
        what="shared memory",
        verdict="good" if is_enough else "warning",
        found=bytes_text(total),
        fix="" if is_enough else "NCCL may need more: start the container with --shm-size=8g",
    )


def _open_files() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = limit >= _LEAST_OPEN_FILES
    return Finding(
        what="open files",
        verdict="good" if is_enough else "warning",
        found=f"at most {limit:,}",
        fix="" if is_enough else f"ulimit -n {_LEAST_OPEN_FILES}: worlds of many ranks need more",
    )


def _meeting() -> tuple[int, list[Finding]]:
    """This process's rank, and what all ranks found together; nothing outside torchrun."""
    from arachne.runtime.torchrun import is_under_torchrun
    from arachne.runtime.world import join_world, leave_world

    if not is_under_torchrun():
        return 0, []

    import torch

    from arachne.runtime.clock import clock_for
    from arachne.runtime.collectives import all_gather
    from arachne.runtime.process_groups import ProcessGroups
    from arachne.runtime.recorder import Recorder

    world = join_world("auto", 60.0)
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    everyone = ProcessGroups(world, (1,), recorder).world
    clocks = torch.empty(world.size, dtype=torch.float64, device=world.device)
    seconds: list[float] = []
    spread_s = 0.0
    for _ in range(20):
        began_s = time.perf_counter()
        all_gather(clocks, torch.tensor([time.time()], dtype=torch.float64).to(clocks), everyone)
        spread_s = float(clocks.max() - clocks.min())  # waits for the device
        seconds.append(time.perf_counter() - began_s)
    meeting_s = sorted(seconds)[len(seconds) // 2]
    rank, size = world.rank, world.size
    leave_world()
    return rank, meeting_findings(size, meeting_s, spread_s)


def meeting_findings(num_ranks: int, meeting_s: float, spread_s: float) -> list[Finding]:
    """Whether ranks meet soon enough, and how far apart the clocks of their machines are."""
    is_quick, are_alike = meeting_s < _SLOW_MEETING_S, spread_s < _MOST_CLOCK_SKEW_S
    return [
        Finding(
            what="ranks",
            verdict="good" if is_quick else "warning",
            found=f"{count_text(num_ranks, 'rank')} meet in {seconds_text(meeting_s)}",
            fix="" if is_quick else "look at NCCL_SOCKET_IFNAME and the network",
        ),
        Finding(
            what="clocks",
            verdict="good" if are_alike else "warning",
            found=f"{seconds_text(spread_s)} apart",
            fix="" if are_alike else "run NTP; traces of machines are shifted",
        ),
    ]


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    marks = {"good": "[green]good[/]", "warning": "[yellow]warning[/]", "fault": "[red]fault[/]"}
    for finding in findings:
        found = finding.found + (f"; {finding.fix}" if finding.fix else "")
        table.add_row(finding.what, marks[finding.verdict], found)
    Console(highlight=False).print(table)
