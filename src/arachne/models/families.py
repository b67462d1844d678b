"""The families whose transformers can be built; a family is one file and one entry here."""

from arachne.core.errors import ConfigError
from arachne.models.cogvideox import COGVIDEOX
from arachne.models.cogvideox15 import COGVIDEOX15
from arachne.models.cogvideox_2b import COGVIDEOX_2B
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.hunyuan_video import HUNYUAN_VIDEO
from arachne.models.hunyuan_video15 import HUNYUAN_VIDEO15
from arachne.models.ltx import LTX
from arachne.models.ltx2 import LTX2
from arachne.models.mochi import MOCHI
from arachne.models.skyreels_v2 import SKYREELS_V2
from arachne.models.wan import WAN
from arachne.models.wan_5b import WAN_5B

TRANSFORMERS: dict[str, DiffusersFamily] = {
    family.name: family
    for family in (
        WAN,
        WAN_5B,
        SKYREELS_V2,
        HUNYUAN_VIDEO,
        HUNYUAN_VIDEO15,
        LTX,
        LTX2,
        MOCHI,
        COGVIDEOX,
        COGVIDEOX_2B,
        COGVIDEOX15,
    )
}


def transformer_named(name: str) -> DiffusersFamily:
    """Look a family's transformer up.

    Raises:
        ConfigError: It can be planned for at most.
    """
    if name not in TRANSFORMERS:
        raise ConfigError(
            f"the transformer of model.family {name!r} cannot be built yet; families that can: "
            f"{', '.join(TRANSFORMERS)}"
        )
    return TRANSFORMERS[name]
