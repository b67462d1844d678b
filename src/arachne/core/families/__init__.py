"""What each model family looks like to the planner; a family is one file and one entry here."""

from arachne.core.errors import ConfigError
from arachne.core.families.cogvideox import COGVIDEOX
from arachne.core.families.cogvideox15 import COGVIDEOX15
from arachne.core.families.cogvideox_2b import COGVIDEOX_2B
from arachne.core.families.family import Family
from arachne.core.families.hunyuan_video import HUNYUAN_VIDEO
from arachne.core.families.hunyuan_video15 import HUNYUAN_VIDEO15
from arachne.core.families.ltx import LTX
from arachne.core.families.ltx2 import LTX2
from arachne.core.families.mochi import MOCHI
from arachne.core.families.skyreels_v2 import SKYREELS_V2
from arachne.core.families.wan import WAN
from arachne.core.families.wan_5b import WAN_5B
from arachne.core.known_keys import choice_text

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        WAN,
        WAN_5B,
        COGVIDEOX,
        COGVIDEOX_2B,
        COGVIDEOX15,
        HUNYUAN_VIDEO,
        HUNYUAN_VIDEO15,
        LTX,
        LTX2,
        MOCHI,
        SKYREELS_V2,
    )
}


def family_named(name: str) -> Family:
    """Look a family up.

    Raises:
        ConfigError: No family has this name.
    """
    if name not in FAMILIES:
        raise ConfigError(f"model.family {name!r} is not built; {choice_text(name, FAMILIES)}")
    return FAMILIES[name]
