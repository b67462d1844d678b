"""How often a run survives kills, damage, full disks, SIGTERM and hangs; and what a save costs.

Real runs of a tiny Wan on two ranks, in float64. A killed run is resumed until it ends, and counts
if its last checkpoint has the weights of the run that nobody disturbed. A damaged checkpoint counts
against us if it loads without a word. A disk that refuses a write is played by a limit on the size
of files, at a random byte of a shard. The cost of a save is what training waits for it, with the
demo's model, beside a step of two seconds.

    python benchmarks/durability.py --quick --json out.json
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from machine import about

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tiny runs of the tests


def main() -> int:
    """Print the figures, and write them; 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few cases of each")
    parser.add_argument("--cases", type=int, default=100, help="kills, and the scale of the rest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    quick = {"kills": 4, "damaged": 50, "enospc": 20, "sigterm": 2, "hangs": 2, "saves": 3}
    cases = arguments.cases
    full = {
        "kills": cases,
        "damaged": 10 * cases,
        "enospc": cases,
        "sigterm": max(1, cases // 2),
        "hangs": max(1, cases // 5),
        "saves": 10,
    }
    counts = quick if arguments.quick else full
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Only here: the planning process of every run imports this file again.
    from survival import NUM_RANKS, STEPS, measured

    with tempfile.TemporaryDirectory(prefix="arachne-durability-") as root:
        figures = measured(counts, Path(root), arguments.seed)
    figures["about"] = about(seed=arguments.seed, ranks=NUM_RANKS, steps=STEPS, **counts)
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    is_good = (
        figures["kills"]["resumed"] == figures["kills"]["tried"]
        and figures["damaged"]["silent"] == 0
        and figures["enospc"]["whole"] == figures["enospc"]["tried"]
        and figures["sigterm"]["committed"] == figures["sigterm"]["tried"]
        and figures["hangs"]["named"] == figures["hangs"]["tried"]
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
