"""Storage agents by name: entry points of the group ``kjbod.storage``.

An entry point is a :class:`~kjbod_agent.storage.api.StorageAgentFactory`. It is imported when it is asked for, so a
broken plug-in that nobody uses breaks nobody.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from kjbod.errors import ConfigError
from kjbod_agent.storage.api import StorageAgent, StorageAgentFactory, StorageOptions

GROUP = "kjbod.storage"


def names() -> tuple[str, ...]:
    """Values that ``kjbod.storage.agent`` can have on this host, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def create(name: str, options: StorageOptions) -> StorageAgent:
    """The storage agent of this name, not started.

    Raises:
        ConfigError: no plug-in of this name, or it cannot be imported.
    """
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise ConfigError(f"kjbod.storage.agent: there is no storage agent {name!r}; there are: {', '.join(names())}")
    return _load(found[0])(options)


def _load(point: EntryPoint) -> StorageAgentFactory:
    try:
        return cast(StorageAgentFactory, point.load())
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"kjbod.storage.agent: the storage agent {point.name!r} ({point.value}) cannot be loaded: {problem}"
        ) from None
