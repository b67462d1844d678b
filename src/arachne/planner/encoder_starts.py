"""Assignments to start from when there are encoders: what must not be left to loads stands first.

**This step's encoders.** Loads alone do not tell how long such a step is: a GPU that only trains
has nothing to train until others have encoded. So encoders are balanced over all GPUs by
themselves, and all GPUs are through with them at about the same moment. Clips whose encoding takes
longer than that are *late*: they are put where they end within a target, counted from their
encoding. Both are then settled. All other clips fill the GPUs up to the target, and are what a
search may move.

**The next step's encoders** wait for nothing, so loads do tell all. Long ones are settled first,
training is searched around them, and short ones then even out what is left.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from arachne.core.bucket import Bucket
from arachne.planner.assignment import Assignment, TreeCosts
from arachne.planner.block_tree import ROOT, TreeLoads
from arachne.planner.variants import Gpus, Kind

_LONGEST_STACK = 0.1
"""Part of a GPU's load that a stack may last in a start: longer ones balance badly."""

_SPILL = 1.05
"""How far above an even share a GPU's encoders may reach before more GPUs share one."""

_SHORT = 0.1
"""Part of a step that an encoder may last that evens out loads in the end."""

_Chunk = tuple[int, int]
"""A shape, and clips of it that are placed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An assignment to search from.

    Attributes:
        assignment: Clips on blocks.
        floor_s: No search that moves what is not settled comes below.
    """

    assignment: Assignment
    floor_s: float


@dataclass(frozen=True, slots=True, order=True)
class Way:
    """One degree for a chunk: its GPU time, and its seconds, on the fastest block."""

    area_s: float
    degree: int
    seconds: float


class Ways:
    """How the chunks of a problem may run on a tree.

    Attributes:
        costs: What clips cost on the tree.
        nodes: Blocks of each degree.
        encoders: Shapes to be encoded for this step, and for the next.
        trained: Shapes to be trained.
    """

    def __init__(self, costs: TreeCosts) -> None:
        variants = costs.variants
        self.costs = costs
        self.nodes: dict[int, list[int]] = defaultdict(list)
        kinds: dict[int, dict[Kind, Gpus]] = defaultdict(dict)
        for node, gpus in enumerate(costs.tree.gpus[1:], start=1):
            self.nodes[len(gpus)].append(node)
            kinds[len(gpus)].setdefault(variants.kind(gpus), gpus)
        self._blocks = {degree: tuple(of.values()) for degree, of in kinds.items()}
        self.encoders: tuple[list[int], list[int]] = ([], [])
        self.trained: list[int] = []
        for index, shape in enumerate(variants.shapes):
            of_module = self.trained if shape.module == "dit" else self.encoders[shape.steps_ahead]
            of_module.append(index)
        self._known: dict[_Chunk, list[Way]] = {}
        self._encoded: dict[bool, Encoded] = {}

    @property
    def can_run_all(self) -> bool:
        """Whether each shape has a block of some degree."""
        return all(self.of(shape, 1) for shape in range(len(self.costs.variants.shapes)))

    @property
    def can_split_encoders(self) -> bool:
        """Whether some encoder of this step has a choice of degrees."""
        return any(len(self.of(shape, 1)) > 1 for shape in self.encoders[0])

    def of(self, shape: int, num_clips: int) -> list[Way]:
        """Every degree of the tree that runs such a chunk, least GPU time first."""
        known = self._known.get((shape, num_clips))
        if known is None:
            variants = self.costs.variants
            known = self._known[shape, num_clips] = []
            for degree, kinds in self._blocks.items():
                seconds = min([variants.duration_s((shape, num_clips), gpus) for gpus in kinds])
                if seconds < inf:
                    known.append(Way(degree * seconds, degree, seconds))
            known.sort()
        return known

    def encoded(self, *, is_split: bool) -> "Encoded":
        """Where encoders run, for any target."""
        known = self._encoded.get(is_split)
        if known is None:
            known = self._encoded[is_split] = _encoded(self, is_split=is_split)
        return known

    def share_s(self, shapes: Iterable[int]) -> float:
        """Least GPU time of all clips of some shapes, for each GPU of full speed."""
        variants = self.costs.variants
        slots, costs = variants.slots_of_shape, variants.problem.costs
        area_s = sum(self.of(shape, 1)[0].area_s * len(slots[shape]) for shape in shapes)
        return area_s / sum(costs.gpu_speed(gpu) for gpu in range(variants.problem.num_gpus))

    def largest_first(self, shapes: Iterable[int], longest_s: float) -> list[_Chunk]:
        """All clips of some shapes in stacks no longer than `longest_s`, by GPU time."""
        chunks: list[tuple[float, int, int]] = []
        for shape in shapes:
            size = 1
            for more in range(2, self.costs.variants.most_clips(shape) + 1):
                ways = self.of(shape, more)
                if ways and ways[0].seconds <= longest_s:
                    size = more
            num_clips = len(self.costs.variants.slots_of_shape[shape])
            for first in range(0, num_clips, size):
                taken = min(size, num_clips - first)
                chunks.append((-self.of(shape, taken)[0].area_s, shape, taken))
        return [(shape, taken) for _, shape, taken in sorted(chunks)]


