"""`arachne export RUN_DIR --to diffusers DIR`: weights that other programs load."""

import argparse
import re
from typing import Any

from arachne.cli.run_dir import opened_checkpoint
from arachne.cli.run_file import add_overrides
from arachne.core.errors import ConfigError
from arachne.core.local_path import local_path
from arachne.core.units import bytes_text

_SIZE = re.compile(r"[1-9][0-9]*[KMGT]B")

_EXAMPLE = """example:
  arachne export runs/first --to diffusers exported/
  arachne export runs/first --to comfyui exported-comfyui/ --dtype bfloat16 --checkpoint 400
  arachne export runs/lora --to comfyui exported-lora/ --what lora

          weights                             LoRA
diffusers DIR/transformer                     DIR/pytorch_lora_weights.safetensors
comfyui   DIR/diffusion_model.safetensors     DIR/lora.safetensors

A run with [lora] exports its LoRA, with --what merged its weights with the LoRA in them. DIR gets a
README.md with the run's facts. What was written is loaded again and compared before the command
says done."""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "export",
        help="weights or LoRA of a checkpoint for diffusers or ComfyUI",
        description="Write the newest whole checkpoint of a run into a new folder.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=local_path, help="folder of a run")
    parser.add_argument("folder", metavar="DIR", type=local_path, help="new folder for the weights")
    parser.add_argument(
        "--to", required=True, choices=("diffusers", "comfyui"), help="whose names and files"
    )
    parser.add_argument(
        "--what",
        choices=("lora", "merged"),
        help="of a run with [lora]: the LoRA alone (default), or the weights with it merged in",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float64"),
        help="of the weights (default: that of the master weights, float64 where model.dtype is, "
        "else float32)",
    )
    parser.add_argument(
        "--weights",
        choices=("raw", "ema"),
        default="raw",
        help="as trained (default), or their moving average (optimizer.ema_decay)",
    )
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest")
    parser.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="of diffusers' files (5GB)"
    )
    add_overrides(parser, "where a model lies now, such as model.pretrained=FOLDER")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export and say what was written; 0.

    Raises:
        ArachneError: There is no run or checkpoint, or the folder cannot be written.
    """
    if not _SIZE.fullmatch(arguments.max_shard_size):
        raise ConfigError(
            f"--max-shard-size {arguments.max_shard_size!r} is no size; write a whole number and "
            "KB, MB, GB or TB, such as 5GB"
        )
    config, checkpoint = opened_checkpoint(
        arguments.run_dir, arguments.checkpoint, arguments.overrides
    )

    from arachne.trainer.export import ExportOptions, export, master_dtype, num_parameters

    dtype: str = arguments.dtype or master_dtype(config)
    options = ExportOptions(
        to=arguments.to,
        what=arguments.what,
        dtype=dtype,
        weights=arguments.weights,
        max_shard=arguments.max_shard_size,
    )
    files = export(config, checkpoint, arguments.folder, options)
    print(
        f"{checkpoint.name}: {num_parameters(checkpoint):,} trained parameters, "
        f"in {dtype}; written, read back and compared"
    )
    for path in files:
        print(f"{bytes_text(path.stat().st_size):>10}  {path}")
    return 0
