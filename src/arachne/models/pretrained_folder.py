"""What pretrained parts have in common: a folder with config.json and weights, and its digest."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import safe_open

from arachne.core.errors import ConfigError
from arachne.core.units import names_text

_VOCABULARIES = (
    ("tokenizer.json",),
    ("spiece.model",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
)
"""Files that hold a vocabulary: of any tokenizer; T5's; LLaMA's and Gemma's; CLIP's and Qwen's."""

_WEIGHTS = ("model", "diffusion_pytorch_model")
"""Names of files with weights, without their endings: transformers' and diffusers'."""

_STEM = r"(?:diffusion_pytorch_|pytorch_)?model"
_SHARD = r"(?:-\d+-of-\d+)?"
_PLAIN = re.compile(rf"{_STEM}{_SHARD}\.(?:safetensors|bin)")
_VARIANT = re.compile(rf"{_STEM}\.(\w+){_SHARD}\.safetensors")
"""Files with weights, as both libraries call them, and those of a variant such as `fp16`."""

_FLOATS = ("F64", "F32", "F16", "BF16")
"""safetensors' names of the types of weights that can be trained, or encode."""


def read_config(folder: Path, *, setting: str, needed: str) -> Mapping[str, Any]:
    """The folder's `config.json`; `setting` and `needed` are words for the message.

    Raises:
        ConfigError: The folder or its config.json is not there, or cannot be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        found = "the folder has no config.json" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{setting} {str(folder)!r}: {found}; name {needed}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: cannot read {str(path)!r}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{setting}: {str(path)!r} holds no table of options; name {needed}")
    return config


def need_transformers(folder: Path, *, setting: str) -> None:
    """Refuse a folder that only transformers can read where that is not installed.

    Raises:
        ConfigError: It is not.
    """
    if find_spec("transformers") is None:
        raise ConfigError(
            f"{setting} {str(folder)!r} needs the package transformers, which is not installed; "
            "run: pip install 'arachne[pretrained]'"
        )


def check_tokenizer(folder: Path, *, setting: str, needed: str) -> None:
    """Refuse a folder without a tokenizer's vocabulary; `setting` and `needed` are for the message.

    transformers 5 makes an empty tokenizer of such a folder, which knows no word, in silence.

    Raises:
        ConfigError: Its files are not there.
    """
    if any(all((folder / name).is_file() for name in names) for names in _VOCABULARIES):
        return
    found = "the folder holds no tokenizer" if folder.is_dir() else "there is no such folder"
    files = ", ".join(" with ".join(names) for names in _VOCABULARIES)
    raise ConfigError(f"{setting} {str(folder)!r}: {found} ({files}); name {needed}")


def loaded_tokenizer(folder: Path, *, setting: str) -> Any:
    """The tokenizer in a folder that `check_tokenizer` has let pass; none of its code is run.

    Raises:
        ConfigError: It cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"{setting}: no tokenizer can be loaded from {str(folder)!r}: {error}"
        ) from error


def loaded_part(
    loader: Any, folder: Path, *, setting: str, uses_all: bool = False, **options: Any
) -> Any:
    """What a class of transformers or diffusers loads from a folder, without the network.

    Its own `from_pretrained` draws weights that the files lack at random and only warns, and casts
    those that were stored in 8 bits, or as whole numbers, as if they needed no scale.

    Args:
        loader: The class.
        folder: Holds its config.json and weights.
        setting: Named in messages.
        uses_all: Whether files with other weights than the module's are refused too; an encoder
            may come with its decoder.
        options: Passed on.

    Raises:
        ConfigError: It loads nothing from there, or the files lack a weight, or have one that is no
            float of 16 bits or more.
    """
    _refuse_quantized(folder, setting)
    variant = _only_variant(folder)
    if variant:
        options["variant"] = variant
    try:
        module, found = loader.from_pretrained(
            str(folder), local_files_only=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"{setting} {str(folder)!r}: weights cannot be loaded: {error}; if a file is not "
            "whole, fetch it again"
        ) from error
    surplus = found["unexpected_keys"] if uses_all else ()
    for what, names in (("lack", found["missing_keys"]), ("have", surplus)):
        if names:
            raise ConfigError(
                f"{setting} {str(folder)!r}: weights cannot be loaded: the files {what} "
                f"{names_text(sorted(map(repr, names)))}, which does not fit config.json; name a "
                "folder whose weights are those of its config.json"
            )
    endings = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    _check_types(folder, variant, endings, setting)
    return module


def _refuse_quantized(folder: Path, setting: str) -> None:
    path = folder / "config.json"
    options = read_config(folder, setting=setting, needed="") if path.is_file() else {}
    if options.get("quantization_config"):
        raise ConfigError(
            f"{setting} {str(folder)!r} holds quantized weights (quantization_config in "
            "config.json); name a folder with the weights as they were before"
        )


def _only_variant(folder: Path) -> str:
    """`fp16` where a folder has its weights as this variant alone; else empty."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = {match[1] for match in map(_VARIANT.fullmatch, names) if match}
    is_plain = any(_PLAIN.fullmatch(name) for name in names)
    return found.pop() if len(found) == 1 and not is_plain else ""


def _check_types(folder: Path, variant: str, endings: Collection[str], setting: str) -> None:
    """Refuse weights that are no floats of 16 bits or more, in the safetensors files of a folder.

    A weight's name ends as one of the module's parameters does: before that, names may differ from
    the module's, and other tensors, such as positions, are whole numbers rightly.

    Raises:
        ConfigError: Names the first.
    """
    for file in _weight_files(folder, variant):
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no dictionary)
                found = opened.get_slice(name).get_dtype()
                if name.rpartition(".")[2] in endings and found not in _FLOATS:
                    raise ConfigError(
                        f"{setting} {str(folder)!r}: {file.name!r} has {name!r} as {found}; needed "
                        f"are floats of 16 bits or more ({', '.join(_FLOATS)}): name a folder with "
                        "the weights as they were before they were quantized"
                    )


def _weight_files(folder: Path, variant: str) -> list[Path]:
    """The safetensors files from which a part is loaded; variants beside them are not read."""
    files: list[Path] = []
    dotted = f".{variant}" if variant else ""
    for name in _WEIGHTS:
        index = folder / f"{name}.safetensors.index{dotted}.json"
        if index.is_file():
            shards: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
            files += [folder / shard for shard in sorted(set(shards.values()))]
        else:
            files.append(folder / f"{name}{dotted}.safetensors")
    return [file for file in files if file.is_file()]


def _is_of_no_model(name: str) -> bool:
    """Whether a file is what systems and people leave in any folder."""
    return name.startswith(".") or name.endswith(".md") or name in ("Thumbs.db", "desktop.ini")


def content_digest(*folders: Path) -> str:
    """Digest of the names and bytes of a model's files in the folders; no times, no absolute paths.

    It reads every weight, at 1-2 GB/s: a digest of sizes alone would take a fine-tuned encoder
    for the original and mix their latents in one cache.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not _is_of_no_model(path.name):
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()[:16]