def encoders_first(ways: Ways, target_s: float, *, is_split: bool) -> Start:
    """A start for a step that encodes its own clips, aiming at `target_s`.

    `is_split` shares out long encoders, where they may be, until none lasts longer than what each
    GPU has to encode; else each runs at the degree that takes least GPU time.
    """
    making = _Making(ways)
    encoded = ways.encoded(is_split=is_split)
    for chunk, node in encoded.placed:
        making.put(chunk, node)
    making.place_late(encoded, target_s)
    making.made.settle()
    settled_s = making.made.makespan_s
    others = [shape for shape in ways.trained if shape not in encoded.late_s]
    making.fill(others, target_s, longest_s=_LONGEST_STACK * target_s)
    return Start(assignment=making.made, floor_s=settled_s)


def encoders_last(ways: Ways, bound_s: float) -> Start:
    """A start for a step that encodes only the next one's clips, the short ones left out."""
    making = _Making(ways)
    short = short_encoders(ways, bound_s)
    making.fill([e for e in ways.encoders[1] if e not in short], bound_s, longest_s=0.0)
    making.made.settle()
    target_s = bound_s - ways.share_s(short)
    floor_s = max(making.made.makespan_s, target_s)
    making.fill(ways.trained, target_s, longest_s=_LONGEST_STACK * target_s)
    return Start(assignment=making.made, floor_s=floor_s)


def short_encoders(ways: Ways, bound_s: float) -> list[int]:
    """Encoders of the next step that are short beside a step."""
    return [e for e in ways.encoders[1] if ways.of(e, 1)[0].seconds <= _SHORT * bound_s]


def even_out(ways: Ways, assignment: Assignment, bound_s: float) -> None:
    """Add the short encoders where loads are low, and let everything be moved."""
    making = _Making(ways, assignment)
    short = short_encoders(ways, bound_s)
    making.fill(short, bound_s, longest_s=_LONGEST_STACK * ways.share_s(short))
    assignment.release()


@dataclass(frozen=True, slots=True)
class Encoded:
    """Where the encoders of both steps run.

    Attributes:
        placed: Chunks and their blocks.
        late_s: Shapes that take longer to encode than each GPU encodes, the latest first, with the
            seconds that they take.
    """

    placed: list[tuple[_Chunk, int]]
    late_s: dict[int, float]


def _encoded(ways: Ways, *, is_split: bool) -> Encoded:
    own, ahead = ways.encoders
    making = _Making(ways)
    placed_ahead = making.balance(ahead, is_split=is_split)
    placed = making.balance(own, is_split=is_split)
    return Encoded([*placed_ahead, *placed], _late_s(ways, placed))


def _late_s(ways: Ways, placed: Iterable[tuple[_Chunk, int]]) -> dict[int, float]:
    """The late shapes, the latest first, given where their encoders run."""
    variants, share_s = ways.costs.variants, ways.share_s(ways.encoders[0])
    encoded_s: dict[Bucket, float] = defaultdict(float)
    for chunk, node in placed:
        bucket = variants.shapes[chunk[0]].bucket
        seconds = variants.duration_s(chunk, ways.costs.tree.gpus[node])
        encoded_s[bucket] = max(encoded_s[bucket], seconds)
    late = [
        (-encoded_s[bucket], -ways.of(shape, 1)[0].area_s, shape)
        for shape in ways.trained
        if encoded_s[bucket := variants.shapes[shape].bucket] > share_s
    ]
    return {shape: -minus_s for minus_s, _, shape in sorted(late)}


