"""How often a run survives kills, damage, full disks, SIGTERM and hangs; and what a save costs.

Real runs of `arachne train` on a tiny Wan. A killed run is resumed, and counts if it then has the
weights and losses of a run that nobody disturbed, bit for bit; saves are killed and refused at each
of their system calls by strace. The parts are in `survival.py`; what each judges is at the top of
its `survival_*.py`.

    python benchmarks/durability.py --quick --json out.json
    python benchmarks/durability.py --parts kills --cases 200 --json out.json
    python benchmarks/durability.py --parts soak,exact_soak --json out.json

A part that is run again replaces its figures in the file, or adds to them with `--add`.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import about

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tiny runs of the tests


def main() -> int:
    """Run the parts, print and write their figures; 1 if anything was lost."""
    arguments = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Only here: the planning process of every run imports this file again.
    from survival import PARTS, QUICK_SOAK_S
    from survival_tally import Tally, tally_of

    chosen = arguments.parts.split(",") if arguments.parts else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        raise SystemExit(f"there is no part {min(unknown)!r}; choose from {', '.join(PARTS)}")
    parts: dict[str, Any] = {}
    if arguments.json is not None and arguments.json.exists():
        parts = json.loads(arguments.json.read_text())["parts"]
    is_good = True
    for name in chosen:
        part = PARTS[name]
        cases = part.quick if arguments.quick else part.full
        if arguments.quick and arguments.parts and not cases:
            cases = QUICK_SOAK_S if name.endswith("soak") else 1
        cases = arguments.cases or cases
        if not cases:
            continue
        rng = random.Random(f"{arguments.seed} {name}")
        tally = Tally()
        if arguments.add and name in parts:
            tally = tally_of({key: value for key, value in parts[name].items() if key != "about"})
        settings = about(seed=arguments.seed, cases=cases)
        begin_s = time.monotonic()

        def write() -> None:
            settings["seconds"] = round(time.monotonic() - begin_s, 1)  # noqa: B023
            parts[name] = {**tally.figures, "about": settings}  # noqa: B023
            if arguments.json is not None:
                partial = arguments.json.with_suffix(".partial")
                partial.write_text(json.dumps(figures_of(parts), indent=2) + "\n")
                partial.replace(arguments.json)

        tally.on_change = write
        with tempfile.TemporaryDirectory(
            prefix="arachne-durability-", ignore_cleanup_errors=True
        ) as root:
            part.work(Path(root), cases, rng, tally)
        write()
        print(f"{name}: {tally.figures}, {settings['seconds']} s", file=sys.stderr)
        is_good = is_good and tally.is_good
    print(json.dumps({key: value for key, value in figures_of(parts).items() if key != "parts"}))
    return 0 if is_good else 1


def figures_of(parts: dict[str, Any]) -> dict[str, Any]:
    """The figures of the whole, in front of those of the parts."""
    from survival import GOOD_WORDS, PARTS

    figures: dict[str, Any] = {}
    for figure, word in GOOD_WORDS.items():
        own = [
            parts[name] for name, part in PARTS.items() if part.figure == figure and name in parts
        ]
        if own:
            tried = sum(each["tried"] for each in own)
            # A killed run that took too long to end may well have been resumed.
            good = sum(each.get(word, each["good"]) for each in own)
            figures[figure] = {"tried": tried, word: tried - good if word == "silent" else good}
    if "saves" in parts:
        figures["save_stall_share"] = parts["saves"]["median_share_of_a_step"]
    return {**figures, "parts": parts}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few cases of each, no soak")
    parser.add_argument("--parts", metavar="NAME,…", help="only these; see survival.py")
    parser.add_argument("--cases", type=int, default=0, help="of each part; a soak's seconds")
    parser.add_argument("--add", action="store_true", help="add to the file's figures of a part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
