"""Journal of a guard: its actions and states, so that the next guard continues from them. Pure.

The journal is one JSON file in ``kjbod.state.dir``, replaced as a whole and fsynced before each act. The next guard
compares the journal with the metadata and the kernel: the journal never decides alone. The journal keeps the replica
lists from before an eviction until they are restored, or until others have changed them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.errors import KjbodError
from kjbod.ids import Uuid
from kjbod_guard import broker_steps, directory_steps
from kjbod_guard.budget import EVICT_WITHIN_MS
from kjbod_guard.effects import Destroy, Effect, Fence, Kill, Reset
from kjbod_guard.ladder import Step
from kjbod_guard.observing import Key

NAME: Final = "guard-acts.json"
VERSION: Final = 1


class JournalError(KjbodError):
    """A journal that cannot be read: it was changed by hand, or is damaged."""


class Evicted(Struct, frozen=True):
    """A partition from which the broker was evicted, or is about to be.

    Attributes:
        directory_id: where its replica lay, as text.
        topic: its name.
        before: the original replica list.
        at_ms: wall clock of the eviction.
    """

    directory_id: str
    topic: str
    before: tuple[int, ...]
    at_ms: int


class Demoted(Struct, frozen=True):
    """A partition whose list was put in another order, or is about to be.

    Attributes:
        directory_id: where its replica lies, as text.
        topic: its name.
        before: the original replica list.
        after: the replica list after the demotion.
    """

    directory_id: str
    topic: str
    before: tuple[int, ...]
    after: tuple[int, ...]


class Journal(Struct, frozen=True, kw_only=True):
    """Memory of a guard.

    Attributes:
        directories: state and id of each directory, with the wall clock when it went offline (else of the write), by
            path.
        broker: state of the broker.
        fenced: epoch and monotonic time of the last fence.
        evicted: by topic id and number.
        demoted: likewise.
    """

    directories: Mapping[str, tuple[directory_steps.Standing, str | None, int]] = field(default_factory=dict)
    broker: broker_steps.Standing = field(default_factory=broker_steps.Standing)
    fenced: tuple[int, int] | None = None
    evicted: Mapping[Key, Evicted] = field(default_factory=dict)
    demoted: Mapping[Key, Demoted] = field(default_factory=dict)

    def of(self, directory_id: str | None) -> dict[Key, tuple[int, ...]]:
        """Return the original replica lists of partitions that were evicted from a directory."""
        return {key: one.before for key, one in self.evicted.items() if one.directory_id == directory_id}

    @property
    def left(self) -> str:
        """Actions that are to be undone, in words; empty: none are."""
        masked = [path for path, (standing, _, _) in self.directories.items() if standing.means is Step.MASK]
        count = len(self.evicted)
        found = [f"{count} partition{'' if count == 1 else 's'} evicted"] if count else []
        found += [f"{len(self.demoted)} demoted"] if self.demoted else []
        found += [f"{', '.join(masked)} masked"] if masked else []
        return ", ".join(found)

    def without(self, keys: Iterable[Key]) -> "Journal":
        """Return the journal without the evictions of these partitions."""
        gone = set(keys)
        return replace(self, evicted={key: one for key, one in self.evicted.items() if key not in gone})

    def demoted_of(self, directory_id: str | None) -> dict[Key, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the replica lists of partitions that were demoted in a directory, before and after the demotion."""
        return {key: (one.before, one.after) for key, one in self.demoted.items() if one.directory_id == directory_id}

    def not_demoted(self, keys: Iterable[Key]) -> "Journal":
        """Return the journal without the demotions of these partitions."""
        gone = set(keys)
        return replace(self, demoted={key: one for key, one in self.demoted.items() if key not in gone})

    def replaced(self, before: str, now: str) -> "Journal":
        """Return the journal with the evictions and demotions of one directory id moved to another id."""
        moved = {
            key: replace(one, directory_id=now) if one.directory_id == before else one
            for key, one in self.evicted.items()
        }
        led = {
            key: replace(one, directory_id=now) if one.directory_id == before else one
            for key, one in self.demoted.items()
        }
        return replace(self, evicted=moved, demoted=led)


