"""Which launches make what another launch trains on."""

from collections.abc import Sequence

from arachne.core.cascade import Cascade


def input_launches(cascades: Sequence[Cascade]) -> tuple[tuple[int, ...], ...]:
    """For the cascade of each launch, the indices of the encoder launches that it needs, ascending.

    Encoders of the next step's batch feed no launch of this step.
    """
    encoders_of_slot: dict[int, list[int]] = {}
    for index, cascade in enumerate(cascades):
        if cascade.module != "dit" and not cascade.steps_ahead:
            for slot in cascade.slots:
                encoders_of_slot.setdefault(slot, []).append(index)
    return tuple(
        tuple(sorted({i for slot in cascade.slots for i in encoders_of_slot.get(slot, ())}))
        if cascade.module == "dit"
        else ()
        for cascade in cascades
    )
