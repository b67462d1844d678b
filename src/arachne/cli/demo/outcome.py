"""The demo after its training: resume elsewhere, sample, and say what was found."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arachne.cli.demo.dataset import SHOWN_CAPTION
from arachne.cli.demo.on_ranks import TOKEN_SPAN, DemoResult, resumed_losses
from arachne.cli.demo.settings import RESUMED_STEPS
from arachne.core.ledger import LedgerRow
from arachne.core.units import bytes_text, count_text, percent_text, seconds_text
from arachne.data.cache import LatentCache
from arachne.data.decode import decode_clip
from arachne.data.manifest import read_manifest
from arachne.data.prepare import keys_of
from arachne.models.codec import DctCodec, psnr_db
from arachne.models.encoders import text_encoder_named
from arachne.reporting.comparison import strategies_from
from arachne.reporting.page import render_report
from arachne.reporting.report_data import read_report_data
from arachne.reporting.run_files import (
    COMPARISON,
    MANIFEST,
    PERFETTO,
    REPORT,
    SAMPLES,
    read_metrics,
)
from arachne.reporting.tables import comparison_table
from arachne.reporting.trace_files import write_perfetto
from arachne.reporting.video_files import contact_sheet, write_mp4
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import collective_timeout_s
from arachne.runtime.world import World
from arachne.trainer.checkpoint_files import checkpoints_dir, step_name
from arachne.trainer.config import RunConfig
from arachne.trainer.generate import generate
from arachne.trainer.sample_request import SampleRequest
from arachne.trainer.settings.cluster import ClusterSettings

_SAMPLE_STEPS = 20
_GUIDANCE = 2.0


def show_checks(result: DemoResult, console: Console) -> None:
    """Gradients and the race."""
    groups = f"{count_text(result.num_groups, 'process group')} on " if result.num_groups else ""
    console.print(
        f"{result.num_parameters / 1e6:.1f} M parameters; "
        f"{groups}{count_text(result.world_size, 'rank')}"
    )
    for planner, error in result.gradient_errors.items():
        console.print(
            f"gradient of one step under {planner} against one process: "
            f"relative difference {error:.1e}"
        )
    assert result.race is not None
    console.print(
        f"{count_text(len(result.race.steps), 'step')} of 8 clips whose tokens differ "
        f"at least {TOKEN_SPAN:.0f}-fold, each under every strategy, in turns:"
    )
    console.print(comparison_table(strategies_from(**_race_figures(result))))


def check_resume(config: RunConfig, result: DemoResult, console: Console) -> float:
    """Resume before the last steps on fewer ranks; the relative error of their losses."""
    run_dir = Path(config.run.dir)
    at_step = config.run.steps - RESUMED_STEPS
    ranks = max(1, config.run.ranks // 2)
    resumed_dir = run_dir / "resumed"
    shutil.copytree(
        checkpoints_dir(run_dir) / step_name(at_step),
        checkpoints_dir(resumed_dir) / step_name(at_step),
    )
    shutil.copyfile(run_dir / MANIFEST, resumed_dir / MANIFEST)
    resumed = replace(
        config,
        run=replace(config.run, dir=str(resumed_dir), ranks=ranks),
        cluster=ClusterSettings(name="cpu" if config.run.device == "cpu" else "auto"),
        validation=replace(config.validation, every=0),
    )
    losses: tuple[float, ...] | None = run_ranks(
        ranks,
        resumed_losses,
        (resumed,),
        device=config.run.device,
        timeout_s=collective_timeout_s(config.run.timeout_s),
    )[0]
    if losses is None:
        raise KeyboardInterrupt
    pairs = list(zip(result.finished.losses, losses, strict=True))[-RESUMED_STEPS:]
    error = max(abs(again / before - 1.0) for before, again in pairs)
    for step, (before, again) in enumerate(pairs, start=at_step + 1):
        console.print(
            f"step {step}: loss {before:.7f} on {count_text(result.world_size, 'rank')}, "
            f"{again:.7f} after resuming on {count_text(ranks, 'rank')}"
        )
    return error


def sample_video(config: RunConfig, console: Console) -> float:
    """Sample a video for a training caption beside the real clip; the codec's PSNR on the data."""
    psnr: float = run_ranks(1, _sample_and_measure, (config,), timeout_s=config.run.timeout_s)[0]
    console.print(escape(f"sampled: {SHOWN_CAPTION!r}"))
    console.print(f"training-free autoencoder: {psnr:.1f} dB PSNR on the dataset, mean over clips")
    return psnr


