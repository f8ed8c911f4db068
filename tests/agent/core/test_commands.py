"""What the agent answers on its control socket: paths and lines for a person, from memory, in pieces."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.runtime.control_socket import ControlError
from kjbod.security.certificates import Certificates
from kjbod.usage import Usage
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent import lifecycle
from kjbod_agent.admin.commands import PIECE, WATCHED_MAX, CommandParts, Commands
from kjbod_agent.admin.view import DirectoryView, LogDirectory, ReplicaView, Wants
from kjbod_agent.broker_features import registered_features
from kjbod_agent.condition import Contact, DirectoryStates, condition, contact
from kjbod_agent.cordoning import Cordoning
from kjbod_agent.history import History
from kjbod_agent.moves.machine import MoveView, Room, State
from kjbod_agent.replicas.hosting import Hosted, Hosting
from kjbod_agent.replicas.strays import Stray
from kjbod_host.condition import Condition
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.strays import NO_TOPIC
from tests.metrics.test_process_series import USAGE

D1, D2, D3, TOPIC, OTHER = (Uuid((1000 + number).to_bytes(16)) for number in range(5))
_E = ErrorCode
PATHS = {D1: "/mnt/d1", D2: "/mnt/d2", D3: "/mnt/d3"}


def of(partition: int, topic: Uuid = TOPIC) -> TopicIdPartition:
    return TopicIdPartition(topic, partition)


@dataclass
class FakeInventory:
    online: tuple[Uuid, ...] = (D1, D2, D3)
    creating: tuple[TopicIdPartition, ...] = ()
    where: dict[TopicIdPartition, tuple[Uuid, ...]] = field(default_factory=dict)
    moving: dict[TopicIdPartition, tuple[Uuid, str]] = field(default_factory=dict)

    def copies(self, partition: TopicIdPartition) -> tuple[Uuid, ...]:
        return self.where.get(partition, ())

    def future(self, partition: TopicIdPartition) -> tuple[Uuid, str] | None:
        return self.moving.get(partition)

    def futures(self) -> Iterable[tuple[TopicIdPartition, tuple[Uuid, str]]]:
        return self.moving.items()


@dataclass
class FakeDirectory:
    """As much of a storage agent as sizes and room need."""

    sizes: Mapping[str, int] | StorageError | None = None
    """None: hangs."""
    room: int | StorageError | None = None
    """None: hangs."""

    async def usable_bytes(self, *, timeout_ms: int) -> int:
        if self.room is None:
            await asyncio.Event().wait()
        if isinstance(self.room, StorageError):
            raise self.room
        assert self.room is not None
        return self.room

    async def replica_sizes(self, names: Sequence[str], *, suffix: str = "", timeout_ms: int) -> Mapping[str, int]:
        if self.sizes is None:
            await asyncio.Event().wait()
        if isinstance(self.sizes, StorageError):
            raise self.sizes
        assert self.sizes is not None
        return {name: self.sizes[name] for name in names if name in self.sizes}


@dataclass
class FakePlacement:
    hosting: Hosting = field(default_factory=lambda: Hosting(1))
    inventory: FakeInventory = field(default_factory=FakeInventory)
    agents: dict[Uuid, Any] = field(default_factory=dict)
    published: bool = True
    strays: tuple[Stray, ...] = ()
    done: list[tuple[str, Uuid, str]] = field(default_factory=list)
    refusal: str | None = None
    gate: asyncio.Event | None = None

    async def _do(self, what: str, directory_id: Uuid, name: str) -> str:
        if self.gate is not None:
            await self.gate.wait()
        if self.refusal is not None:
            raise StorageError(self.refusal)
        self.done.append((what, directory_id, name))
        return f"{what} {name}"

    async def remove_stray(self, directory_id: Uuid, name: str) -> str:
        return await self._do("removed", directory_id, name)

    async def restore_stray(self, directory_id: Uuid, name: str) -> str:
        return await self._do("restored", directory_id, name)


@dataclass
class FakeMover:
    moves: tuple[MoveView, ...] = ()
    code: ErrorCode = ErrorCode.NONE
    altered: list[tuple[str, int, str]] = field(default_factory=list)
    room: tuple[Room, int] | None = None
    reasons: dict[int, str] = field(default_factory=dict)

    def space(self, path: str) -> tuple[Room, int] | None:
        return self.room

    def reason(self, partition: TopicIdPartition) -> str | None:
        return self.reasons.get(partition.partition)

    def alter(self, topic: str, partition: int, path: str, *, size_bytes: int | None = None) -> ErrorCode:
        self.altered.append((topic, partition, path))
        return self.code

    def cancel(self, topic: str, partition: int) -> bool:
        return any((m.topic, m.partition.partition) == (topic, partition) and m.state is State.NONE for m in self.moves)


class FakeBroker:
    def __init__(self) -> None:
        self.history = History()
        self.certificates = Certificates()
        self.cordoning = Cordoning(broker_id=1, accept="auto", path=lambda directory: None)
        self.image = MetadataImage(topic_ids={"orders": TOPIC, "pay": OTHER})
        self.placement = FakePlacement()
        self.fencing = FakeFencing()
        self.directories = DirectoryStates(dict.fromkeys(PATHS.values(), "online"))
        self.life = lifecycle.Lifecycle(
            identity=lifecycle.Identity(
                broker_id=1,
                cluster_id="c",
                incarnation_id=TOPIC,
                listeners=(),
                log_dirs=(D1, D2, D3),
                rack=None,
                previous_broker_epoch=-1,
            ),
            timing=lifecycle.Timing(
                heartbeat_interval_ms=1,
                session_timeout_ms=1,
                registration_timeout_ms=1,
                controlled_shutdown_timeout_ms=1,
            ),
            features=registered_features({}),
        )

    @property
    def contact(self) -> Contact:
        return contact(self.life, 50_000, 1_700_000_050_000, 0, "host3:9093")

    def condition(self, *, ago: bool = True) -> Condition:
        return condition(self.life, self.contact, self.directories, running_ms=50_000, ago=ago)


@dataclass
class FakeFencing:
    unrecorded: int = 3
    stuck: int = 2

    def unmade_words(self) -> list[str]:
        return ["orders-0 cannot be made"]


@dataclass
class FakeView:
    views: tuple[DirectoryView, ...] = ()
    asked: list[tuple[bool, bool]] = field(default_factory=list)

    metadata: DirectoryView | None = None

    def metadata_directory(self) -> DirectoryView | None:
        return self.metadata

    async def directories(self, wants: Wants | None = None, *, measure: bool = True) -> tuple[DirectoryView, ...]:
        self.asked.append((wants is None, measure))
        return self.views


def directory_view(directory: Uuid, replicas: Sequence[ReplicaView] = (), **changes: Any) -> DirectoryView:
    known: dict[str, Any] = {
        "path": PATHS[directory],
        "directory_id": directory,
        "online": True,
        "error": None,
        "verdict": "online",
        "since_ms": 5,
        "cordoned": False,
        "device": "sdb 8:16",
        "model": None,
        "serial": "S1",
        "file_system": "ext4",
        "total_bytes": 100,
        "usable_bytes": 40,
        "replicas": tuple(replicas),
        "leaders": 1,
        "remembered": False,
    }
    return DirectoryView(**known | changes)


class World:
    """The agent, as far as the control socket sees it."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.mover = FakeMover()
        self.view = FakeView((directory_view(D1), directory_view(D2), directory_view(D3)))
        self.entries = [LogDirectory(path=path, directory_id=directory) for directory, path in PATHS.items()]
        self.tasks: list[asyncio.Task[None]] = []
        self.added: list[str] = []
        self.used: Usage | None = None
        self.own_controller: dict[str, Any] | None = None
        self.control = Commands(
            CommandParts(
                broker=self.broker,
                mover=lambda: self.mover,
                view=self.view,
                causes=lambda: {"/mnt/d1": "none", "/mnt/d2": "slow"},
                log_dirs=lambda: self.entries,
                add_directory=self.add_directory,
                companion=lambda: self.own_controller,
                usage=self.usage,
                spawn=self.spawn,
            )
        )

    async def usage(self) -> Usage | None:
        return self.used

    @property
    def placement(self) -> FakePlacement:
        return self.broker.placement

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def add_directory(self, path: str) -> str:
        self.added.append(path)
        return f"added {path}"

    def host(self, topic: str, partition: int, *directories: Uuid) -> None:
        key = of(partition, self.broker.image.topic_ids[topic])
        self.placement.hosting.partitions[key] = Hosted(topic, directories[0] if directories else D1, False)
        self.placement.inventory.where[key] = directories

    async def ask(self, operation: str, **request: Any) -> list[Any]:
        """All parts of an answer."""
        answer = self.control.handlers()[operation]({"op": operation, **request})
        if isinstance(answer, AsyncIterator):
            return [part async for part in answer]
        return [await answer]


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------------------------------------------------ how it is


