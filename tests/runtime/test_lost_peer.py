"""What torch says of peers that are gone becomes one line; what it says of bugs does not."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

from arachne.core.errors import ConfigError, LostRankError
from arachne.runtime.launcher import run_ranks
from arachne.runtime.lost_peer import lost_peers_named

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer\nmore"


@pytest.mark.parametrize(
    "error", [RuntimeError(GLOO), dist.DistStoreError("wait timeout"), dist.DistNetworkError("x")]
)
def test_a_lost_peer_is_one_line(error):
    first = str(error).splitlines()[0]
    with pytest.raises(LostRankError) as caught, lost_peers_named(3):
        raise error
    assert str(caught.value).startswith(f"rank 3 cannot reach another rank any more ({first}); ")
    assert "\n" not in str(caught.value)


def test_an_error_that_followed_from_it_is_one_too():
    bug = ValueError("no plan")
    bug.__context__ = RuntimeError(GLOO)
    with pytest.raises(LostRankError), lost_peers_named(0):
        raise bug


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), ConfigError("lower it")])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)), lost_peers_named(0):
        raise error


def left_alone(world, path):
    """Rank 1 dies once both have met; what rank 0, which waits for it, then says."""
    try:
        with lost_peers_named(world.rank):
            dist.all_reduce(torch.zeros(1))
            if world.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.zeros(1))
    except LostRankError as error:
        path.write_text(str(error))
        raise


@pytest.mark.distributed
def test_a_rank_that_waits_for_one_that_dies_says_so(tmp_path):
    with pytest.raises(LostRankError, match=r"rank 1 was ended by SIGKILL"):
        run_ranks(2, left_alone, (tmp_path / "said",), timeout_s=20.0)
    assert (tmp_path / "said").read_text().startswith("rank 0 cannot reach another rank any more (")
