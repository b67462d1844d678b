"""`arachne report RUN_DIR`: one self-contained HTML page, and a trace for Perfetto."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from arachne.cli.written_file import write_file
from arachne.core.errors import DataError
from arachne.core.local_path import local_path
from arachne.core.refused_write import refusal
from arachne.core.strict_json import to_json

if TYPE_CHECKING:
    from arachne.reporting.report_data import ReportData

_EXAMPLE = """example:
  arachne report runs/first
writes runs/first/report.html and runs/first/trace.perfetto.json (open it at ui.perfetto.dev)"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "report",
        help="one self-contained HTML page of a run",
        description="Write one HTML page that shows where every second of a run went.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=local_path, help="folder of a run")
    parser.add_argument(
        "--output", metavar="FILE", type=local_path, help="the page (default: RUN_DIR/report.html)"
    )
    parser.add_argument("--json", action="store_true", help="print the headline figures as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and the Perfetto trace of `arguments.run_dir`; 0 when both are there.

    Raises:
        DataError: The folder is not a run, or a file cannot be written.
    """
    from arachne.reporting.page import render_report
    from arachne.reporting.report_data import read_report_data
    from arachne.reporting.run_files import PERFETTO, REPORT
    from arachne.reporting.trace_files import write_perfetto

    run_dir: Path = arguments.run_dir
    data = read_report_data(run_dir)
    page_path: Path = arguments.output or run_dir / REPORT
    perfetto_path = run_dir / PERFETTO if data.traces else None
    write_file(page_path, render_report(data), fix="choose another --output")
    if perfetto_path is not None:
        try:
            write_perfetto(perfetto_path, data.all_traces, data.plans)
        except OSError as error:
            raise DataError(f"cannot write {str(perfetto_path)!r}: {refusal(error)}") from error
    if arguments.json:
        paths = {"report": str(page_path), "perfetto": perfetto_path and str(perfetto_path)}
        print(to_json({**paths, "figures": data.headlines, "notes": data.notes}))
    else:
        _print_summary(data, page_path, perfetto_path)
    return 0


def _print_summary(data: "ReportData", page_path: Path, perfetto_path: Path | None) -> None:
    from rich.console import Console

    from arachne.reporting.tables import comparison_table, summary_table

    console = Console(highlight=False, soft_wrap=True)
    console.print(summary_table(data.headlines))
    if data.strategies:
        console.print(comparison_table(data.strategies))
    for note in data.notes:
        console.print(f"note: {note}", markup=False)
    print(f"report: {page_path}")
    if perfetto_path is not None:
        print(f"trace:  {perfetto_path} (open it at https://ui.perfetto.dev)")