_TO_DO: Final[Mapping[str, type[Effect]]] = {"reset": Reset, "destroy": Destroy}


def encode(journal: Journal, node: int, *, ahead_ms: int, boot_id: str = "") -> bytes:
    """Return the content of the file.

    Args:
        journal: what is written.
        node: id of the broker.
        ahead_ms: wall clock minus monotonic time, now.
        boot_id: of this boot of the host; empty where nobody knows.
    """
    told = {
        "version": VERSION,
        "node": node,
        "directories": {
            path: {
                "state": standing.state,
                "means": standing.means,
                "plan": standing.plan,
                "epoch": standing.epoch,
                "reports": standing.reports,
                "reason": standing.reason,
                "offline": standing.offline_ms is not None,
                "directory_id": directory_id,
                "at_ms": at_ms,
            }
            for path, (standing, directory_id, at_ms) in journal.directories.items()
            if standing.state is not directory_steps.State.WELL or standing.means or standing.plan
        },
        "broker": _broker(journal.broker),
        "clock": {"boot_id": boot_id, "ahead_ms": ahead_ms} if boot_id else None,
        "fenced": None if journal.fenced is None else [journal.fenced[0], journal.fenced[1] + ahead_ms],
        "evicted": [
            {
                "topic_id": str(topic_id),
                "topic": one.topic,
                "partition": number,
                "before": list(one.before),
                "directory_id": one.directory_id,
                "at_ms": one.at_ms,
            }
            for (topic_id, number), one in journal.evicted.items()
        ],
        "demoted": [
            {
                "topic_id": str(topic_id),
                "topic": one.topic,
                "partition": number,
                "before": list(one.before),
                "after": list(one.after),
                "directory_id": one.directory_id,
            }
            for (topic_id, number), one in journal.demoted.items()
        ],
    }
    return json.dumps(told, indent=1).encode() + b"\n"


def _broker(now: broker_steps.Standing) -> dict[str, Any]:
    return {
        "state": now.state,
        "reason": now.reason,
        "pid": now.pid,
        "epoch": now.epoch,
        "fences": now.fences,
        "killed": now.killed_ms is not None or isinstance(now.under_way, Kill),
        "reset": now.reset or isinstance(now.under_way, Reset),
        "left": [effect.name for effect in now.left],
    }


