"""The model's shape from a run file alone, for planning on a machine without torch."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape, pooled_rows
from arachne.models.autoencoder_classes import AUTOENCODERS
from arachne.models.codec import DctCodec
from arachne.models.config_sizes import config_size
from arachne.models.families import TRANSFORMERS, transformer_named
from arachne.models.hashed_text import HASHED_TEXT_SIZE
from arachne.models.image_tokens import num_image_tokens
from arachne.models.llava_sizes import (
    EVERY_IF_KEPT,
    EVERY_IF_SHOWN,
    LLAVA,
    llava_rows,
    llava_text_size,
)
from arachne.models.lora_names import PUBLISHED
from arachne.models.published_file import is_published_file, published_shape
from arachne.models.tensor_headers import sides_of, tensor_headers
from arachne.trainer.settings.model import ModelSettings

_MAY_LACK = ("image_dim", "use_learned_positional_embeddings")
"""Options of a transformer that are null, or not there, where there is no such part."""

_WORDS = ("task_type", "image_condition_type")
"""Options of a transformer that are no numbers."""


def planning_shape(settings: ModelSettings) -> ModelShape:
    """The shape that training will build, read from configuration files where they are named.

    A preset stands for folders that are not here.

    Raises:
        ConfigError: A size is missing, or a named folder has no configuration.
    """
    published = family_named(settings.family).presets.get(settings.preset)
    if settings.pretrained and (published is None or Path(settings.pretrained).exists()):
        return as_run(settings, _pretrained_shape(settings))
    # Nothing could train some families with the encoders that need no weights.
    is_unfit = settings.video_encoder == "dct" and not _fits_dct(settings.family)
    if published and (is_unfit or not _is_here(settings.video_encoder, "dct")):
        latent_channels = published.latent_channels
    else:
        latent_channels = _latent_channels(settings.video_encoder)
    if published and (is_unfit or not _is_here(settings.text_encoder, "hashed")):
        text_size = published.text_size
    else:
        text_size = _text_size(settings.text_encoder)
    image_size, image_tokens = _image_sizes(settings.image_encoder)
    shape = settings.shape(
        latent_channels=latent_channels,
        text_size=text_size,
        image_size=image_size,
        image_tokens=image_tokens,
    )
    return as_run(settings, shape)


def as_run(settings: ModelSettings, found: ModelShape) -> ModelShape:
    """A model's shape as a run has it: any weights may keep the first frame, text may show it."""
    is_always = family_named(settings.family).keeps_first_frame == "always"
    keeps = settings.image_to_video if is_always else found.keeps_first_frame
    return replace(found, keeps_first_frame=keeps, text_tokens=run_text_tokens(settings, keeps))


def run_text_tokens(settings: ModelSettings, keeps: bool) -> int:
    """Text tokens of a clip: of its caption, and what LLaVA makes of its first frame.

    Raises:
        ConfigError: The text encoder's configuration cannot be read.
    """
    options = _picture_reader(settings)
    if options is None:
        return settings.num_text_tokens
    return llava_rows(options, settings.num_text_tokens, picture_every(settings, keeps))


def run_text_rows(settings: ModelSettings, text_size: int) -> int:
    """Rows, `text_size` wide, of the array of a caption: its pooled state, and its tokens' states.

    Raises:
        ConfigError: As `planning_shape`.
    """
    return pooled_rows(pooled_text_size(settings), text_size) + run_text_tokens(
        settings, keeps_first_frame(settings)
    )


def pooled_text_size(settings: ModelSettings) -> int:
    """Width of the state of a whole caption that the run's model takes; 0 without one.

    Raises:
        ConfigError: As `planning_shape`.
    """
    if not transformer_named(settings.family).pools_text:
        return 0
    return planning_shape(settings).pooled_text_size


def reads_pictures(settings: ModelSettings) -> bool:
    """Whether the run's text encoder looks at each clip's first frame.

    Raises:
        ConfigError: Its configuration cannot be read.
    """
    return _picture_reader(settings) is not None


