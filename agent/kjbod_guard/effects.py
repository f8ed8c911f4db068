"""Effects of the guard's core: each is a value that the shell carries out (:mod:`.action_runner`). Pure.

Each is safe to be done twice, since a guard that is killed between the audit's line and the act does it again.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from kjbod_guard.observing import Key


class Effect(Struct, frozen=True):
    """A means, and what it is for."""

    @property
    def name(self) -> str:
        """For the log and the audit."""
        return type(self).__name__.lower()

    def facts(self) -> dict[str, Any]:
        """Its attributes, for the log and the audit."""
        return {one.name: _told(getattr(self, one.name)) for one in fields(self)}


class Cut(Effect, frozen=True):
    """Shut the file system of a log directory down."""

    path: str


class Mask(Effect, frozen=True):
    """Mount something read-only over a log directory."""

    path: str


class Unmask(Effect, frozen=True):
    """Take that mount away."""

    path: str


class Suspect(Effect, frozen=True):
    """Write into the metadata log which directories are suspected (:mod:`.suspects`); none: all of the broker."""

    epoch: int
    directory_ids: tuple[str, ...]
    mark: str


class Trust(Effect, frozen=True):
    """Remove that record."""


class Report(Effect, frozen=True):
    """Tell the controller in the broker's name that a directory is offline, with all on its file system where that is
    to be shut down."""

    path: str
    directory_ids: tuple[str, ...]
    epoch: int


class Evict(Effect, frozen=True):
    """Take the broker out of the replica lists of partitions; ``before``: their lists as they are."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


class Restore(Effect, frozen=True):
    """Put the broker back where it was in them; ``before``: the lists as they were."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


class Demote(Effect, frozen=True):
    """Have other replicas lead partitions: their lists in another order, and an election of the preferred leaders;
    ``before``: the lists as they are, ``after``: as they are to be."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]
    after: Mapping[Key, tuple[int, ...]]


class Promote(Effect, frozen=True):
    """Put their order back, and elect the preferred leaders; ``before``: the lists as they were."""

    path: str
    directory_id: str
    before: Mapping[Key, tuple[int, ...]]


class Kill(Effect, frozen=True):
    """SIGKILL for the broker."""

    epoch: int | None


class Reset(Effect, frozen=True):
    """New packets to the broker's ports are answered with a TCP reset."""


class Unreset(Effect, frozen=True):
    """New packets are treated as before."""


class Destroy(Effect, frozen=True):
    """Established connections of the broker's ports are destroyed."""


class Fence(Effect, frozen=True):
    """Tell the controller in the broker's name to fence it."""

    epoch: int


Standing = TypeVar("Standing")


class Move(Struct, Generic[Standing], frozen=True):
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
