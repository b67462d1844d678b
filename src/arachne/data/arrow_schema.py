"""Which columns of an Arrow schema hold media as bytes: as such, or beside a path.

Hugging Face datasets keep a video or picture as a struct of `bytes` and `path`, of which either
may be missing.
"""

from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]

from arachne.core.errors import DataError

# pyarrow ships no types.
pa: Any = pyarrow


def media_leaves(schema: Any, table: str) -> dict[str, str]:
    """The columns that hold bytes, each with the name of the leaf that does: `video.bytes`.

    Raises:
        DataError: Two columns of the table have one name.
    """
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise DataError(f"{table} has {schema.names.count(name)} columns {name!r}; keep one")
    found: dict[str, str] = {}
    for field in schema:
        if _is_bytes(field.type):
            found[field.name] = field.name
        elif pa.types.is_struct(field.type):
            index = field.type.get_field_index("bytes")
            if index >= 0 and _is_bytes(field.type.field(index).type):
                found[field.name] = f"{field.name}.bytes"
    return found


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
