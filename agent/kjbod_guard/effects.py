"""Effects of the guard's core: each is a value that the shell carries out (:mod:`.action_runner`). Pure.

Each is safe to be done twice, since a guard that is killed between the audit's line and the act does it again.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

from kjbod.quick_dataclass import dataclass
from kjbod_guard.observing import Key


@dataclass(frozen=True, slots=True)
class Effect:
    """A means, and what it is for."""

    @property
    def name(self) -> str:
        """For the log and the audit."""
        return type(self).__name__.lower()

    def facts(self) -> dict[str, Any]:
        """Its attributes, for the log and the audit."""
        return {one.name: _told(getattr(self, one.name)) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class Cut(Effect):
    """Shut the file system of a log directory down."""

    path: str


@dataclass(frozen=True, slots=True)
class Mask(Effect):
    """Mount something read-only over a log directory."""

    path: str


@dataclass(frozen=True, slots=True)
class Unmask(Effect):
    """Take that mount away."""

    path: str


@dataclass(frozen=True, slots=True)
class Suspect(Effect):
    """Write into the metadata log which directories are suspected (:mod:`.suspects`); none: all of the broker."""

    epoch: int
    directory_ids: tuple[str, ...]
    mark: str


@dataclass(frozen=True, slots=True)
class Trust(Effect):
    """Remove that record."""


@dataclass(frozen=True, slots=True)
class Report(Effect):
    """Tell the controller in the broker's name that a directory is offline, with all on its file system where that is
    to be shut down."""

    path: str
    directory_ids: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Evict(Effect):
    """Take the broker out of the replica lists of partitions; ``before``: their lists as they are."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Restore(Effect):
    """Put the broker back where it was in them; ``before``: the lists as they were."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Demote(Effect):
    """Have other replicas lead partitions: their lists in another order, and an election of the preferred leaders;
    ``before``: the lists as they are, ``after``: as they are to be."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]
    after: Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Promote(Effect):
    """Put their order back, and elect the preferred leaders; ``before``: the lists as they were."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Kill(Effect):
    """SIGKILL for the broker."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class Reset(Effect):
    """New packets to the broker's ports are answered with a TCP reset."""


@dataclass(frozen=True, slots=True)
class Unreset(Effect):
    """New packets are treated as before."""


@dataclass(frozen=True, slots=True)
class Destroy(Effect):
    """Established connections of the broker's ports are destroyed."""


@dataclass(frozen=True, slots=True)
class Fence(Effect):
    """Tell the controller in the broker's name to fence it."""

    epoch: int


Standing = TypeVar("Standing")


@dataclass(frozen=True, slots=True)
class Move(Generic[Standing]):
    """Outcome of a look at a directory, its leadership or the broker: where it stands, at most one effect, and when to
    look again, if not before."""

    standing: Standing
    effect: Effect | None = None
    again_ms: int | None = None


def _told(value: Any) -> Any:
    """A mapping by partition as text: JSON has no other keys."""
    if isinstance(value, Mapping):
        return {f"{topic_id}-{number}": list(lists) for (topic_id, number), lists in value.items()}
    return value