async def test_status_is_a_few_figures_and_a_line_for_each_directory(world: World) -> None:
    world.placement.agents = {D1: FakeDirectory(), D2: FakeDirectory()}
    world.host("orders", 0, D1)
    (status,) = await world.ask("status")
    assert (status["node"], status["state"], status["fenced"]) == (1, "not running", True)
    assert (status["queued_assignments"], status["stuck_assignments"]) == (3, 2)
    assert status["unmade"] == ["orders-0 cannot be made"]
    assert (status["moves"], status["strays"]) == (0, 0)
    assert [(d["path"], d["replicas"]) for d in status["directories"]] == [
        ("/mnt/d1", 1),
        ("/mnt/d2", 0),
        ("/mnt/d3", 0),
    ]
    assert status["directories"][0]["directory_id"] == str(D1)
    assert [d["cause"] for d in status["directories"]] == ["none", "slow", None]
    assert world.view.asked == [(False, False)]  # neither replicas nor a question to a disk


async def test_status_tells_what_the_processes_use_and_nothing_where_it_cannot_be_read(world: World) -> None:
    (status,) = await world.ask("status")
    assert status["processes"] is None
    world.used = USAGE
    (status,) = await world.ask("status")
    assert status["processes"]["own"]["pss_bytes"] == USAGE.own.pss_bytes
    assert (status["processes"]["workers"]["processes"], status["processes"]["descriptors_max"]) == (5, 1024)


