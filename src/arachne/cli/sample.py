"""`arachne sample RUN_DIR --prompt …`: a video from a checkpoint."""

import argparse
import re
from math import inf
from pathlib import Path
from typing import Any

from arachne.cli.counts import check_count
from arachne.cli.run_dir import opened_checkpoint
from arachne.cli.run_file import add_overrides
from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError, DataError
from arachne.core.local_path import local_path
from arachne.core.refused_write import fix_of, refusal, refusal_at
from arachne.reporting.run_files import SAMPLES

_MAX_PIXELS = 2**30
"""More than a hundred frames of 4K; larger sizes are slips of the hand."""

_MOST_STEPS = 10_000
"""As of `validation.sample_steps`."""

_EXAMPLE = """example:
  arachne sample runs/demo --prompt "a big grey rabbit yawns"
  arachne sample runs/first --prompt "waves on a beach" --size 832x480x81 --steps 50 --seed 7
  arachne sample runs/image-to-video --prompt "she turns" --image first.png

writes an mp4 and a PNG contact sheet into RUN_DIR/samples"""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "sample",
        help="a video from a checkpoint",
        description="Sample a video from the newest whole checkpoint of a run, in one process.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=local_path, help="folder of a run")
    parser.add_argument("--prompt", required=True, help="what the video should show")
    parser.add_argument(
        "--size",
        metavar="WxHxF",
        help="width x height x frames (default: the shape most clips of the run have)",
    )
    parser.add_argument("--steps", type=int, default=30, help="Euler steps (default: 30)")
    parser.add_argument(
        "--guidance", type=float, default=5.0, help="classifier-free guidance; 1 = none"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest")
    parser.add_argument(
        "--weights",
        choices=("raw", "ema"),
        default="raw",
        help="as trained (default), or their moving average (optimizer.ema_decay)",
    )
    parser.add_argument(
        "--image", type=Path, metavar="FILE", help="what the video begins with, for image to video"
    )
    parser.add_argument(
        "--output", type=local_path, metavar="FILE.mp4", help="where the video goes"
    )
    add_overrides(parser, "where a model lies now, such as model.pretrained=FOLDER")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sample and write; 0.

    Raises:
        ArachneError: There is no run or checkpoint, or a size is not legal.
    """
    from arachne.reporting.video_files import contact_sheet, write_mp4
    from arachne.trainer.sample_request import SampleRequest

    run_dir: Path = arguments.run_dir
    _check(arguments)
    config, checkpoint = opened_checkpoint(run_dir, arguments.checkpoint, arguments.overrides)
    bucket = Bucket.parse(arguments.size) if arguments.size else _usual_bucket(run_dir)
    if bucket.num_pixels > _MAX_PIXELS:
        raise ConfigError(
            f"--size {bucket} is {bucket.num_pixels:.3g} pixels; sampling takes at most "
            f"{_MAX_PIXELS:.3g}"
        )

    request = SampleRequest(
        prompt=arguments.prompt,
        bucket=bucket,
        steps=arguments.steps,
        guidance=arguments.guidance,
        seed=arguments.seed,
        image=arguments.image,
    )
    request.check(config)

    from arachne.trainer.generate import generate

    low, high = config.objective.timestep_range
    if (low, high) != (0.0, 1.0) and not config.model.other_expert:
        print(
            f"this model was trained at noise levels {low:g} to {high:g} alone, and draws the "
            "others too; name model.other_expert in the run file to draw with both"
        )
    if arguments.output is None:
        _free_path(run_dir / SAMPLES, arguments.prompt, arguments.seed)  # refused before the work
    print(f"sampling {bucket} from {checkpoint.name} in {arguments.steps} steps")
    frames = generate(config, checkpoint, request, arguments.weights)
    path = arguments.output or _free_path(run_dir / SAMPLES, arguments.prompt, arguments.seed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_mp4(path, frames, config.data.fps)
        contact_sheet(path.with_suffix(".png"), [(arguments.prompt, frames)], 8)
    except OSError as error:
        raise DataError(f"cannot write {str(path)!r}: {refusal(error)}; choose --output") from error
    print(f"video:   {path}\npicture: {path.with_suffix('.png')}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that no run could be sampled with."""
    check_count("--steps", arguments.steps, most=_MOST_STEPS)
    if not 0.0 <= arguments.guidance < inf:
        raise ConfigError(f"--guidance is {arguments.guidance}; it must be 0 or more, and finite")
    if not 0 <= arguments.seed < 2**63:
        raise ConfigError(f"--seed is {arguments.seed}; it must be 0 or more, and below 2^63")
    output: Path | None = arguments.output
    if output is not None and output.suffix != ".mp4":
        raise ConfigError(
            f"--output {str(output)!r} does not end in .mp4; the picture gets the same name and "
            ".png"
        )


def _usual_bucket(run_dir: Path) -> Bucket:
    """The shape that most of the run's videos have; of its stills if it has no video."""
    from collections import Counter

    from arachne.data.manifest import read_manifest
    from arachne.reporting.run_files import MANIFEST

    if not (run_dir / MANIFEST).is_file():
        raise DataError(
            f"{str(run_dir)!r} has no {MANIFEST}, which tells the run's usual shape; name one: "
            "--size WxHxF"
        )
    rows = read_manifest(run_dir / MANIFEST).usable
    counts = Counter(row.bucket for row in rows if row.bucket is not None)
    return max(counts, key=lambda bucket: (bucket.frames > 1, counts[bucket], bucket))


def _free_path(folder: Path, prompt: str, seed: int) -> Path:
    """A name made of the prompt's first words that no file has yet.

    Raises:
        DataError: This user may not look.
    """
    words = "-".join(re.findall(r"\w+", prompt.lower())[:6])[:60] or "sample"
    number = 0
    while True:
        suffix = f"-{number}" if number else ""
        path = folder / f"{words}-seed{seed}{suffix}.mp4"
        try:
            is_free = not path.exists()
        except OSError as error:
            raise DataError(
                f"{str(folder)!r} cannot be read: {refusal_at(error, folder)}; {fix_of(error)}, or "
                "choose --output"
            ) from error
        if is_free:
            return path
        number += 1
