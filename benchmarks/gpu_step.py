"""What launches of a Wan-1.3B-shaped model cost on one NVIDIA GPU, measured and modelled.

Random weights in bfloat16. Measured are, against the ceiling of a bare matrix product: clips of
480p and 720p by attention kernel and with compiled blocks, recomputation, stacks of short clips,
one GPU's share of degrees 1 to 16, and 100 launches in random order under a memory cap. Half of the
shapes fit `clusters/h200.toml` to this GPU, the other half is predicted. It needs torch; where
Arachne's other libraries are missing, the fit is left to a later run with `--fit`.

    python benchmarks/gpu_step.py --json out.json
    python benchmarks/gpu_step.py --fit out.json

No GPU was at hand when this was written: it has only run on a CPU, with `--small`.
"""

import argparse
import importlib.util
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_measure import Bench, Case, ceilings, measured, opened, resident_bytes
from machine import about
from plain_wan import Share, WanSize

LIMIT_S = 420.0
"""No case begins later; the whole takes less than 8 minutes."""

DEGREES = (1, 2, 3, 4, 6, 8, 12, 16)
STACKS = (1, 2, 4, 8, 16)
CAP_SHARE = 0.6
"""Of the GPU's memory, for the launches in random order."""

NUM_MIXED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured.

    Attributes:
        size: Of the model.
        lengths: Tokens of a clip, ascending.
        dtype: Of weights and activations.
        product_side: Of the square matrices whose product is the ceiling.
        num_mixed: Launches in random order.
    """

    size: WanSize
    lengths: tuple[int, ...]
    dtype: torch.dtype
    product_side: int
    num_mixed: int


WAN = Setting(
    size=WanSize(),
    # 832 x 480 of 1, 17, 33, 49 and 81 frames (1,560 tokens a latent frame), and 1280 x 720 (3,600)
    lengths=(1560, 3600, 7800, 14040, 18000, 20280, 32400, 32760, 46800, 75600),
    dtype=torch.bfloat16,
    product_side=8192,
    num_mixed=NUM_MIXED,
)
SMALL = Setting(
    size=WanSize(
        num_layers=2, num_heads=4, head_size=16, ffn_size=128, text_size=32, text_tokens=8
    ),
    lengths=(24, 36, 48, 96, 144, 192),
    dtype=torch.float32,
    product_side=128,
    num_mixed=4,
)


def cases_of(setting: Setting) -> Iterator[Case]:
    """In order of worth, so that what the time does not reach is missed least."""
    layers = setting.size.num_layers
    lengths = setting.lengths
    short, middle, long = lengths[0], lengths[len(lengths) // 3], lengths[-3]
    for length in lengths:
        repeats = 3 if length <= long else 1
        yield Case(part="length", num_tokens=length, repeats=repeats)
        if length > middle:
            whole = Share(recompute_layers=layers)
            yield Case(part="length", num_tokens=length, share=whole, repeats=repeats)
    for length in (middle, lengths[len(lengths) // 2], long):
        for degree in DEGREES[1:]:
            yield Case(part="share", num_tokens=length, share=Share(degree=degree))
    for level in (0, layers // 2, layers):
        yield Case(part="recompute", num_tokens=long, share=Share(recompute_layers=level))
    for num_clips in STACKS:
        yield Case(part="stack", num_tokens=short, num_clips=num_clips)
    for kernel in ("cudnn", "flash", "math"):
        for length in (short,) if kernel == "math" else (middle, long):
            yield Case(part="kernel", num_tokens=length, kernel=kernel)
    for length in (short, middle, long):
        yield Case(part="compiled", num_tokens=length, is_compiled=True)


def mixed_cases(setting: Setting, rows: Sequence[dict[str, Any]], free_bytes: float) -> list[Case]:
    """Launches in random order that, by what was measured, fit in `free_bytes`.

    What a launch adds grows with its tokens; the shapes of part `recompute` tell by how much.
    """
    per_token = {
        row["recompute_layers"]: row["added_bytes"] / row["num_tokens"]
        for row in rows
        if row["part"] == "recompute" and row.get("added_bytes")
    }
    levels = sorted(per_token) or [0]
    least = min(per_token.get(each, 0.0) for each in levels) * setting.lengths[0]
    if least > free_bytes:
        print(f"mixed launches: left out, {free_bytes / 1e9:.1f} GB hold none of the shapes")
        return []
    draw = random.Random(0)
    cases: list[Case] = []
    while len(cases) < setting.num_mixed:
        length = draw.choice(setting.lengths[: len(setting.lengths) * 2 // 3])
        num_clips = draw.choice([n for n in STACKS if n * length <= setting.lengths[-3]])
        fitting = [
            each for each in levels if per_token.get(each, 0.0) * length * num_clips <= free_bytes
        ]
        if fitting:
            share = Share(recompute_layers=draw.choice(fitting))
            cases.append(
                Case(
                    part="mixed",
                    num_tokens=length,
                    num_clips=num_clips,
                    share=share,
                    repeats=1,
                    warms_up=False,
                )
            )
    return cases


def run(setting: Setting, device: torch.device) -> dict[str, Any]:
    """All rows, the ceilings, and what the launches in random order left unused."""
    torch.manual_seed(0)
    bench = opened(setting.size, device, setting.dtype, LIMIT_S)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if bench.is_cuda else device.type,
        "torch": torch.__version__,
        "size": asdict(setting.size),
        "ceiling": ceilings(bench, setting.product_side),
    }
    ceiling = found["ceiling"]["matmul_flops_per_s"]
    resident = resident_bytes(bench)
    rows = [_told(row, resident, ceiling) for row in measured(bench, cases_of(setting))]
    rows += _mixed(setting, bench, rows, ceiling)
    return found | {"rows": rows}


def _mixed(
    setting: Setting, bench: Bench, rows: Sequence[dict[str, Any]], ceiling: float
) -> list[dict[str, Any]]:
    """Launches under a memory cap; as in training, the allocator keeps what it has."""
    free_bytes = float("inf")
    resident = resident_bytes(bench)
    if bench.is_cuda:
        total = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.set_per_process_memory_fraction(CAP_SHARE)
        free_bytes = CAP_SHARE * 0.9 * total - resident
    cases = mixed_cases(setting, rows, free_bytes)
    found = measured(bench, cases, keeps_cache=True)
    return [_told(row, resident, ceiling) for row in found]


def _told(row: dict[str, Any], resident: int, ceiling: float) -> dict[str, Any]:
    """A row, printed, with what its launch added to memory and its share of the ceiling."""
    if "peak_bytes" in row:
        row["added_bytes"] = row["peak_bytes"] - resident
    if "flops_per_s" in row:
        row["mfu"] = row["flops_per_s"] / ceiling
    name = f"{row['part']:10}{row['num_clips']:3} x {row['num_tokens']:6} tokens"
    name += f"  degree {row['degree']:2}  recomputed {row['recompute_layers']:2}  {row['kernel']:6}"
    if "skipped" in row:
        print(f"{name}  {row['skipped'][:60]}", flush=True)
    else:
        memory = f"  {row['peak_bytes'] / 1e9:6.1f} GB" if "peak_bytes" in row else ""
        print(
            f"{name}{row['seconds']:9.4f} s  {row['tokens_per_s']:10,.0f} tokens/s  "
            f"{row['mfu']:5.1%} of the ceiling{memory}",
            flush=True,
        )
    return row


def with_fit(found: dict[str, Any]) -> dict[str, Any]:
    """The result with how well the cost model knows this device, where Arachne is installed."""
    missing = [name for name in ("msgspec", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"no fit: {' and '.join(missing)} not installed here; run --fit on the JSON elsewhere"
        )
        return found
    from gpu_fit import fitted

    return found | {"fit": fitted(found)}


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--fit", type=Path, help="only fit what an earlier run measured")
    parser.add_argument("--small", action="store_true", help="a tiny model, on any device")
    arguments = parser.parse_args(argv)
    if arguments.fit:
        found = json.loads(arguments.fit.read_text(encoding="utf-8"))
    elif torch.cuda.is_available() or arguments.small:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        setting = SMALL if arguments.small else WAN
        found = {"about": about(small=arguments.small), **run(setting, device)}
    else:
        parser.error("found no NVIDIA GPU; --small runs a tiny model on the CPU")
    found = with_fit(found)
    for name, value in found.get("fit", {}).items():
        print(f"{name:28} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
