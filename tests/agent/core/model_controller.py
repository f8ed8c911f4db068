"""A KRaft controller as small as KIP-858 allows: what one broker with several directories needs of it.

Everything that it decides is a metadata record, replayed into its own image at once; the broker replays the same
records later. Broker 1 is the one under test. Brokers 2 and 3 are always well and in sync, so only replicas on broker 1
leave the ISR, and come back when :meth:`Controller.caught_up` says so.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage, PartitionRegistration, Topic
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kjbod.metadata.versions import LATEST
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponsePartition,
    AssignReplicasToDirsResponseTopic,
)
from kjbod_host.partitions import TopicIdPartition
from tests.metadata.replicas import replicas_of

US = 1
NO_LEADER = -1


def identity(kind: int, number: int) -> Uuid:
    """An id that tells what it is of."""
    return Uuid.of(kind, 1000 + number)


class Controller:
    """The only controller."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.records: list[Record] = []
        self.registered_at = -1
        """Offset of the last registration of broker 1."""
        self._topics_made = 0
        self._commit(FeatureLevelRecord(name="metadata.version", feature_level=LATEST))
        for broker in (2, 3):
            self._register(broker, (identity(broker, 0),), fenced=False)

    # ---- the broker

    def register(self, directories: Sequence[Uuid]) -> int:
        """A new incarnation of broker 1, fenced; its epoch. Directories that are not among these are offline."""
        self.registered_at = len(self.records)
        self._register(US, tuple(directories), fenced=True)
        self._elect_all()
        return self.registered_at

    def amend(self, epoch: int, directories: Sequence[Uuid]) -> bool:
        """The same incarnation registers other directories: nothing else changes, and no leader moves."""
        if not self._is_current(epoch):
            return False
        before = self.image.brokers[US]
        self._commit(dataclasses.replace(before, log_dirs=tuple(sorted(directories))).to_record())
        return True

    def heartbeat(self, epoch: int, offline: Sequence[Uuid], wants_to_be_unfenced: bool) -> bool:
        """Whether it was taken. Directories are offline from here on; it is unfenced when it wants to be."""
        if not self._is_current(epoch):
            return False
        here = self.image.brokers[US]
        left = tuple(d for d in here.log_dirs if d not in offline)
        assert left, "a broker without directories is not one"
        if left != here.log_dirs:
            self._commit(BrokerRegistrationChangeRecord(broker_id=US, broker_epoch=epoch, log_dirs=left))
        if wants_to_be_unfenced and self.image.brokers[US].fenced:
            self._commit(BrokerRegistrationChangeRecord(broker_id=US, broker_epoch=epoch, fenced=-1))
        self._elect_all()
        return True

    def fence(self) -> None:
        """Its session is over."""
        here = self.image.brokers.get(US)
        if here is not None and not here.fenced:
            self._commit(BrokerRegistrationChangeRecord(broker_id=US, broker_epoch=here.epoch, fenced=1))
            self._elect_all()

    def assign(
        self, request: AssignReplicasToDirsRequest, refuses: Callable[[TopicIdPartition], bool] = lambda _: False
    ) -> AssignReplicasToDirsResponse:
        """``handleAssignReplicasToDirs``; ``refuses`` answers an error of the moment and records nothing."""
        if not self._is_current(request.broker_epoch):
            return AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        answer = tuple(
            AssignReplicasToDirsResponseDirectory(
                id_=directory.id_,
                topics=tuple(
                    AssignReplicasToDirsResponseTopic(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            AssignReplicasToDirsResponsePartition(
                                partition_index=partition.partition_index,
                                error_code=self._assign(
                                    TopicIdPartition(topic.topic_id, partition.partition_index), directory.id_, refuses
                                ),
                            )
                            for partition in topic.partitions
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in request.directories
        )
        self._elect_all()
        return AssignReplicasToDirsResponse(directories=answer)

    def _assign(self, key: TopicIdPartition, directory: Uuid, refuses: Callable[[TopicIdPartition], bool]) -> int:
        topic = self.image.topics.get(key.topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = topic.partitions.get(key.partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if US not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if refuses(key):
            return ErrorCode.REQUEST_TIMED_OUT
        if partition.directory(US) != directory:
            self._change(key, directories=_with(partition, directory))
        return ErrorCode.NONE

    # ---- topics

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, if there is one."""
        return next((topic for topic in self.image.topics.values() if topic.name == name), None)

    def create_topic(self, name: str, replicas: Sequence[Sequence[int]]) -> None:
        """``replicas``: for each partition. Broker 1 is not in the ISR while it is fenced, unless it is alone."""
        self._topics_made += 1
        topic_id = identity(10, self._topics_made)
        self._commit(TopicRecord(name=name, topic_id=topic_id))
        for number, brokers in enumerate(replicas):
            in_sync = tuple(b for b in brokers if self._active(b)) or tuple(brokers[:1])
            self._commit(
                PartitionRecord(
                    partition_id=number,
                    topic_id=topic_id,
                    replicas=tuple(brokers),
                    isr=in_sync,
                    leader=in_sync[0] if self._active(in_sync[0]) else NO_LEADER,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=tuple(self.image.default_dir(b) for b in brokers),
                )
            )

    def delete_topic(self, name: str) -> None:
        topic = self.topic(name)
        assert topic is not None
        self._commit(RemoveTopicRecord(topic_id=topic.id))

    def reassign(self, key: TopicIdPartition, brokers: Sequence[int]) -> None:
        """A reassignment from its start to its end. A newcomer, broker 1 too, starts out of sync."""
        before = self.image.topics[key.topic_id].partitions[key.partition]
        in_sync = tuple(b for b in before.isr if b in brokers) or (2,)
        self._change(
            key,
            replicas=tuple(brokers),
            isr=in_sync,
            directories=tuple(
                before.directory(b) if b in before.replicas else self.image.default_dir(b) for b in brokers
            ),
            leader=before.leader if before.leader in in_sync else in_sync[0] if self._active(in_sync[0]) else NO_LEADER,
        )
        self._elect_all()

    def may_catch_up(self, key: TopicIdPartition) -> bool:
        """Whether the leader, another broker, would take broker 1 back into the ISR."""
        partition = self.image.topics[key.topic_id].partitions[key.partition]
        ours = US in partition.replicas
        return ours and US not in partition.isr and partition.leader > US and self._acceptable(US, partition)

    def caught_up(self, key: TopicIdPartition) -> None:
        """The leader takes broker 1 back into the ISR."""
        partition = self.image.topics[key.topic_id].partitions[key.partition]
        self._change(key, isr=(*partition.isr, US))

    def hosted(self) -> Iterator[tuple[str, TopicIdPartition, PartitionRegistration]]:
        """Each replica on broker 1."""
        for topic, number, partition in replicas_of(self.image, US):
            yield topic.name, TopicIdPartition(topic.id, number), partition

    # ---- elections

    def _elect_all(self) -> None:
        for _, key, partition in list(self.hosted()):
            in_sync = partition.isr
            if not self._acceptable(US, partition) and len(in_sync) > 1:
                in_sync = tuple(b for b in in_sync if b != US)
            leader = partition.leader
            if leader not in in_sync or not self._acceptable(leader, partition):
                able = [b for b in partition.replicas if b in in_sync and self._acceptable(b, partition)]
                leader = able[0] if able else NO_LEADER
            if in_sync != partition.isr or leader != partition.leader:
                self._change(key, isr=in_sync, leader=leader)

    def _acceptable(self, broker: int, partition: PartitionRegistration) -> bool:
        if broker == NO_LEADER:
            return False
        return self._active(broker) and self.image.has_online_dir(broker, partition.directory(broker))

    def _active(self, broker: int) -> bool:
        registration = self.image.brokers.get(broker)
        return registration is not None and registration.active

    # ---- records

    def _register(self, broker: int, directories: tuple[Uuid, ...], *, fenced: bool) -> None:
        offset = len(self.records)
        self._commit(
            RegisterBrokerRecord(
                broker_id=broker,
                incarnation_id=identity(20 + broker, offset),
                broker_epoch=offset,
                end_points=(),
                features=(),
                fenced=fenced,
                log_dirs=directories,
            )
        )

    def _is_current(self, epoch: int) -> bool:
        here = self.image.brokers.get(US)
        return here is not None and here.epoch == epoch

    def _change(self, key: TopicIdPartition, **fields: object) -> None:
        self._commit(PartitionChangeRecord(topic_id=key.topic_id, partition_id=key.partition, **fields))  # type: ignore[arg-type]

    def _commit(self, record: Record) -> None:
        self.image.replay(record, len(self.records))
        self.records.append(record)


def _with(partition: PartitionRegistration, directory: Uuid) -> tuple[Uuid, ...]:
    pairs = zip(partition.replicas, partition.directories, strict=True)
    return tuple(directory if broker == US else there for broker, there in pairs)
