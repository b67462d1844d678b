"""The run file: one TOML file becomes frozen, typed values before torch is imported.

Every key has a default where a safe one exists; unknown keys are errors with the nearest name.
"""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.data.shapes import ShapeRules

TRAINED_FAMILIES = ("wan", "skyreels_v2", "hunyuan_video")
"""Families that a run can train; the others can be planned for."""


def _at_least(section: str, lowest: float, *, most: float = 1e9, **values: float) -> None:
    for name, value in values.items():
        if value > most:
            raise ConfigError(f"{section}.{name} is {value:g}; it must be at most {most:g}")
        if not value >= lowest:
            raise ConfigError(f"{section}.{name} is {value}; it must be at least {lowest}")


def _folder(section: str, **paths: str) -> None:
    for name, path in paths.items():
        if not path.strip() or "\0" in path:
            raise ConfigError(f"{section}.{name} is {path!r}; name a folder, '.' for this one")


def _share(section: str, **values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"{section}.{name} is {value}; it must be between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """`[run]`.

    Attributes:
        dir: Folder for checkpoints, logs and the report.
        steps: Optimizer steps of the whole run.
        seed: Seed of clip order, noise, timesteps, caption dropout and initial weights.
        ranks: Ranks that `arachne train` starts by itself; 0 = one per GPU, or per CPU core up
            to 8. Under torchrun its world counts.
        device: `auto` takes GPUs with NCCL where there are some, else CPU with gloo.
        timeout_s: A rank that answers nothing for this long ends the run.
    """

    dir: str
    steps: int
    seed: int = 0
    ranks: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _folder("run", dir=self.dir)
        _at_least("run", 1, steps=self.steps)
        _at_least("run", 1, most=1e7, timeout_s=self.timeout_s)
        _at_least("run", 0, most=1e5, ranks=self.ranks)
        _at_least("run", 0, most=2**63 - 1, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """`[data]`.

    Attributes:
        path: Dataset: a folder with `metadata.csv` or with sidecar captions.
        cache: Folder for encoded clips; safe to share between runs.
        fps: Frames per second that the model learns; videos are retimed to it.
        resolution: Area budget of one frame: clips are scaled down to at most
            `resolution * resolution` pixels, in their own aspect ratio.
        frame_buckets: Legal lengths; each clip takes the longest that it fills. Stills always
            take 1.
        missing_caption: `error` stops before step 1, `empty` trains without words.
        held_out: Share of the clips kept for validation, chosen by content.
    """

    path: str
    cache: str
    fps: float = 16.0
    resolution: int = 480
    frame_buckets: tuple[int, ...] = (1, 17, 33, 49, 65, 81)
    missing_caption: Literal["error", "empty"] = "error"
    held_out: float = 0.0

    def __post_init__(self) -> None:
        _folder("data", path=self.path, cache=self.cache)
        _at_least("data", 16, most=16384, resolution=self.resolution)
        _share("data", held_out=self.held_out)
        _ = self.shape_rules  # checks the rest

    @property
    def shape_rules(self) -> ShapeRules:
        """What clips are brought to."""
        return ShapeRules(
            fps=self.fps, resolution=self.resolution, frame_buckets=self.frame_buckets
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """`[model]`.

    Attributes:
        family: Model family.
        preset: A published shape, such as `wan-1.3b`; the keys below change it.
        pretrained: Folder of a diffusers pipeline or transformer to start from; empty starts
            from random weights.
        num_layers, num_heads, head_size, ffn_size: Sizes; 0 keeps the preset's.
        video_encoder: `dct` (training-free) or the folder of a diffusers autoencoder.
        text_encoder: `hashed` (training-free) or the folder of a transformers encoder with its
            tokenizer.
        text_tokens: Text tokens per clip; 0 keeps the preset's, or else 512.
        dtype: Weights and activations; master weights and sums are always float32 or wider.
    """

    family: str = "wan"
    preset: str = ""
    pretrained: str = ""
    num_layers: int = 0
    num_heads: int = 0
    head_size: int = 0
    ffn_size: int = 0
    video_encoder: str = "dct"
    text_encoder: str = "hashed"
    text_tokens: int = 0
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"

    def __post_init__(self) -> None:
        family = family_named(self.family)
        _at_least("model", 0, most=10_000, num_layers=self.num_layers, num_heads=self.num_heads)
        _at_least("model", 0, most=10_000, head_size=self.head_size)
        _at_least("model", 0, most=1e6, ffn_size=self.ffn_size, text_tokens=self.text_tokens)
        if self.preset and self.preset not in family.presets:
            raise ConfigError(
                f"model.preset {self.preset!r} is not known; "
                f"presets of {self.family}: {', '.join(family.presets)}"
            )

    @property
    def num_text_tokens(self) -> int:
        """Text tokens per clip."""
        preset = family_named(self.family).presets.get(self.preset)
        return self.text_tokens or (preset.text_tokens if preset else 512)

    def shape(self, *, latent_channels: int, text_size: int) -> ModelShape:
        """The transformer's shape; channels and text width follow from the encoders.

        Raises:
            ConfigError: A size is neither given nor in the preset, or the family cannot have it.
        """
        preset = family_named(self.family).presets.get(self.preset)
        sizes: dict[str, int] = {}
        for name in ("num_layers", "num_heads", "head_size", "ffn_size"):
            size = getattr(self, name) or (getattr(preset, name) if preset else 0)
            if not size:
                raise ConfigError(f"model.{name} is missing; set it, or name a model.preset")
            sizes[name] = size
        inputs = {
            "latent_channels": latent_channels,
            "text_size": text_size,
            "text_tokens": self.num_text_tokens,
        }
        if preset is None:
            shape = ModelShape(family=self.family, **inputs, **sizes)
        else:  # it may have layers that no setting names
            shape = replace(preset, **inputs, **sizes)
        family_named(self.family).check(shape)
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSettings:
    """`[objective]`: flow matching.

    Attributes:
        timestep_sampling: Distribution of the noise level before the shift.
        shift: Flow shift: sigma becomes shift·sigma / (1 + (shift − 1)·sigma).
        caption_dropout: Share of clips that train without their caption.
        weighting: What a clip counts in the loss: each `clip` the same, or by its `token`s.
    """

    timestep_sampling: Literal["uniform", "logit_normal"] = "logit_normal"
    shift: float = 3.0
    caption_dropout: float = 0.1
    weighting: Literal["clip", "token"] = "clip"

    def __post_init__(self) -> None:
        _share("objective", caption_dropout=self.caption_dropout)
        if not 0.0 < self.shift < inf:
            raise ConfigError(
                f"objective.shift is {self.shift}; it must be above 0"
                + (", and finite" if self.shift == inf else "")
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """`[batch]`: `clips` of one optimizer step, over all ranks."""

    clips: int = 8

    def __post_init__(self) -> None:
        _at_least("batch", 1, most=1e6, clips=self.clips)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """`[planner]`.

    Attributes:
        name: Which planner; `arachne` or a baseline.
        iterations: Search steps after the warm start; more is better and slower.
        max_degree: Most ranks that one cascade may use; 0 = no limit but the world and, on GPUs,
            the attention heads.
        stack_tokens: Clips of one shape are stacked while a cascade has at most this many tokens.
        timeout_s: A plan later than this is replaced by the static fallback plan.
        recompute: Whether launches compute activations twice: as far as memory asks for it
            (`auto`), never, or all of them.
        ring: `auto` may split a degree into Ulysses groups on a ring.
        recalibrate_every: Steps between two corrections of the cost model by measured launches;
            0 keeps it as it was at the start, so that a resumed run makes the same plans.
    """

    name: str = "arachne"
    iterations: int = 2000
    max_degree: int = 0
    stack_tokens: int = 1024
    timeout_s: float = 30.0
    recompute: Literal["auto", "none", "all"] = "auto"
    ring: Literal["auto", "none"] = "auto"
    recalibrate_every: int = 10

    def __post_init__(self) -> None:
        _at_least("planner", 0, iterations=self.iterations, max_degree=self.max_degree)
        _at_least("planner", 0, stack_tokens=self.stack_tokens)
        _at_least("planner", 0, recalibrate_every=self.recalibrate_every)
        _at_least("planner", 0, most=1e7, timeout_s=self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`[cluster]`.

    Attributes:
        name: `auto` measures this machine in the first seconds; otherwise a file of `clusters/`.
    """

    name: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """`[optimizer]`: AdamW.

    Attributes:
        lr: Learning rate after the warm-up.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled weight decay.
        warmup_steps: Steps in which the learning rate rises linearly from 0.
        max_grad_norm: Gradients are scaled down to this global norm; 0 switches clipping off.
        gradients: Type of the buffer that launches add their gradients to, or that it lies in the
            host's memory. For planning only, so far.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    gradients: Literal["float32", "bfloat16", "host"] = "float32"

    def __post_init__(self) -> None:
        _at_least(
            "optimizer",
            0,
            lr=self.lr,
            eps=self.eps,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
            max_grad_norm=self.max_grad_norm,
        )
        for beta in self.betas:
            if not 0.0 <= beta < 1.0:
                raise ConfigError(f"optimizer.betas holds {beta}; each must be in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """`[checkpoint]`: `every` steps (0 = only at the end), `keep` the newest ones (0 = all)."""

    every: int = 100
    keep: int = 3

    def __post_init__(self) -> None:
        _at_least("checkpoint", 0, every=self.every, keep=self.keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """`[validation]`: held-out loss at fixed noise, `every` steps (0 = never).

    Attributes:
        every: Steps between two validations.
        noises: Noise levels per clip, spread evenly over the timestep range.
        clips: Most clips of one validation, chosen by content; 0 = no limit.
    """

    every: int = 0
    noises: int = 2
    clips: int = 64

    def __post_init__(self) -> None:
        _at_least("validation", 0, every=self.every, clips=self.clips)
        _at_least("validation", 1, most=10_000, noises=self.noises)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """`[logging]`.

    Attributes:
        every: Steps between two lines of progress.
        trace_every: Steps between two traces, the spans of all ranks (0 = none).
    """

    every: int = 1
    trace_every: int = 10

    def __post_init__(self) -> None:
        _at_least("logging", 1, every=self.every)
        _at_least("logging", 0, trace_every=self.trace_every)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole run file."""

    run: RunSettings
    data: DataSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)

    def __post_init__(self) -> None:
        self.data.shape_rules.check(family_named(self.model.family).geometry)
