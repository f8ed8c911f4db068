"""The same request to a real controller and to ours, and what differs: the answer, and the records in the log.

A request is a function of a :class:`View`, so that each side gets its own topic ids and broker epochs. Answers and
records are compared after these are given names again (``topic t#1``, ``epoch 3``). What has no order in Kafka is
sorted: structs of an answer, features and endpoints of a registration, and changes of different partitions, which
follow the hashes of random ids.
"""

import asyncio
import dataclasses
import difflib
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kjbod.clock import SystemClock
from kjbod.errors import UnsupportedVersionError
from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.batches import iter_batches
from kjbod.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, Replayer
from kjbod.metadata.records import (
    AccessControlEntryRecord,
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
from kjbod.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestReplicaState, FetchRequestTopic

ANSWER_MS_MAX = 30_000
_RESIGNED_S = 0.05
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
    _leader_epoch: int = 0
    _last_epoch: int = 0
    _names: dict[Uuid, str] = field(default_factory=dict)
    _epochs: dict[int, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    async def open(cls, name: str, port: int) -> "Side":
        """Connect, and read all that the log has."""
        side = cls(name, port, await _connect(port))
        await side.read()
        return side

    @property
    def view(self) -> View:
        return View(self.replayer.image)

    async def ask(self, make: MakeRequest, version: int | None = None) -> Outcome:
        """Send, and take the answer and the records that it wrote."""
        request = make(self.view)
        answer: Any
        try:
            answer = await self.connection.request(request, timeout_ms=ANSWER_MS_MAX, version=version)
        except UnsupportedVersionError:
            answer = "not offered"
        except Disconnected:
            answer = "connection closed"
            await self.connection.close()
            self.connection = await _connect(self.port)
        records = await self.read()
        return Outcome(_sorted_structs(self._plain(answer)), records)

    async def read(self) -> list[Any]:
        """Follow the log to its end: the new records, named."""
        found: list[tuple[Record, int]] = []
        while data := await self._fetch():
            for batch in iter_batches(data):
                if batch.control:
                    self.replayer.skip(batch.last_offset, batch.leader_epoch)
                else:
                    for log_record in batch.records:
                        record, version = decode_record(log_record.value or b"")
                        self._name(record)
                        if not self._is_its_own(record):
                            found.append((record, version))
                        self.replayer.replay(log_record.offset, batch.leader_epoch, record)
                self.next_offset = batch.next_offset
                self._last_epoch = batch.leader_epoch
        return _ordered([self._plain_record(record, version) for record, version in found])

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
            current_leader_epoch=self._leader_epoch,
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
        if of_log.current_leader.leader_epoch != self._leader_epoch:
            self._leader_epoch = of_log.current_leader.leader_epoch
            return await self._fetch()
        if of_log.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # it has resigned: soon it leads again
            await asyncio.sleep(_RESIGNED_S)
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
            self._names[record.id] = f"acl {dataclasses.replace(record, id=ZERO)}"

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
        for each in dataclasses.fields(value):
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
        if dataclasses.is_dataclass(value):
            return {"type": type(value).__name__, **self._fields(value)}
        if isinstance(value, (tuple, list)):
            return [self._plain(each) for each in value]
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
            for line in difflib.unified_diff(real, ours, "4.3.1", "ours", lineterm="", n=2)
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
    asked: int = 0

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

    async def step(self, name: str, make: MakeRequest, version: int | None = None) -> Difference | None:
        """One request to both.

        Raises:
            RealFailedError: begin anew, with new directories.
        """
        self.asked += 1
        real = await self._real(name, make, version)
        ours = await self.ours.ask(make, version)
        if real.as_json() == ours.as_json():
            return None
        return Difference(name, real, ours)
