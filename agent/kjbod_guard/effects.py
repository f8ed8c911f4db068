"""Effects of the guard's core: each is a value that the shell carries out (:mod:`.action_runner`). Pure.

Each effect is safe to repeat: a guard that was killed between the audit's line and the action repeats the action.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from kjbod_guard.observing import Key


class Effect(Struct, frozen=True):
    """An action with its target."""

    @property
    def name(self) -> str:
        """Name of the action in log and audit."""
        return type(self).__name__.lower()

    def facts(self) -> dict[str, Any]:
        """Return the attributes of the effect, for log and audit."""
        return {one.name: _told(getattr(self, one.name)) for one in fields(self)}


class Cut(Effect, frozen=True):
    """Shut the file system of a log directory down."""

    path: str


class Mask(Effect, frozen=True):
    """Over-mount a log directory with a read-only tmpfs."""

    path: str


class Unmask(Effect, frozen=True):
    """Remove the mask of a log directory."""

    path: str


class Suspect(Effect, frozen=True):
    """Write the suspected directories into the metadata log (:mod:`.suspects`); an empty tuple means all of the
    broker."""

    epoch: int
    directory_ids: tuple[str, ...]
    mark: str


class Trust(Effect, frozen=True):
    """Remove the record of suspected directories."""


class Report(Effect, frozen=True):
    """Tell the controller in the broker's name that a directory is offline. Before a cut, include all directories on
    its file system."""

    path: str
    directory_ids: tuple[str, ...]
    epoch: int


class Evict(Effect, frozen=True):
    """Take the broker out of the replica lists of partitions; ``before``: their present lists."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


class Restore(Effect, frozen=True):
    """Put the broker back into replica lists; ``before``: the original lists."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


class Demote(Effect, frozen=True):
    """Move the leadership of partitions to other replicas: reorder their lists, and elect the preferred leaders;
    ``before``: the present lists, ``after``: the new lists."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]
    after: Mapping[Key, tuple[int, ...]]


class Promote(Effect, frozen=True):
    """Restore the order of replica lists, and elect the preferred leaders; ``before``: the original lists."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


class Kill(Effect, frozen=True):
    """Kill the broker with SIGKILL."""

    epoch: int | None


class Reset(Effect, frozen=True):
    """Answer new packets to the broker's ports with a TCP reset."""


class Unreset(Effect, frozen=True):
    """Stop answering packets to the broker's ports with a TCP reset."""


class Destroy(Effect, frozen=True):
    """Destroy established connections of the broker's ports."""


class Fence(Effect, frozen=True):
    """Tell the controller in the broker's name to fence the broker."""

    epoch: int


Standing = TypeVar("Standing")


class Move(Struct, Generic[Standing], frozen=True):
    """Outcome of a look at a directory, its leadership or the broker: the new state, at most one effect, and the time
    until the next look at the latest."""

    standing: Standing
    effect: Effect | None = None
    again_ms: int | None = None


def _told(value: Any) -> Any:
    """Return a value for JSON: a mapping by partition gets text keys."""
    if isinstance(value, Mapping):
        return {f"{topic_id}-{number}": list(lists) for (topic_id, number), lists in value.items()}
    return value
