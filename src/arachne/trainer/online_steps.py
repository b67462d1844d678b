"""Steps that encode what the cache lacks, as one rank sees them.

A plan names the launches that encode, of this step's clips or of the next one's. Whatever no plan
names is cached. Frames are decoded ahead in a process beside the rank: those of the step's own
clips before its vote, so that a clip that cannot be decoded is left out on all ranks; those of the
next step's clips when their launch begins. An encoder that fails gives NaN. Of a clip of the next
step that leads to a vote there; of this step's own, whose launches cannot wait for another vote,
the step changes nothing, and names the clip. In both cases the clip is remembered beside the cache,
and left out from then on.

Memory on the host: the frames of all the step's own clips that this rank encodes, 3 bytes a pixel,
and at most `MAX_FRAMES` + 1 clips' of the next step; and results, see `Handoffs`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.batch import Batch
from arachne.core.bucket import Bucket
from arachne.core.cascade import Encoder
from arachne.core.cluster import Cluster
from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.units import step_text
from arachne.data.cache_writer import CacheWriter
from arachne.data.clip_frames import ClipFrames
from arachne.data.loader import ClipLoader
from arachne.data.timed_frame import Pixels
from arachne.models.first_frame import packing_of
from arachne.runtime.handoff import Handoffs
from arachne.runtime.handoff_routes import routes_of
from arachne.runtime.out_of_memory import is_out_of_memory
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.recorder import Recorder
from arachne.runtime.tile_exchange import all_tiles
from arachne.trainer.dataset import ClipArrays, arrays_of
from arachne.trainer.encoding_room import room_to_encode, room_to_hand_over
from arachne.trainer.memory_reports import told_if_full
from arachne.trainer.online_encoders import ENCODERS, OnlineEncoders
from arachne.trainer.planning import PlanRequest
from arachne.trainer.session import Session, is_on_gpus

MAX_FRAMES = 2
"""Clips whose frames may wait in the loader; the decoder then pauses."""

Array = NDArray[np.float32]


@contextmanager
def online_steps(session: Session, first_step: int) -> Iterator["OnlineSteps | None"]:
    """What encodes from `first_step` on; None in a run that encodes before. Writes to the cache are
    over when the context ends. All ranks enter it together.
    """
    encoders = session.encoders
    if encoders is None:
        yield None
        return
    train, workshop = session.prepared.train, encoders.workshop
    with ExitStack() as stack:
        clips = stack.enter_context(ClipFrames(workshop))
        frames = ClipLoader[Pixels](lambda item: clips.read(train.row(item)), MAX_FRAMES)
        stack.enter_context(frames)
        writer = None
        if session.config.data.cache_online:
            writer = stack.enter_context(CacheWriter(workshop.store.cache, clips.counts))
        yield OnlineSteps(session, encoders, first_step=first_step, frames=frames, writer=writer)


def _full_key(step: int, slot: int) -> str:
    return f"full encoder/{step}/{slot}"


def _bucket_of(row: LedgerRow) -> Bucket:
    assert row.bucket is not None, row
    return row.bucket


class OnlineSteps:
    """What a rank encodes, hands over and holds, from step to step.

    Plans have to be announced with `expect`, in the order of their steps, before they run.

    Attributes:
        encoders: What encodes.
        handoffs: What was made, on its way to those that train on it.
        frames: Decodes ahead, by item.
        writer: Stores what was made; None if it is not to be kept.
    """

    def __init__(
        self,
        session: Session,
        encoders: OnlineEncoders,
        *,
        first_step: int,
        frames: ClipLoader[Pixels],
        writer: CacheWriter | None,
    ) -> None:
        self._session = session
        self._first_step = first_step
        self._made_in: dict[tuple[int, Encoder, int], int] = {}
        self._items: dict[int, tuple[int, ...]] = {}
        self._cached: set[str] = set()
        self.encoders = encoders
        self.handoffs = Handoffs(session.world, session.recorder, encoders.result_shape)
        self.frames = frames
        self.writer = writer

    def request(self, step: int, cluster: Cluster) -> PlanRequest:
        """What the plan of a step depends on: also what the cache lacks, as rank 0 sees it now.

        With filling, the step before encodes a step's clips; only the first step has none before.
        """
        session = self._session
        request = session.plan_request(step, cluster)
        is_filling = session.config.planner.fill
        if not is_filling or step == self._first_step:
            request = replace(request, batch=self._with_missing(step))
        if is_filling and step + 1 < session.config.run.steps:
            request = replace(request, next_batch=self._with_missing(step + 1))
        return request

    def expect(self, plan: PlacedPlan) -> None:
        """Learn what a plan makes, and start decoding what this rank will encode."""
        for launch in plan.launches:
            cascade = launch.cascade
            if cascade.module == "dit":
                continue
            step = plan.step + cascade.steps_ahead
            for slot in cascade.slots:
                self._made_in[step, cascade.module, slot] = plan.step
                if cascade.module == "vae" and self._session.world.rank in launch.ranks:
                    self.frames.prefetch([self.item(step, slot)])

    def made_in(self, step: int, slot: int) -> dict[Encoder, int]:
        """Which of a clip's arrays are made, and in which step; the others are cached."""
        return {
            module: self._made_in[step, module, slot]
            for module in ENCODERS
            if (step, module, slot) in self._made_in
        }

    def item(self, step: int, slot: int) -> int:
        """The item of the dataset that fills a slot."""
        if step not in self._items:
            self._items[step] = self._session.step_batch(step).items
        return self._items[step][slot]

    def row(self, step: int, slot: int) -> LedgerRow:
        """The clip in a slot."""
        return self._session.prepared.train.row(self.item(step, slot))

    def of_step(self, plan: PlacedPlan, next_plan: PlacedPlan | None) -> "OnlineStep":
        """One step; `next_plan` says where clips train that are encoded ahead."""
        return OnlineStep(
            steps=self, plan=plan, next_plan=next_plan, recorder=self._session.recorder
        )

    def group(self, ranks: tuple[int, ...]) -> RankGroup:
        """The group of a launch's ranks."""
        return self._session.groups.of(ranks)

    @property
    def device(self) -> torch.device:
        """Where the messages of groups travel."""
        return self._session.world.device

    def tell_full(self, module: Encoder, step: int, slot: int) -> None:
        """Let rank 0 know that this rank had no memory to encode a clip, or its caption."""
        world, row = self._session.world, self.row(step, slot)
        what = "clip" if module == "vae" else "the caption of clip"
        line = (
            f"rank {world.rank} ran out of memory while it encoded {what} {row.clip.name!r} "
            f"({_bucket_of(row)}); the clip is left out of the step: {self._room(module)}"
        )
        world.store.set(_full_key(step, slot), line)

    @contextmanager
    def told_if_full(self, step: int, module: Encoder) -> Iterator[None]:
        """The rest of an encoder's cascade, which its rank cannot leave out.

        Raises:
            RankMemoryError: It has no memory for it, here or elsewhere.
        """
        what = "clips" if module == "vae" else "captions"
        when = f"{step_text(step)}, encoding {what}"
        with told_if_full(self._session.world, when, self._room(module)):
            yield

    @contextmanager
    def told_if_handoff_is_full(self, step: int) -> Iterator[None]:
        """The same of handing over what was encoded."""
        when = f"{step_text(step)}, handing over what was encoded"
        with told_if_full(self._session.world, when, room_to_hand_over(self._session.config)):
            yield

    def _room(self, module: Encoder) -> str:
        session = self._session
        return room_to_encode(session.config, module, on_gpus=is_on_gpus(session.world))

    def say_full(self, step: int, num_slots: int) -> None:
        """Say which clips of a step some rank had no memory to encode; on rank 0."""
        world = self._session.world
        keys = [_full_key(step, slot) for slot in range(num_slots if world.rank == 0 else 0)]
        for key in keys:
            if world.store.check([key]):
                self._session.say(f"{step_text(step)}: {world.store.get(key).decode()}")

    def forget(self, step: int) -> None:
        """A step is over."""
        self._made_in = {key: made for key, made in self._made_in.items() if key[0] > step}
        self._items.pop(step, None)

    def check(self) -> None:
        """Learn whether the cache could be written.

        Raises:
            DataError: The disk is full, or the folder cannot be written.
        """
        if self.writer is not None:
            self.writer.check()

    def drop(self) -> None:
        """Forget what was made for steps that will not run; all ranks call it after a step."""
        self.handoffs.drop()

    def _with_missing(self, step: int) -> Batch:
        batch = self._session.step_batch(step).batch
        rows = [self.row(step, slot) for slot in range(len(batch.clips))]
        return self.encoders.with_missing(batch, rows, self._has)

    def _has(self, key: str) -> bool:
        """Whether the cache has an array; what was there once is not looked for again."""
        if key not in self._cached and self.encoders.workshop.store.cache.has(key):
            self._cached.add(key)
        return key in self._cached


