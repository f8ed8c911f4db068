"""The same request to a real controller and to ours, and what differs: the answer, and the records in the log.

A request is a function of a :class:`View`, so that each side gets its own topic ids and broker epochs. Answers and
records are compared after these are given names again (``topic t#1``, ``epoch 3``). What has no order in Kafka is
sorted: structs of an answer, features and endpoints of a registration, and changes of different partitions, which
follow the hashes of random ids.

A step can also be a :class:`Silence`: brokers that are not heard until the controllers themselves have fenced them.
Whoever is not silent is kept alive meanwhile, and between the other steps (:meth:`Pair.keep_alive`).
"""

import asyncio
import difflib
import itertools
import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeAlias

from msgspec import Struct, structs

from kjbod.clock import SystemClock
from kjbod.errors import UnsupportedVersionError
from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.batches import iter_batches
from kjbod.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, Replayer
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    TopicRecord,
    decode_record,
)
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    BrokerHeartbeatRequest,
    DescribeConfigsRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from tests.controller.sessions import Sessions

ANSWER_MS_MAX = 30_000
FOREVER_S = 3_600.0
"""A session so long that time plays no part."""
_SOON_S = 0.05
_POLLS_PER_SESSION = 20
_PATIENCE_SESSIONS = 10
"""So many session timeouts after the begin of a silence a broker has to be fenced."""
_SETTLING_ROUNDS = 2
"""After these heartbeats of all others nothing moves any more: the first tells what they have applied, with the second
goes who waited for that."""
_BEGINNING_S = 60
_PUBLISHING_S = 10
"""How long a real controller may answer for configurations from metadata that are older than its log (Kafka's
``MetadataLoader`` publishes them to ``KRaftMetadataCache``)."""
_FETCH_BYTES = 8 * 1024 * 1024
_HASHED: Mapping[str, tuple[str, ...]] = {
    PartitionChangeRecord.__name__: ("topic_id", "partition_id"),
    RemoveAccessControlEntryRecord.__name__: ("id",),
    ConfigRecord.__name__: ("resource_type", "resource_name"),
}
"""Records that Kafka writes in the order of hashes, and what they are sorted by."""
_UNSORTED = ("end_points", "features")


class View:
    """What one side's log says, for the making of a request."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    def epoch(self, broker_id: int) -> int:
        """A broker's epoch; 7 of one that is not registered."""
        broker = self.image.brokers.get(broker_id)
        return 7 if broker is None else broker.epoch

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        return self.image.brokers.get(broker_id)

    def topic_id(self, name: str) -> Uuid:
        """A topic's id; of one that does not exist the same unknown one."""
        return self.image.topic_ids.get(name, Uuid.of(99, 99))

    def partition(self, name: str, number: int) -> PartitionRegistration | None:
        return self.image.partition(self.topic_id(name), number)


MakeRequest: TypeAlias = Callable[[View], Any]


