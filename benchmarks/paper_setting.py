"""What the paper is modelled with: every assumption, fixed before the first run.

Certain from the paper are the abstract and the captions of its figures. The rest of its setting,
and nearly all of its figures, are known from one published summary alone.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import allowed_degrees
from arachne.core.bucket import Bucket
from arachne.core.families import FAMILIES
from arachne.core.model_shape import ModelShape
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.cost.cluster_files import load_cluster
from arachne.cost.launch_modes import CostOptions
from arachne.cost.model import CostModel
from arachne.cost.training_state import TrainingState
from arachne.data.length_distributions import distribution_named
from arachne.mapper.placement import place
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PEERS, PLANNERS

ASSUMPTIONS = {
    "cluster": "nodes of 8 H100, NVLink, 400 Gb/s per GPU between nodes: clusters/h100.toml, whose "
    "rates are partly assumptions; 16 GPUs where the figure does not vary them",
    "models": "published shapes, bfloat16; gradients are summed in bfloat16, since 13B parameters "
    "with float32 gradients do not fit 80 GB; optimizer state is sharded over the world; the "
    "autoencoder waits on the host between its launches",
    "clips": "stage 1: WebVid at 640x368; stage 2: Koala at 1280x720, with Panda-70M's lengths; "
    "stage 3: an internal set at 1920x1088, at most 57 frames, with Panda-70M's lengths; 24 frames "
    "a second",
    "windows": "a clip trains a window of frames, drawn evenly from 8 legal lengths up to the cap "
    "(129 frames) that it is long enough for: what varies lengths in the paper is not known",
    "batch": "4 clips per GPU and step in every stage, the same for all systems",
    "checkpointing": "all blocks are recomputed, for all systems",
    "encoders": "video is encoded in the step, by the other systems on the GPUs that train the "
    "clip, right before it; text is encoded beforehand, since the 15 GB of HunyuanVideo's text "
    "encoder do not fit beside its training state (found by the first try, which planned nothing)",
    "megatron_lm": "one degree for all clips, the best one; Ulysses or ring, whichever is faster; "
    "groups meet at the end of the step (ZeRO-1)",
    "deepspeed": "one degree for all clips, the best one; Ulysses; groups meet after each "
    "micro-batch (ZeRO-3), parameters are not gathered and memory is not saved",
    "flexsp": "as in docs/planners.md; solver limit 5 s, one core; Ulysses; groups meet after each "
    "micro-batch",
    "arachne": "no filling with the next step's encoders, and everything recomputed: what goes "
    "beyond the paper is shown apart",
    "stacking": "same-shape clips share a launch up to 16,384 tokens, for all systems",
}

FPS = 24.0
STACK_TOKENS = 16_384
NUM_WINDOWS = 8
CLIPS_PER_GPU = 4

PAPER = {
    "source": "arXiv 2607.01701, by one published summary: unverified",
    "figure6": {
        "megatron_lm": {"stage1": 50.0, "stage2": 40.0, "stage3": 38.8},
        "deepspeed": {"stage1": 47.0, "stage2": 38.8, "stage3": 37.6},
        "flexsp": {"stage1": 45.8, "stage2": 34.6, "stage3": 32.8},
        "arachne": {"stage1": 22.07, "stage2": 32.96, "stage3": 26.80},
    },
    "idle_ratio": {
        "megatron_lm": {"stage1": 0.121, "stage3": 0.301},
        "deepspeed": {"stage1": 0.090, "stage3": 0.268},
        "flexsp": {"stage1": 0.081, "stage3": 0.336},
        "arachne": {"stage1": 0.081, "stage3": 0.081},
    },
    "figure8": {
        "model": {"wan-1.3b": 0.35, "hunyuanvideo-13b": 0.43},
        "frames": {"53": 0.21, "105": 0.35},
        "gpus": {"16": 0.30, "64": 0.40},
    },
    "figure10": {},
    "figure11": {},
    "ablation": {"no_inter_cascade": 0.0364, "no_intra_cascade": 0.1367, "no_mapper": 0.1926},
}
"""What the paper says; empty where only the kind of figure is known."""

MODELS = ("wan-1.3b", "cogvideox-5b", "hunyuanvideo-13b")
FRAME_CAPS = (53, 77, 105)
CLUSTER_SIZES = (16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One training stage: which clips there are.

    Attributes:
        lengths: Name of the distribution of clip lengths.
        width, height: Of all clips, in pixels.
        frame_cap: Most frames of a clip.
    """

    name: str
    lengths: str
    width: int
    height: int
    frame_cap: int

    def with_frame_cap(self, frame_cap: int) -> "Stage":
        """The same clips with another cap."""
        return replace(self, frame_cap=frame_cap)

    def windows(self, frame_step: int) -> tuple[int, ...]:
        """Legal lengths, evenly spaced up to the cap."""
        steps = (self.frame_cap - 1) // frame_step
        evenly = {max(1, round(steps * i / NUM_WINDOWS)) for i in range(1, NUM_WINDOWS + 1)}
        return tuple(frame_step * count + 1 for count in sorted(evenly))


