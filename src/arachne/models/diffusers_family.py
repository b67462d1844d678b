"""How diffusers' transformer of a model family is built, called and cut; without torch.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width
  L text tokens   D text width
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from arachne.models.interface import FirstFrames
    from arachne.models.text_prompts import TextPrompt

Option = Callable[[str], Any]
"""The value of one option of a transformer's config.json."""

TextPadding = Literal["masked", "seen", "kept"]
"""What a family's text encoder makes of the padding after a caption, as its pipeline runs it.

masked  words do not see it, and its states are zeros
seen    words see it as if it were words; its own states are zeros, since the transformer masks them
kept    words see it, and the transformer sees its states
"""


class Forward(Protocol):
    """One forward pass: packs the inputs as the class wants them, unpacks what it returns."""

    def __call__(
        self, module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor, /
    ) -> Tensor:
        """What the family's objective predicts, at timesteps 0 (clean) to 1000.

        It is shaped like the latents; for flow matching it is the velocity noise − x0.
        """
        ...


class FirstFrameForward(Protocol):
    """`Forward` of an image-to-video model, which also gets the clips' first frames."""

    def __call__(
        self,
        module: nn.Module,
        latents_BCFHW: Tensor,
        timestep_B: Tensor,
        text_BLD: Tensor,
        first: FirstFrames,
    ) -> Tensor:
        """What the family's objective predicts, shaped like the latents."""
        ...


def attention_sizes(
    option: Option, *, ffn_size: Callable[[int], int], text_size: str
) -> dict[str, int]:
    """The sizes that classes with heads, feed-forwards and a text projection have in common.

    `ffn_size` gives the feed-forward's width for the model's, and `text_size` names the option with
    the width of the text states.
    """
    num_heads, head_size = option("num_attention_heads"), option("attention_head_dim")
    return {
        "num_layers": option("num_layers"),
        "num_heads": num_heads,
        "head_size": head_size,
        "ffn_size": ffn_size(num_heads * head_size),
        "latent_channels": option("in_channels"),
        "text_size": option(text_size),
    }


def fixed_ffn_size(family: str) -> Callable[[int], int]:
    """The feed-forward's width for the model's, in a family whose class gives no choice."""
    needed = family_named(family).fixed_ffn_size
    assert needed is not None, family
    return needed


def check_channels(shape: ModelShape) -> None:
    """Refuse channels beside the latent ones that show anything but a first frame.

    Raises:
        ConfigError: Names their number.
    """
    channels_of = family_named(shape.family).condition_channels
    allowed = (0,) if channels_of is None else (0, channels_of(shape.latent_channels))
    if shape.condition_channels not in allowed:
        raise ConfigError(
            f"the transformer takes {shape.condition_channels} channels beside its "
            f"{shape.latent_channels} latent ones, and family {shape.family!r} has "
            f"{' or '.join(str(number) for number in allowed)} there; other conditions, such as a "
            "last frame or a control video, cannot be trained"
        )


def joint_layout(*, blocks: str, self_attention: str) -> SequenceLayout:
    """A class whose video and text tokens attend together, video first, by one rotary table."""
    first = "transformer_blocks.0"
    return SequenceLayout(
        split_inputs=(
            SplitInput(module=first, argument="hidden_states", stream="video", dim=1),
            SplitInput(module=first, argument="encoder_hidden_states", stream="text", dim=1),
        ),
        split_outputs=(SplitOutput(module="rope", stream="video", dims=(0, 0)),),
        gather=GatherOutput(module="proj_out", stream="video", dim=1),
        self_attention=self_attention,
        blocks=blocks,
        streams=("video", "text"),
    )


def _any_shape(shape: ModelShape) -> None:
    """Nothing to refuse."""


def _as_it_is(module: nn.Module) -> None:
    """Nothing to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusersFamily:
    """What there is to know of a family's class; one file per family makes one.

    Attributes:
        name: The `model.family` of a run file, a key of `core.families.FAMILIES`.
        class_name: Name of the class in diffusers.
        pipeline_name: Name of the pipeline there that makes videos of text with it.
        layout: How it is cut along the sequence.
        kept_layout: The same where image to video keeps the first frame; None where it never does.
        sizes: Fields of `ModelShape`, but for family and text tokens, from a config.json.
        options: Keywords of the constructor that follow from a shape; a config.json has to agree.
        forward: One forward pass; latents and text arrive in the type of the weights.
        first_frame_forward: The same for image to video; None for families without it.
        prepare: Changes a new module where a launch could not split it as it is.
        text_padding: What its text encoder makes of padding.
        text_prompt: The instruction in which its text encoder reads a caption, if there is one.
        picture_prompt: The instruction in which its text encoder for image to video reads a caption
            and sees the first frame, if there is one.
        cleans_captions: Whether its pipeline resolves HTML entities and joins whitespace before the
            text encoder reads a caption.
        pools_text: Whether its text begins with a pooled state, as `pooled_text` packs it.
        fixed: Further options, which must have the class's own defaults.
        frozen: Patterns of names of parameters that nothing trains, such as LTX-2's of audio.
        authors_input: In files with its authors' names, the weight that latents meet first, whose
            channels tell image to video from text to video; empty where they are the same.
        check: Raises ConfigError where the class cannot have these sizes.
    """

    name: str
    class_name: str
    pipeline_name: str
    layout: SequenceLayout
    sizes: Callable[[Option], dict[str, Any]]
    options: Callable[[ModelShape], dict[str, Any]]
    forward: Forward
    first_frame_forward: FirstFrameForward | None = None
    kept_layout: SequenceLayout | None = None
    prepare: Callable[[nn.Module], None] = _as_it_is
    text_padding: TextPadding = "masked"
    text_prompt: TextPrompt | None = None
    picture_prompt: TextPrompt | None = None
    cleans_captions: bool = False
    pools_text: bool = False
    fixed: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    authors_input: str = ""
    check: Callable[[ModelShape], None] = _any_shape