@dataclass(frozen=True, slots=True)
class Silence:
    """Instead of a request: these brokers are not heard until their sessions are over. No partition may have replicas
    on two of them, unless they are fenced already: the sessions end in no certain order."""

    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A request at which both draw lots, and what lots do not change of the records that it brought."""

    make: MakeRequest
    certain: Callable[[View, list[Any]], list[Any]]


Act: TypeAlias = MakeRequest | Silence | Drawn
_Fresh: TypeAlias = tuple[Record, int, int]
"""A record that was read, its version, and where its batch begins."""


@dataclass(slots=True)
class Outcome:
    """What one side did with a request, with names for what is random."""

    answer: Any
    records: list[Any]

    def as_json(self) -> str:
        return json.dumps([self.answer, self.records], indent=1)


@dataclass(slots=True)
class Side:
    """One controller."""

    name: str
    port: int
    connection: Connection
    replayer: Replayer = field(default_factory=Replayer)
    next_offset: int = 0
    sessions: Sessions = field(default_factory=lambda: Sessions(FOREVER_S))
    leader_epoch: int = 0
    _last_epoch: int = 0
    _names: dict[Uuid, str] = field(default_factory=dict)
    _epochs: dict[int, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    async def open(cls, name: str, port: int, session_s: float = FOREVER_S) -> "Side":
        """Connect, and read all that the log has. A real controller says that it has started before the log has what it
        begins with.

        Raises:
            TimeoutError: there is nothing in it in :data:`_BEGINNING_S`.
        """
        side = cls(name, port, await _connect(port), sessions=Sessions(session_s))
        async with asyncio.timeout(_BEGINNING_S):
            while not side.view.image.features:
                await side.read()
                await asyncio.sleep(0.01)
        return side

    @property
    def view(self) -> View:
        return View(self.replayer.image)

    async def ask(self, make: MakeRequest, version: int | None = None) -> Outcome:
        """Send, and take the answer and the records that it wrote.

        Raises:
            LateError: a session may have ended meanwhile.
        """
        answer = await self._answer(make(self.view), version, ())
        records = await self.read()
        return Outcome(_sorted_structs(self._plain(answer)), records)

    async def _answer(self, request: Any, version: int | None, silent: Collection[int]) -> Any:
        answer: Any
        sent_s = monotonic()
        try:
            answer = await self.connection.request(request, timeout_ms=ANSWER_MS_MAX, version=version)
        except UnsupportedVersionError:
            answer = "not offered"
        except Disconnected:
            answer = "connection closed"
            await self.connection.close()
            self.connection = await _connect(self.port)
        self.sessions.require(self.view.image, monotonic(), silent)
        if isinstance(request, BrokerHeartbeatRequest):
            self.sessions.renew(request.broker_id, request.broker_epoch, sent_s)
        return answer

    async def outlast(self, silent: Collection[int]) -> Outcome:
        """Keep all others alive until the controller has fenced each ``silent`` broker that had a session.

        Returns:
            The last answers to the others (or who was not fenced within all patience), and the records by the broker
            whose fencing they end with, with the number of batches that these are in.

        Raises:
            LateError: another session may have ended meanwhile.
        """
        awaited = {broker.id for broker in self.sessions.of(self.view.image)} & set(silent)
        patience_s = monotonic() + _PATIENCE_SESSIONS * self.sessions.timeout_s
        found: list[_Fresh] = []
        answers: Any = {}
        settling = 0
        while settling < _SETTLING_ROUNDS:
            if not awaited:
                settling += 1
            elif monotonic() > patience_s:
                answers = f"not fenced: {sorted(awaited)}"
                break
            else:
                await asyncio.sleep(self.sessions.timeout_s / _POLLS_PER_SESSION)
            answers = await self._keep_others_alive(silent)
            fresh = await self._read_fresh()
            found += fresh
            awaited -= self._fenced_among(fresh, awaited)
        return Outcome(self._plain(answers), self._by_broker(found))

    async def _keep_others_alive(self, silent: Collection[int]) -> dict[str, Any]:
        return {
            f"broker {broker.id}": await self._answer(keeping_alive(broker.id)(self.view), None, silent)
            for broker in self.sessions.of(self.view.image)
            if broker.id not in silent
        }

    def _fenced_among(self, fresh: list[_Fresh], awaited: Collection[int]) -> set[int]:
        """Those of ``awaited`` whose fencing was read; their sessions are over."""
        fenced = set()
        for record, _, _ in fresh:
            if isinstance(record, BrokerRegistrationChangeRecord) and record.broker_id in awaited and record.fenced > 0:
                fenced.add(record.broker_id)
                self.sessions.end(self.replayer.image.brokers[record.broker_id])
        return fenced

    def _by_broker(self, found: list[_Fresh]) -> list[Any]:
        """Records up to each change of a registration, in the order of the brokers; then the rest."""
        parts: list[tuple[int, list[_Fresh]]] = []
        rest: list[_Fresh] = []
        for fresh in found:
            rest.append(fresh)
            if isinstance(fresh[0], BrokerRegistrationChangeRecord):
                parts.append((fresh[0].broker_id, rest))
                rest = []
        parts.sort(key=operator.itemgetter(0))
        return [
            {
                "batches": len({batch for _, _, batch in part}),
                "records": _ordered([self._plain_record(record, version) for record, version, _ in part]),
            }
            for part in (*(part for _, part in parts), *([rest] if rest else []))
        ]

    async def read(self) -> list[Any]:
        """Follow the log to its end: the new records, named."""
        fresh = await self._read_fresh()
        return _ordered([self._plain_record(record, version) for record, version, _ in fresh])

    async def _read_fresh(self) -> list[_Fresh]:
        found: list[_Fresh] = []
        while data := await self._fetch():
            for batch in iter_batches(data):
                if batch.control:
                    self.replayer.skip(batch.last_offset, batch.leader_epoch)
                else:
                    for log_record in batch.records:
                        record, version = decode_record(log_record.value or b"")
                        self._name(record)
                        if not self._is_its_own(record):
                            found.append((record, version, batch.base_offset))
                        self.replayer.replay(log_record.offset, batch.leader_epoch, record)
                self.next_offset = batch.next_offset
                self._last_epoch = batch.leader_epoch
        return found

    def _is_its_own(self, record: Record) -> bool:
        """Whether the controller registers itself: a real one does so when it will."""
        return isinstance(record, RegisterControllerRecord) and any(
            endpoint.port == self.port for endpoint in record.end_points
        )

    def forget_names(self) -> None:
        """Begin to count anew: all topics and brokers are gone."""
        self._names.clear()
        self._epochs.clear()
        self._counts.clear()

    async def _fetch(self) -> bytes:
        partition = FetchRequestPartition(
            partition=0,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=self.next_offset,
            last_fetched_epoch=self._last_epoch,
        )
        request = FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id=900),
            max_wait_ms=0,
            max_bytes=_FETCH_BYTES,
            topics=(FetchRequestTopic(topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
        )
        answer = await self.connection.request(request, timeout_ms=ANSWER_MS_MAX)
        of_log = answer.responses[0].partitions[0]
        if of_log.current_leader.leader_epoch != self.leader_epoch:
            self.leader_epoch = of_log.current_leader.leader_epoch
            return await self._fetch()
        if of_log.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # it has resigned: soon it leads again
            await asyncio.sleep(_SOON_S)
            return await self._fetch()
        assert of_log.error_code == 0, (self.name, of_log)
        assert of_log.diverging_epoch.epoch == -1, (self.name, of_log)
        return of_log.records or b""

    # ---- names

    def _name(self, record: Record) -> None:
        if isinstance(record, TopicRecord):
            self._names[record.topic_id] = f"topic {record.name}#{self._count(record.name)}"
        elif isinstance(record, RegisterBrokerRecord) and record.broker_epoch not in self._epochs:
            self._epochs[record.broker_epoch] = f"epoch {self._count('')}"
        elif isinstance(record, AccessControlEntryRecord):
            self._names[record.id] = f"acl {structs.replace(record, id=ZERO)}"

    def _count(self, what: str) -> int:
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def _plain_record(self, record: Record, version: int) -> dict[str, Any]:
        plain: dict[str, Any] = {"record": f"{type(record).__name__} v{version}", **self._fields(record)}
        for name in _UNSORTED:
            if name in plain:
                plain[name] = _sorted_structs(plain[name])
        return plain

    def _fields(self, value: Any) -> dict[str, Any]:
        plain = {}
        for each in structs.fields(value):
            inner = getattr(value, each.name)
            if each.name == "broker_epoch":
                plain[each.name] = self._epochs.get(inner, inner)
            elif each.name == "port" and inner == self.port:
                plain[each.name] = "its own"
            else:
                plain[each.name] = self._plain(inner)
        return plain

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Uuid):
            return self._names.get(value, str(value))
        if isinstance(value, Struct):
            return {"type": type(value).__name__, **self._fields(value)}
        if isinstance(value, (tuple, list)):
            return [self._plain(each) for each in value]
        if isinstance(value, dict):
            return {name: self._plain(each) for name, each in value.items()}
        if isinstance(value, bytes):
            return value.hex()
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for topic_id, name in self._names.items():
            text = text.replace(str(topic_id), name)
        if "epoch" in text:
            for epoch, name in self._epochs.items():
                text = re.sub(rf"\b{epoch}\b", name, text)
        return text


def keeping_alive(broker_id: int) -> MakeRequest:
    """A heartbeat that leaves a broker fenced or unfenced, as it is."""

    def make(view: View) -> BrokerHeartbeatRequest:
        broker = view.image.brokers[broker_id]
        return BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=view.image.offset,
            want_fence=broker.fenced,
        )

    return make


async def _connect(port: int) -> Connection:
    return await Connection.open("127.0.0.1", port, client_id="differential", clock=SystemClock())


def _sorted_structs(value: Any) -> Any:
    """Lists of structs in one order; lists of numbers and ids as they are."""
    if isinstance(value, dict):
        return {key: _sorted_structs(inner) for key, inner in value.items()}
    if isinstance(value, list):
        items = [_sorted_structs(each) for each in value]
        return sorted(items, key=json.dumps) if items and isinstance(items[0], dict) else items
    return value


def _ordered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of partition changes by topic and partition, those of one partition as they were written; runs of deleted
    ACLs by what these said."""
    ordered: list[dict[str, Any]] = []
    for kind, run in itertools.groupby(records, key=lambda record: record["record"].partition(" ")[0]):
        of_one_kind = list(run)
        for name in reversed(_HASHED.get(kind, ())):
            of_one_kind.sort(key=operator.itemgetter(name))
        ordered += of_one_kind
    return ordered