async def test_status_says_for_machines_too_that_no_controller_answers(world: World) -> None:
    world.broker.life = structs.replace(
        world.broker.life,
        state=lifecycle.BrokerState.RUNNING,
        fenced=False,
        answered_ms=8_000,
        failures=3,
        trouble="no",
    )
    (status,) = await world.ask("status")
    text = "DEGRADED: no controller for 42 s (host3:9093, last answer 2023-11-14 22:13:28Z: no)"
    assert status["condition"] == {
        "level": "degraded",
        "code": 1,
        "text": text,
        "reasons": [text.removeprefix("DEGRADED: ")],
    }
    assert status["controller"] == {
        "address": "host3:9093",
        "answers": False,
        "refused": False,
        "silent_ms": 42_000,
        "last_answer_ms": 1_700_000_008_000,
        "trouble": "no",
    }
    assert status["fenced"] is None


async def test_a_metadata_directory_of_its_own_is_told_of_last(world: World) -> None:
    world.view.metadata = directory_view(D1, path="/mnt/meta")
    (status,) = await world.ask("status")
    assert [(d["path"], d["role"]) for d in status["directories"]] == [
        ("/mnt/d1", "log"),
        ("/mnt/d2", "log"),
        ("/mnt/d3", "log"),
        ("/mnt/meta", "metadata"),
    ]
    parts = await world.ask("log-dirs")
    assert parts[-1]["directory"] == status["directories"][-1]


async def test_log_dirs_asks_the_disks_for_sizes_only_where_they_are_shown(world: World) -> None:
    await world.ask("log-dirs")
    await world.ask("log-dirs", replicas=True)
    assert world.view.asked == [(False, False), (True, True)]


