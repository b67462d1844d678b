"""What pretrained encoders have in common: a folder with a config.json, and a digest of it all."""

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arachne.core.errors import ConfigError

_VOCABULARIES = (
    ("tokenizer.json",),
    ("spiece.model",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
)
"""Files that hold a vocabulary: of any tokenizer; T5's; LLaMA's and Gemma's; CLIP's and Qwen's."""


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


def loaded_part(loader: Any, folder: Path, *, setting: str) -> Any:
    """What a class of transformers or diffusers loads from a folder, without the network.

    Raises:
        ConfigError: It loads nothing from there.
    """
    try:
        return loader.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(f"{setting} {str(folder)!r} cannot be loaded: {error}") from error


def content_digest(*folders: Path) -> str:
    """Digest of the names and bytes of all files in the folders; no times, no absolute paths.

    It reads every weight, at 1-2 GB/s: a digest of sizes alone would take a fine-tuned encoder
    for the original and mix their latents in one cache.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()[:16]
