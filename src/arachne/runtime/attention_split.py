"""Who holds which tokens and which heads of one self-attention of a launch.

The members of a launch hold its tokens in their order. `ulysses` neighbours form a *part*: inside
it tokens are traded for heads. Members with the same place in their parts form a *ring*: keys and
values travel along it, from part to part.

    degree 6, ulysses 3, ring 2      heads 0   heads 1   heads 2
        part 0 (first half)          member 0  member 1  member 2
        part 1 (second half)         member 3  member 4  member 5
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from arachne.runtime.process_groups import RankGroup


def split_sizes(total: int, num_parts: int) -> tuple[int, ...]:
    """Sizes that differ by at most one, the larger first; zero where there is less than a part."""
    quotient, rest = divmod(total, num_parts)
    return tuple(quotient + (part < rest) for part in range(num_parts))


def striped(num_tokens: int, size: int, ulysses: int) -> tuple[range, ...]:
    """Which tokens each member holds in the striped order, in which causal attention is balanced.

    Of p parts, part i has the tokens i, i + p, i + 2p, …, and its members pieces of them. A token
    sees those up to itself. Where p divides the number S of tokens, the largest part has
    1 + (p − 1) / (S + 1) times the mean number of pairs; were the tokens of a part neighbours, the
    last part would have nearly 2 − 1/p times. Source: Striped Attention (arXiv 2311.09431).
    """
    num_parts = size // ulysses
    members: list[range] = []
    for part in range(num_parts):
        stripe = range(part, num_tokens, num_parts)
        ends = list(accumulate(split_sizes(len(stripe), ulysses)))
        members += [stripe[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    return tuple(members)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSplit:
    """The split of one attention, seen from one member of its group.

    Attributes:
        group: The launch's ranks.
        ulysses: Members of a part; divides the group's size.
        lengths: Tokens of each member outside of attention.
        num_heads: All attention heads.
    """

    group: RankGroup
    ulysses: int
    lengths: tuple[int, ...]
    num_heads: int

    @property
    def num_parts(self) -> int:
        """Parts of the sequence; the length of a ring."""
        return self.group.size // self.ulysses

    @property
    def part(self) -> int:
        """The part that this member belongs to, which is also its place in its ring."""
        return self.group.index // self.ulysses

    @property
    def place(self) -> int:
        """This member's place in its part."""
        return self.group.index % self.ulysses

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each place in a part."""
        return split_sizes(self.num_heads, self.ulysses)

    @property
    def lengths_in_part(self) -> tuple[int, ...]:
        """Tokens of each member of this member's part."""
        first = self.part * self.ulysses
        return self.lengths[first : first + self.ulysses]

    @property
    def part_lengths(self) -> tuple[int, ...]:
        """Tokens of each part."""
        starts = range(0, self.group.size, self.ulysses)
        return tuple(sum(self.lengths[first : first + self.ulysses]) for first in starts)

    def member(self, part: int) -> int:
        """The member of another part that is in the same ring."""
        return part * self.ulysses + self.place

    def over_all_members(self, of_part: Sequence[int]) -> list[int]:
        """Numbers of the members of this member's part, with zeros for all other members."""
        numbers = [0] * self.group.size
        first = self.part * self.ulysses
        numbers[first : first + self.ulysses] = of_part
        return numbers
