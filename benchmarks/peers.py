"""Arachne beside the loops that people would write instead, on two CPU ranks of one thread each.

The same small Wan, clips, noise and optimizer; steps of 8 clips as in `two_ranks.py`, and of clips
of one shape. `peer_loops.py` holds the loops. Peers run in an environment of their own,
`.venv-peers`, which sees this one's packages, so that all use the same torch; DeepSpeed's exchange
through shared memory is compiled there before the race. All loops step in turns within one run,
which compares their losses too. Planning is not counted: in a run it happens beside the training.

    python benchmarks/peers.py --quick --json out.json
    python benchmarks/peers.py --sets homogeneous
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from machine import about

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-peers"
PACKAGES = ("deepspeed==0.19.8",)
SETS = ("heterogeneous", "homogeneous")
"""The mix of `two_ranks.py`; and clips of one shape."""

AS_USED = ("ddp", "deepspeed", "deepspeed_ulysses")
"""Dealt as users do; the other loops are given what Arachne's baselines have."""

_CLIPS_PER_STEP = 8
_BUILD = """
from deepspeed.comm.torch import build_shm_op
build_shm_op()
"""


def python_of_peers() -> tuple[Path, dict[str, str]]:
    """The interpreter of the peers' environment, made where it is missing, and its variables."""
    python = FOLDER / "bin" / "python"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "TORCH_EXTENSIONS_DIR": str(FOLDER / "extensions"),
        "DS_ACCELERATOR": "cpu",
    }
    done = FOLDER / f"installed-{torch.__version__}"
    if not done.is_file():
        print(f"making {FOLDER.name}: {', '.join(PACKAGES)}", file=sys.stderr)
        venv.create(FOLDER, clear=True, with_pip=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = Path(torch.__file__).parent.parent
        (FOLDER / "lib" / version / "site-packages" / "ours.pth").write_text(f"{packages}\n")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-c", ROOT / "constraints.txt", *PACKAGES], check=True)
        print("compiling DeepSpeed's exchange through shared memory", file=sys.stderr)
        subprocess.run(
            [python, "-c", _BUILD], check=True, env=environment, stdout=subprocess.DEVNULL
        )
        done.touch()
    return python, environment


def race(num_steps: int, sets: Sequence[str]) -> dict[str, Any]:
    """Seconds and losses by set of clips and loop, measured in the peers' environment."""
    python, environment = python_of_peers()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "race.json"
        script = ROOT / "benchmarks" / "peer_race.py"
        subprocess.run([python, script, path, str(num_steps), *sets], check=True, env=environment)
        return json.loads(path.read_text(encoding="utf-8"))


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Rates of all loops, how much faster Arachne is on each set, and how far losses differ."""
    peers: dict[str, dict[str, Any]] = {}
    best: dict[str, float] = {}
    for set_name, of_set in found.items():
        step_s = {name: fmean(seconds) for name, seconds in of_set["seconds"].items()}
        for name, seconds in step_s.items():
            peers.setdefault(name, {})[set_name] = {
                "steps_per_s": 1.0 / seconds,
                "clips_per_s": _CLIPS_PER_STEP / seconds,
                "arachne_is_faster": seconds / step_s["arachne"],
                "loss_error": max(
                    abs(loss / reference - 1.0)
                    for loss, reference in zip(
                        of_set["losses"][name], of_set["losses"]["arachne"], strict=True
                    )
                ),
            }
        best[set_name] = min(peers[name][set_name]["arachne_is_faster"] for name in AS_USED)
    ddp = peers["ddp"].get("heterogeneous", {}).get("arachne_is_faster")
    speedup = {
        "ddp": ddp,
        "best_peer": best.get("heterogeneous"),
        "homogeneous": best.get("homogeneous"),
    }
    return {
        "speedup": {name: ratio for name, ratio in speedup.items() if ratio is not None},
        "peers": peers,
    }


def main(argv: Sequence[str]) -> int:
    """Race, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="3 steps of each set instead of 12")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=SETS, help="race these alone (default: all)"
    )
    arguments = parser.parse_args(argv)
    num_steps = 3 if arguments.quick else 12
    result = {
        "about": about(quick=arguments.quick, device="CPU", ranks=2, torch=torch.__version__),
        "steps": num_steps,
        **summary(race(num_steps, arguments.sets)),
    }
    print("how many times as long as Arachne's a step takes on CPU, and how far losses differ")
    for name, by_set in result["peers"].items():
        cells = [
            f"{set_name} {row['arachne_is_faster']:5.2f}x ({row['loss_error']:.0e})"
            for set_name, row in by_set.items()
        ]
        print(f"  {name:20}{'   '.join(cells)}")
    print(f"speedup: {json.dumps(result['speedup'])}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
