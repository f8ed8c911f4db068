"""Import of a module without the package around it, where a start would pay for what it never uses: javaproperties
imports an HTTP client by way of XML, which was a tenth of each start of ``kjbod``."""

import importlib
import importlib.util
import sys
from types import ModuleType


def import_alone(package: str, name: str) -> ModuleType:
    """The module ``name`` of a package whose ``__init__`` is not run. Who imports the package later gets it whole.

    Raises:
        ModuleNotFoundError: there is none.
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
