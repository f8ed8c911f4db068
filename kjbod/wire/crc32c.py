"""CRC-32C by the extension of the package crc32c alone: the package around it has a command line and looks up its own
version, which was a tenth of each start of ``kjbod``."""

import importlib.util
from collections.abc import Callable
from typing import Any

from kjbod.bare_import import import_alone


def package_directory() -> str:
    """The directory of the package, which is looked for and not imported."""
    found = importlib.util.find_spec("crc32c")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'crc32c'", name="crc32c")
    return found.submodule_search_locations[0]


_extension: Any = import_alone("crc32c", "_crc32c")
crc32c: Callable[..., int] = _extension.crc32c
"""CRC-32C of bytes, and of what came before them where that is given."""
