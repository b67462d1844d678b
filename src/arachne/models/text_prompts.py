"""How families with a language model as text encoder ask it about a caption.

The caption stands in an instruction; of the states those of the instruction's beginning are left
out, and those of a layer before the last are taken. Texts and numbers: diffusers'
`HunyuanVideoPipeline`, `HunyuanVideoImageToVideoPipeline` and `HunyuanVideo15Pipeline`, which give
them to the published weights.
"""

from dataclasses import dataclass
from typing import Any

_ASPECTS = (
    "1. The main content and theme of the video.",
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects.",
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the "
    "objects.",
    "4. background environment, light, style and atmosphere.",
    "5. camera angles, movements, and transitions used in the video",
)
_DESCRIBE = "Describe the video by detailing the following aspects:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """An instruction around a caption.

    Attributes:
        name: Goes into fingerprints.
        system: What the language model is told first.
        template: The whole text, with `{system}` and `{caption}`; empty if the tokenizer brings a
            chat template.
        num_leading: Tokens before the caption, whose states are left out.
        num_skipped_layers: Layers before the end of the model that are not used.
    """

    name: str
    system: str
    template: str
    num_leading: int
    num_skipped_layers: int

    def tokens(self, tokenizer: Any, caption: str, num_tokens: int) -> Any:
        """Tokens and mask of the instruction with a caption, padded to all but `num_leading`."""
        padded = {
            "padding": "max_length",
            "max_length": num_tokens + self.num_leading,
            "truncation": True,
            "return_tensors": "pt",
        }
        if self.template:
            text = self.template.format(system=self.system, caption=caption)
            return tokenizer(text, return_attention_mask=True, **padded)
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": caption or " "},
        ]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, **padded
        )


LLAMA_PROMPT = TextPrompt(
    name="hunyuan",
    system=f"{_DESCRIBE} {''.join(_ASPECTS)}:",
    template="<|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{caption}<|eot_id|>",
    num_leading=95,
    num_skipped_layers=2,
)
"""HunyuanVideo's."""

LLAVA_PROMPT = TextPrompt(
    name="hunyuan-picture",
    system="<image>\nDescribe the video by detailing the following aspects according to the "
    f"reference image: {''.join(_ASPECTS)}:",
    template="<|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>\n\n"
    "<|start_header_id|>user<|end_header_id|>\n\n{caption}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    num_leading=103,
    num_skipped_layers=2,
)
"""HunyuanVideo's for image to video, where LLaVA sees a picture in place of `<image>`."""

QWEN_PROMPT = TextPrompt(
    name="hunyuan15",
    system=" ".join(
        [f"You are a helpful assistant. {_DESCRIBE}", *(f"{' ' * 7} {each}" for each in _ASPECTS)]
    )
    + ".",
    template="",
    num_leading=108,
    num_skipped_layers=2,
)
"""HunyuanVideo 1.5's."""
