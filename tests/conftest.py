"""Settings of all tests."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")

# Ranks are forked from the test process; the first example pays for imports.
settings.register_profile("arachne", deadline=None)
settings.load_profile("arachne")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, help="random cases of slow tests")


@pytest.fixture
def num_cases(request: pytest.FixtureRequest) -> int:
    """How many random cases a slow test tries."""
    return request.config.getoption("--cases") or 200


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """A process that used OpenMP threads must not fork."""
    import torch

    torch.set_num_threads(1)
