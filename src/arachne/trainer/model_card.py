"""README.md of exported weights: what they are, how to load them, and how they were trained."""

from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from arachne.models.diffusers_module import pipeline_class
from arachne.models.families import transformer_named
from arachne.models.lora_files import COMFYUI_FILE, DIFFUSERS_FILE
from arachne.trainer.checkpoint_files import TrainState
from arachne.trainer.config import RunConfig

_SECOND_EXPERT = "transformer_2"
"""What a pipeline of two transformers calls the one for low noise levels."""

_PARTS = ("transformer", _SECOND_EXPERT, "vae", "text_encoder", "image_encoder")
"""Folders of a pipeline that a run may name; by themselves they say nothing."""

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
    """The card as Markdown; it names folders by their last parts only, and no secrets."""
    model = config.model
    task = "image-to-video" if model.image_to_video else "text-to-video"
    tags = [task, model.family, *(["lora"] if config.lora.is_on else [])]
    front = "\n".join(["---", "library_name: diffusers", "tags:", *(f"- {t}" for t in tags), "---"])
    facts = "\n".join(f"| {name} | {value} |" for name, value in _facts(config, state, num_trained))
    return f"""{front}

# {model.family} {_HEADLINE[what]}, step {state.step}

{_lora_use(config, to) if what == "lora" else _weights_use(config, to)}
{_KINDS[weights]}, stored as {dtype}, loaded again and compared with the trained model.
Made by Arachne.

| fact | value |
|---|---|
{facts}

## Settings

```toml
{_settings(config)}```
"""


def _lora_use(config: RunConfig, to: str) -> str:
    """How a LoRA is loaded, by what the family's pipeline can do."""
    is_second = _is_second_expert(config)
    if to == "comfyui":
        base = "model of low noise levels" if is_second else "model"
        return (
            f"Put `{COMFYUI_FILE}` into ComfyUI's `models/loras` and load it over its base {base}"
            ".\n"
        )
    loader, options = "pipeline.load_lora_weights", ""
    if not hasattr(pipeline_class(transformer_named(config.model.family)), "load_lora_weights"):
        loader = "pipeline.transformer.load_lora_adapter"
    elif is_second:
        options = f", load_into_{_SECOND_EXPERT}=True"
    return f"""Load it over its base model with diffusers:

```python
{loader}("FOLDER", weight_name="{DIFFUSERS_FILE}"{options})
```
"""


def _weights_use(config: RunConfig, to: str) -> str:
    """How weights are loaded."""
    is_second = _is_second_expert(config)
    if to == "comfyui":
        as_what = ", as the model of low noise levels" if is_second else ""
        return (
            "Put `diffusion_model.safetensors` into ComfyUI's `models/diffusion_models`"
            f"{as_what}.\n"
        )
    as_what = f", as its `{_SECOND_EXPERT}`" if is_second else ""
    return (
        "`transformer/` is a transformer in diffusers' layout: load it with\n"
        f"`from_pretrained`, and put it into a pipeline with the encoders named below{as_what}.\n"
    )


def _is_second_expert(config: RunConfig) -> bool:
    """Whether the run trained the expert for low noise levels of a pipeline that has two."""
    lowest, highest = config.objective.timestep_range
    is_low = bool(config.model.other_expert) and lowest == 0.0 and highest < 1.0
    return is_low or Path(config.model.pretrained).name == _SECOND_EXPERT


def _name(place: str) -> str:
    """The last part of a path; before it, the pipeline of which it is a part.

    A snapshot in the hub's cache, `models--OWNER--NAME/snapshots/REVISION`, is `OWNER/NAME`.
    """
    path = Path(place)
    part = path.name if path.name in _PARTS else ""
    whole = path.parent if part else path
    name = whole.name
    if whole.parent.name == "snapshots":
        name = whole.parent.parent.name.removeprefix("models--").replace("--", "/")
    return "/".join(filter(None, (name, part)))


def _facts(config: RunConfig, state: TrainState, num_trained: int) -> list[tuple[str, str]]:
    model, lora, data = config.model, config.lora, config.data
    base = f"`{_name(model.pretrained)}`" if model.pretrained else "random weights"
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
    for name, patterns in (("trained alone", model.train_only), ("not trained", model.freeze)):
        if patterns:
            facts.append((name, ", ".join(f"`{pattern}`" for pattern in patterns)))
    levels = config.objective.timestep_range
    if levels != (0.0, 1.0):
        facts.append(("noise levels", f"{levels[0]:g} to {levels[1]:g}, where 1 is noise alone"))
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
        ("lengths in frames", data.shape_rules.lengths_text),
        ("video encoder", f"`{_name(model.video_encoder)}`"),
        ("text encoder", f"`{_name(model.text_encoder)}`, {model.num_text_tokens} tokens"),
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
