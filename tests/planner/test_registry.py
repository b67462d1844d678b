import pytest

from arachne.core.errors import ConfigError
from arachne.planner.registry import PEERS, PLANNERS, compared_planner_named, planner_named


def test_planners_are_found_by_name():
    assert planner_named("static_dp") is PLANNERS["static_dp"]


def test_a_mistyped_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'aracne' is not known; did you mean 'arachne'\?"):
        planner_named("aracne")


def test_a_strange_name_gets_all_known_ones():
    with pytest.raises(ConfigError, match=r"not known; known planners: arachne, static_degree_"):
        planner_named("quantum")


def test_a_peer_is_refused_for_runs_with_the_planners_that_runs_may_use():
    with pytest.raises(
        ConfigError, match=r"'flexsp' is a model of another system, for `arachne co"
    ):
        planner_named("flexsp")


def test_comparing_takes_planners_and_peers_but_no_other_name():
    assert compared_planner_named("flexsp") is PEERS["flexsp"]
    assert compared_planner_named("arachne") is PLANNERS["arachne"]
    with pytest.raises(ConfigError, match=r"planner 'flexps' is not known; did you mean 'flexsp'"):
        compared_planner_named("flexps")


def test_no_name_stands_for_both_a_planner_and_a_peer():
    assert not set(PLANNERS) & set(PEERS)
