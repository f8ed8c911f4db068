"""Commits of the controller, as an observer of its metadata log sees them: works with any KRaft controller."""

import asyncio
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from kjbod.clock import SystemClock, system_random
from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.fetching import Address
from kjbod.metadata.follower import Committed, MetadataFollower, Snapshot
from kjbod.metadata.image import MetadataImage, PartitionRegistration, Replayer
from kjbod.metadata.records import BrokerRegistrationChangeRecord, Record


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A committed record, and when it reached this observer, in seconds of the wall clock."""

    offset: int
    record: Record
    seen_at: float


class ClusterWatch:
    """Follows the metadata log in a thread of its own; ask it from any thread.

    Args:
        port: of the controller on this machine; where there are others, ``servers``.
        cluster_id: of the cluster.
        servers: addresses of the controllers.
    """

    def __init__(self, port: int, cluster_id: str, *, servers: Sequence[Address] = ()) -> None:
        self._lock = threading.Lock()
        self._replayer = Replayer()
        self._seen: list[Seen] = []
        self._servers = servers or [("127.0.0.1", port)]
        self._cluster_id = cluster_id
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="metadata-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        self._thread.join(5)

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        follower = MetadataFollower(
            self._servers,
            client_id="kjbod-demo-observer",
            clock=SystemClock(),
            rng=system_random(),
            on_committed=self._on_committed,
            on_snapshot=self._on_snapshot,
            cluster_id=self._cluster_id,
        )

        async def follow() -> None:
            self._task = asyncio.current_task()
            await follower.run()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(follow())
            except asyncio.CancelledError:
                return

    def _on_committed(self, committed: Committed) -> None:
        now = time.time()
        with self._lock:
            for offset, record in committed.records:
                self._replayer.replay(offset, committed.epoch, record)
                self._seen.append(Seen(offset, record, now))

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._replayer = Replayer()
            for record in snapshot.records:
                self._replayer.image.replay(record)

    # ------------------------------------------------------------ from any thread

    @property
    def _image(self) -> MetadataImage:
        return self._replayer.image

    def _partitions(self) -> Iterator[PartitionRegistration]:
        return (partition for topic in self._image.topics.values() for partition in topic.partitions.values())

    def committed_since(self, wall_s: float) -> list[Seen]:
        """The records that were seen after that moment."""
        with self._lock:
            return [seen for seen in self._seen if seen.seen_at >= wall_s]

    def unfenced(self) -> set[int]:
        """The brokers that are registered and unfenced."""
        with self._lock:
            return {broker.id for broker in self._image.brokers.values() if not broker.fenced}

    def metadata_version(self) -> int:
        """The finalized level."""
        with self._lock:
            return self._image.metadata_version

    def broker_epoch(self, broker: int) -> int:
        """The epoch of a broker's registration; KeyError where it has none."""
        with self._lock:
            return self._image.brokers[broker].epoch

    def assigned_replicas(self, topic: str) -> int:
        """Number of replicas of a topic that are assigned to a directory that its broker has registered."""
        with self._lock:
            topic_id = self._image.topic_ids.get(topic)
            if topic_id is None:
                return 0
            return sum(
                1
                for partition in self._image.topics[topic_id].partitions.values()
                for broker, directory in zip(partition.replicas, partition.directories, strict=True)
                if directory != UNASSIGNED and self._image.has_online_dir(broker, directory)
            )

    def in_sync(self, topic: str, replicas: int) -> int:
        """Number of partitions of a topic that have so many replicas, all of them in sync."""
        with self._lock:
            topic_id = self._image.topic_ids.get(topic)
            partitions = {} if topic_id is None else self._image.topics[topic_id].partitions
            return sum(len(one.replicas) == len(one.isr) == replicas for one in partitions.values())

    def recorded_offline(self, broker: int, directory: Uuid, since_s: float) -> float | None:
        """Moment at which the metadata showed a directory gone, in seconds of the wall clock; None: not since then."""
        for seen in self.committed_since(since_s):
            record = seen.record
            if (
                isinstance(record, BrokerRegistrationChangeRecord)
                and record.broker_id == broker
                and record.log_dirs
                and directory not in record.log_dirs
            ):
                return seen.seen_at
        return None

    def leaders(self) -> Counter[int]:
        """Partitions led, by broker."""
        with self._lock:
            return Counter(partition.leader for partition in self._partitions() if partition.leader >= 0)

    def leaders_by_directory(self) -> dict[tuple[int, Uuid], int]:
        """Partitions led, by broker and the directory of the leading replica."""
        with self._lock:
            return Counter(
                (partition.leader, partition.directory(partition.leader))
                for partition in self._partitions()
                if partition.leader >= 0
            )

    def registered_dir(self, broker: int, directory: Uuid) -> bool:
        """Whether the controller counts a directory of a broker as online."""
        with self._lock:
            registration = self._image.brokers.get(broker)
            return registration is not None and directory in registration.log_dirs

    def in_isr(self, broker: int, directory: Uuid) -> int:
        """In how many partitions the broker is in the ISR with a replica in that directory."""
        with self._lock:
            return sum(
                1
                for partition in self._partitions()
                if broker in partition.isr and partition.directory(broker) == directory
            )
