"""The section `[memory]` of a run file: what waits in the host's memory instead of on the GPU."""

from dataclasses import dataclass
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.trainer.settings.checks import at_least
from arachne.trainer.settings.lora import LoraSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.planner import PlannerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """`[memory]`.

    Attributes:
        base: How frozen weights of the blocks are stored beside adapters: as the `model.dtype`
            says, in 8 bits as float8 (`fp8`), or in 4 (`nf4`) or 8 bits (`int8`) by bitsandbytes.
        swapped_blocks: Blocks whose frozen weights wait in the host's memory until they run, the
            first ones; all of a large number. Needs `planner.recompute = "all"`.
        inputs_on_host: Whether what a recomputed block keeps, its input, waits there as well.
        encoders_on_host: Whether the encoders of a run that encodes within its steps wait there
            between their cascades.
    """

    base: Literal["model", "fp8", "nf4", "int8"] = "model"
    swapped_blocks: int = 0
    inputs_on_host: bool = False
    encoders_on_host: bool = False

    def __post_init__(self) -> None:
        at_least("memory", 0, most=10_000, swapped_blocks=self.swapped_blocks)

    @property
    def base_bits(self) -> Literal[4, 8] | None:
        """Bits of a frozen weight of the blocks; None is the model's own type."""
        return {"model": None, "nf4": 4, "int8": 8, "fp8": 8}[self.base]

    @property
    def needs_bitsandbytes(self) -> bool:
        """Whether that package stores the weights."""
        return self.base in ("nf4", "int8")

    def check(self, model: ModelSettings, lora: LoraSettings, planner: PlannerSettings) -> None:
        """Refuse what cannot work with the rest of the run.

        Raises:
            ConfigError: Names both settings.
        """
        if self.inputs_on_host and planner.recompute == "none":
            raise ConfigError(
                "memory.inputs_on_host is for blocks that are recomputed, and planner.recompute is "
                "'none'; set it to 'auto' or 'all', or leave memory.inputs_on_host out"
            )
        if self.base != "model" and not lora.is_on:
            raise ConfigError(
                f"memory.base is {self.base!r}, but weights of few bits cannot be trained; set "
                "lora.rank, or leave it out"
            )
        if self.base != "model" and (self.swapped_blocks or lora.use_dora):
            other = "memory.swapped_blocks" if self.swapped_blocks else "lora.use_dora"
            raise ConfigError(
                f"memory.base {self.base!r} does not go with {other}; leave one of them out"
            )
        if not self.swapped_blocks:
            return
        if not (lora.is_on or model.is_partly_frozen):
            raise ConfigError(
                f"memory.swapped_blocks is {self.swapped_blocks}, but every weight is trained, and "
                "only frozen ones can wait on the host; set lora.rank, or leave it out"
            )
        if planner.recompute != "all":
            raise ConfigError(
                f"memory.swapped_blocks is {self.swapped_blocks}, and the backward would keep the "
                "weights of blocks that are not recomputed; set planner.recompute = 'all'"
            )
        if model.compile:
            raise ConfigError(
                "memory.swapped_blocks does not go with model.compile; leave one of them out"
            )
