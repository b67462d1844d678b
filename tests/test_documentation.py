"""What README, docs and examples tell a user to open, type or write is there and is accepted."""

import argparse
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from arachne.cli.main import _parser
from arachne.core.strict_toml import load_toml
from arachne.planner.registry import planner_named
from arachne.trainer.config import RunConfig

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
RUN_FILES = sorted((ROOT / "examples").glob("*.toml"))

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TEST_FILE = re.compile(r"`((?:tests|src|docs|examples)/[\w./*-]+)`")
_SOURCE_FILE = re.compile(r"`((?:core|cost|planner|mapper|data|models|runtime|trainer)/[\w./*-]+)")
_NAME_IN_FILE = re.compile(r"`([a-z_]+/[a-z_]+\.py): ([\w.]+)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fenced_lines(page: Path) -> Iterator[str]:
    for block in _FENCE.findall(page.read_text(encoding="utf-8")):
        yield from (line.strip() for line in block.splitlines())


def arachne_arguments(line: str) -> list[str] | None:
    """What follows `arachne` in a command line; None if it is not one of ours."""
    if not re.match(r"(\S*/)?(arachne|torchrun|python) ", line):
        return None
    words = shlex.split(line, comments=True)
    if words[0].endswith("arachne"):
        return words[1:]
    return words[words.index("-m") + 2 :] if "arachne" in words else None


def commands() -> list[tuple[str, list[str]]]:
    lines = [(page, line) for page in PAGES for line in fenced_lines(page)]
    for run_file in RUN_FILES:
        comments = re.findall(r"^# +(\S.*)$", run_file.read_text(encoding="utf-8"), re.MULTILINE)
        lines += [(run_file, line) for line in comments]
    found = [(name_of(page), arachne_arguments(line)) for page, line in lines]
    return [(page, arguments) for page, arguments in found if arguments is not None]


def is_accepted(arguments: list[str]) -> bool:
    try:
        _parser().parse_args(arguments)
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(page):
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if ":" not in link]
    missing = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    named = _TEST_FILE.findall(text)
    named += [f"src/arachne/{path}" for path in _SOURCE_FILE.findall(text)]
    missing = [path for path in named if not list(ROOT.glob(path.rstrip("/")))]
    assert not missing


def test_every_function_and_class_that_the_architecture_names_is_in_its_file():
    named = _NAME_IN_FILE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) >= 8
    for path, dotted in named:
        code = (ROOT / "src" / "arachne" / path).read_text(encoding="utf-8")
        for name in dotted.split("."):
            assert re.search(rf"^\s*(def|class) {name}\b", code, re.MULTILINE), f"{path}: {name}"


def test_every_command_in_the_pages_is_accepted_by_the_parser():
    found = commands()
    verbs = {arguments[0] for _, arguments in found}
    assert {"inspect", "train", "plan", "sample", "report"} <= verbs
    refused = [(page, arguments) for page, arguments in found if not is_accepted(arguments)]
    assert not refused


@pytest.mark.parametrize("arguments", [["prepair", "a.toml"], ["train", "a.toml", "--rank", "x"]])
def test_a_command_that_does_not_exist_would_be_noticed(arguments, capsys):
    assert not is_accepted(arguments)
    assert "arachne" in capsys.readouterr().err


def test_every_verb_is_named_in_the_readme_or_the_changelog():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES[:2])
    subparsers = next(
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    assert not [verb for verb in subparsers.choices if f"arachne {verb}" not in text]


@pytest.mark.parametrize("run_file", RUN_FILES, ids=name_of)
def test_an_example_is_a_whole_and_legal_run_file(run_file):
    config = load_toml(run_file, RunConfig)
    planner_named(config.planner.name)
    if not config.model.pretrained:
        config.model.shape(latent_channels=1, text_size=1)


def test_overrides_in_the_pages_name_settings_that_exist():
    for _, arguments in commands():
        overrides = [b for a, b in pairwise(arguments) if a == "--set"]
        load_toml(ROOT / "examples" / "quickstart.toml", RunConfig, overrides=overrides)


def test_make_targets_in_the_pages_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named: set[str] = set()
    for page in PAGES:
        named |= set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8")))
        named |= {line.split()[1] for line in fenced_lines(page) if line.startswith("make ")}
    assert {"demo", "test"} <= named <= targets