async def test_replicas_are_counted_where_they_lie_and_else_where_the_metadata_place_them(world: World) -> None:
    world.host("orders", 0, D1)
    world.host("orders", 1, D1)
    world.host("orders", 2, D3)
    world.placement.inventory.where[of(2)] = ()  # its disk could never be read
    world.placement.inventory.moving[of(0)] = (D2, "orders-0.x-future")
    rows = [part["directory"] for part in await world.ask("log-dirs")]
    assert [(row["replicas"], row["future"]) for row in rows] == [(2, 0), (0, 1), (1, 0)]


async def test_very_many_replicas_come_in_pieces_that_leave_the_loop_to_others(world: World) -> None:
    replicas = [
        ReplicaView(topic="orders", partition=n, topic_id=TOPIC, name=f"orders-{n}", future=n % 2 == 1)
        for n in range(2 * PIECE + 1)
    ]
    world.view.views = (directory_view(D1, replicas),)
    head, *pieces = await world.ask("log-dirs", replicas=True)
    assert head["directory"]["path"] == "/mnt/d1"
    assert [len(piece["replicas"]) for piece in pieces] == [PIECE, PIECE, 1]
    assert pieces[0]["replicas"][0] == {
        "topic": "orders",
        "partition": 0,
        "topic_id": str(TOPIC),
        "name": "orders-0",
        "size": None,
        "lag": None,
        "future": False,
        "leader": False,
    }


async def test_what_is_unknown_of_a_directory_is_null(world: World) -> None:
    world.view.views = (directory_view(D1, directory_id=None, device="", total_bytes=-1, usable_bytes=-1),)
    (row,) = await world.ask("log-dirs")
    unknown = {key for key, value in row["directory"].items() if value is None}
    assert unknown >= {"directory_id", "device", "total_bytes", "usable_bytes"}


# ---------------------------------------------------------------------------------------------------------------- moves


async def test_replicas_are_moved_and_what_is_there_already_is_said(world: World) -> None:
    world.host("orders", 0, D1)
    world.host("orders", 1, D2)
    (outcomes,) = await world.ask("move", partitions=[["orders", 0], ["orders", 1]], to="/mnt/d2")
    assert [o["note"] for o in outcomes] == [None, "is in /mnt/d2 already"]
    assert world.mover.altered == [("orders", 0, "/mnt/d2")]


async def test_back_to_where_it_is_ends_a_move_to_elsewhere(world: World) -> None:
    world.host("orders", 0, D1)
    world.placement.inventory.moving[of(0)] = (D2, "orders-0.x-future")
    await world.ask("move", partitions=[["orders", 0]], to="/mnt/d1")
    assert world.mover.altered == [("orders", 0, "/mnt/d1")]


async def test_all_replicas_of_a_directory_are_moved_in_pieces(world: World) -> None:
    for number in range(PIECE + 2):
        world.host("orders", number, D1 if number else D2)
    pieces = await world.ask("move", **{"from": "/mnt/d1", "to": "/mnt/d3"})
    assert [len(piece) for piece in pieces] == [PIECE, 1]
    assert ("orders", 0, "/mnt/d3") not in world.mover.altered


@pytest.mark.parametrize(
    ("code", "path", "text"),
    [
        (_E.LOG_DIR_NOT_FOUND, "/x", "/x is not a log directory of this broker; there are /mnt/d1, /mnt/d2, /mnt/d3"),
        (_E.KAFKA_STORAGE_ERROR, "/mnt/d3", "/mnt/d3 is offline: see kjbod log-dirs"),
        (
            _E.KAFKA_STORAGE_ERROR,
            "/mnt/d2",
            "/mnt/d3 is offline: no move begins until every log directory is online, as in Kafka",
        ),
        (_E.REPLICA_NOT_AVAILABLE, "/mnt/d2", "orders-0 has no replica on this broker (node 1)"),
        (_E.UNKNOWN_TOPIC_OR_PARTITION, "/mnt/d2", "there is no orders-0 in the cluster"),
        (
            _E.INVALID_TOPIC_EXCEPTION,
            "/mnt/d2",
            "orders-0: the name of the topic is too long for a directory with the suffix of a move",
        ),
        (_E.INVALID_REPLICA_ASSIGNMENT, "/mnt/d2", "/mnt/d2 is cordoned: it takes no new replicas"),
        (_E.UNKNOWN_SERVER_ERROR, "/mnt/d2", "orders-0 cannot be moved to /mnt/d2: UNKNOWN_SERVER_ERROR"),
    ],
)
async def test_each_answer_of_alter_replica_log_dirs_is_one_clear_line(
    world: World, code: ErrorCode, path: str, text: str
) -> None:
    world.host("orders", 0, D1)
    world.placement.inventory.online = (D1, D2)
    world.mover.code = code
    ((outcome,),) = await world.ask("move", partitions=[["orders", 0]], to=path)
    assert outcome["error"] == text


