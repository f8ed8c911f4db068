"""Storage agents by name: entry points of the group ``kjbod.storage``.

An entry point is a :class:`~kjbod_host.storage.api.StorageAgentFactory`. It is imported when it is asked for, so a
broken plug-in that nobody uses breaks nobody. Our own are not looked for among what is installed, which takes as long
as a tenth of all other imports.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from kjbod.errors import ConfigError
from kjbod_host.storage.api import StorageAgent, StorageAgentFactory, StorageOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "kjbod.storage"
OURS: Mapping[str, tuple[str, str]] = {
    "memory": ("kjbod_host.storage.memory", "MemoryStorageAgent"),
    "posix": ("kjbod_host.storage.posix", "PosixStorageAgent"),
}
"""Module and class of the entry points that come with kjbod."""


def names() -> tuple[str, ...]:
    """Values that ``kjbod.storage.agent`` can have on this host, sorted."""
    from importlib.metadata import entry_points

    return tuple(sorted({point.name for point in entry_points(group=GROUP)} | set(OURS)))


def create(name: str, options: StorageOptions) -> StorageAgent:
    """Return the storage agent of this name, not started.

    Raises:
        ConfigError: no plug-in of this name, or it cannot be imported.
    """
    if name in OURS:
        module, factory = OURS[name]
        return cast(StorageAgentFactory, getattr(import_module(module), factory))(options)
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise ConfigError(f"kjbod.storage.agent: there is no storage agent {name!r}; there are: {', '.join(names())}")
    return _load(found[0])(options)


def _load(point: "EntryPoint") -> StorageAgentFactory:
    try:
        return cast(StorageAgentFactory, point.load())
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"kjbod.storage.agent: the storage agent {point.name!r} ({point.value}) cannot be loaded: {problem}"
        ) from None
