"""Encoders that rest on the host: what moves, what stays, and what it changes in a plan."""

from itertools import chain

import numpy as np
import pytest
import torch

from arachne.core.errors import ConfigError
from arachne.cost.cluster_files import load_cluster
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.pretrained_vae import open_video_encoder
from arachne.trainer.planning import run_costs
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.resting_encoder import RestingEncoder, loaded_networks
from tests.models.tiny_autoencoders import save_tiny_autoencoder
from tests.trainer.tiny_runs import changed, tiny_config

CPU = torch.device("cpu")
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_autoencoder("AutoencoderKLWan", tmp_path_factory.mktemp("vae"))


def places(encoder):
    """Where the weights of what an encoder has loaded lie."""
    networks = list(loaded_networks(encoder))
    return [t.data_ptr() for n in networks for t in chain(n.parameters(), n.buffers())]


def test_weights_are_on_the_device_only_while_the_encoder_is_awake(folder):
    encoder = FirstFrameEncoder(encoder=open_video_encoder(folder))
    resting = RestingEncoder(encoder, CPU)
    assert not places(encoder), "an encoder that nobody needed is not loaded"
    resting.wake()
    expected = encoder.encode(FRAMES)
    resting.rest()
    on_host = places(encoder)
    assert on_host
    for _ in range(2):
        resting.wake()
        assert not set(places(encoder)) & set(on_host)
        resting.wake()
        np.testing.assert_array_equal(encoder.encode(FRAMES), expected)
        resting.rest()
        assert places(encoder) == on_host, "the copy on the host stays"


def test_what_was_loaded_before_rests_from_the_start(folder):
    encoder = open_video_encoder(folder)
    encoder.encode(FRAMES)
    resting = RestingEncoder(encoder, CPU)
    on_host = places(encoder)
    resting.wake()
    assert not set(places(encoder)) & set(on_host)


def test_without_the_memory_to_wake_all_stays_on_the_host(folder, monkeypatch):
    encoder = open_video_encoder(folder)
    expected = encoder.encode(FRAMES)
    resting = RestingEncoder(encoder, CPU)
    on_host = places(encoder)
    moved, to = [], torch.Tensor.to

    def full(self, *args, **kwargs):
        moved.append(self)
        if len(moved) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return to(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "to", full)
        with pytest.raises(torch.OutOfMemoryError):
            resting.wake()
    assert places(encoder) == on_host
    resting.wake()
    np.testing.assert_array_equal(encoder.encode(FRAMES), expected)


def test_the_plan_has_their_room_and_pays_for_fetching_them(tmp_path, folder):
    config = changed(tiny_config(tmp_path, tmp_path / "run"), "data", encode="online")
    config = changed(config, "model", video_encoder=str(folder))
    shape, cluster = planning_shape(config.model), load_cluster("h100x1")
    stay = run_costs(config, shape, cluster, on_gpus=False)
    away = run_costs(
        changed(config, "memory", encoders_on_host=True), shape, cluster, on_gpus=False
    )
    assert stay.state.frozen_encoder_bytes > 0.0 == away.state.frozen_encoder_bytes
    assert away.encoders is not None
    assert away.encoders.are_on_host


def test_a_run_that_encodes_before_has_none_to_put_away(tmp_path):
    config = tiny_config(tmp_path, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"encoders_on_host is for .* data.encode is 'before'"):
        changed(config, "memory", encoders_on_host=True)
