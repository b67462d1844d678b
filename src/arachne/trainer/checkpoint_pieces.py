"""Whether the pieces that a checkpoint's ledger names can be all of its parameters.

A ledger may carry the right hash and still be wrong: edited by hand, or written by another program.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from arachne.trainer.checkpoint_files import MASTER, ShardFile

_ELEMENT_BYTES = (4, 8)
"""float32 and float64."""


def fault_of_pieces(parameters: Mapping[str, tuple[int, ...]], shards: Sequence[ShardFile]) -> str:
    """What is wrong with the pieces; empty if nothing is.

    Every parameter has its master; of each array every element is there once, all in one type;
    nothing else is there; and each piece has a place of its own in its file.
    """
    spans: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    element_bytes: dict[tuple[str, str], int] = {}
    for name in parameters:
        spans[name, MASTER] = []
    for shard in shards:
        if fault := _fault_of_places(shard):
            return fault
        for place in shard.chunks:
            if place.name not in parameters:
                return f"{shard.name} holds {place.name!r}, which is no parameter of this model"
            array = (place.name, place.kind)
            spans[array].append((place.offset, place.end))
            size = place.extent.num_bytes // place.length
            if element_bytes.setdefault(array, size) != size:
                return f"{place.kind} of {place.name} is of two types in {len(shards)} files"
    for (name, kind), pieces in spans.items():
        size = prod(parameters[name])
        if not _tile(pieces, size):
            return (
                f"{kind} of {name} needs {size} elements, each once; the ranks wrote "
                f"{sorted(pieces)}"
            )
    return ""


def _tile(pieces: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether each of `size` elements is in exactly one piece."""
    covered = 0
    for first, last in sorted(pieces):
        if first != covered:
            return False
        covered = last
    return covered == size


def _fault_of_places(shard: ShardFile) -> str:
    """What is wrong with where the pieces of one file lie."""
    end_byte = 0
    for place in sorted(shard.chunks, key=lambda place: place.extent.start_byte):
        extent = place.extent
        if extent.num_bytes not in [place.length * size for size in _ELEMENT_BYTES]:
            return (
                f"{place.key} of {shard.name} has {extent.num_bytes} bytes for {place.length} "
                "elements; they are float32 or float64"
            )
        if extent.start_byte < end_byte:
            return f"{place.key} of {shard.name} begins at byte {extent.start_byte}, in another one"
        end_byte = extent.start_byte + extent.num_bytes
    if end_byte > shard.num_bytes:
        return f"the pieces of {shard.name} end at byte {end_byte} of {shard.num_bytes}"
    return ""