@dataclass(kw_only=True)
class OnlineStep:
    """One step on one rank; its methods are called in the order in which they stand here.

    Attributes:
        steps: All steps of the rank.
        plan: The step's plan.
        next_plan: The next step's, if clips are encoded ahead for it.
        recorder: Records what the rank does.
    """

    steps: OnlineSteps
    plan: PlacedPlan
    next_plan: PlacedPlan | None
    recorder: Recorder
    _frames: dict[int, Pixels] = field(default_factory=dict[int, Pixels])
    _parts: dict[int, dict[Encoder, Array]] = field(default_factory=dict[int, dict[Encoder, Array]])
    _is_kept: tuple[bool, ...] = ()

    def is_cached(self, slot: int) -> bool:
        """Whether all of a clip's arrays are in the cache."""
        return not self.steps.made_in(self.plan.step, slot)

    def load(self, slot: int) -> ClipArrays | None:
        """A clip's arrays, of which the step before made some; None if this step still has to.

        Raises:
            DataError: They could not be made, or not be read.
        """
        made_in = self.steps.made_in(self.plan.step, slot)
        parts = self._parts[slot] = {}
        for module in ENCODERS:
            if module not in made_in:
                parts[module] = self._cached(module, slot)
            elif made_in[module] < self.plan.step:
                parts[module] = self._taken(module, slot)
                if not np.isfinite(parts[module]).all():
                    raise DataError(f"slot {slot} of step {self.plan.step}: it was not encoded")
        return self._whole(slot)

    def decode(self) -> list[int]:
        """Take the frames of the step's own clips that this rank encodes; those that have none."""
        undecoded: list[int] = []
        for _, launch in self.plan.on_rank(self.recorder.rank):
            if launch.cascade.module == "vae" and not launch.cascade.steps_ahead:
                for slot in launch.cascade.slots:
                    try:
                        item = self.steps.item(self.plan.step, slot)
                        self._frames[slot] = self.steps.frames.take(item)
                    except DataError:
                        undecoded.append(slot)
        return undecoded

    def begin(self, is_kept: tuple[bool, ...]) -> None:
        """The vote is over; all ranks call it."""
        self._is_kept = is_kept
        routes = routes_of(self.plan, self.next_plan)
        with self.steps.told_if_handoff_is_full(self.plan.step):
            self.steps.handoffs.begin(
                [route for route in routes if route.step != self.plan.step or is_kept[route.slot]]
            )

    def encode(self, index: int, launch: PlacedLaunch) -> None:
        """Run an encoder's launch, and send what it makes to those that train on it."""
        module, steps_ahead = launch.cascade.module, launch.cascade.steps_ahead
        assert module != "dit", index
        step = self.plan.step + steps_ahead
        for slot in launch.cascade.slots:
            if steps_ahead or self._is_kept[slot]:
                with self.steps.told_if_full(self.plan.step, module):
                    result = self._made(module, step, slot, launch.ranks)
                with self.steps.told_if_handoff_is_full(self.plan.step):
                    self.steps.handoffs.give(step, module, slot, torch.from_numpy(result))
        with self.steps.told_if_full(self.plan.step, module):
            self.steps.encoders.rest(module)

    def arrays(self, slot: int) -> ClipArrays:
        """A clip's arrays, where it trains; waits until they have arrived."""
        for module, step in self.steps.made_in(self.plan.step, slot).items():
            if step == self.plan.step:
                self._parts[slot][module] = self._taken(module, slot)
        whole = self._whole(slot)
        assert whole is not None, slot
        return whole

    def end(self) -> None:
        """This rank's last launch is over."""
        self.steps.handoffs.end(self.plan.step)
        self.steps.forget(self.plan.step)

    def _made(self, module: Encoder, step: int, slot: int, ranks: tuple[int, ...]) -> Array:
        """Encode a clip, together with the other ranks of the launch; NaN if that cannot be done.

        A rank without the memory for it makes NaN too, so that nobody waits for it.
        """
        encoders, row = self.steps.encoders, self.steps.row(step, slot)

        def none() -> Array:
            return np.full(encoders.result_shape(module, _bucket_of(row)), np.nan, np.float32)

        if module == "text":
            result = self._in_memory(module, step, slot, lambda: encoders.states(row), none)
        else:
            frames = self._frames_of(step, slot)
            if len(ranks) > 1:
                result = self._made_together(step, slot, frames, ranks)
            elif frames is None:
                result = none()
            else:
                result = self._in_memory(
                    module, step, slot, lambda: encoders.latents(row, frames), none
                )
        is_first = self.recorder.rank == min(ranks)
        if self.steps.writer is not None and is_first and np.isfinite(result).all():
            self.steps.writer.put(encoders.key(module, row), result)
        return result

    def _made_together(
        self, step: int, slot: int, frames: Pixels | None, ranks: tuple[int, ...]
    ) -> Array:
        """A clip's latents, of which each rank of the launch encodes some tiles."""
        encoders, row = self.steps.encoders, self.steps.row(step, slot)
        shapes = encoders.tile_shapes(row)

        def tile(index: int) -> torch.Tensor:
            made = self._in_memory(
                "vae",
                step,
                slot,
                lambda: encoders.tile(row, frames, index),
                lambda: np.full(shapes[index], np.nan, np.float32),
            )
            return torch.from_numpy(made)

        tiles = all_tiles(self.steps.group(ranks), shapes, tile, self.steps.device)
        return encoders.joined(row, frames, [each.cpu().numpy() for each in tiles])

    def _in_memory(
        self,
        module: Encoder,
        step: int,
        slot: int,
        make: Callable[[], Array],
        otherwise: Callable[[], Array],
    ) -> Array:
        """What `make` gives; without memory for it that is told, and `otherwise` stands in."""
        try:
            return make()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Out here the error is gone, with all that it held.
        self.steps.tell_full(module, step, slot)
        return otherwise()

    def _frames_of(self, step: int, slot: int) -> Pixels | None:
        """A clip's frames; None if it cannot be decoded."""
        if step == self.plan.step:
            return self._frames.pop(slot)
        with self.recorder.doing("load"):
            try:
                return self.steps.frames.take(self.steps.item(step, slot))
            except DataError:
                return None

    def _cached(self, module: Encoder, slot: int) -> Array:
        row = self.steps.row(self.plan.step, slot)
        encoders = self.steps.encoders
        return encoders.workshop.store.cache.get(encoders.key(module, row))

    def _taken(self, module: Encoder, slot: int) -> Array:
        return self.steps.handoffs.take(self.plan.step, module, slot).numpy()

    def _whole(self, slot: int) -> ClipArrays | None:
        parts = self._parts[slot]
        if len(parts) < len(ENCODERS):
            return None
        packing = packing_of(self.steps.encoders.model)
        return arrays_of(parts["vae"], parts["text"], packing)
