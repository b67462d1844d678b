"""README.md of exported weights: what they are, how to load them, and how they were trained."""

from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from arachne.trainer.checkpoint_files import TrainState
from arachne.trainer.config import RunConfig

_LORA_USE = {
    "diffusers": """Load it over its base model with diffusers:

```python
pipeline.load_lora_weights("FOLDER", weight_name="pytorch_lora_weights.safetensors")
```
""",
    "comfyui": "Put `lora.safetensors` into ComfyUI's `models/loras` and load it over its base "
    "model.\n",
}
_WEIGHTS_USE = {
    "diffusers": "`transformer/` is a transformer in diffusers' layout: load it with\n"
    "`from_pretrained`, and put it into a pipeline with the encoders named below.\n",
    "comfyui": "Put `diffusion_model.safetensors` into ComfyUI's `models/diffusion_models`.\n",
}
_HEADLINE = {
    "lora": "LoRA",
    "merged": "weights with a LoRA merged in",
    "weights": "weights",
}
_KINDS = {"raw": "Weights as they were trained", "ema": "The moving average of the weights"}
_SECTIONS = ("lora", "objective", "batch", "optimizer")
_LOSSES_MEANT = 100


def model_card(
    config: RunConfig,
    state: TrainState,
    *,
    what: str,
    to: str,
    dtype: str,
    weights: str,
    num_trained: int,
) -> str:
    """The card as Markdown; it names folders by their last part only, and no secrets."""
    model = config.model
    uses = _LORA_USE if what == "lora" else _WEIGHTS_USE
    task = "image-to-video" if model.image_to_video else "text-to-video"
    tags = [task, model.family, *(["lora"] if config.lora.is_on else [])]
    front = "\n".join(["---", "library_name: diffusers", "tags:", *(f"- {t}" for t in tags), "---"])
    facts = "\n".join(f"| {name} | {value} |" for name, value in _facts(config, state, num_trained))
    return f"""{front}

# {model.family} {_HEADLINE[what]}, step {state.step}

{uses[to]}
{_KINDS[weights]}, stored as {dtype}, loaded again and compared with the trained model.
Made by Arachne.

| fact | value |
|---|---|
{facts}

## Settings

```toml
{_settings(config)}```
"""


def _facts(config: RunConfig, state: TrainState, num_trained: int) -> list[tuple[str, str]]:
    model, lora, data = config.model, config.lora, config.data
    base = f"`{Path(model.pretrained).name}`" if model.pretrained else "random weights"
    if state.base:
        base += f" ({state.base})"
    facts = [("base model", base)]
    if lora.is_on:
        targets = lora.targets if isinstance(lora.targets, str) else ", ".join(lora.targets)
        facts += [
            ("rank", str(lora.rank)),
            ("alpha", f"{lora.alpha_or_rank:g}"),
            ("adapted layers", targets),
        ]
    facts += [
        ("trained parameters", f"{num_trained:,}"),
        ("steps", f"{state.step:,}, of which {state.num_updates:,} changed the weights"),
        ("batch of a step", config.batch.text),
    ]
    if state.clips is not None:
        facts.append(("clips that trained", f"{state.clips.num_clips:,}"))
    facts += [
        ("frames per second", f"{data.fps:g}"),
        ("resolution", data.shape_rules.area_text),
        ("lengths in frames", ", ".join(map(str, data.frame_buckets))),
        ("video encoder", f"`{Path(model.video_encoder).name}`"),
        ("text encoder", f"`{Path(model.text_encoder).name}`, {model.num_text_tokens} tokens"),
        ("seed", str(state.seed)),
    ]
    if state.losses:
        last = state.losses[-_LOSSES_MEANT:]
        facts.append((f"mean loss of the last {len(last)} steps", f"{sum(last) / len(last):.4g}"))
    return facts


def _settings(config: RunConfig) -> str:
    table: dict[str, Any] = msgspec.to_builtins({s: getattr(config, s) for s in _SECTIONS})
    if config.lora.init_from:
        table["lora"]["init_from"] = Path(config.lora.init_from).name
    if not config.lora.is_on:
        del table["lora"]
    return tomli_w.dumps(table)
