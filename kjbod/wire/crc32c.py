"""CRC-32C from the extension module of the package crc32c alone. The package itself imports a command line and looks up
its version, which took a tenth of each start of ``kjbod``."""

import importlib.util
from collections.abc import Callable
from typing import Any

from kjbod.bare_import import import_alone


def package_directory() -> str:
    """Return the directory of the package, without importing it."""
    found = importlib.util.find_spec("crc32c")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'crc32c'", name="crc32c")
    return found.submodule_search_locations[0]


_extension: Any = import_alone("crc32c", "_crc32c")
crc32c: Callable[..., int] = _extension.crc32c
"""CRC-32C of bytes, or of a continuation if an earlier value is given."""
