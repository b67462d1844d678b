"""The description of a model family, without torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from arachne.core.activation_inputs import ActivationInputs
from arachne.core.encoder_shape import TextEncoderShape, VideoEncoderShape
from arachne.core.errors import ConfigError
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape

ObjectiveKind = Literal["flow_matching", "ddpm"]
"""How noise is added to clips, and what a model predicts of it."""

AfterFirstFrame = Literal["grey", "zeros"]
"""What latents that show a first frame hold after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family turns pixels into tokens, and what its layers multiply and store.

    Attributes:
        name: The `model.family` of a run file.
        geometry: Pixels to tokens.
        presets: Published shapes by name, for example `wan-1.3b`.
        num_parameters: Exact number of trainable parameters of a shape.
        masks_keys: Whether its self-attention masks keys: those of padded text among the video's.
        num_idle_parameters: Parameters that the model holds besides, which nothing runs or trains;
            None without any.
        flop_inputs: What a forward pass multiplies.
        video_encoder: The autoencoder whose latents the published models were trained on.
        text_encoders: The encoders whose states they were trained on.
        activation_inputs: What it keeps for the backward.
        fixed_ffn_size: Feed-forward width that goes with a model width, where diffusers' class
            leaves no choice.
        objective: What the published models were trained on.
        snr_shift: What their signal-to-noise ratios were divided by, where that is DDPM.
        condition_channels: How many channels show the first frame to its image-to-video models,
            for so many of a latent; None for families whose models show it in no channels.
        first_frame_is_before: What the latents in those channels show after the first frame: `grey`
            frames, encoded with it, or `zeros`, after the latents of that frame alone.
        image_states: Whether image-to-video models look at an image encoder's states of the first
            frame.
        keeps_first_frame: Whether image to video keeps the first latent frame, clean and at noise
            level 0: `always`, by any of the family's weights, or by `some` that are made for it.
    """

    name: str
    geometry: Geometry
    presets: Mapping[str, ModelShape]
    num_parameters: Callable[[ModelShape], int]
    flop_inputs: Callable[[ModelShape], FlopInputs]
    video_encoder: VideoEncoderShape
    text_encoders: tuple[TextEncoderShape, ...]
    activation_inputs: Callable[[ModelShape], ActivationInputs]
    fixed_ffn_size: Callable[[int], int] | None = None
    objective: ObjectiveKind = "flow_matching"
    snr_shift: float = 1.0
    condition_channels: Callable[[int], int] | None = None
    first_frame_is_before: AfterFirstFrame = "grey"
    image_states: Literal["never", "some", "always"] = "never"
    keeps_first_frame: Literal["never", "some", "always"] = "never"
    masks_keys: bool = False
    num_idle_parameters: Callable[[ModelShape], int] | None = None

    @property
    def has_image_to_video(self) -> bool:
        """Whether such models can be trained."""
        return self.keeps_first_frame != "never" or self.condition_channels is not None

    def check(self, shape: ModelShape) -> None:
        """Refuse sizes that the family's transformer cannot have.

        Raises:
            ConfigError: Names the size and what it has to be.
        """
        if self.fixed_ffn_size is not None:
            needed = self.fixed_ffn_size(shape.hidden_size)
            if shape.ffn_size != needed:
                raise ConfigError(
                    f"model.ffn_size is {shape.ffn_size}; a {self.name} model of width "
                    f"{shape.hidden_size} has {needed}"
                )