def _picture_reader(settings: ModelSettings) -> Mapping[str, Any] | None:
    """The config.json of the text encoder, if it is a LLaVA that sees pictures.

    A folder that is not here is taken for the published one, whose sizes an empty one means.
    """
    is_shown = picture_every(settings, keeps=False) > 0
    if not is_shown or settings.text_encoder == "hashed":
        return None
    if not Path(settings.text_encoder).exists():
        return {}
    options = _options("model.text_encoder", settings.text_encoder, "text_encoder")
    return options if options.get("model_type") == LLAVA else None


def picture_every(settings: ModelSettings, keeps: bool) -> int:
    """Of the states of a first frame that LLaVA sees, every so many-th is text; 0 if it sees none.

    `keeps` says whether the model keeps that frame.
    """
    if not settings.image_to_video or settings.family not in TRANSFORMERS:
        return 0
    if TRANSFORMERS[settings.family].picture_prompt is None:
        return 0
    return EVERY_IF_KEPT if keeps else EVERY_IF_SHOWN


def keeps_first_frame(settings: ModelSettings) -> bool:
    """Whether a run's image to video keeps the first latent frame of each clip.

    Raises:
        ConfigError: As `planning_shape`.
    """
    if family_named(settings.family).keeps_first_frame != "some":
        return settings.always_keeps_first_frame
    return bool(settings.pretrained) and planning_shape(settings).keeps_first_frame


def only_bucket(settings: ModelSettings) -> Bucket | None:
    """The one shape of clips that a run's weights take; None if they take any.

    Raises:
        ConfigError: As `planning_shape`.
    """
    return planning_shape(settings).only_bucket if settings.pretrained else None


def check_first_frame(settings: ModelSettings, found: ModelShape) -> None:
    """Refuse pretrained weights that do not look at a first frame where the run does, or do.

    Raises:
        ConfigError: Names the setting.
    """
    if family_named(settings.family).keeps_first_frame == "always":
        return  # any weights can
    sees_frame = found.sees_first_frame
    if sees_frame != settings.image_to_video:
        raise ConfigError(
            f"model.pretrained {settings.pretrained!r} is "
            f"a model of {'image' if sees_frame else 'text'} to video; set "
            f"model.image_to_video = {'true' if sees_frame else 'false'}, or name another model"
        )
    if bool(found.image_size) != bool(settings.image_encoder):
        does = "attends to the states of an image encoder" if found.image_size else "looks at none"
        raise ConfigError(
            f"model.pretrained {settings.pretrained!r} {does}; "
            + ("name its folder as" if found.image_size else "leave out")
            + " model.image_encoder"
        )


def _pretrained_shape(settings: ModelSettings) -> ModelShape:
    if settings.family not in TRANSFORMERS:
        raise ConfigError(
            f"model.pretrained of family {settings.family!r} cannot be read yet; name a "
            f"model.preset: {', '.join(family_named(settings.family).presets)}"
        )
    if is_published_file(settings.pretrained) and settings.family not in PUBLISHED:
        return _preset_shape(settings)
    if is_published_file(settings.pretrained):
        shape = published_shape(
            Path(settings.pretrained),
            family=settings.family,
            text_tokens=settings.num_text_tokens,
            head_size=settings.head_size,
        )
        check_first_frame(settings, shape)
        return shape
    options = _options("model.pretrained", settings.pretrained, "transformer")
    class_name, needed = options.get("_class_name"), TRANSFORMERS[settings.family].class_name
    if class_name != needed:
        raise ConfigError(
            f"model.pretrained {settings.pretrained!r} holds a {class_name}; family "
            f"{settings.family!r} needs a {needed}"
        )
    found = TRANSFORMERS[settings.family].sizes(
        lambda name: _number(options, name, settings.pretrained)
    )
    shape = ModelShape(
        family=settings.family,
        text_tokens=settings.num_text_tokens,
        **found,
    )
    check_first_frame(settings, shape)
    return shape


