"""Import a module without running its package's ``__init__``, to save start-up time: javaproperties imports an HTTP
client through XML, which took a tenth of each start of ``kjbod``."""

import importlib
import importlib.util
import sys
from types import ModuleType


def import_alone(package: str, name: str) -> ModuleType:
    """Return the module ``name`` of a package without running its ``__init__``. A later import of the package gets it
    whole.

    Raises:
        ModuleNotFoundError: no such module.
    """
    if package in sys.modules:
        return importlib.import_module(f"{package}.{name}")
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    bare = sys.modules[package] = ModuleType(package)
    bare.__path__ = list(found.submodule_search_locations)
    try:
        return importlib.import_module(f"{package}.{name}")
    finally:
        del sys.modules[package]
