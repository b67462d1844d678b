from arachne.core.cascade import Cascade, Module
from arachne.core.launch_inputs import input_launches
from tests.core.plans import IMAGE


def cascade(module: Module, *slots: int, steps_ahead: int = 0) -> Cascade:
    return Cascade(module=module, slots=slots, bucket=IMAGE, num_tokens=24, steps_ahead=steps_ahead)


def test_a_launch_trains_on_what_the_encoders_of_its_clips_make():
    cascades = (
        cascade("vae", 2),
        cascade("text", 0, 1),
        cascade("dit", 0),
        cascade("vae", 0),
        cascade("dit", 1, 2),
        cascade("dit", 3),
    )

    assert input_launches(cascades) == ((), (), (1, 3), (), (0, 1), ())


def test_encoders_of_the_next_step_feed_no_launch_of_this_one():
    assert input_launches((cascade("text", 0, steps_ahead=1), cascade("dit", 0))) == ((), ())
