import pytest

from arachne.core.errors import ConfigError
from arachne.cost.training_state import FULL_TRAINING, TrainingState, num_communicators


def test_full_training_is_the_plain_state():
    assert TrainingState() == FULL_TRAINING
    assert FULL_TRAINING.gradient_bytes(2) == FULL_TRAINING.gradient_bytes(4) == 4
    assert FULL_TRAINING.gradient_bytes(8) == 8
    assert FULL_TRAINING.base_bytes(2) == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_bits": 8}, r"weights of 8 bits cannot be trained; train adapters"),
        ({"parameter_shards": 0}, r"shared out over 0 ranks; 1 is none"),
        ({"swapped_layers": -1}, r"swapped_layers is -1; 0 is none"),
        ({"num_communicators": -1}, r"num_communicators is -1; 0 is none"),
        ({"reserve_share": -0.1}, r"reserve_share is -0.1; 0 is none"),
        ({"frozen_encoder_bytes": -1.0}, r"frozen_encoder_bytes is -1.0; 0 is none"),
        ({"num_adapter_weights": -1}, r"num_adapter_weights is -1; None trains the whole model"),
    ],
)
def test_what_cannot_be_stored_is_refused(settings, message: str):
    with pytest.raises(ConfigError, match=message):
        TrainingState(**settings)


def test_a_rank_belongs_to_one_group_of_each_degree_and_to_the_world():
    assert num_communicators((1, 2, 4, 8), 8) == 3
    assert num_communicators((1, 2, 4), 16) == 3
    assert num_communicators((1,), 1) == 0
    assert num_communicators((1, 2, 3, 4, 6, 8), 8) == 6  # rank 4 is in two blocks of three