def _preset_shape(settings: ModelSettings) -> ModelShape:
    """Of a file whose sizes do not show in its tensors, but for the channels of its input.

    Where a model that keeps the first frame has the tensors of text to video, the run says which of
    both it is.
    """
    family = family_named(settings.family)
    presets = family.presets
    if settings.preset not in presets:
        raise ConfigError(
            f"model.pretrained {settings.pretrained!r} is one file, which does not tell its sizes; "
            f"name its model.preset: {', '.join(presets)}"
        )
    shape = replace(presets[settings.preset], text_tokens=settings.num_text_tokens)
    name, channels_of = TRANSFORMERS[settings.family].authors_input, family.condition_channels
    if not name or channels_of is None:
        return shape
    file = Path(settings.pretrained)
    channels = sides_of(tensor_headers(file), name, 5, file=file)[1]
    known = shape.latent_channels, shape.latent_channels + channels_of(shape.latent_channels)
    if channels not in known:
        raise ConfigError(
            f"model.pretrained {settings.pretrained!r} takes {channels} channels, and "
            f"model.preset {settings.preset!r} {known[0]}, or {known[1]} with a first frame; name "
            "the preset of the model in the file"
        )
    shape = replace(
        shape,
        condition_channels=channels - shape.latent_channels,
        keeps_first_frame=settings.image_to_video and channels == shape.latent_channels,
    )
    check_first_frame(settings, shape)
    return shape


def _fits_dct(family: str) -> bool:
    geometry, codec = family_named(family).geometry, DctCodec()
    return (geometry.temporal_compression, geometry.spatial_compression) == (
        codec.temporal_compression,
        codec.spatial_compression,
    )


def _is_here(name_or_folder: str, built_in: str) -> bool:
    return name_or_folder == built_in or Path(name_or_folder).exists()


def _latent_channels(name_or_folder: str) -> int:
    if name_or_folder == "dct":
        return DctCodec().latent_channels
    options = _options("model.video_encoder", name_or_folder, "vae")
    kind = AUTOENCODERS.get(options.get("_class_name", ""), AUTOENCODERS["AutoencoderKLWan"])
    return _size(kind.whole(options), kind.channels, name_or_folder)


def _text_size(name_or_folder: str) -> int:
    if name_or_folder == "hashed":
        return HASHED_TEXT_SIZE
    options = _options("model.text_encoder", name_or_folder, "text_encoder")
    if options.get("model_type") == LLAVA:
        return llava_text_size(options)
    options = options.get("text_config") or options  # of models that also read pictures
    return _size(options, "hidden_size" if "hidden_size" in options else "d_model", name_or_folder)


def _image_sizes(folder: str) -> tuple[int, int]:
    """Width and number of an image encoder's states; zeros without one."""
    if not folder:
        return 0, 0
    options = _options("model.image_encoder", folder, "image_encoder")
    num_tokens = num_image_tokens(options, f"the config.json of {folder!r}")
    return _size(options, "hidden_size", folder), num_tokens


def _options(setting: str, folder: str, part: str) -> dict[str, Any]:
    for path in (Path(folder) / part / "config.json", Path(folder) / "config.json"):
        if path.is_file():
            try:
                options = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
            if isinstance(options, dict):
                return options
    raise ConfigError(
        f"{setting} {folder!r} has no config.json, nor has {part}/ in it; name a folder in "
        "diffusers' layout"
    )


def _number(options: dict[str, Any], key: str, folder: str) -> int | float | str:
    if key in _WORDS:
        return str(options.get(key))
    value = options.get(key, 0 if key in _MAY_LACK else None)
    if value is None and key in _MAY_LACK:
        return 0
    if not isinstance(value, (int, float)):
        raise ConfigError(
            f"the config.json of {folder!r} has {key} = {value!r}; it must be a number"
        )
    return value


def _size(options: Mapping[str, Any], key: str, folder: str) -> int:
    return config_size(options.get(key), key, what=f"the config.json of {folder!r}")
