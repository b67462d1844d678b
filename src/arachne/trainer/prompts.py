"""Which rank draws which sample video."""

from arachne.runtime.world import World
from arachne.trainer.config import RunConfig


def own_prompts(config: RunConfig, world: World) -> dict[int, str]:
    """The prompts that this rank draws for, by their numbers; each is dealt to one rank."""
    settings = config.validation
    if not settings.sample_every:
        return {}
    numbered = enumerate(settings.prompts)
    return {number: text for number, text in numbered if number % world.size == world.rank}