async def test_a_replica_on_an_offline_directory_is_named(world: World) -> None:
    world.host("orders", 0, D3)
    world.placement.inventory.online = (D1, D2)
    world.mover.code = ErrorCode.KAFKA_STORAGE_ERROR
    ((outcome,),) = await world.ask("move", partitions=[["orders", 0]], to="/mnt/d1")
    assert outcome["error"] == "orders-0 lies in /mnt/d3, which is offline: a move has to read it"


async def test_what_an_offline_directory_holds_is_not_said_to_be_nothing(world: World) -> None:
    world.placement.inventory.online = (D1, D2)
    with pytest.raises(ControlError, match="/mnt/d3 is offline, and nobody knows what it holds"):
        await world.ask("move", **{"from": "/mnt/d3", "to": "/mnt/d1"})
    world.view.views = (directory_view(D1), directory_view(D3, online=False, verdict="unreadable", error="no"))
    assert await world.ask("strays") == [{"unread": {"/mnt/d3": "/mnt/d3 is unreadable: it may hold others"}}]


async def test_before_the_metadata_are_known_nobody_says_that_nothing_is_moved(world: World) -> None:
    world.placement.published = False
    for request in ({}, {"watch": True}):
        with pytest.raises(ControlError, match="has not read the cluster's metadata yet"):
            await world.ask("moves", **request)


async def test_before_the_metadata_are_known_nothing_is_moved(world: World) -> None:
    world.placement.published = False
    with pytest.raises(ControlError, match="not read the cluster's metadata yet"):
        await world.ask("move", partitions=[["orders", 0]], to="/mnt/d1")


async def test_a_source_that_is_no_directory_is_refused(world: World) -> None:
    with pytest.raises(ControlError, match="/x is not a log directory of this broker"):
        await world.ask("move", **{"from": "/x", "to": "/mnt/d1"})


@pytest.mark.parametrize(
    "request_",
    [
        {"to": "/mnt/d1"},
        {"to": "/mnt/d1", "partitions": "orders-0"},
        {"to": "/mnt/d1", "partitions": ["orders-0"]},
        {"to": "/mnt/d1", "partitions": [["orders", "0"]]},
        {"to": "/mnt/d1", "partitions": [["orders", True]]},
        {"to": "/mnt/d1", "partitions": [["orders", -1]]},
        {"to": "/mnt/d1", "partitions": [["orders", 1 << 40]]},
        {"to": "/mnt/d1", "partitions": [["orders", 0, 0]]},
        {"to": 1, "partitions": []},
        {"to": "", "partitions": []},
        {"to": "/mnt/d1", "from": None},
    ],
)
async def test_requests_that_are_not_of_the_protocol_are_refused(world: World, request_: dict[str, Any]) -> None:
    with pytest.raises(ControlError, match="expected"):
        await world.ask("move", **request_)
    assert world.mover.altered == []


def move_of(partition: int, state: State = State.NONE, copied: int = 0, source: Uuid | None = D1) -> MoveView:
    return MoveView(
        partition=of(partition),
        topic="orders",
        source=source,
        destination=D2,
        state=state,
        total_bytes=100,
        copied_bytes=copied,
        bytes_per_second=7,
        future_name="f",
    )