# ---------------------------------------------------------------- the pair


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the two parted."""

    step: str
    real: Outcome
    ours: Outcome

    def describe(self) -> str:
        """The lines that differ, for a person."""
        lines = [f"{self.step}:"]
        real, ours = self.real.as_json().splitlines(), self.ours.as_json().splitlines()
        lines += [
            line
            for line in difflib.unified_diff(real, ours, "real", "ours", lineterm="", n=2)
            if not line.startswith("@@")
        ]
        return "\n".join(lines)


class RealFailedError(Exception):
    """The real controller answered UNKNOWN_SERVER_ERROR: mostly it has resigned, and what it has in memory is not to
    be trusted after it."""


@dataclass(slots=True)
class Pair:
    """Both controllers, in step."""

    real: Side
    ours: Side
    timed: bool = False
    """Sessions are short: whoever is not silent has to be kept alive."""
    asked: int = 0
    silences: int = 0
    fenced: int = 0
    """Brokers that the controllers fenced by themselves."""

    async def _real(self, name: str, make: MakeRequest, version: int | None = None) -> Outcome:
        real = await self.real.ask(make, version)
        if f'"error_code": {ErrorCode.UNKNOWN_SERVER_ERROR:d}' in json.dumps(real.answer):
            raise RealFailedError(name)
        return real

    async def clean(self, steps: Callable[[View], Iterable[tuple[str, MakeRequest]]]) -> None:
        """Take away what a story left, on each side what is there.

        Raises:
            RealFailedError: as :meth:`step`, also where something stayed that the other side does not have.
        """
        for name, make in steps(self.real.view):
            await self._real(name, make)
        for _, make in steps(self.ours.view):
            await self.ours.ask(make)
        real, ours = self.real.replayer.image, self.ours.replayer.image
        if (real.brokers, real.topics, real.configs, real.features) != (
            ours.brokers,
            ours.topics,
            ours.configs,
            ours.features,
        ):
            raise RealFailedError("something was left")
        self.real.forget_names()
        self.ours.forget_names()

    async def step(self, name: str, act: Act, version: int | None = None) -> Difference | None:
        """One request to both, or brokers that fall silent.

        Raises:
            RealFailedError: begin anew, with new directories.
            LateError: the same, with longer sessions.
        """
        self.asked += 1
        if isinstance(act, Silence):
            return await self._silence(name, act)
        make = act.make if isinstance(act, Drawn) else act
        real = await self._real(name, make, version)
        ours = await self.ours.ask(make, version)
        if isinstance(make(self.real.view), DescribeConfigsRequest):
            real = await self._told_later(name, make, version, real, ours)
        if isinstance(act, Drawn):
            real.records = act.certain(self.real.view, real.records)
            ours.records = act.certain(self.ours.view, ours.records)
        return None if real.as_json() == ours.as_json() else Difference(name, real, ours)

    async def _told_later(
        self, name: str, make: MakeRequest, version: int | None, real: Outcome, ours: Outcome
    ) -> Outcome:
        """The real answer of what a controller publishes to itself a moment after it is in the log: as soon as it is
        ours, or after all patience."""
        patience_s = monotonic() + _PUBLISHING_S
        while real.as_json() != ours.as_json() and monotonic() < patience_s:
            await asyncio.sleep(_SOON_S)
            real = await self._real(name, make, version)
        return real

    async def _silence(self, name: str, silence: Silence) -> Difference | None:
        self.silences += 1
        epoch = self.real.leader_epoch
        sides = (self.real.outlast(silence.brokers), self.ours.outlast(silence.brokers))
        real, ours = await asyncio.gather(*sides, return_exceptions=True)  # neither may go on without the other
        if isinstance(real, BaseException):
            raise real
        if isinstance(ours, BaseException):
            raise ours
        if self.real.leader_epoch != epoch or isinstance(real.answer, str):
            raise RealFailedError(name)
        self.fenced += len(real.records)
        return None if real.as_json() == ours.as_json() else Difference(name, real, ours)

    async def keep_alive(self, name: str) -> Difference | None:
        """A heartbeat of each broker that has a session."""
        for broker in self.real.sessions.of(self.real.view.image):
            if difference := await self.step(f"{name}, keep {broker.id} alive", keeping_alive(broker.id)):
                return difference
        return None
