"""What the executor refuses; that it runs plans is shown by the laws."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from arachne.core.errors import ConfigError
from arachne.runtime.executor import run_launches
from tests.core.plans import launch, plan_of


def test_a_plan_with_barriers_is_refused_before_anything_runs():
    plan = plan_of(
        launch(0, ranks=(0,), start_s=0.0), launch(1, 2, ranks=(0,), start_s=1.0, phase=1)
    )
    work = Mock()

    with pytest.raises(ConfigError, match=r"by 'test' has barriers \(phases 0 to 1\)"):
        run_launches(plan, rank=0, groups=Mock(), recorder=Mock(), work=work)
    work.assert_not_called()


def test_a_launch_of_an_encoder_is_refused_without_encoders_before_anything_runs():
    trained = launch(0, ranks=(0,), start_s=0.0)
    encoded = replace(trained, cascade=replace(trained.cascade, module="vae"))
    work = Mock()

    with pytest.raises(ConfigError, match="launch 1 of the plan of step 7 is 'vae'; without"):
        run_launches(plan_of(trained, encoded), rank=0, groups=Mock(), recorder=Mock(), work=work)
    work.assert_not_called()


def test_captions_that_several_ranks_encode_are_refused_before_anything_runs():
    trained = launch(0, ranks=(0,), start_s=0.0)
    shared = replace(trained, ranks=(0, 1), cascade=replace(trained.cascade, module="text"))
    work = Mock()

    with pytest.raises(ConfigError, match="0 of the plan of step 7 is 'text' on 2 ranks; captions"):
        run_launches(
            plan_of(shared, trained),
            rank=0,
            groups=Mock(),
            recorder=Mock(),
            work=work,
            encode=lambda index, launch: None,
        )
    work.assert_not_called()