async def test_moves_are_listed_with_paths(world: World) -> None:
    waiting = replace(move_of(2), waiting=True)
    world.mover.moves = (move_of(0, copied=50), move_of(1, State.QUEUED, source=None), waiting)
    (part,) = await world.ask("moves")
    assert part["moves"] == [
        {
            "topic": "orders",
            "partition": 0,
            "from": "/mnt/d1",
            "to": "/mnt/d2",
            "state": "copying",
            "total_bytes": 100,
            "copied_bytes": 50,
            "bytes_per_second": 7,
        },
        {
            "topic": "orders",
            "partition": 1,
            "from": None,
            "to": "/mnt/d2",
            "state": "assigning",
            "total_bytes": 100,
            "copied_bytes": 0,
            "bytes_per_second": 7,
        },
        {
            "topic": "orders",
            "partition": 2,
            "from": "/mnt/d1",
            "to": "/mnt/d2",
            "state": "queued",
            "total_bytes": 100,
            "copied_bytes": 0,
            "bytes_per_second": 7,
        },
    ]


async def test_moves_are_cancelled_and_those_that_cannot_be_say_why(world: World) -> None:
    world.mover.moves = (move_of(0), move_of(1, State.PROMOTING))
    (outcomes,) = await world.ask("move-cancel", partitions=[["orders", 0], ["orders", 1], ["orders", 2]])
    assert [o["error"] for o in outcomes] == [
        None,
        "orders-1 takes the place of the old replica just now: it is too late to cancel",
        "orders-2 is not being moved",
    ]
    (outcomes,) = await world.ask("move-cancel", **{"from": "/mnt/d1"})
    assert [o["partition"] for o in outcomes] == [0, 1]


def test_a_watched_move_is_followed_to_where_the_replica_lies(virtual: Callable[..., None]) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        world = World()
        for number, directory in enumerate((D1, D1, D2)):
            world.host("orders", number, directory)
        world.mover.moves = (move_of(0), move_of(1), move_of(3))
        wanted = [["orders", number] for number in (0, 1, 2)]
        answer = world.control.moves({"watch": True, "partitions": wanted})
        first = await anext(answer)
        assert [m["partition"] for m in first["moves"]] == [0, 1]
        assert first["ended"] == [ended(2, "/mnt/d2", moved=None)]
        world.mover.moves = (move_of(1, copied=9),)
        world.placement.inventory.where[of(0)] = (D2,)
        second = await anext(answer)
        assert second["moves"][0]["copied_bytes"] == 9
        assert second["ended"] == [ended(0, "/mnt/d2", moved=True)]
        assert second["all"] == {"moves": 1, "total_bytes": 200, "copied_bytes": 109, "bytes_per_second": 7}
        world.mover.moves = ()
        world.mover.reasons = {1: "/mnt/d2 is full"}
        third = await anext(answer)
        assert third["ended"] == [ended(1, "/mnt/d1", moved=False, reason="/mnt/d2 is full")]
        assert third["all"] == {"moves": 0, "total_bytes": 100, "copied_bytes": 100, "bytes_per_second": 0}
        assert [part async for part in answer] == []

    virtual(main)


def ended(partition: int, at: str, *, moved: bool | None, reason: str | None = None) -> dict[str, Any]:
    return {"topic": "orders", "partition": partition, "at": at, "moved": moved, "reason": reason}


async def test_a_move_that_failed_before_anybody_watched_it_is_told_as_failed(world: World) -> None:
    world.host("orders", 0, D1)
    world.mover.reasons = {0: "/mnt/d2 is full"}
    (part,) = await world.ask("moves", watch=True, partitions=[["orders", 0]])
    assert part["ended"] == [ended(0, "/mnt/d1", moved=False, reason="/mnt/d2 is full")]


MIB = 1 << 20


