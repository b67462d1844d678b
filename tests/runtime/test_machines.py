"""Which ranks run on one machine, also where machines have different numbers of them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from arachne.core.errors import ConfigError
from arachne.runtime.machines import Machines, found_machines
from tests.runtime.planted_hangs import CULPRIT, STEP

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6).map(tuple)


@given(SIZES)
def test_each_rank_is_on_one_machine_beside_its_neighbours(sizes):
    machines = Machines(sizes=sizes)
    found = [machines.ranks_beside(rank) for rank in range(sum(sizes))]
    assert [rank for ranks in dict.fromkeys(found) for rank in ranks] == list(range(sum(sizes)))
    assert [len(ranks) for ranks in dict.fromkeys(found)] == list(sizes)
    for rank, ranks in enumerate(found):
        assert rank in ranks
        assert machines.machine_of(rank) == machines.machine_of(ranks[0])
    assert machines.are_alike == (len(set(sizes)) == 1)


@pytest.mark.parametrize(
    ("rank", "place", "size"),
    [
        (0, 1, 2),  # numbered round all machines
        (0, 0, 9),  # more than there are
        (0, 0, 0),
    ],
)
def test_ranks_of_a_machine_that_are_no_neighbours_are_refused(monkeypatch, rank, place, size):
    monkeypatch.setenv("LOCAL_RANK", str(place))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
    words = f"^rank {rank} is LOCAL_RANK {place} of LOCAL_WORLD_SIZE {size}, but ranks of one"
    with pytest.raises(ConfigError, match=words):
        found_machines(HashStore(), rank, 4)


def test_without_words_of_machines_there_is_one(monkeypatch):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    store, started = HashStore(), [3, 2, 1, 0]
    found = []
    for rank in started[:-1]:
        store.set(f"machine of rank {rank}", f"{rank} 4")
    found.append(found_machines(store, 0, 4))
    found += [found_machines(store, rank, 4) for rank in started[:-1]]
    assert found == [Machines(sizes=(4,))] * 4


SCRIPT = """
import sys
from pathlib import Path
from arachne.runtime.watched import collective_timeout_s
from arachne.runtime.world import join_world
from tests.runtime.planted_hangs import hang_in_a_launch

world = join_world("cpu", collective_timeout_s(1.5))
hang_in_a_launch(world, Path(sys.argv[1]), 1.5, "all_gather", "sleep_forever")
"""


@pytest.mark.distributed
def test_each_machine_watches_its_own_ranks_however_many(tmp_path: Path):
    sizes, places = (1, 3), [(0, 0), (1, 0), (1, 1), (1, 2)]
    script, reports = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    reports.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes: list[subprocess.Popen[str]] = []
    for rank, (machine, place) in enumerate(places):
        temporary = tmp_path / f"machine {machine}"
        temporary.mkdir(exist_ok=True)
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(place),
            "LOCAL_WORLD_SIZE": str(sizes[machine]),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(temporary),
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, str(script), str(reports)],
                env=os.environ | environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=80.0)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == -signal.SIGKILL for process in processes[1:]), said
    words = f"arachne: rank {CULPRIT} has not answered for "
    assert words in said[1], "the first rank of the culprit's machine started its watchdog"
    report = (reports / f"hang-{STEP + 1}-node-1.txt").read_text()
    assert "sleep_forever" in report.partition(f"\nstacks of rank {CULPRIT}, ")[2]
