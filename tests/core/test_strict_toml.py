"""TOML files become values, or a message in the user's words."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from arachne.core.errors import ConfigError
from arachne.core.strict_toml import load_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    steps: int = 1
    rate: float = 0.5
    sizes: tuple[int, ...] = ()
    name: str = "a"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"inner.steps is {self.steps}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    title: str
    inner: Inner = field(default_factory=Inner)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text('title = "first"\n[inner]\nsteps = 3\nsizes = [1, 2]\n', encoding="utf-8")
    return file


def test_a_file_becomes_its_value(path):
    assert load_toml(path, Outer) == Outer(title="first", inner=Inner(steps=3, sizes=(1, 2)))


def test_overrides_are_toml_values_or_bare_text_and_the_last_one_wins(path):
    overrides = [
        "inner.steps=4",
        "inner.steps=5",
        "inner.rate=2",
        "inner.sizes=[7]",
        "inner.name=bare/text",
        "title=a=b",
    ]
    expected = Outer(title="a=b", inner=Inner(steps=5, rate=2.0, sizes=(7,), name="bare/text"))
    assert load_toml(path, Outer, overrides=overrides) == expected


def test_an_override_may_name_a_section_that_the_file_lacks(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('title = "t"\n')
    assert load_toml(path, Outer, overrides=["inner.steps=9"]).inner.steps == 9


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("inner.steps", "--set 'inner.steps' is not SECTION.KEY=VALUE"),
        ("=3", "--set '=3' is not SECTION.KEY=VALUE"),
        ("title.x=3", "--set 'title.x=3': 'title' is a setting, not a section"),
        ("inner.stpes=3", "unknown setting 'inner.stpes'; did you mean 'inner.steps'?"),
        ("inner.steps=many", "inner.steps: expected int, got str; write a whole number, as 8"),
        ("inner.steps=" + "9" * 5000, "inner.steps: expected int, got str"),
        ("inner.steps=0", "inner.steps is 0; it must be at least 1"),
    ],
)
def test_a_wrong_override_is_refused(path, override, words):
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Outer, overrides=[override])
    assert words in str(caught.value)


def test_a_message_names_the_override_or_the_file_whichever_wrote_the_setting(path):
    def refusal(*overrides):
        with pytest.raises(ConfigError) as caught:
            load_toml(path, Outer, overrides=overrides)
        return str(caught.value)

    assert refusal("foo.bar=1").startswith("--set foo.bar: unknown setting 'foo'; known here: ")
    assert refusal("title=a", "inner.x=1").startswith("--set inner.x: unknown setting 'inner.x'")
    assert refusal("inner.rate=a") == (
        "--set inner.rate: expected float, got str; write a number, as 1.5 or 2e9"
    )
    assert refusal('inner.sizes=["a"]').startswith("--set inner.sizes: inner.sizes[")
    assert refusal("inner.steps=1", "inner={rate=1, x=2}").startswith("--set inner: unknown")
    path.write_text("title = 3\n[inner]\nx = 1\n")
    assert refusal("inner.rate=2").startswith("run.toml: unknown setting 'inner.x'")
    path.write_text("title = 3\n")
    assert refusal("inner.rate=2").startswith("run.toml: title: expected str")
    assert "hunter2" not in refusal("title=t", "secret.key=hunter2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('titel = "x"', "run.toml: unknown setting 'titel'; did you mean 'title'?"),
        ("", "run.toml: missing setting 'title'; add it, text in quotes, as \"a\""),
        ("title = 3", 'run.toml: title: expected str, got int; write text in quotes, as "a"'),
        ('title = "x"\ninner = 3', "inner: expected object, got int; write a section, [inner]"),
        ('title = "x"\n[inner]\nsizes = 3', "expected array, got int; write a list, as [1, 2]"),
        ("title = " + "9" * 5000, "a number has too many digits, or lists are nested too deeply"),
        ("title = " + "[" * 5000, "a number has too many digits, or lists are nested too deeply"),
        ('title = "x"\n[inner]\nsizes = [1, "2"]', "run.toml: inner.sizes[1]: expected int, got"),
        ('title = "x"\n[inner]\nsteps = true', "run.toml: inner.steps: expected int, got bool"),
        ("title = ", "cannot read"),
        ('title = "x"\ntitle = "y"', "cannot read"),
    ],
)
def test_a_wrong_file_is_refused_with_the_dotted_path(path, text, words):
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Outer)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_by_a_value_itself_names_its_setting_once(path):
    path.write_text('title = "x"\n[inner]\nsteps = 0')
    with pytest.raises(ConfigError) as caught:
        load_toml(path, Outer)
    assert str(caught.value).endswith("inner.steps is 0; it must be at least 1")


def test_a_missing_or_unreadable_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*none\.toml'; name an existing"):
        load_toml(tmp_path / "none.toml", Outer)
    with pytest.raises(ConfigError, match="is a folder; name a TOML file"):
        load_toml(tmp_path, Outer)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'title = "\xe9"')
    with pytest.raises(ConfigError, match="cannot read"):
        load_toml(latin, Outer)
