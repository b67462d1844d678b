"""Short texts from rank to rank, between launches."""

import torch

from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup

_LENGTH_BYTES = 8


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
    """The text of the group's first member, on every member; the others' texts are not sent."""
    content = text.encode() if group.index == 0 else b""
    size = torch.tensor([len(content)], dtype=torch.int64, device=device)
    collectives.broadcast(size, group)
    if not int(size):
        return ""
    sent = torch.empty(int(size), dtype=torch.uint8, device=device)
    if group.index == 0:
        sent.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    collectives.broadcast(sent, group)
    return sent.cpu().numpy().tobytes().decode()


def _text_in(framed: bytes) -> str:
    length = int.from_bytes(framed[:_LENGTH_BYTES], "big")
    return framed[_LENGTH_BYTES : _LENGTH_BYTES + length].decode()
