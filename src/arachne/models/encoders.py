"""Encoders by the names that a run file gives them."""

from pathlib import Path
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.models.codec import DctCodec
from arachne.models.families import transformer_named
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.gemma_text import is_gemma, open_gemma
from arachne.models.hashed_text import HASHED_TEXT_SIZE, HashedTextEncoder
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.models.llava_text import LlavaTextEncoder, is_llava, open_llava
from arachne.models.pooled_text import PooledPictureReader, PooledTextEncoder, open_pooler
from arachne.models.pretrained_image import open_image_encoder
from arachne.models.pretrained_text import open_text_encoder
from arachne.models.pretrained_vae import open_video_encoder
from arachne.models.repeated_frame import RepeatedFrameEncoder


def video_encoder_named(
    name_or_folder: str,
    *,
    family: str = "wan",
    device: str = "cpu",
    latents: Literal["mode", "sample"] = "mode",
    is_tiled: bool = False,
) -> VideoEncoder:
    """`dct`, or the autoencoder in a folder; its compression must be the family's.

    `latents` and `is_tiled` are for autoencoders; see `PretrainedVideoEncoder`.

    Raises:
        ConfigError: The folder holds no autoencoder that is known, or one of another compression.
    """
    encoder = (
        DctCodec()
        if name_or_folder == "dct"
        else open_video_encoder(
            Path(name_or_folder), device=device, latents=latents, is_tiled=is_tiled
        )
    )
    geometry = family_named(family).geometry
    found = (encoder.temporal_compression, encoder.spatial_compression)
    needed = (geometry.temporal_compression, geometry.spatial_compression)
    if found != needed:
        raise ConfigError(
            f"model.video_encoder {name_or_folder!r} compresses {found[0]} frames x {found[1]} "
            f"pixels, but family {family!r} needs {needed[0]} x {needed[1]}; name another encoder"
        )
    if geometry.patch[0] == 1:
        return encoder
    return RepeatedFrameEncoder(encoder=encoder, num_repeats=geometry.patch[0] - 1)


def text_encoder_named(
    name_or_folder: str,
    num_tokens: int,
    *,
    family: str = "wan",
    hashed_size: int = HASHED_TEXT_SIZE,
    pooled_size: int = 0,
    picture_every: int = 0,
    device: str = "cpu",
) -> TextEncoder:
    """`hashed`, with states `hashed_size` wide, or the encoder in a folder, run as the family does.

    With `pooled_size` above 0 its arrays begin with a pooled state so wide, of the mean of hashed
    states, or of the folder's second encoder. With `picture_every` above 0 a folder may hold LLaVA,
    of whose states of a picture every so many-th is taken.

    Raises:
        ConfigError: The folder holds no encoder that is known, or transformers is not installed.
    """
    if pooled_size:
        tokens = text_encoder_named(
            name_or_folder,
            num_tokens,
            family=family,
            hashed_size=hashed_size,
            picture_every=picture_every,
            device=device,
        )
        if name_or_folder == "hashed":
            return PooledTextEncoder(encoder=tokens, pooled_size=pooled_size)
        pooler = open_pooler(Path(name_or_folder), pooled_size=pooled_size, device=device)
        if isinstance(tokens, LlavaTextEncoder):
            return PooledPictureReader(encoder=tokens, pooler=pooler)
        return PooledTextEncoder(encoder=tokens, pooled_size=pooled_size, pooler=pooler)
    if name_or_folder == "hashed":
        return HashedTextEncoder(num_tokens=num_tokens, text_size=hashed_size)
    if is_gemma(Path(name_or_folder)):
        return open_gemma(Path(name_or_folder), num_tokens=num_tokens, device=device)
    found = transformer_named(family)
    if found.picture_prompt is not None and picture_every and is_llava(Path(name_or_folder)):
        return open_llava(
            Path(name_or_folder),
            num_tokens=num_tokens,
            prompt=found.picture_prompt,
            every=picture_every,
            device=device,
        )
    return open_text_encoder(
        Path(name_or_folder),
        num_tokens=num_tokens,
        padding=found.text_padding,
        prompt=found.text_prompt,
        cleans_captions=found.cleans_captions,
        device=device,
    )


def first_frame_encoder(
    encoder: VideoEncoder, image_encoder: str, *, family: str = "wan", device: str = "cpu"
) -> FirstFrameEncoder:
    """The video encoder of an image-to-video run; `image_encoder` is a folder, or empty.

    Raises:
        ConfigError: The folder holds no image encoder that is known.
    """
    opened = open_image_encoder(Path(image_encoder), device=device) if image_encoder else None
    return FirstFrameEncoder(
        encoder=encoder,
        image_encoder=opened,
        is_before=family_named(family).first_frame_is_before,
    )
