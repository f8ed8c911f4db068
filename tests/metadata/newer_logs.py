"""Metadata logs of a Kafka that no release is: what a real one has, changed as the next one may have it, or damaged."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kjbod.ids import Uuid
from kjbod.metadata.batches import HEADER_BYTES, encode_batch
from kjbod.metadata.control_records import KRaftVersion, SnapshotFooter, SnapshotHeader
from kjbod.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_record,
)
from kjbod.wire.codec import put_uvarint
from kjbod.wire.crc32c import crc32c

TOPIC = Uuid.of(7, 1)
OTHER = Uuid.of(7, 2)
BROKERS = (1, 2, 3)
LEVEL = "metadata.version"
UNKNOWN_TYPES = (6, 13, 16, 30, 31, 99, 127, 300, 2**31)
"""Api keys that no record of a release up to 4.4 has; those of UnregisterControllerRecord and its like are others."""


def home(broker: int) -> Uuid:
    """The directory of a broker."""
    return Uuid.of(6, broker)


def value_of(api_key: int, version: int, body: bytes = b"\0", frame: int = 1) -> bytes:
    """Encode a record with these numbers as type and version."""
    out = bytearray()
    for number in (frame, api_key, version):
        put_uvarint(out, number)
    return bytes(out) + body


def partition(number: int, topic: Uuid = TOPIC) -> PartitionRecord:
    """A partition that all brokers have."""
    return PartitionRecord(
        partition_id=number,
        topic_id=topic,
        replicas=BROKERS,
        isr=BROKERS,
        leader=1 + number % 3,
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(map(home, BROKERS)),
    )


def registered(broker: int, epoch: int = 10) -> RegisterBrokerRecord:
    """A broker that has one directory, and serves."""
    return RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=Uuid.of(1, broker),
        broker_epoch=epoch,
        end_points=(),
        features=(),
        fenced=False,
        log_dirs=(home(broker),),
    )


STATE: tuple[Record, ...] = (
    FeatureLevelRecord(name=LEVEL, feature_level=30),
    *map(registered, BROKERS),
    TopicRecord(name="t", topic_id=TOPIC),
    *map(partition, range(4)),
    ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"),
)
"""What a snapshot may have."""


def changes() -> list[Record]:
    """What a log may have after it."""
    return [
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=(2, 3), leader=2),
        BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=10, fenced=1),
        NoOpRecord(),
        BeginTransactionRecord(name="create"),
        TopicRecord(name="u", topic_id=OTHER),
        partition(0, OTHER),
        EndTransactionRecord(),
        BeginTransactionRecord(),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC, replicas=(2, 3), directories=(home(2), home(3))),
        AbortTransactionRecord(reason="no"),
        ProducerIdsRecord(broker_id=1, next_producer_id=1000),
        AccessControlEntryRecord(
            id=Uuid.of(3, 3),
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="10.0.0.0/8",
            operation=3,
            permission_type=3,
        ),
        registered(2, 11),
        PartitionChangeRecord(partition_id=2, topic_id=TOPIC, isr=(1,), leader=1),
        RemoveTopicRecord(topic_id=OTHER),
        FeatureLevelRecord(name="a.feature.of.tomorrow", feature_level=7),
    ]


def _renumbered(value: bytes, rng: random.Random) -> bytes:
    """A record that has another version, or is of another type."""
    api_key, version = value[1], value[2]
    if rng.random() < 0.5:
        return value_of(api_key, version + rng.choice((1, 1, 2, 9, 200)), value[3:])
    return value_of(rng.choice((*UNKNOWN_TYPES, 29, rng.randrange(400))), rng.choice((0, 0, 1, 5)), value[3:])


def _tagged(value: bytes, rng: random.Random) -> bytes:
    """A record of the next version with a tagged field that nobody knows, as Kafka adds them."""
    if value[-1]:
        return _renumbered(value, rng)
    tag = bytearray()
    put_uvarint(tag, rng.choice((40, 99, 5000)))
    content = rng.randbytes(rng.randrange(9))
    return value_of(value[1], value[2] + 1, value[3:-1] + b"\1" + bytes(tag) + bytes([len(content)]) + content)


def _damaged(value: bytes, rng: random.Random) -> bytes:
    """A record with bytes that are cut off, added, or others."""
    at = rng.randrange(len(value))
    return rng.choice(
        (
            value[:at],
            value + rng.randbytes(rng.randrange(1, 6)),
            value[:at] + rng.randbytes(1) + value[at + 1 :],
            rng.randbytes(rng.randrange(30)),
            value_of(value[1], value[2], value[3:], frame=rng.choice((0, 2, 99))),
        )
    )


@dataclass(frozen=True)
class NewerLog:
    """Values of a snapshot, and of the log behind it."""

    snapshot: tuple[bytes, ...]
    log: tuple[bytes, ...]

    @classmethod
    def of(cls, seed: int, *, per_cent: int = 15) -> "NewerLog":
        """A log in which so many of a hundred records are changed."""
        rng = random.Random(seed)

        def changed(records: Sequence[Record]) -> tuple[bytes, ...]:
            found = []
            for record in records:
                value = encode_record(record)
                if rng.randrange(100) < per_cent:
                    value = rng.choice((_renumbered, _renumbered, _tagged, _damaged))(value, rng)
                found.append(value)
                if rng.randrange(100) < per_cent // 3:
                    found.append(value_of(rng.choice(UNKNOWN_TYPES), rng.randrange(3), rng.randbytes(rng.randrange(9))))
            return tuple(found)

        log = changes()
        if rng.random() < 0.3:
            rng.shuffle(log)
        if rng.random() < 0.5:
            log.insert(0, FeatureLevelRecord(name=LEVEL, feature_level=rng.choice((31, 33, 34, 99, 32767, -1))))
        return cls(changed(STATE), changed(log))

    def batches(self, seed: int, *, epoch: int = 1) -> list[bytes]:
        """All of it as batches of a log from offset 0, some of which do not hold what their headers say."""
        rng, found, base = random.Random(seed), [], 0
        values = [*self.snapshot, *self.log]
        while values:
            count = rng.randrange(1, 6)
            taken, values = values[:count], values[count:]
            raw = encode_batch(taken, base, epoch, 1000)
            found.append(_broken(raw, rng) if rng.random() < 0.03 else raw)
            base += len(taken)
        return found

    def checkpoint(self) -> bytes:
        """The snapshot as bytes."""
        head = encode_batch(
            [SnapshotHeader(last_contained_log_timestamp=1000), KRaftVersion(k_raft_version=1)],
            0,
            1,
            1000,
            control=True,
        )
        body = encode_batch(self.snapshot, 2, 1, 1000)
        foot = encode_batch([SnapshotFooter()], 2 + len(self.snapshot), 1, 1000, control=True)
        return head + body + foot


def _broken(raw: bytes, rng: random.Random) -> bytes:
    """A batch with the right checksum over records that are damaged."""
    found = bytearray(raw)
    found[rng.randrange(HEADER_BYTES, len(found))] = rng.randrange(256)
    struct.pack_into(">I", found, 17, crc32c(memoryview(found)[21:]))
    return bytes(found)
