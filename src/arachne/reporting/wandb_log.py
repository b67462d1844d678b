# pyright: basic
"""A run's numbers and samples on Weights & Biases; the package is imported only where it is used.

`WANDB_MODE=offline` writes to the run's folder alone; `wandb sync` uploads it later.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arachne.core.errors import ConfigError
from arachne.reporting.run_files import WANDB_ID


def check_installed(project: str) -> None:
    """Refuse `logging.wandb` where the package is missing; an empty project needs none.

    Raises:
        ConfigError: Names the extra that brings it.
    """
    if project and find_spec("wandb") is None:
        raise ConfigError(
            f"logging.wandb is {project!r}, but the package wandb is not installed; run "
            "pip install 'arachne[wandb]', or set logging.wandb to ''"
        )


class WandbLog:
    """One run of a project; a resumed run goes on with the same one.

    Args:
        project: Its name at Weights & Biases.
        run_dir: Where its files and its identity are kept.
        settings: All settings of the run.

    Raises:
        ConfigError: The package is missing, or cannot reach its server or log in.
    """

    def __init__(self, project: str, run_dir: Path, settings: Mapping[str, Any]) -> None:
        check_installed(project)
        self._wandb: Any = import_module("wandb")
        known = run_dir / WANDB_ID
        run_id = known.read_text() if known.exists() else None
        try:
            self._run = self._wandb.init(
                project=project,
                name=run_dir.resolve().name,
                dir=str(run_dir),
                config=dict(settings),
                id=run_id,
                resume="allow",
            )
        except self._wandb.Error as error:
            raise ConfigError(
                f"logging.wandb {project!r}: Weights & Biases cannot be used: "
                f"{str(error).rstrip('.')}; run wandb login, or set WANDB_MODE=offline"
            ) from error
        known.write_text(self._run.id)
        # Its own counter must only rise, and a resumed run does some steps again.
        self._run.define_metric("*", step_metric="step")

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Named numbers of a step; names before a slash are the sections of the page."""
        self._run.log({**scalars, "step": step})

    def write_videos(self, step: int, videos: Mapping[str, Path]) -> None:
        """Named video files of a step."""
        shown = {name: self._wandb.Video(str(path)) for name, path in videos.items()}
        self._run.log({**shown, "step": step})

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()
