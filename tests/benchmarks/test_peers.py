"""The race against other libraries: each clip is dealt once; figures are ratios of means."""

import peer_loops
import peers
import pytest
import torch

from arachne.trainer.dataset import ClipArrays
from arachne.trainer.objective import ClipSample


def clips_of(*shapes: int):
    samples = {
        slot: ClipSample(
            arrays=ClipArrays(latents=None, text=None),  # pyright: ignore[reportArgumentType]
            noise=torch.zeros(frames, 2, 2),
            sigma=0.5,
            has_caption=True,
        )
        for slot, frames in enumerate(shapes)
    }
    return peer_loops.StepClips(
        samples=samples,
        num_tokens=[300 * frames for frames in shapes],
        seconds=[float(frames) for frames in shapes],
    )


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("deal", ["dealt_in_order", "dealt_longest_first"])
def test_every_clip_is_dealt_to_one_rank(deal, size):
    clips = clips_of(1, 9, 1, 1, 4, 4, 1, 1)
    of_ranks = [getattr(peer_loops, deal)(clips, rank, size) for rank in range(size)]
    slots = [slot for micros in of_ranks for micro in micros for slot in micro]
    assert sorted(slots) == list(range(8))


def test_packed_clips_go_longest_first_and_short_ones_of_a_shape_together():
    clips = clips_of(1, 9, 1, 1, 4, 4, 1, 1)
    first, second = (peer_loops.dealt_longest_first(clips, rank, 2) for rank in range(2))
    assert first == [[1], [2, 6]]  # 9 + 1 + 1 seconds
    assert second == [[4], [5], [0, 3, 7]]  # 4 + 4 + 1 + 1 + 1, three of 300 tokens in a stack


def test_ratios_are_of_mean_seconds_and_the_best_peer_is_as_used():
    def of_set(**seconds: list[float]):
        return {"seconds": seconds, "losses": {name: [2.0, 1.0] for name in seconds}}

    found = {
        "heterogeneous": of_set(
            arachne=[1.0, 3.0],
            ddp=[4.0, 4.0],
            deepspeed=[3.0, 3.0],
            deepspeed_ulysses=[5.0, 5.0],
            ddp_packed=[1.0, 1.0],
        ),
        "homogeneous": of_set(
            arachne=[2.0, 2.0], ddp=[2.0, 2.0], deepspeed=[1.9, 1.9], deepspeed_ulysses=[9.0, 9.0]
        ),
    }
    found["homogeneous"]["losses"]["ddp"] = [2.0, 1.1]

    result = peers.summary(found)

    assert result["speedup"] == {"ddp": 2.0, "best_peer": 1.5, "homogeneous": 0.95}
    row = result["peers"]["ddp"]["homogeneous"]
    assert (row["steps_per_s"], row["clips_per_s"]) == (0.5, 4.0)
    assert row["loss_error"] == pytest.approx(0.1)


def test_a_race_of_one_set_alone_tells_of_that_set():
    seconds = {"arachne": [2.0], "ddp": [3.0], "deepspeed": [2.5], "deepspeed_ulysses": [4.0]}
    found = {"seconds": seconds, "losses": {name: [1.0] for name in seconds}}
    assert peers.summary({"homogeneous": found})["speedup"] == {"homogeneous": 1.25}