STAGES = (
    Stage(name="stage1", lengths="webvid10m", width=640, height=368, frame_cap=129),
    Stage(name="stage2", lengths="panda70m", width=1280, height=720, frame_cap=129),
    Stage(name="stage3", lengths="panda70m", width=1920, height=1088, frame_cap=57),
)
SCALED_STAGE = STAGES[1]
"""What figures 8, 10 and 11 and the ablation vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system: how it plans, and which parts of ours it has.

    Attributes:
        name: In the results.
        planner: Key of `PLANNERS` or `PEERS`.
        options: Modes that its launches may run in.
        is_filled: Whether the next step's encoders fill idle ends.
        intra_cascade, inter_cascade: Parts of the mapper.
    """

    name: str
    planner: str
    options: CostOptions
    is_filled: bool = False
    intra_cascade: bool = True
    inter_cascade: bool = True

    def plan(
        self, case: "Case", costs: CostModel, step: int, *, following: int | None = None
    ) -> PlacedPlan:
        """The placed and checked plan of a step, before the step `following`; None is the next."""
        # In a filled run the step before has encoded this one's clips.
        batch = case.batch(step, is_encoded=self.is_filled)
        following = step + 1 if following is None else following
        ahead = case.batch(following, is_encoded=False) if self.is_filled else None
        problem = PlanningProblem(
            batch=batch,
            next_batch=ahead,
            num_gpus=case.num_gpus,
            degrees=allowed_degrees(case.num_gpus, case.num_gpus),
            costs=costs,
            stack_tokens=STACK_TOKENS,
        )
        placed = place(
            (PLANNERS | PEERS)[self.planner](problem),
            costs.cluster,
            step,
            intra_cascade=self.intra_cascade,
            inter_cascade=self.inter_cascade,
            costs=costs,
        )
        check_placed_plan(placed, batch, case.num_gpus, next_batch=ahead)
        return placed


ULYSSES = CostOptions(recompute="all", ring="none", needs_heads=True)
EITHER = CostOptions(recompute="all", ring="auto", needs_heads=True)

MEGATRON = System(name="megatron_lm", planner="static_lockstep_zero1", options=EITHER)
DEEPSPEED = System(name="deepspeed", planner="static_lockstep_zero3", options=ULYSSES)
FLEXSP = System(name="flexsp", planner="flexsp", options=ULYSSES)
ARACHNE = System(name="arachne", planner="arachne", options=EITHER)
STRONG_STATIC = System(
    name="static_degree_longest_first", planner="static_degree_longest_first", options=EITHER
)
"""Not in the paper: the strongest cheap planner, which gains should be stated against."""

SYSTEMS = (MEGATRON, DEEPSPEED, FLEXSP, STRONG_STATIC, ARACHNE)

WITHOUT_MAPPER = {
    "no_inter_cascade": replace(ARACHNE, inter_cascade=False),
    "no_intra_cascade": replace(ARACHNE, intra_cascade=False),
    "no_mapper": replace(ARACHNE, inter_cascade=False, intra_cascade=False),
}

_NEEDED_RECOMPUTE = replace(EITHER, recompute="auto")
ADDITIONS = {
    "recompute_choice": replace(ARACHNE, options=_NEEDED_RECOMPUTE),
    "next_step_fill": replace(ARACHNE, is_filled=True),
    "both": replace(ARACHNE, options=_NEEDED_RECOMPUTE, is_filled=True),
}
"""What we add to the paper's system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A stage on a cluster, with a model; `is_cached` if no clip has to be encoded."""

    stage: Stage
    model: str = "hunyuanvideo-13b"
    num_gpus: int = 16
    is_cached: bool = False

    def costs(self, system: System) -> CostModel:
        """What a system's launches cost."""
        return CostModel(
            model=preset(self.model),
            cluster=load_cluster(f"h100x{self.num_gpus}"),
            element_bytes=2,
            state=TrainingState(gradients="bfloat16"),
            options=system.options,
        )

    def batch(self, step: int, *, is_encoded: bool) -> Batch:
        """The clips of a step, the same for all systems and models of like geometry."""
        clips = drawn_clips(self.stage, preset(self.model).family, step, self.num_gpus)
        if is_encoded or self.is_cached:
            clips = tuple(replace(clip, to_encode=()) for clip in clips)
        return Batch(step=step, clips=clips)


def preset(name: str) -> ModelShape:
    """A published shape of any family."""
    return next(family.presets[name] for family in FAMILIES.values() if name in family.presets)


@lru_cache(maxsize=512)
def drawn_clips(stage: Stage, family_name: str, step: int, num_gpus: int) -> tuple[BatchClip, ...]:
    """Clips that still have to be encoded; of the arguments alone."""
    geometry = FAMILIES[family_name].geometry
    windows = stage.windows(geometry.frame_step)
    lengths = distribution_named(stage.lengths)
    rng = random.Random(f"{stage.name}/{step}/{num_gpus}")

    def frames() -> Iterator[int]:
        for _ in range(CLIPS_PER_GPU * num_gpus):
            count = int(lengths.length_s(rng.uniform(1e-9, 1.0 - 1e-9)) * FPS)
            yield rng.choice([window for window in windows if window <= count] or windows[:1])

    buckets = [Bucket(width=stage.width, height=stage.height, frames=count) for count in frames()]
    return tuple(
        BatchClip(
            name=f"{slot}.mp4",
            bucket=bucket,
            num_tokens=geometry.num_tokens(bucket),
            to_encode=("vae",),
        )
        for slot, bucket in enumerate(buckets)
    )
