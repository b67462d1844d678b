"""What helps where an encoder, or what it made, has no room.

Within steps nothing is named that the run has set already.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from arachne.core.cascade import Encoder
from arachne.core.errors import RankMemoryError
from arachne.runtime.out_of_memory import is_out_of_memory
from arachne.trainer.config import RunConfig

_BEFORE = "encode before training with data.encode = 'before'"


def room_to_encode(config: RunConfig, encoder: Encoder, *, on_gpus: bool) -> str:
    """For a cascade of an encoder within a step."""
    ways: list[str] = []
    is_of_clips = encoder == "vae"
    if is_of_clips and config.model.video_encoder != "dct" and not config.model.video_tiling:
        ways.append("set model.video_tiling = true")
    if on_gpus and not config.memory.encoders_on_host:
        ways.append("set memory.encoders_on_host = true")
    ways.append(_BEFORE)
    return _any_of([*ways, "take smaller clips"] if is_of_clips else ways)


def room_to_hand_over(config: RunConfig) -> str:
    """For what encoders have made: it waits in the host's memory until it is trained on."""
    return _any_of(["set planner.fill = false", _BEFORE] if config.planner.fill else [_BEFORE])


def _any_of(ways: Sequence[str]) -> str:
    return ", ".join(ways[:-1]) + (", or " if ways[:-1] else "") + ways[-1]


@contextmanager
def encoding_before(device: Literal["cpu", "cuda"]) -> Iterator[None]:
    """Work that encodes before any training, with nothing but the encoders on the device.

    Raises:
        RankMemoryError: It ran out of memory.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        ways = "take smaller clips, have them cut by model.video_tiling, "
        if device == "cuda":
            ways += "or encode on the CPU first: arachne prepare --set run.device=cpu"
        else:
            ways += "or encode with fewer processes: arachne prepare --workers"
        raise RankMemoryError(f"out of memory while clips are encoded; {ways}") from error
