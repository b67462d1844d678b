import pytest

from arachne.core.errors import ConfigError
from arachne.planner.registry import PLANNERS, planner_named


def test_planners_are_found_by_name():
    assert planner_named("static_dp") is PLANNERS["static_dp"]


def test_a_mistyped_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'aracne' is not known; did you mean 'arachne'\?"):
        planner_named("aracne")


def test_a_strange_name_gets_all_known_ones():
    with pytest.raises(ConfigError, match=r"not known; known planners: arachne, static_degree_"):
        planner_named("quantum")
