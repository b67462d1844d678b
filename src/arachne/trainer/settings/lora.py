"""The section `[lora]` of a run file."""

from dataclasses import dataclass

from arachne.core.errors import ConfigError
from arachne.core.known_keys import choice_text
from arachne.trainer.settings.checks import at_least

TARGETS = ("attention", "attention+ffn", "all-linear")
"""Names of sets of layers; what they are in a family follows from its module names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """`[lora]`: low-rank adapters beside frozen weights.

    Attributes:
        rank: Inner width of an adapter; 0 trains the model itself.
        alpha: An adapter's output counts alpha / rank; 0 takes the rank.
        targets: Layers of the transformer blocks that get one: `attention`, `attention+ffn`,
            `all-linear`, or the last parts of module names, such as `["attn1.to_q", "to_v"]`.
        use_dora: Learn each output's magnitude apart from its direction (DoRA).
        init_from: LoRA to go on from: a safetensors file, or a folder that holds one, with the
            names of peft, diffusers, kohya or ComfyUI.
    """

    rank: int = 0
    alpha: float = 0.0
    targets: str | tuple[str, ...] = "attention"
    use_dora: bool = False
    init_from: str = ""

    def __post_init__(self) -> None:
        at_least("lora", 0, most=1e5, rank=self.rank, alpha=self.alpha)
        if isinstance(self.targets, str) and self.targets not in TARGETS:
            raise ConfigError(
                f"lora.targets is {self.targets!r}; {choice_text(self.targets, TARGETS)}, or write "
                f'a list of module names: ["{self.targets}"]'
            )
        if not self.targets or not all(self.targets):
            raise ConfigError("lora.targets names no layer; take one of " + ", ".join(TARGETS))
        if not self.rank:
            for name in ("alpha", "use_dora", "init_from"):
                if getattr(self, name):
                    raise ConfigError(
                        f"lora.{name} is {getattr(self, name)!r}, but lora.rank is 0, which trains "
                        "no adapters; set lora.rank"
                    )

    @property
    def is_on(self) -> bool:
        """Whether adapters are trained, and the model is frozen."""
        return self.rank > 0

    @property
    def alpha_or_rank(self) -> float:
        """The alpha that counts."""
        return self.alpha or float(self.rank)
