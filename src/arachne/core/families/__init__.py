"""What each model family looks like to the planner; a family is one file and one entry here."""

from arachne.core.errors import ConfigError
from arachne.core.families.family import Family
from arachne.core.families.wan import WAN

FAMILIES: dict[str, Family] = {WAN.name: WAN}


def family_named(name: str) -> Family:
    """Look a family up.

    Raises:
        ConfigError: No family has this name.
    """
    if name not in FAMILIES:
        raise ConfigError(
            f"model.family {name!r} is not built; known families: {', '.join(FAMILIES)}"
        )
    return FAMILIES[name]
