"""Passwords and tokens where none may be: in settings, which a run writes to its folder."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

_CREDENTIAL = re.compile(
    r"""
    (?<![a-z0-9+.-]) [a-z][a-z0-9+.-]{0,30}:// (?:
        [^/\s?\#@]{1,500}@                   # https://user:password@host, https://token@host
        | [^/\s?\#@:\[]{1,200}:(?!\d*/)[^\s?\#@]{1,500}@   # s3://key:pass/word@bucket
    )
    | [?&](?:[a-z_-]*token|[a-z-]*signature|sig|auth|pwd|passwd|password|[a-z_-]*secret
        |[a-z_-]*credential|(?:(?:api|access|aws|private|secret|account)[a-z_-]*)?key(?:id)?)
        =[^&\s]                             # signed addresses
    | \bhf_[a-z0-9]{16,}                    # Hugging Face
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b         # AWS
    | \bgh[pousr]_[a-z0-9]{20,}             # GitHub
    | \bgithub_pat_[a-z0-9_]{20,}
    | \bglpat-[a-z0-9_-]{20,}               # GitLab
    | \bsk-ant-api[0-9]{2}-[a-z0-9_-]{20,}  # Anthropic
    | \bsk-proj-[a-z0-9]{20,}               # OpenAI
    | \bxox[abprs]-[0-9]{6,}-[a-z0-9-]{6,}  # Slack
    | \beyJ[a-z0-9_-]{8,}\.eyJ[a-z0-9_-]{8,}\.   # JSON Web Tokens
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Forms that their owners document. A key of Weights & Biases is 40 hexadecimal digits, as the
commits in paths of model caches are: it cannot be told from them."""


_SECRET_PARTS = re.compile(
    r"""
    (?<=://) (?: [^/\s?\#@'"]+ | [^/\s:'"]*:(?!\d*/)[^\s@'"]* ) (?=@)   # user, user:pass/word
    | (?<=[?]) (?=[^\s'"]*=) [^\s'"]+? (?= ::|[\s'",)]|$ )   # all of a query
    """,
    re.VERBOSE,
)
_HIDDEN = "***"


def without_credentials(text: str) -> str:
    """An address, or a message that holds some, without users, passwords and queries."""
    return _SECRET_PARTS.sub(_HIDDEN, text)


def setting_with_credential(table: Mapping[str, Any]) -> str | None:
    """The dotted path of the first text that holds a password or token; None if none does."""
    return next(_found(table, ""), None)


def _found(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str) and _CREDENTIAL.search(value):
        yield path
    elif isinstance(value, Mapping):
        for key, inner in cast(Mapping[str, Any], value).items():
            yield from _found(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for inner in cast(Sequence[Any], value):
            yield from _found(inner, path)
