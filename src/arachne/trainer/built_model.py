"""The model of a run: its weights, and which of its parameters are trained."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from arachne.core.errors import ConfigError
from arachne.models.diffusers_module import (
    VideoTransformer,
    build_transformer,
    load_published_transformer,
    load_single_file_transformer,
    load_transformer,
)
from arachne.models.families import transformer_named
from arachne.models.first_frame import FirstFrameEncoder, Packing
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.models.lora import AdapterOptions, adapter_targets, add_adapters
from arachne.models.lora_files import load_adapters
from arachne.models.lora_names import PUBLISHED
from arachne.models.low_bits import store_in_low_bits
from arachne.models.published_file import is_published_file
from arachne.trainer.checkpoint_files import checkpoints_dir, step_folders
from arachne.trainer.config import RunConfig
from arachne.trainer.planning_shape import as_run, check_first_frame, planning_shape
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.trained_parameters import choose_trained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def training_model(
    config: RunConfig,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    *,
    starts: bool = True,
) -> VideoTransformer:
    """The model on the CPU as a run starts it; `requires_grad` says what is trained.

    With `[lora]` every parameter of the model is frozen, and adapters are drawn from the run's seed
    or read from `lora.init_from`. All ranks build the same, in every world. What is trained is read
    or drawn in float32 or wider; where `model.dtype` rounds it, `unrounded` has it as it was.

    Args:
        config: The run.
        video_encoder: Where latents come from.
        text_encoder: Where text states come from.
        starts: Whether trained parameters have to have their first values. If not, `lora.init_from`
            is not read and nothing is kept unrounded: a checkpoint will overwrite them.

    Raises:
        ConfigError: As `built_model`; or `[lora]`, `model.freeze` or `model.train_only` name what
            the model does not have.
    """
    dtype = DTYPES[config.model.dtype]
    wide = torch.promote_types(dtype, torch.float32) if starts else dtype
    settings = config.model
    if not config.lora.is_on:
        settings = replace(settings, dtype=_NAMES[wide])
    model = built_model(settings, config.run.seed, video_encoder, text_encoder)
    if model.shape.keeps_first_frame:
        config.check_kept_frame()
    if not config.lora.is_on:
        choose_trained(model.module, config.model)
        return _rounded(model, model.module.named_parameters(), dtype)
    names = adapter_targets(model.module, model.layout, config.lora.targets, model.family.frozen)
    options = adapter_options(config)
    if config.memory.base != "model":
        store_in_low_bits(model.module, model.layout, config.memory.base)
    add_adapters(model.module, names, options, seed=config.run.seed, dtype=wide)
    if starts and config.lora.init_from and not _is_behind(config):
        load_adapters(model, config.lora.init_from, options, setting="lora.init_from")
    adapters = ((name, p) for name, p in model.module.named_parameters() if p.requires_grad)
    return _rounded(model, adapters, dtype)


def _is_behind(config: RunConfig) -> bool:
    """Whether the LoRA that a run began with is gone, and a checkpoint has what became of it."""
    has_begun = bool(step_folders(checkpoints_dir(Path(config.run.dir))))
    return has_begun and not Path(config.lora.init_from).exists()


def _rounded(
    model: VideoTransformer, named: Iterable[tuple[str, nn.Parameter]], dtype: torch.dtype
) -> VideoTransformer:
    """With these parameters in `dtype`; of trained ones, what that changes is kept."""
    unrounded: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        values = parameter.data
        rounded = values.to(dtype)
        if parameter.requires_grad and not torch.equal(rounded.to(values.dtype), values):
            unrounded[name] = values
        parameter.data = rounded
    return replace(model, unrounded=unrounded)


def adapter_options(config: RunConfig) -> AdapterOptions:
    """What the adapters of a run have in common."""
    lora = config.lora
    return AdapterOptions(rank=lora.rank, alpha=lora.alpha_or_rank, use_dora=lora.use_dora)


def built_model(
    settings: ModelSettings, seed: int, video_encoder: VideoEncoder, text_encoder: TextEncoder
) -> VideoTransformer:
    """The model on the CPU: random weights of the run's seed, or pretrained ones.

    Raises:
        ConfigError: The weights are none of the family's, or the encoders do not fit them.
    """
    family = transformer_named(settings.family)
    dtype = DTYPES[settings.dtype]
    packing = video_encoder.packing if isinstance(video_encoder, FirstFrameEncoder) else Packing()
    if not settings.pretrained:
        shape = settings.shape(
            latent_channels=video_encoder.latent_channels,
            text_size=text_encoder.text_size,
            image_size=packing.image_size,
            image_tokens=packing.image_tokens,
        )
        return build_transformer(as_run(settings, shape), dtype=dtype, seed=seed)
    refuse_two_experts(settings.pretrained)
    if is_published_file(settings.pretrained) and family.name not in PUBLISHED:
        model = load_single_file_transformer(
            planning_shape(settings), settings.pretrained, dtype=dtype
        )
    elif is_published_file(settings.pretrained):
        model = load_published_transformer(
            family.name,
            settings.pretrained,
            dtype=dtype,
            text_tokens=settings.num_text_tokens,
            head_size=settings.head_size,
        )
    else:
        model = load_transformer(
            family.name, settings.pretrained, dtype=dtype, text_tokens=settings.num_text_tokens
        )
    check_first_frame(settings, model.shape)
    for what, setting, found, needed in (
        (
            "latent channels",
            "video_encoder",
            video_encoder.latent_channels,
            model.shape.latent_channels,
        ),
        ("text width", "text_encoder", text_encoder.text_size, model.shape.text_size),
        ("image width", "image_encoder", packing.image_size, model.shape.image_size),
    ):
        if found != needed:
            raise ConfigError(
                f"model.pretrained {settings.pretrained!r} has {needed} {what}, the encoder gives "
                f"{found}; set model.{setting} to the encoder that the model was trained with"
            )
    shape = replace(model.shape, image_tokens=packing.image_tokens)
    return replace(model, shape=as_run(settings, shape))


def refuse_two_experts(pretrained: str) -> None:
    """Refuse a pipeline's folder that holds two transformers: one run trains one of them.

    Raises:
        ConfigError: Names both folders, and what noise levels each is for.
    """
    high, low = Path(pretrained) / "transformer", Path(pretrained) / "transformer_2"
    if (low / "config.json").is_file():
        raise ConfigError(
            f"model.pretrained {pretrained!r} holds two experts; name {str(high)!r} for high noise "
            "(objective.timestep_range = [0.875, 1.0], or [0.9, 1.0] for image to video) or "
            f"{str(low)!r} for the levels below, and the other one as model.other_expert"
        )
