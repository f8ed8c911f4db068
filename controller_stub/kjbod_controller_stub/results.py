"""Results of the controller's handlers, and the handler's view of the state while it makes one."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct, field

from kjbod.ids import Uuid
from kjbod.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration
from kjbod.metadata.records import (
    AnyRecord,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecordRef,
    RegisterBrokerRecord,
)
from kjbod.wire.messages import ResponseBody

PartitionKey: TypeAlias = tuple[Uuid, int]
"""Topic id and partition number."""


class ApiError(Exception):
    """Refusal of a request, or of one item in it: an error code of Kafka and a line of text."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message


class Note(Struct, frozen=True):
    """A log line of a result, written when the records are durable."""

    event: str
    fields: Mapping[str, object]
    warning: bool = False
    """Whether the line is a warning, so that an operator should look."""


class Result(Struct, frozen=True, kw_only=True):
    """The records and the answer for a request (``ControllerResult``).

    Nothing has changed yet: the records are to be written and replayed, and the answer leaves when they are durable.
    ``atomic``: all of them or none, also across a crash.
    """

    answer: ResponseBody | None = None
    """The answer; None: a timer made the result, not a request."""
    records: tuple[AnyRecord, ...] = ()
    atomic: bool = True
    notes: tuple[Note, ...] = ()
    enters_shutdown: tuple[int, int] | None = None
    """Broker id and epoch of a broker whose controlled shutdown starts with these records; it may go when the others
    have applied the last of them."""
    kraft_version: int | None = None
    """The quorum's feature level from here on: control records that the log writes before these."""


class Draft(Struct):
    """The records made so far for one request, over the state before it.

    With ``cumulative``, :meth:`broker` and :meth:`partition` show what the records so far will make of them.
    """

    image: MetadataImage
    cumulative: bool = True
    records: list[AnyRecord] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    _partitions: dict[PartitionKey, PartitionRegistration] = field(default_factory=dict)
    _unmerged: dict[PartitionKey, list[PartitionChangeRecord]] = field(default_factory=dict)
    """Changes of partitions that nobody has asked for since."""
    _seen: int = 0
    """So many records have been looked at for changes of partitions: nobody asks after most of them."""
    _brokers: dict[int, BrokerRegistration] = field(default_factory=dict)

    def add(self, record: AnyRecord) -> None:
        """Append a record."""
        self.records.append(record)
        if not self.cumulative:
            return
        if isinstance(record, BrokerRegistrationChangeRecord):
            broker = self.broker(record.broker_id)
            if broker is not None:
                self._brokers[record.broker_id] = broker.merge(record)
        elif isinstance(record, RegisterBrokerRecord):
            self._brokers[record.broker_id] = BrokerRegistration.of(record)

    def add_partitions(self, records: Iterable[PartitionRecordRef]) -> None:
        """Append records of partitions."""
        self.records += records

    def note(self, event: str, **fields: object) -> None:
        """Log a line once the records are durable."""
        self.notes.append(Note(event, fields))

    def warn(self, event: str, **fields: object) -> None:
        """Log a warning once the records are durable."""
        self.notes.append(Note(event, fields, warning=True))

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        """Return a broker after the records so far; None if it is not registered."""
        return self._brokers.get(broker_id) or self.image.brokers.get(broker_id)

    def partition(self, key: PartitionKey) -> PartitionRegistration | None:
        """Return a partition after the records so far; None if it does not exist."""
        if self._seen < len(self.records):
            self._see()
        topic = self.image.topics.get(key[0])
        partition = self._partitions.get(key) or (None if topic is None else topic.partitions.get(key[1]))
        if partition is not None and key in self._unmerged:
            for change in self._unmerged.pop(key):
                partition = partition.merge(change)
            self._partitions[key] = partition
        return partition

    def _see(self) -> None:
        for record in self.records[self._seen :] if self.cumulative else ():
            if isinstance(record, PartitionRecordRef):
                if isinstance(record.like, PartitionChangeRecord):
                    self._unmerged.setdefault(record[1:], []).append(record.like)
            elif isinstance(record, PartitionChangeRecord):
                self._unmerged.setdefault((record.topic_id, record.partition_id), []).append(record)
        self._seen = len(self.records)

    def result(
        self, answer: ResponseBody | None, *, atomic: bool = True, enters_shutdown: tuple[int, int] | None = None
    ) -> Result:
        """Return the result: the records so far, with the answer."""
        return Result(
            answer=answer,
            records=tuple(self.records),
            atomic=atomic,
            notes=tuple(self.notes),
            enters_shutdown=enters_shutdown,
        )
