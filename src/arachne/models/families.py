"""The families whose transformers can be built; a family is one file and one entry here."""

from arachne.core.errors import ConfigError
from arachne.models.cogvideox import COGVIDEOX
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.hunyuan_video import HUNYUAN_VIDEO
from arachne.models.hunyuan_video15 import HUNYUAN_VIDEO15
from arachne.models.ltx import LTX
from arachne.models.mochi import MOCHI
from arachne.models.skyreels_v2 import SKYREELS_V2
from arachne.models.wan import WAN

TRANSFORMERS: dict[str, DiffusersFamily] = {
    family.name: family
    for family in (WAN, SKYREELS_V2, HUNYUAN_VIDEO, HUNYUAN_VIDEO15, LTX, MOCHI, COGVIDEOX)
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
