"""Moments of the controller's records: read from its own metadata log, which costs nobody anything while it is
measured.

The same for every broker. A batch of the log has the controller's time, in milliseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.batches import read_batch
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
)

_NOWHERE = (UNASSIGNED, MIGRATING, LOST)


@dataclass(slots=True)
class Recorded:
    """Records of one broker in the log, up to now. Moments are seconds of the wall clock.

    Attributes:
        epoch: of its last registration; -1: it has not registered.
        registered_s: when.
        fenced: as of now.
        unfenced_s: when it was unfenced last.
        assigned_s: when the last directory was recorded.
        partitions: replicas of the broker.
        waiting: those whose directory is still to be recorded.
    """

    epoch: int = -1
    registered_s: float = 0.0
    fenced: bool = True
    unfenced_s: float = 0.0
    assigned_s: float = 0.0
    partitions: set[tuple[Uuid, int]] = field(default_factory=set)
    waiting: set[tuple[Uuid, int]] = field(default_factory=set)


class ControllerLog:
    """The metadata log of a controller that runs on this machine.

    Args:
        directory: its ``__cluster_metadata-0``.
        broker_id: the broker to look at; it is the only replica of every partition.
    """

    def __init__(self, directory: Path, broker_id: int) -> None:
        self.recorded = Recorded()
        self._directory = directory
        self._broker_id = broker_id
        self._segment: Path | None = None
        self._position = 0

    @property
    def size_bytes(self) -> int:
        """Length of all segments: while it grows no faster than by signs of life, nothing is recorded."""
        return sum(path.stat().st_size for path in self._directory.glob("*.log"))

    def all_to_be_assigned_anew(self) -> None:
        """From now on a directory counts only when it is recorded after this moment."""
        self.recorded.waiting = set(self.recorded.partitions)

    def read(self) -> Recorded:
        """The log's records by now."""
        for at_s, record in self._new_records():
            self._apply(at_s, record)
        return self.recorded

    def _new_records(self) -> Iterator[tuple[float, Record]]:
        segments = sorted(self._directory.glob("*.log"))
        if self._segment is not None:
            segments = [path for path in segments if path >= self._segment]
        for path in segments:
            start = self._position if path == self._segment else 0
            with open(path, "rb") as file:
                file.seek(start)
                data = file.read()
            at = 0
            while at < len(data) and (batch := read_batch(data, at)) is not None:
                for _, record in batch.metadata_records():
                    yield batch.base_timestamp_ms / 1000, record
                at += batch.size_in_bytes
            self._segment, self._position = path, start + at

    def _apply(self, at_s: float, record: Record) -> None:
        now = self.recorded
        match record:
            case RegisterBrokerRecord(broker_id=self._broker_id):
                now.epoch, now.registered_s, now.fenced = record.broker_epoch, at_s, record.fenced
            case BrokerRegistrationChangeRecord(broker_id=self._broker_id) if record.fenced:
                now.fenced = record.fenced == 1
                if not now.fenced:
                    now.unfenced_s = at_s
            case PartitionRecord():
                now.partitions.add((record.topic_id, record.partition_id))
                if record.directories and record.directories[0] in _NOWHERE:
                    now.waiting.add((record.topic_id, record.partition_id))
            case PartitionChangeRecord() if record.directories and record.directories[0] not in _NOWHERE:
                key = (record.topic_id, record.partition_id)
                if key in now.waiting:
                    now.waiting.discard(key)
                    now.assigned_s = at_s
