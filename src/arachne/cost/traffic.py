"""What the ranks of one launch send each other: Ulysses groups, rings of them, and the output."""

from dataclasses import dataclass
from math import ceil

from arachne.core.cluster import Link
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.collectives import all_gather_s, all_to_all_s, reduce_scatter_s, transfer_s
from arachne.cost.model_counts import model_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTraffic:
    """The collectives of one launch, forward and backward.

    Attributes:
        num_layers: Layers with self-attention.
        num_recomputed: Those of them that run forward twice.
        ulysses: Ranks that trade tokens for heads.
        ring: Parts of the sequence, one for each Ulysses group.
        shard_bytes: One rank's part of a hidden state.
        kv_bytes: Keys and values of one part and of the heads of the rank that has most.
        output_bytes: The model's whole output, gathered at the end.
    """

    num_layers: int
    num_recomputed: int
    ulysses: int
    ring: int
    shard_bytes: float
    kv_bytes: float
    output_bytes: float

    @property
    def num_forwards(self) -> int:
        """Forward passes of layers."""
        return self.num_layers + self.num_recomputed

    @property
    def num_results(self) -> int:
        """Attention results that a ring has to put together, forward and backward."""
        return self.num_forwards + self.num_layers

    def seconds(self, link: Link, ulysses_link: Link | None = None) -> float:
        """Time of all exchanges, one after the other.

        With u ranks in a Ulysses group, r parts in a ring and p = u·r ranks, each forward of a
        layer sends q, k, v in one all-to-all and the attention's output in another, and passes
        keys and values r − 1 times; each backward does the same, and sends the gradient of r − 1
        visiting parts to their owners. The output is gathered once, its gradient scattered once:

            forward  = a2a(3·shard, u) + a2a(shard, u) + (r − 1)·send(kv)
            backward = a2a(3·shard, u) + a2a(shard, u) + 2·(r − 1)·send(kv)
            t = (layers + recomputed)·forward + layers·backward
                + all_gather(output, p) + reduce_scatter(output, p)

        What a ring sends travels while attention is computed, so that all or some of it is hidden.
        It is counted whole: a plan must not promise more than it keeps, and the kernels then share
        the device with the transfer. Ignores the padding of uneven shards.

        Args:
            link: Of the whole group.
            ulysses_link: Of its Ulysses groups, where they have a faster one.
        """
        degree = self.ulysses * self.ring
        inside = ulysses_link or link
        trade_s = all_to_all_s(3.0 * self.shard_bytes, self.ulysses, inside)
        trade_s += all_to_all_s(self.shard_bytes, self.ulysses, inside)
        num_sends = (self.ring - 1) * (self.num_forwards + 2 * self.num_layers)
        ends_s = all_gather_s(self.output_bytes, degree, link)
        ends_s += reduce_scatter_s(self.output_bytes, degree, link)
        return self.num_results * trade_s + num_sends * transfer_s(self.kv_bytes, link) + ends_s


def launch_traffic(
    shape: ModelShape,
    num_tokens: int,
    num_clips: int,
    degree: int,
    element_bytes: int,
    mode: LaunchMode = WHOLE,
) -> LaunchTraffic:
    """What `degree` ranks send each other to train `num_clips` clips of `num_tokens` tokens."""
    counts = model_counts(shape)
    ulysses = mode.ulysses(degree)
    most_heads = ceil(shape.num_heads / ulysses)
    part_tokens = (num_tokens + counts.flop_inputs.joint_tokens) * num_clips / mode.ring
    return LaunchTraffic(
        num_layers=counts.flop_inputs.self_attention_layers,
        num_recomputed=mode.recompute_layers,
        ulysses=ulysses,
        ring=mode.ring,
        shard_bytes=part_tokens / ulysses * shape.hidden_size * element_bytes,
        kv_bytes=2.0 * part_tokens * most_heads * counts.head_size * element_bytes,
        output_bytes=float(num_tokens * num_clips * counts.output_size * element_bytes),
    )
