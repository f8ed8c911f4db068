"""Handlers of the agent's control socket (:mod:`kjbod.runtime.control_socket`), for the ``kjbod`` command.

The answers are plain JSON for a person's command, not an API of the cluster: paths instead of directory ids, a line of
text instead of an error code. All of it is read from memory on the event loop; sizes and room are asked of the
directories through their workers, in bounded time. Long answers leave in pieces of :data:`PIECE`, so that a hundred
thousand replicas do not keep the event loop from a heartbeat.

What changes something is carried out to its end whether or not the command waits for it (:meth:`Commands._to_its_end`):
a person who presses Ctrl-C while a stray is removed must not leave the agent with half a removal.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from kjbod import __version__
from kjbod.errors import EXIT_FAILURE, KjbodError, StorageError
from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.runtime.control_socket import ControlError, Handler
from kjbod.security.certificates import Certificates
from kjbod.usage import Usage
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent import lifecycle as life
from kjbod_agent.admin.view import UNKNOWN, DirectoryView, LogDirectory, ReplicaView, Wants
from kjbod_agent.condition import Contact, fenced
from kjbod_agent.cordoning import Cordoning
from kjbod_agent.history import History
from kjbod_agent.moves.machine import NoRoom, Room, lack_of_room
from kjbod_agent.replicas.hosting import Hosting
from kjbod_host.condition import Condition
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryAgent

T = TypeVar("T")

PIECE: Final = 500
"""Replicas, moves or strays in one piece of an answer."""
WATCH_MS: Final = 1_000
"""Between two pieces of progress."""
WATCHED_MAX: Final = 100
"""Moves that are told one by one in a piece of progress."""
SIZES_TIMEOUT_MS: Final = 3_000
"""How long the list of strays, or the begin of moves, waits for sizes and room."""


# --------------------------------------------------------------------------------------------- what is needed of others


class Fencing(Protocol):
    """The part of :class:`kjbod_agent.fencing.Fencing` that the commands use."""

    @property
    def stuck(self) -> int: ...

    @property
    def unrecorded(self) -> int: ...

    def unmade_words(self) -> list[str]: ...


class Inventory(Protocol):
    """The part of :class:`kjbod_agent.replicas.inventory.Inventory` that the commands use."""

    @property
    def online(self) -> tuple[Uuid, ...]: ...

    @property
    def creating(self) -> Collection[TopicIdPartition]: ...

    def copies(self, partition: TopicIdPartition) -> tuple[Uuid, ...]: ...

    def future(self, partition: TopicIdPartition) -> tuple[Uuid, str] | None: ...

    def futures(self) -> Iterable[tuple[TopicIdPartition, tuple[Uuid, str]]]: ...


class Stray(Protocol):
    """The part of :class:`kjbod_agent.replicas.strays.Stray` that the commands use."""

    @property
    def directory_id(self) -> Uuid: ...

    @property
    def name(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def topic_id(self) -> Uuid | None: ...

    @property
    def reason(self) -> str: ...

    @property
    def since_ms(self) -> int | None: ...


class Placement(Protocol):
    """The part of :class:`kjbod_agent.replicas.placement.Placement` that the commands use."""

    @property
    def hosting(self) -> Hosting: ...

    @property
    def inventory(self) -> Inventory: ...

    @property
    def agents(self) -> Mapping[Uuid, DirectoryAgent]: ...

    @property
    def published(self) -> bool: ...

    @property
    def strays(self) -> Sequence[Stray]: ...

    async def remove_stray(self, directory_id: Uuid, name: str) -> str | None: ...

    async def restore_stray(self, directory_id: Uuid, name: str) -> str: ...


class Move(Protocol):
    """The part of :class:`kjbod_agent.moves.mover.MoveView` that the commands use."""

    @property
    def partition(self) -> TopicIdPartition: ...

    @property
    def topic(self) -> str: ...

    @property
    def source(self) -> Uuid | None: ...

    @property
    def destination(self) -> Uuid: ...

    @property
    def state(self) -> object: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def copied_bytes(self) -> int: ...

    @property
    def bytes_per_second(self) -> float: ...

    @property
    def waiting(self) -> bool: ...


class Mover(Protocol):
    """The part of :class:`kjbod_agent.moves.mover.Mover` that the commands use."""

    @property
    def moves(self) -> Sequence[Move]: ...

    def alter(self, topic: str, partition: int, path: str, *, size_bytes: int | None = None) -> int: ...

    def space(self, path: str) -> tuple[Room, int] | None: ...

    def reason(self, partition: TopicIdPartition) -> str | None: ...

    def cancel(self, topic: str, partition: int) -> bool: ...


class Broker(Protocol):
    """The part of :class:`kjbod_agent.broker.Broker` that the commands use."""

    @property
    def life(self) -> life.Lifecycle: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def fencing(self) -> Fencing: ...

    @property
    def history(self) -> History: ...

    @property
    def certificates(self) -> Certificates: ...

    @property
    def cordoning(self) -> Cordoning: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def contact(self) -> Contact: ...

    def condition(self, *, ago: bool = True) -> Condition: ...


class DirectoryViews(Protocol):
    """The part of :class:`kjbod_agent.admin.view.DirectoryViews` that the commands use."""

    async def directories(self, wants: Wants | None = None, *, measure: bool = True) -> Sequence[DirectoryView]: ...

    def metadata_directory(self) -> DirectoryView | None: ...


class CommandParts(Struct, frozen=True, kw_only=True):
    """The agent, as far as the control socket needs it.

    Args:
        broker: with its placement.
        mover: moves between directories.
        view: what the directories hold and how they are.
        causes: why each directory is in its state, a word of :class:`~kjbod_host.health.state.Cause`, by path.
        log_dirs: the entries of ``log.dirs`` at this moment, in their order.
        add_directory: brings a directory in; gives one line that says what was done or what it waits for.
        companion: how the other half of a combined node is; None: there is none.
        usage: what the agent's processes use; None where that cannot be read.
        spawn: runs a coroutine for as long as the agent.
    """

    broker: Broker
    mover: Callable[[], Mover]
    view: DirectoryViews
    causes: Callable[[], Mapping[str, str]]
    log_dirs: Callable[[], Sequence[LogDirectory]]
    add_directory: Callable[[str], Awaitable[str]]
    companion: Callable[[], dict[str, Any] | None]
    usage: Callable[[], Awaitable[Usage | None]]
    spawn: Callable[[Coroutine[Any, Any, None]], object]


# ---------------------------------------------------------------------------------------------------------- the answers


class Commands:
    """The handlers of the control socket."""

    def __init__(self, parts: CommandParts) -> None:
        self._parts = parts
        self._broker = parts.broker

    @property
    def _mover(self) -> Mover:
        return self._parts.mover()

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by the name of the operation."""
        return {
            "dirs-add": self.add_directory,
            "log-dirs": self.log_dirs,
            "move": self.move,
            "move-cancel": self.cancel,
            "moves": self.moves,
            "status": self.status,
            "strays": self.strays,
            "strays-remove": self.remove_strays,
            "strays-restore": self.restore_stray,
        }

    # ---- how it is

    async def status(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the status of the agent, with a row for each directory."""
        broker, lifecycle = self._broker, self._broker.life
        directories = [row async for row, _ in self._directories(detailed=False)]
        usage = await self._parts.usage()
        condition, contact = broker.condition(), broker.contact
        return {
            "condition": {
                "level": condition.level.name.lower(),
                "code": int(condition.level),
                "text": condition.line,
                "reasons": list(condition.reasons),
            },
            "controller": asdict(contact),
            "version": __version__,
            "pid": os.getpid(),
            "node": lifecycle.identity.broker_id,
            "cluster_id": lifecycle.identity.cluster_id,
            "state": lifecycle.state.name.lower().replace("_", " "),
            "fenced": fenced(lifecycle, contact.silent_ms),
            "broker_epoch": lifecycle.broker_epoch,
            "metadata_offset": lifecycle.metadata_offset,
            "metadata_version": broker.image.metadata_version,
            "published": broker.placement.published,
            "queued_assignments": broker.fencing.unrecorded,
            "unmade": broker.fencing.unmade_words(),
            "metadata_history": broker.history.as_json(),
            "certificates": broker.certificates.as_json(),
            "admission": broker.cordoning.admission.text,
            "stuck_assignments": broker.fencing.stuck,
            "creating": len(broker.placement.inventory.creating),
            "moves": len(self._mover.moves),
            "strays": len(broker.placement.strays),
            "processes": None if usage is None else to_builtins(usage),
            "own_controller": self._parts.companion(),
            "directories": directories,
        }

    async def log_dirs(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the directories, and with ``replicas`` also their replicas."""
        async for row, replicas in self._directories(detailed=request.get("replicas") is True):
            yield {"directory": row}
            for piece in _pieces(replicas):
                yield {"path": row["path"], "replicas": [_replica(replica) for replica in piece]}
                await asyncio.sleep(0)

    async def _directories(self, *, detailed: bool) -> AsyncIterator[tuple[dict[str, Any], Sequence[ReplicaView]]]:
        """Directories, a ``metadata.log.dir`` of its own last, and their replicas if these are asked for: a view of a
        hundred thousand takes a second."""
        views = await self._parts.view.directories(None if detailed else _nothing, measure=detailed)
        held, future, causes = self._held(), self._on_the_way(), self._parts.causes()
        for view in views:
            row = self._directory(view) | {
                "role": "log",
                "cause": causes.get(view.path),
                "replicas": 0 if view.directory_id is None else held[view.directory_id],
                "future": 0 if view.directory_id is None else future[view.directory_id],
            }
            yield row, view.replicas
        metadata = self._parts.view.metadata_directory()
        if metadata is not None:
            row = self._directory(metadata) | {"role": "metadata", "cause": causes.get(metadata.path)}
            yield row | {"replicas": 0, "future": 0}, ()

    def _held(self) -> Counter[Uuid]:
        """Return the number of current replicas by directory. A replica that is found nowhere counts where the metadata
        place it."""
        held: Counter[Uuid] = Counter()
        inventory = self._broker.placement.inventory
        for partition, hosted in self._broker.placement.hosting.partitions.items():
            for directory in inventory.copies(partition) or (hosted.directory,):
                held[directory] += 1
        return held

    def _on_the_way(self) -> Counter[Uuid]:
        """Return the number of future replicas by directory."""
        return Counter(directory for _, (directory, _) in self._broker.placement.inventory.futures())

    def _directory(self, view: DirectoryView) -> dict[str, Any]:
        return {
            "path": view.path,
            "directory_id": None if view.directory_id is None else str(view.directory_id),
            "online": view.online,
            "verdict": view.verdict,
            "error": view.error,
            "since_ms": view.since_ms,
            "cordoned": view.cordoned,
            "device": view.device or None,
            "model": view.model,
            "serial": view.serial,
            "file_system": view.file_system,
            "total_bytes": _known(view.total_bytes),
            "usable_bytes": _known(view.usable_bytes),
            "leaders": view.leaders,
            "remembered": view.remembered,
        }

    # ---- moves

    async def move(self, request: dict[str, Any]) -> AsyncIterator[list[dict[str, Any]]]:
        """Begin moves ``to`` a path: of ``partitions``, or of all replicas in the directory ``from``."""
        self._require_metadata()
        path = _text(request, "to")
        partitions = _partitions(request) if "from" not in request else self._replicas_in(_text(request, "from"))
        for piece in _pieces(partitions):
            sizes, usable_bytes = await asyncio.gather(self._log_sizes(piece), self._usable_bytes(path))
            yield self._begin_moves(piece, path, sizes, usable_bytes)
            await asyncio.sleep(0)

    def _begin_moves(
        self,
        partitions: Iterable[tuple[str, int]],
        path: str,
        sizes: Mapping[tuple[str, int], int],
        usable_bytes: int | None,
    ) -> list[dict[str, Any]]:
        """Begin the moves that fit into ``usable_bytes`` (None: as last seen), in this order; none that is not known to
        be too large is refused."""
        space = self._mover.space(path)
        room, promised = (None, 0) if space is None else space
        if room is not None and usable_bytes is not None:
            room = replace(room, usable_bytes=usable_bytes)
        outcomes = []
        for topic, number in partitions:
            size_bytes = sizes.get((topic, number))
            lack = None if room is None else lack_of_room(size_bytes or 0, room, promised)
            outcome = self._move(topic, number, path, size_bytes, lack)
            if outcome["error"] is None and outcome["note"] is None:
                promised += size_bytes or 0
            outcomes.append(outcome)
        return outcomes

    async def _usable_bytes(self, path: str) -> int | None:
        """Bytes that can be allocated in a directory now: the last probe was before whatever a person has just put
        there. None: it does not say so in time."""
        directory, placement = self._id_of(path), self._broker.placement
        is_online = directory is not None and directory in placement.inventory.online
        agent = placement.agents.get(directory) if directory is not None and is_online else None
        if agent is None:
            return None
        try:
            async with asyncio.timeout(SIZES_TIMEOUT_MS / 1000):
                return await agent.usable_bytes(timeout_ms=SIZES_TIMEOUT_MS)
        except (TimeoutError, StorageError):
            return None

    async def _log_sizes(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Bytes in the segments of current replicas, as far as the directories say them in time."""
        inventory = self._broker.placement.inventory
        asked: dict[tuple[Uuid, str], tuple[str, int]] = {}
        for topic, number in partitions:
            partition = self._partition(topic, number)
            for directory in () if partition is None else inventory.copies(partition)[:1]:
                asked[directory, f"{topic}-{number}"] = topic, number
        sizes = await self._sizes(asked, suffix=".log")
        return {asked[place]: size for place, size in sizes.items()}

    def _move(self, topic: str, number: int, path: str, size_bytes: int | None, lack: NoRoom | None) -> dict[str, Any]:
        partition = self._partition(topic, number)
        if partition is not None and self._is_at(partition, path):
            return _outcome(topic, number, note=f"is in {path} already")
        future = None if partition is None else self._broker.placement.inventory.future(partition)
        if lack is not None and (future is None or future[0] != self._id_of(path)):
            return _outcome(topic, number, error=_no_room(f"{topic}-{number}", path, lack))
        code = self._mover.alter(topic, number, path, size_bytes=size_bytes)
        if code == ErrorCode.NONE:
            return _outcome(topic, number)
        return _outcome(topic, number, error=self._explain(code, partition, topic, number, path))

    def _is_at(self, partition: TopicIdPartition, path: str) -> bool:
        """Whether a replica is already at its destination, so that nothing is to be done. A move to another directory
        must be ended first."""
        inventory = self._broker.placement.inventory
        directory = self._id_of(path)
        here = directory is not None and inventory.copies(partition) == (directory,)
        return here and directory in inventory.online and inventory.future(partition) is None

    def _explain(self, code: int, partition: TopicIdPartition | None, topic: str, number: int, path: str) -> str:
        """Return the meaning of an answer of AlterReplicaLogDirs, in one line."""
        name = f"{topic}-{number}"
        online = self._broker.placement.inventory.online
        offline = [entry.path for entry in self._parts.log_dirs() if entry.directory_id not in online]
        lies_in = [] if partition is None else [self._path_of(d) for d in self._copies(partition)]
        match code:
            case ErrorCode.LOG_DIR_NOT_FOUND:
                there_are = ", ".join(entry.path for entry in self._parts.log_dirs())
                return f"{path} is not a log directory of this broker; there are {there_are}"
            case ErrorCode.KAFKA_STORAGE_ERROR if path in offline:
                return f"{path} is offline: see kjbod log-dirs"
            case ErrorCode.KAFKA_STORAGE_ERROR if bad := [each for each in lies_in if each in offline]:
                return f"{name} lies in {bad[0]}, which is offline: a move has to read it"
            case ErrorCode.KAFKA_STORAGE_ERROR if offline:
                return f"{offline[0]} is offline: no move begins until every log directory is online, as in Kafka"
            case ErrorCode.REPLICA_NOT_AVAILABLE:
                return f"{name} has no replica on this broker (node {self._broker.life.identity.broker_id})"
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return f"there is no {name} in the cluster"
            case ErrorCode.INVALID_TOPIC_EXCEPTION:
                return f"{name}: the name of the topic is too long for a directory with the suffix of a move"
            case ErrorCode.INVALID_REPLICA_ASSIGNMENT:
                return f"{path} is cordoned: it takes no new replicas"
        return f"{name} cannot be moved to {path}: {life.error_name(code)}"

    async def cancel(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """End moves of ``partitions``, or of all that leave the directory ``from``: these replicas stay there."""
        if "from" in request:
            source = self._id_of(_text(request, "from"))
            partitions = [(m.topic, m.partition.partition) for m in self._mover.moves if m.source == source]
        else:
            partitions = _partitions(request)
        under_way = self._moving().keys()  # as it was: a move that was cancelled is still there for a moment
        return [
            _outcome(topic, number, error=self._cancel(topic, number, (topic, number) in under_way))
            for topic, number in partitions
        ]

    def _cancel(self, topic: str, number: int, under_way: bool) -> str | None:
        """End a move; return why it cannot be ended; None: it was ended."""
        if self._mover.cancel(topic, number):
            return None
        if under_way:
            return f"{topic}-{number} takes the place of the old replica just now: it is too late to cancel"
        return f"{topic}-{number} is not being moved"

    async def moves(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """All moves; with ``watch`` again and again, until those of ``partitions`` (none given: of now) have ended."""
        self._require_metadata()  # moves of an earlier process go on when they are known
        if request.get("watch") is True:
            wanted = dict.fromkeys(_partitions(request)) if "partitions" in request else None
            async for part in self._watch(wanted):
                yield part
            return
        for piece in _pieces(self._mover.moves):
            paths = self._paths()
            yield {"moves": [_move_row(move, paths) for move in piece]}
            await asyncio.sleep(0)

    async def _watch(self, wanted: Collection[tuple[str, int]] | None) -> AsyncIterator[dict[str, Any]]:
        watched = {name: move for name, move in self._moving().items() if wanted is None or name in wanted}
        done_bytes = 0
        # What has ended before we looked is told of as what has ended since.
        ended = [self._result(name, None) for name in wanted or () if name not in watched]
        while watched or ended:
            yield _progress(watched.values(), ended, self._paths(), done_bytes)
            if watched:
                await asyncio.sleep(WATCH_MS / 1000)
            now = self._moving()
            ended = [self._result(name, move) for name, move in watched.items() if name not in now]
            moved = {(each["topic"], each["partition"]) for each in ended if each["moved"]}
            done_bytes += sum(watched[name].total_bytes for name in moved)
            watched = {name: now[name] for name in watched if name in now}

    def _moving(self) -> dict[tuple[str, int], Move]:
        return {(move.topic, move.partition.partition): move for move in self._mover.moves}

    def _result(self, name: tuple[str, int], move: Move | None) -> dict[str, Any]:
        """Line for a replica whose move has ended, with its place; ``moved`` None: nobody here knows where it was to
        go."""
        partition = self._partition(*name)
        copies = () if partition is None else self._copies(partition)
        at = self._path_of(copies[0]) if copies else None
        moved = None if move is None else copies == (move.destination,)
        reason = None if partition is None or moved else self._mover.reason(partition)
        if reason is not None:
            moved = False
        return {"topic": name[0], "partition": name[1], "at": at, "moved": moved, "reason": reason}

    # ---- strays

    async def strays(self, request: dict[str, Any]) -> AsyncIterator[list[dict[str, Any]] | dict[str, Any]]:
        """All strays, with their sizes as far as the directories say them in time; then which directories may hold
        others, because they cannot be looked into, by path."""
        strays = tuple(self._broker.placement.strays)
        sizes = await self._sizes((stray.directory_id, stray.name) for stray in strays)
        for piece in _pieces(strays):
            yield [self._stray(stray, sizes.get((stray.directory_id, stray.name))) for stray in piece]
        views = await self._parts.view.directories(_nothing, measure=False)
        unread = {view.path: f"{view.path} is {view.verdict}: it may hold others" for view in views if not view.online}
        if unread:
            yield {"unread": unread}

    def _stray(self, stray: Stray, size: int | None) -> dict[str, Any]:
        return {
            "name": stray.name,
            "topic": stray.topic,
            "partition": stray.partition,
            "topic_id": None if stray.topic_id is None else str(stray.topic_id),
            "directory": self._path_of(stray.directory_id),
            "online": stray.directory_id in self._broker.placement.inventory.online,
            "reason": stray.reason,
            "since_ms": stray.since_ms,
            "size": size,
        }

    async def _sizes(self, replicas: Iterable[tuple[Uuid, str]], suffix: str = "") -> Mapping[tuple[Uuid, str], int]:
        """Bytes in the files of replica directories, by directory and name, of files whose names end so; without those
        of which nobody says it in time."""
        names: dict[Uuid, list[str]] = {}
        for directory, name in replicas:
            if directory in self._broker.placement.inventory.online:
                names.setdefault(directory, []).append(name)
        sizes: dict[tuple[Uuid, str], int] = {}

        async def measure(directory: Uuid, wanted: Sequence[str]) -> None:
            agent = self._broker.placement.agents[directory]
            found = await agent.replica_sizes(wanted, suffix=suffix, timeout_ms=SIZES_TIMEOUT_MS)
            sizes.update({(directory, name): size for name, size in found.items()})

        work = [measure(directory, wanted) for directory, wanted in names.items()]
        try:
            async with asyncio.timeout(SIZES_TIMEOUT_MS / 1000):
                # A directory that says nothing, in time or at all, leaves its sizes unknown.
                await asyncio.gather(*work, return_exceptions=True)
        except TimeoutError:
            return sizes
        return sizes

    async def remove_strays(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Remove ``strays``, each ``[directory, name]``: what the person was shown, and nothing that came since."""
        for stray in self._named_strays(request):
            work = self._broker.placement.remove_stray(stray.directory_id, stray.name)
            yield await self._tried(stray, work)

    async def restore_stray(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Restore the original names of ``strays``."""
        for stray in self._named_strays(request):
            work = self._broker.placement.restore_stray(stray.directory_id, stray.name)
            yield await self._tried(stray, work)

    async def _tried(self, stray: Stray, work: Coroutine[Any, Any, str | None]) -> dict[str, Any]:
        row = {"name": stray.name, "directory": self._path_of(stray.directory_id)}
        try:
            return row | {"note": await self._to_its_end(work), "error": None}
        except KjbodError as error:
            return row | {"note": None, "error": str(error)}

    def _named_strays(self, request: dict[str, Any]) -> list[Stray]:
        wanted = request.get("strays")
        if not isinstance(wanted, list) or not all(isinstance(w, list) and len(w) == 2 for w in wanted):
            raise ControlError("strays: expected [[directory, name], ...]")
        paths = self._paths()
        known = {(paths.get(s.directory_id, str(s.directory_id)), s.name): s for s in self._broker.placement.strays}
        missing = [each for each in wanted if (each[0], each[1]) not in known] if _all_text(wanted) else wanted
        if missing:
            raise ControlError(f"there is no stray {missing[0][1]} in {missing[0][0]}")
        return [known[directory, name] for directory, name in wanted]

    # ---- directories

    async def add_directory(self, request: dict[str, Any]) -> str:
        """Add a directory that was formatted while the agent runs; return a line about the result."""
        path = _text(request, "path")

        async def add() -> str:
            return await self._parts.add_directory(path)

        return await self._to_its_end(add())

    # ---- helpers

    def _require_metadata(self) -> None:
        if not self._broker.placement.published:
            raise ControlError("the agent has not read the cluster's metadata yet: kjbod status says how far it is")

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which goes on when whoever waits for it has left. Its errors are the answer and no
        reason to end the agent."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await work
            except asyncio.CancelledError:
                done.cancel()
                raise
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                if not done.done():
                    done.set_exception(error)
                    done.exception()  # it has been looked at, even if nobody waits any more
            else:
                if not done.done():
                    done.set_result(result)

        self._parts.spawn(run())
        return await done

    def _replicas_in(self, path: str) -> list[tuple[str, int]]:
        directory = self._id_of(path)
        if directory is None:
            there_are = ", ".join(entry.path for entry in self._parts.log_dirs())
            raise ControlError(f"{path} is not a log directory of this broker; there are {there_are}")
        hosted = self._broker.placement.hosting.partitions
        found = sorted((h.topic, p.partition) for p, h in hosted.items() if directory in self._copies(p))
        if not found and directory not in self._broker.placement.inventory.online:
            raise ControlError(f"{path} is offline, and nobody knows what it holds: see kjbod log-dirs")
        return found

    def _partition(self, topic: str, number: int) -> TopicIdPartition | None:
        topic_id = self._broker.image.topic_ids.get(topic)
        partition = None if topic_id is None else TopicIdPartition(topic_id, number)
        return partition if partition in self._broker.placement.hosting.partitions else None

    def _copies(self, partition: TopicIdPartition) -> tuple[Uuid, ...]:
        return self._broker.placement.inventory.copies(partition)

    def _id_of(self, path: str) -> Uuid | None:
        return next((entry.directory_id for entry in self._parts.log_dirs() if entry.path == path), None)

    def _path_of(self, directory_id: Uuid) -> str:
        return self._paths().get(directory_id, str(directory_id))

    def _paths(self) -> dict[Uuid, str]:
        entries = self._parts.log_dirs()
        return {entry.directory_id: entry.path for entry in entries if entry.directory_id is not None}


def _nothing(topic: str, partition: int) -> bool:
    return False


def _replica(replica: ReplicaView) -> dict[str, Any]:
    return {
        "topic": replica.topic,
        "partition": replica.partition,
        "topic_id": str(replica.topic_id),
        "name": replica.name,
        "size": _known(replica.size),
        "lag": _known(replica.lag),
        "future": replica.future,
        "leader": replica.leader,
    }


def _move_row(move: Move, paths: Mapping[Uuid, str]) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition.partition,
        "from": None if move.source is None else paths.get(move.source, str(move.source)),
        "to": paths.get(move.destination, str(move.destination)),
        "state": _state_of(move),
        "total_bytes": move.total_bytes,
        "copied_bytes": move.copied_bytes,
        "bytes_per_second": round(move.bytes_per_second),
    }


def _state_of(move: Move) -> str:
    """For people: the machine's "queued" is the assignment that waits for the controller's answer."""
    if move.waiting:
        return "queued"
    return "assigning" if str(move.state) == "queued" else str(move.state)


def _no_room(name: str, path: str, lack: NoRoom) -> str:
    """Line that says what does not fit where, and what to do."""
    kept = [f"{_mib(lack.margin_bytes)} have to stay free"]
    if lack.promised_bytes:
        kept.insert(0, f"{_mib(lack.promised_bytes)} of them are for moves that are under way")
    why = f"{name} has {_mib(lack.needed_bytes)} and {path} {_mib(lack.usable_bytes)} left, {' and '.join(kept)}"
    return f"{why}: make room there, or move it elsewhere"


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"


def _progress(
    moves: Collection[Move], ended: Sequence[dict[str, Any]], paths: Mapping[Uuid, str], done_bytes: int
) -> dict[str, Any]:
    """Of very many moves the first ones, which are those that get on, and the sums over all, of those too that ended
    while they were watched."""
    return {
        "moves": [_move_row(move, paths) for move, _ in zip(moves, range(WATCHED_MAX), strict=False)],
        "all": {
            "moves": len(moves),
            "total_bytes": done_bytes + sum(move.total_bytes for move in moves),
            "copied_bytes": done_bytes + sum(move.copied_bytes for move in moves),
            "bytes_per_second": round(sum(move.bytes_per_second for move in moves)),
        },
        "ended": list(ended),
    }


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number


def _outcome(topic: str, partition: int, *, note: str | None = None, error: str | None = None) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "note": note, "error": error}


def _pieces(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(items), PIECE):
        yield items[start : start + PIECE]


# ------------------------------------------------------------------------------------------------- fields of requests


def _text(request: Mapping[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise ControlError(f"{key}: expected a text", EXIT_FAILURE)
    return value


def _all_text(pairs: Iterable[Sequence[Any]]) -> bool:
    return all(isinstance(each, str) for pair in pairs for each in pair)


def _partitions(request: Mapping[str, Any]) -> list[tuple[str, int]]:
    wanted = request.get("partitions")
    if not isinstance(wanted, list):
        raise ControlError("partitions: expected [[topic, partition], ...]")
    found = []
    for each in wanted:
        match each:
            case [str(topic), int(number)] if not isinstance(number, bool) and 0 <= number < 1 << 31:
                found.append((topic, number))
            case _:
                raise ControlError("partitions: expected [[topic, partition], ...]")
    return found
