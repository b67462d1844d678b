"""What a checkpoint says of versions and device, and what of it is said when it is other now."""

import os

import torch

from arachne.trainer.environment import changes_text, environment


def test_versions_and_device_are_known_and_no_variable_is():
    found = environment(torch.device("cpu"))
    assert found["torch"] == torch.__version__
    assert set(found) == {"arachne", "python", "torch", "diffusers", "device"}
    assert os.environ["PATH"] not in found.values()


def test_only_what_changed_is_said():
    before = {"torch": "2.12.0", "device": "NVIDIA A100", "python": "3.11.7"}
    now = {"torch": "2.13.0", "device": "NVIDIA H100", "python": "3.11.7", "diffusers": "0.42.0"}
    assert changes_text(before, now) == (
        "torch was 2.12.0, is 2.13.0, device was NVIDIA A100, is NVIDIA H100"
    )
    assert changes_text(now, now) == changes_text({}, now) == ""
