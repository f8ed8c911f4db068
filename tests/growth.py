"""What an object holds: so that a test can see which of its tables only grow."""

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

_TABLES = (Mapping, list, set, frozenset, tuple, deque)
_OURS = ("kjbod", "tests")


def entries(root: object) -> Counter[str]:
    """How many entries there are in all tables that ``root`` leads to, by the attributes that lead there; tables in
    tables together."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _TABLES):
            found[path] += len(value)
            parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
            waiting += ((f"{path}[]", part) for part in parts if not isinstance(part, (str, bytes, int, float)))
        else:
            waiting += ((f"{path}.{name}", part) for name, part in _attributes(value))
    return found


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    if not type(value).__module__.startswith(_OURS):
        return
    names = {*getattr(value, "__dict__", ())}
    for base in type(value).__mro__:
        names.update(getattr(base, "__slots__", ()))
    if isinstance(value, Struct):
        names.update(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        names.update(each.name for each in dataclasses.fields(value))
    for name in sorted(names):
        part = getattr(value, name, None)
        if part is not None and not isinstance(part, (str, bytes, int, float, type)):
            yield name, part
