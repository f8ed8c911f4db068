"""A real Apache Kafka broker with data on its directories, for tests that hand these to the agent and back."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from scripts.rig.kafka import SIGTERMED, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until

UNCHECKED = (".lock", ".kafka_cleanshutdown")
METADATA = "__cluster_metadata-0"
"""Broker and agent go on with it in turns: ``test_metadata_kept_kafka``."""
Manifest = dict[str, tuple[int, str, int]]
Contents = dict[str, tuple[int, str]]


def manifest(directory: Path) -> Manifest:
    """Size, checksum and time of change of each file, by its path; without locks, clean shutdown marks, kjbod's own
    files and the metadata log. Empty directories count as well."""
    found: Manifest = {}
    for parent, directories, files in os.walk(directory):
        here = Path(parent)
        if METADATA in directories:
            directories.remove(METADATA)
        for name in files:
            path = here / name
            if not name.startswith(".kjbod_") and name not in UNCHECKED:
                status = path.lstat()
                content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()
                found[str(path.relative_to(directory))] = (status.st_size, digest, status.st_mtime_ns)
        if not files and not directories:
            found[f"{here.relative_to(directory)}/"] = (0, "", 0)
    return found


def of_replica(found: Manifest, name: str) -> Manifest:
    """The files of one replica directory, by their names within it."""
    return {path.partition("/")[2]: what for path, what in found.items() if path.partition("/")[0] == name}


@dataclass
class RealBroker:
    """One broker and what clients know of it."""

    kit: KafkaKit
    processes: Processes
    config: Path

    @property
    def bootstrap(self) -> str:
        listener = next(line for line in self.config.read_text().splitlines() if line.startswith("listeners="))
        return listener.rpartition("/")[2]

    def start(self, timeout_s: float = 120.0) -> ManagedProcess:
        """Start it; after another process of the same id that takes until the old session has timed out."""
        name = f"broker-{self.config.parent.name}"
        return self.kit.start_server(self.processes, self.config, name=name, timeout_s=timeout_s)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def wait_led(self, topic: str, partitions: int, timeout_s: float = 60) -> None:
        """Until clients see a leader of each partition."""
        admin = self.admin()

        def led() -> bool:
            found = admin.list_topics(topic, timeout=10).topics[topic].partitions
            return len(found) == partitions and all(p.leader >= 0 for p in found.values())

        wait_until(led, timeout_s, f"leaders of {topic}")

    def produce(self, topic: str, partition: int, values: list[bytes]) -> None:
        """Append these, each acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 5})
        failed: list[str] = []
        for value in values:
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
            producer.poll(0)
        assert producer.flush(60) == 0 and not failed, failed[:3]

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        admin = self.admin()  # held until the answer is there
        for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(30)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        def is_committed() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                return False
            return True

        with self._consumer(group) as consumer:
            wait_until(is_committed, 60, f"the coordinator of {group}")

    def committed(self, group: str, topic: str, partition: int) -> int:
        with self._consumer(group) as consumer:
            (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=60)
            return int(found.offset)

    def consume(self, topic: str, partition: int) -> tuple[int, list[bytes]]:
        """The first offset and all values of a partition."""
        with self._consumer("reader") as consumer:
            low, high = _watermarks(consumer, TopicPartition(topic, partition))
            consumer.assign([TopicPartition(topic, partition, low)])
            values: list[bytes] = []
            while len(values) < high - low:
                messages = consumer.consume(high - low - len(values), timeout=60)
                assert messages, f"{topic}-{partition}: {len(values)} of {high - low} records"
                for message in messages:
                    assert message.error() is None, message.error()
                    values.append(message.value() or b"")
            return low, values

    def contents(self, topics: Mapping[str, int], since: Contents | None = None) -> Contents:
        """First offset and checksum of all values of each partition of these topics; ``since``: from its first offsets
        on. (A broker that is killed forgets an offset that DeleteRecords set within the last minute.)"""
        found: Contents = {}
        for topic, partitions in topics.items():
            for partition in range(partitions):
                name = f"{topic}-{partition}"
                low, values = self.consume(topic, partition)
                if since is not None:
                    assert low <= since[name][0]
                    low, values = since[name][0], values[since[name][0] - low :]
                found[name] = (low, hashlib.sha256(b"\0".join(values)).hexdigest())
        return found

    def _consumer(self, group: str) -> Consumer:
        return _Closing({"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False})


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """First and next offset. The metadata name a leader a moment before the broker is one."""

    def ask() -> tuple[int, int] | None:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=60)
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE):
                return None
            raise
        return low, high

    found = wait_until(ask, 60, f"a leader of {partition}")
    assert found is not None
    return found


class _Closing(Consumer):
    """Closed at the end of a ``with``."""

    def __enter__(self) -> "_Closing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stop_clean(broker: ManagedProcess) -> None:
    assert broker.stop(60) == SIGTERMED