def decode(content: bytes, node: int, *, now_ms: int, wall_ms: int, boot_id: str = "") -> Journal:
    """Return the journal of the previous guard, with no effect in progress.

    Args:
        content: of the file.
        node: id of the broker.
        now_ms: monotonic time.
        wall_ms: wall clock of the same moment. It counts only after a reboot: it may have been set since.
        boot_id: of this boot of the host; empty where nobody knows.

    Raises:
        JournalError: the content is no journal, or is of another node.
    """
    try:
        told = json.loads(content)
        if told["version"] != VERSION or told["node"] != node:
            raise JournalError(f"it is of version {told['version']}, node {told['node']}")
        clock = told.get("clock")  # an older release has not written it
        if clock is not None and boot_id and _text(clock["boot_id"]) == boot_id:
            wall_ms = now_ms + _number(clock["ahead_ms"])
        return Journal(
            directories={
                path: (_standing(row, now_ms, wall_ms), _id(row["directory_id"]), _number(row["at_ms"]))
                for path, row in told["directories"].items()
            },
            broker=_resumed(told["broker"], now_ms),
            fenced=None if told["fenced"] is None else _fenced(told["fenced"], now_ms, wall_ms),
            evicted={
                (Uuid.parse(row["topic_id"]), _number(row["partition"])): Evicted(
                    str(Uuid.parse(row["directory_id"])),
                    _text(row["topic"]),
                    tuple(map(_number, row["before"])),
                    _number(row["at_ms"]),
                )
                for row in told["evicted"]
            },
            demoted={
                (Uuid.parse(row["topic_id"]), _number(row["partition"])): Demoted(
                    str(Uuid.parse(row["directory_id"])),
                    _text(row["topic"]),
                    tuple(map(_number, row["before"])),
                    tuple(map(_number, row["after"])),
                )
                for row in told.get("demoted", ())  # an older release has not written them
            },
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise JournalError(f"it cannot be read: {error}") from error


def _fenced(row: Sequence[Any], now_ms: int, wall_ms: int) -> tuple[int, int]:
    """Return the last fence. If the wall clock was set back since, the fence counts as of now."""
    epoch, at_ms = _number(row[0]), _number(row[1])
    return epoch, now_ms - max(0, wall_ms - at_ms)


def _standing(row: Mapping[str, Any], now_ms: int, wall_ms: int) -> directory_steps.Standing:
    ago_ms = wall_ms - _number(row["at_ms"])
    recent = -EVICT_WITHIN_MS < ago_ms < EVICT_WITHIN_MS  # a time in the future shows a wall clock that was set back
    state, reason = directory_steps.State(row["state"]), _text(row["reason"])
    plan = None if row.get("plan") is None else Step(row["plan"])  # an older release has not written it
    match state:
        case directory_steps.State.RELEASING:  # the operator must ask again
            state, reason = directory_steps.State.LEFT, directory_steps.RELEASED
        case directory_steps.State.UNMASKING:
            state = directory_steps.State.MASKED
        case directory_steps.State.EVICTING:  # the remaining partitions are requested again
            state = directory_steps.State.OFFLINE
        case directory_steps.State.OFFLINE if plan is Step.CUT and row["means"] is None:
            if (
                reason != directory_steps.ANSWERED
            ):  # the shutdown failed: this guard may have the right or helper that the earlier guard lacked
                state = directory_steps.State.REPORTING
        case directory_steps.State.CUTTING:  # the cut may have worked: it is requested again
            state = directory_steps.State.WELL if plan is None else directory_steps.State.REPORTING
        case directory_steps.State.LEFT if reason != directory_steps.RELEASED and _is_untouched(row):
            state = directory_steps.State.WELL  # this guard may have the right or helper that the earlier guard lacked
    return directory_steps.Standing(
        state=state,
        since_ms=now_ms,
        reason=reason,
        means=None if row["means"] is None else Step(row["means"]),
        plan=plan,
        acted_ms=None if row["means"] is None and plan is None else now_ms,
        epoch=_maybe(row["epoch"]),
        reports=_number(row["reports"]),
        # Leaders still wait for replicas that went offline a short time ago.
        offline_ms=now_ms - max(0, ago_ms) if row["offline"] and recent else None,
        seen_online=recent and (row["offline"] or state not in directory_steps.GONE),
    )


def _is_untouched(row: Mapping[str, Any]) -> bool:
    """Whether nothing was done about a directory."""
    return row["means"] is None and not row["reports"]


def _resumed(row: Mapping[str, Any], now_ms: int) -> broker_steps.Standing:
    """Return the broker's state. A fence that has reached the kill continues; an earlier fence begins again."""
    killed, epoch = bool(row["killed"]), _maybe(row["epoch"])
    begun = row["state"] == broker_steps.State.FENCING and epoch is not None and (killed or row["left"] == ["fence"])
    names = [name for name in row["left"] if name != "cut"]  # the next guard decides about disks anew
    left = tuple(_effect(name, epoch) for name in names) if begun and epoch is not None else ()
    state = broker_steps.State.FENCING if begun else broker_steps.State.ABSENT
    if row["state"] == broker_steps.State.FENCED:
        state = broker_steps.State.FENCED
    return broker_steps.Standing(
        state=state,
        since_ms=now_ms,
        reason=_text(row["reason"]),
        pid=_maybe(row["pid"]),
        epoch=epoch,
        left=left,
        fences=_number(row["fences"]),
        killed_ms=now_ms if killed else None,
        reset=bool(row["reset"]),
    )


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"a number is expected, not {value!r}")
    return value


def _maybe(value: Any) -> int | None:
    return None if value is None else _number(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a text is expected, not {value!r}")
    return value


def _id(value: Any) -> str | None:
    return None if value is None else str(Uuid.parse(value))


def _effect(name: str, epoch: int) -> Effect:
    if name == "kill":
        return Kill(epoch)
    return Fence(epoch) if name == "fence" else _TO_DO[name]()
