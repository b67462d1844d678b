"""What the ranks of one launch send each other under Ulysses sequence parallelism."""

from dataclasses import dataclass
from math import prod

from arachne.core.cluster import Link
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.cost.collectives import all_gather_s, all_to_all_s, reduce_scatter_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTraffic:
    """The collectives of one launch, forward and backward.

    Attributes:
        num_layers: Layers with self-attention.
        shard_bytes: One rank's part of a hidden state.
        output_bytes: The model's whole output, gathered at the end.
        degree: Ranks of the launch.
    """

    num_layers: int
    shard_bytes: float
    output_bytes: float
    degree: int

    def seconds(self, link: Link) -> float:
        """Time of all collectives, one after the other.

        Each layer sends q, k, v in one all-to-all and the attention's output in another, and
        both again in the backward; the output is gathered once, its gradient scattered once:

            t = layers · 2·(a2a(3·shard) + a2a(shard)) + all_gather(output) + reduce_scatter(output)

        Ignores overlap with computation and the padding of uneven shards.
        """
        if self.degree == 1:
            return 0.0
        layer_s = all_to_all_s(3.0 * self.shard_bytes, self.degree, link)
        layer_s += all_to_all_s(self.shard_bytes, self.degree, link)
        ends_s = all_gather_s(self.output_bytes, self.degree, link)
        ends_s += reduce_scatter_s(self.output_bytes, self.degree, link)
        return 2.0 * self.num_layers * layer_s + ends_s


def launch_traffic(
    shape: ModelShape, num_tokens: int, num_clips: int, degree: int, element_bytes: int
) -> LaunchTraffic:
    """What `degree` ranks send each other to train `num_clips` clips of `num_tokens` tokens."""
    family = family_named(shape.family)
    tokens = num_tokens * num_clips
    output_size = shape.latent_channels * prod(family.geometry.patch)
    return LaunchTraffic(
        num_layers=family.flop_inputs(shape).self_attention_layers,
        shard_bytes=tokens / degree * shape.hidden_size * element_bytes,
        output_bytes=float(tokens * output_size * element_bytes),
        degree=degree,
    )
