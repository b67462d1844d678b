"""What a benchmark's figures were made with."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def about(**settings: Any) -> dict[str, Any]:
    """Machine, versions, commit and date, and the run's own settings."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "commit": git.stdout.strip() if git.returncode == 0 else "unknown",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **settings,
    }