def _sample_and_measure(_: World, config: RunConfig) -> float:
    run_dir = Path(config.run.dir)
    rows = read_manifest(run_dir / MANIFEST).usable
    shown = next(row for row in rows if row.clip.caption == SHOWN_CAPTION)
    assert shown.bucket is not None
    request = SampleRequest(
        prompt=SHOWN_CAPTION,
        bucket=shown.bucket,
        steps=_SAMPLE_STEPS,
        guidance=_GUIDANCE,
        seed=config.run.seed,
    )
    frames = generate(config, checkpoints_dir(run_dir) / step_name(config.run.steps), request)
    samples = run_dir / SAMPLES
    samples.mkdir(exist_ok=True)
    write_mp4(samples / "sample.mp4", frames, config.data.fps)
    real, decoded = _real_and_decoded(config, shown)
    strips = [("real clip", real), ("through the autoencoder", decoded), ("sampled", frames)]
    contact_sheet(samples / "sample.png", strips, 8)
    return float(np.mean([psnr_db(*_real_and_decoded(config, row)) for row in rows]))


def _real_and_decoded(config: RunConfig, row: LedgerRow) -> tuple[np.ndarray, np.ndarray]:
    """A clip's frames, and what its cached latents decode to."""
    assert row.bucket is not None
    codec = DctCodec()
    text = text_encoder_named(config.model.text_encoder, config.model.num_text_tokens)
    key, _ = keys_of(row, config.data.fps, codec.fingerprint, text.fingerprint)
    latents = LatentCache(Path(config.data.cache)).get(key)
    path = Path(config.data.path) / row.clip.path
    return decode_clip(path, row.clip.part, row.bucket, config.data.fps), codec.decode(latents)


def write_summary(
    config: RunConfig, result: DemoResult, resume_error: float, psnr: float, *, wall_s: float
) -> dict[str, Any]:
    """`summary.json`, `comparison.json`, the report and the Perfetto trace; gives the summary."""
    run_dir = Path(config.run.dir)
    figures = _race_figures(result)
    (run_dir / COMPARISON).write_text(json.dumps(figures, indent=2) + "\n")
    data = read_report_data(run_dir)
    (run_dir / REPORT).write_bytes(render_report(data).encode())
    write_perfetto(run_dir / PERFETTO, data.all_traces, data.plans)
    validation = read_metrics(run_dir).validation
    assert result.race is not None
    summary = {
        "gradient_error_vs_one_process": max(result.gradient_errors.values()),
        "gradient_errors": result.gradient_errors,
        "loss_first": validation[0].loss,
        "loss_last": validation[-1].loss,
        "resume_loss_error": resume_error,
        **figures,
        "raced_steps": result.race.steps,
        "codec_psnr_db": psnr,
        "clips": read_manifest(run_dir / MANIFEST).counts,
        "num_groups": result.num_groups,
        "world_size": result.world_size,
        "num_parameters": result.num_parameters,
        "cluster": asdict(result.finished.cluster),
        "wall_s": wall_s,
    }
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def _race_figures(result: DemoResult) -> dict[str, dict[str, float]]:
    assert result.race is not None
    return {
        "step_s": result.race.step_s,
        "modelled_step_s": result.race.modelled_step_s,
        "idle_ratio": result.race.idle_ratio,
    }


def show_end(summary: dict[str, Any], folder: Path, console: Console, *, as_json: bool) -> None:
    """The final table, and where the files are."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", max_width=76)
    fastest_other = min(s for name, s in summary["step_s"].items() if name != "arachne")
    arachne_s = summary["step_s"]["arachne"]
    page_bytes = (folder / REPORT).stat().st_size
    for label, text in (
        ("loss at fixed noise", f"{summary['loss_first']:.4f} → {summary['loss_last']:.4f}"),
        (
            "gradient",
            f"differs from one process's by {summary['gradient_error_vs_one_process']:.1e}",
        ),
        ("resumed loss", f"differs by {summary['resume_loss_error']:.1e}"),
        (
            "step time",
            f"{seconds_text(arachne_s)}; the best other strategy takes "
            f"{fastest_other / arachne_s:.2f} × as long",
        ),
        ("idle", f"{percent_text(summary['idle_ratio']['arachne'], 1)} of rank-seconds"),
        ("took", seconds_text(summary["wall_s"])),
        ("report", f"{folder / REPORT} ({bytes_text(page_bytes)}, open it in a browser)"),
        ("video", f"{folder / SAMPLES / 'sample.mp4'}, picture sample.png beside it"),
        ("figures", str(folder / "summary.json")),
        ("your turn", f"arachne train {folder / 'run.toml'} --set run.dir=runs/mine"),
    ):
        table.add_row(label, escape(text))
    console.print(table)
    if as_json:
        print(json.dumps(summary))