async def test_what_does_not_fit_beside_what_is_on_its_way_is_refused_with_the_figures(world: World) -> None:
    for number in range(4):
        world.host("orders", number, D1)
    sizes = {f"orders-{number}": size * MIB for number, size in enumerate((40, 31, 9, 0))}
    world.placement.agents = {D1: FakeDirectory(sizes)}
    room = Room(file_system="8:16", total_bytes=500 * MIB, usable_bytes=100 * MIB)
    world.mover.room = (room, 20 * MIB)  # 10 of them, 2 %, stay free
    (outcomes,) = await world.ask("move", partitions=[["orders", number] for number in range(4)], to="/mnt/d2")
    assert [outcome["error"] for outcome in outcomes] == [
        None,
        "orders-1 has 31.0 MiB and /mnt/d2 100.0 MiB left, 60.0 MiB of them are for moves that are under way and"
        " 10.0 MiB have to stay free: make room there, or move it elsewhere",
        None,
        None,
    ]
    assert [number for _, number, _ in world.mover.altered] == [0, 2, 3]
    world.placement.inventory.moving[of(1)] = (D2, "f")  # on its way already: nothing new is taken
    ((outcome,),) = await world.ask("move", partitions=[["orders", 1]], to="/mnt/d2")
    assert outcome["error"] is None


async def test_what_was_put_on_a_disk_since_it_was_last_looked_at_is_no_room_for_a_move(world: World) -> None:
    world.host("orders", 0, D1)
    sizes = FakeDirectory({"orders-0": 50 * MIB})
    world.mover.room = (Room(file_system="8:16", total_bytes=500 * MIB, usable_bytes=100 * MIB), 0)
    world.placement.agents = {D1: sizes, D2: FakeDirectory(room=40 * MIB)}
    ((outcome,),) = await world.ask("move", partitions=[["orders", 0]], to="/mnt/d2")
    assert outcome["error"] == (
        "orders-0 has 50.0 MiB and /mnt/d2 40.0 MiB left, 10.0 MiB have to stay free: make room there, or move it"
        " elsewhere"
    )
    assert not world.mover.altered


@pytest.mark.parametrize("room", [None, StorageError("gone")], ids=["hangs", "refuses"])
def test_a_disk_that_does_not_say_what_room_it_has_is_judged_by_what_was_last_seen(
    virtual: Callable[..., None], room: StorageError | None
) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        world = World()
        world.host("orders", 0, D1)
        world.mover.room = (Room(file_system="8:16", total_bytes=500 * MIB, usable_bytes=30 * MIB), 0)
        world.placement.agents = {D1: FakeDirectory({"orders-0": 50 * MIB}), D2: FakeDirectory(room=room)}
        ((outcome,),) = await world.ask("move", partitions=[["orders", 0]], to="/mnt/d2")
        assert outcome["error"].startswith("orders-0 has 50.0 MiB and /mnt/d2 30.0 MiB left")

    virtual(main)


async def test_a_size_or_a_room_that_nobody_says_keeps_no_move(world: World) -> None:
    world.host("orders", 0, D1)
    world.placement.agents = {D1: FakeDirectory(StorageError("gone"))}
    world.mover.room = (Room(file_system="8:16", total_bytes=100, usable_bytes=0), 0)
    ((outcome,),) = await world.ask("move", partitions=[["orders", 0]], to="/mnt/d2")
    assert outcome["error"] is None
    world.placement.agents = {D1: FakeDirectory({"orders-0": 50})}
    world.mover.room = None
    ((outcome,),) = await world.ask("move", partitions=[["orders", 0]], to="/mnt/d2")
    assert outcome["error"] is None


async def test_very_many_watched_moves_are_told_as_a_sum_and_the_first_ones(world: World) -> None:
    world.mover.moves = tuple(move_of(number, copied=1) for number in range(WATCHED_MAX + 5))
    first = await anext(world.control.moves({"watch": True}))
    assert [move["partition"] for move in first["moves"]] == list(range(WATCHED_MAX))
    assert first["all"] == {
        "moves": WATCHED_MAX + 5,
        "total_bytes": 100 * (WATCHED_MAX + 5),
        "copied_bytes": WATCHED_MAX + 5,
        "bytes_per_second": 7 * (WATCHED_MAX + 5),
    }


async def test_watching_nothing_ends_at_once(world: World) -> None:
    assert await world.ask("moves", watch=True) == []


# --------------------------------------------------------------------------------------------------------------- strays


