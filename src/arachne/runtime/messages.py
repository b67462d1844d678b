"""Short texts from rank to rank, between launches."""

import torch

from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup

_LENGTH_BYTES = 8

HEAD_BYTES = 2**16
"""A plan takes some 250 bytes for each launch; so much more or less takes no broadcast longer."""


def gathered_texts(text: str, group: RankGroup, device: torch.device) -> list[str]:
    """Everybody's text, in member order, on every member; all of them call it together."""
    content = text.encode()
    longest = torch.tensor([len(content)], dtype=torch.int64, device=device)
    collectives.all_reduce_max(longest, group)
    size = int(longest) + _LENGTH_BYTES
    framed = len(content).to_bytes(_LENGTH_BYTES, "big") + content.ljust(int(longest), b"\0")
    mine = torch.frombuffer(bytearray(framed), dtype=torch.uint8).to(device)
    gathered = torch.empty(size * group.size, dtype=torch.uint8, device=device)
    collectives.all_gather(gathered, mine, group)
    return [_text_in(piece.cpu().numpy().tobytes()) for piece in gathered.split(size)]


def text_of_first(text: str, group: RankGroup, device: torch.device) -> str:
    """The text of the group's first member, on every member; the others' texts are not sent.

    One broadcast brings its length and as much of it as `HEAD_BYTES` hold: all of most plans.
    """
    content = text.encode() if group.index == 0 else b""
    framed = len(content).to_bytes(_LENGTH_BYTES, "big") + content[:HEAD_BYTES]
    head = _broadcast(framed.ljust(_LENGTH_BYTES + HEAD_BYTES, b"\0"), group, device)
    length = int.from_bytes(head[:_LENGTH_BYTES], "big")
    if length <= HEAD_BYTES:
        return _text_in(head)
    tail = content[HEAD_BYTES:].ljust(length - HEAD_BYTES, b"\0")
    return (head[_LENGTH_BYTES:] + _broadcast(tail, group, device)).decode()


def _broadcast(content: bytes, group: RankGroup, device: torch.device) -> bytes:
    """The first member's bytes, of which all members give as many."""
    sent = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    collectives.broadcast(sent, group)
    return sent.cpu().numpy().tobytes()


def _text_in(framed: bytes) -> str:
    length = int.from_bytes(framed[:_LENGTH_BYTES], "big")
    return framed[_LENGTH_BYTES : _LENGTH_BYTES + length].decode()