class _Making:
    """An assignment that grows.

    Attributes:
        made: The assignment.
    """

    def __init__(self, ways: Ways, made: Assignment | None = None) -> None:
        self.made = Assignment(ways.costs) if made is None else made
        self._ways = ways
        self._costs = ways.costs

    def balance(self, encoders: Sequence[int], *, is_split: bool) -> list[tuple[_Chunk, int]]:
        """Put one step's encoders where least of it is encoded, the longest first."""
        share_s = self._ways.share_s(encoders)
        loads = TreeLoads(self._costs.tree)
        levels = _Levels(loads, self._ways.nodes)
        placed: list[tuple[_Chunk, int]] = []
        for chunk in self._ways.largest_first(encoders, _LONGEST_STACK * share_s):
            limit_s = _SPILL * share_s
            if not is_split:
                limit_s = max(limit_s, self._ways.of(*chunk)[0].seconds)
            node = self._freest(levels, chunk, limit_s)
            loads.add(node, self.put(chunk, node))
            placed.append((chunk, node))
        return placed

    def place_late(self, encoded: Encoded, target_s: float) -> None:
        """Put the late clips at the degree that takes least GPU time and keeps the target, counted
        from their encoding; at the one that ends first if none does.
        """
        late = TreeLoads(self._costs.tree)
        for shape, encoded_s in encoded.late_s.items():
            for _ in self._costs.variants.slots_of_shape[shape]:
                peaks_s = zip(self.made.loads.peaks_s(), late.peaks_s(), strict=True)
                free_s = [max(load_s, encoded_s + late_s) for load_s, late_s in peaks_s]
                best_s, best = inf, ROOT
                for way in self._ways.of(shape, 1):
                    for node in self._ways.nodes[way.degree]:
                        end_s = free_s[node] + self._added_s((shape, 1), node)
                        if end_s < best_s:
                            best_s, best = end_s, node
                    if best_s <= target_s:
                        break
                late.add(best, self.put((shape, 1), best))

    def fill(self, shapes: Iterable[int], target_s: float, *, longest_s: float) -> None:
        """Put clips where they keep the target, or else end first; the largest first."""
        levels = _Levels(self.made.loads, self._ways.nodes)
        for chunk in self._ways.largest_first(shapes, longest_s):
            self.put(chunk, self._freest(levels, chunk, target_s))

    def _freest(self, levels: "_Levels", chunk: _Chunk, limit_s: float) -> int:
        """A block for the chunk: least GPU time within the limit, or else the earliest end."""
        best_s, best = inf, ROOT
        for way in self._ways.of(*chunk):
            free_s, node = levels.freest(way.degree, lambda n: self._added_s(chunk, n) < inf)
            end_s = free_s + self._added_s(chunk, node)
            if end_s < best_s:
                best_s, best = end_s, node
            if best_s <= limit_s:
                break
        return best

    def _added_s(self, chunk: _Chunk, node: int) -> float:
        """What a chunk adds to the load of a block."""
        shape, num_clips = chunk
        count = self.made.counts[node][shape]
        self._costs.reach(shape, count + num_clips)
        seconds = self._costs.seconds[node][shape]
        return seconds[count + num_clips] - seconds[count]

    def put(self, chunk: _Chunk, node: int) -> float:
        """Put a chunk on a block, and give the load that it adds."""
        added_s = self._added_s(chunk, node)
        self.made.add(*chunk, node)
        return added_s


class _Levels:
    """The blocks of each degree, the least loaded first, while loads grow."""

    def __init__(self, loads: TreeLoads, nodes: dict[int, list[int]]) -> None:
        self._loads = loads
        self._heaps = {degree: [(0.0, node) for node in of] for degree, of in nodes.items()}
        for heap in self._heaps.values():
            heapify(heap)

    def freest(self, degree: int, is_able: Callable[[int], bool]) -> tuple[float, int]:
        """Load of the most loaded GPU of a block, and the block, where that is least among those
        that are able; at least one is.
        """
        heap = self._heaps[degree]
        passed: list[tuple[float, int]] = []
        while True:
            known_s, node = heap[0]
            peak_s = self._peak_s(node)
            if peak_s > known_s:  # more was put there, or on blocks around, since
                heapreplace(heap, (peak_s, node))
            elif not is_able(node):
                passed.append(heappop(heap))
            else:
                break
        for entry in passed:
            heappush(heap, entry)
        return peak_s, node

    def _peak_s(self, node: int) -> float:
        work_s, parents = self._loads.work_s, self._loads.tree.parents
        peak_s = self._loads.below_s[node]
        while node != ROOT:
            peak_s += work_s[node]
            node = parents[node]
        return peak_s