def stray(directory: Uuid, name: str, since_ms: int = 5) -> Stray:
    return Stray(directory, f"{PATHS[directory]}/{name}", name, "old", 0, TOPIC, NO_TOPIC, since_ms)


def test_strays_are_listed_with_sizes_and_a_disk_that_hangs_only_costs_its_own(virtual: Callable[..., None]) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        world = World()
        world.placement.strays = (stray(D1, "a-stray"), stray(D2, "b-stray"), stray(D3, "c-stray"))
        world.placement.agents = {
            D1: FakeDirectory({"a-stray": 7}),
            D2: FakeDirectory(None),
            D3: FakeDirectory(StorageError("x")),
        }
        (rows,) = await world.ask("strays")
        assert [(row["directory"], row["name"], row["size"]) for row in rows] == [
            ("/mnt/d1", "a-stray", 7),
            ("/mnt/d2", "b-stray", None),
            ("/mnt/d3", "c-stray", None),
        ]
        assert (rows[0]["reason"], rows[0]["since_ms"], rows[0]["topic_id"]) == (NO_TOPIC, 5, str(TOPIC))

    virtual(main)


async def test_only_the_strays_that_were_shown_are_removed(world: World) -> None:
    world.placement.strays = (stray(D1, "a-stray"), stray(D2, "a-stray"), stray(D2, "b-stray"))
    parts = await world.ask("strays-remove", strays=[["/mnt/d2", "a-stray"]])
    assert parts == [{"name": "a-stray", "directory": "/mnt/d2", "note": "removed a-stray", "error": None}]
    assert world.placement.done == [("removed", D2, "a-stray")]


async def test_strays_that_cannot_be_restored_say_why_and_do_not_stop_the_others(world: World) -> None:
    world.placement.strays = (stray(D1, "a-stray"), stray(D2, "b-stray"))
    world.placement.refusal = "orders-0 lies in /mnt/d1 already"
    parts = await world.ask("strays-restore", strays=[["/mnt/d1", "a-stray"], ["/mnt/d2", "b-stray"]])
    assert [part["error"] for part in parts] == ["orders-0 lies in /mnt/d1 already"] * 2


@pytest.mark.parametrize(
    "wanted",
    [None, "x", [["/mnt/d1"]], [[1, 2]], [[["x"], "y"]], [["/mnt/d1", "none-stray"]], [["/x", "a-stray"]]],
)
async def test_a_stray_that_is_not_there_removes_nothing_at_all(world: World, wanted: Any) -> None:
    world.placement.strays = (stray(D1, "a-stray"),)
    if isinstance(wanted, list):
        wanted = [["/mnt/d1", "a-stray"], *wanted]
    with pytest.raises(ControlError):
        await world.ask("strays-remove", strays=wanted)
    assert world.placement.done == []


async def test_a_removal_is_done_to_its_end_when_the_command_has_gone(world: World) -> None:
    world.placement.strays = (stray(D1, "a-stray"),)
    world.placement.gate = asyncio.Event()
    answer = world.control.remove_strays({"strays": [["/mnt/d1", "a-stray"]]})
    command = asyncio.ensure_future(anext(answer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    command.cancel()
    await asyncio.wait([command])
    world.placement.gate.set()
    await asyncio.gather(*world.tasks)
    assert world.placement.done == [("removed", D1, "a-stray")]


async def test_an_error_that_nobody_waits_for_does_not_end_the_agent(world: World) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await world.control._to_its_end(fail())
    await asyncio.gather(*world.tasks)  # no error: these are tasks whose errors would end the agent


# ---------------------------------------------------------------------------------------------------------- directories


async def test_a_directory_is_added(world: World) -> None:
    assert await world.ask("dirs-add", path="/mnt/d9") == ["added /mnt/d9"]
    assert world.added == ["/mnt/d9"]
    with pytest.raises(ControlError, match="path: expected a text"):
        await world.ask("dirs-add")


async def test_status_has_the_controller_of_a_combined_node(world: World) -> None:
    (status,) = await world.ask("status")
    assert status["own_controller"] is None
    world.own_controller = {"epoch": 3}
    (status,) = await world.ask("status")
    assert status["own_controller"] == {"epoch": 3}
