"""A controller without a disk: what it writes is durable at once, and kept for a replay from scratch."""

import random
from dataclasses import dataclass, field
from typing import Any, cast

from kjbod.ids import ZERO, Uuid
from kjbod.metadata import versions
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.image import BrokerRegistration, PartitionRegistration
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    Record,
    decode_any,
    decode_record,
    encode_record,
)
from kjbod.wire.messages import (
    API,
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerRegistrationResponse,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestTopic,
    RequestBody,
    ResponseT,
)
from kjbod_controller_stub.access.tokens import TokenSettings
from kjbod_controller_stub.context import Context, Settings
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.rules import KIP_858, Rules

CLUSTER_ID = "kjbodTestCluster0AAAAA"
NODE_ID = 3000
FOREVER = 2**62


def directory(broker_id: int, number: int) -> Uuid:
    """Directory ``number`` of a broker."""
    return Uuid.of(1000 + broker_id, number)


def directories(broker_id: int, count: int = 3) -> tuple[Uuid, ...]:
    return tuple(directory(broker_id, number) for number in range(count))


def incarnation(broker_id: int, number: int = 0) -> Uuid:
    return Uuid.of(5000 + broker_id, number)


FEATURES = tuple(
    BrokerRegistrationRequestFeature(name=name, min_supported_version=low, max_supported_version=high)
    for name, (low, high) in versions.SUPPORTED_FEATURES.items()
)


@dataclass(slots=True)
class Written:
    """One record as it is in the log."""

    offset: int
    record: Record
    version: int


@dataclass(slots=True)
class World:
    """A controller, a clock and the log."""

    rules: Rules = KIP_858
    metadata_version: int = versions.LATEST
    with_elr: bool = True
    """Whether eligible leader replicas are finalized, where the metadata.version has them."""
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    acl_rules: AclRules = field(default_factory=AclRules)
    cluster_id: str = CLUSTER_ID
    static_configs: dict[str, str] = field(default_factory=dict)
    """The controller's ``server.properties``."""
    delete_topic_enable: bool = True
    tokens: TokenSettings = field(default_factory=TokenSettings)
    also_broker: bool = False
    """Whether it is that of a combined node."""
    now_ms: int = 1_000_000
    """Of both clocks."""
    log: list[Written] = field(default_factory=list)
    last: list[Record] = field(default_factory=list)
    """Records of the last request."""
    last_versions: list[int] = field(default_factory=list)
    controller: Controller = field(init=False)

    def __post_init__(self) -> None:
        self.controller = self.new_controller()
        features: list[Record] = [
            FeatureLevelRecord(name=name, feature_level=level)
            for name, level in versions.default_features(self.metadata_version).items()
            if self.with_elr or name != versions.ELIGIBLE_LEADER_REPLICAS_VERSION
        ]
        self.write(Result(records=(*features, *eligible.bootstrap_records(features, 1))))

    def new_controller(self) -> Controller:
        rng = self.rng
        settings = Settings(
            node_id=NODE_ID,
            cluster_id=self.cluster_id,
            rules=self.rules,
            acl_rules=self.acl_rules,
            static_configs=self.static_configs,
            tokens=self.tokens,
            delete_topic_enable=self.delete_topic_enable,
            also_broker=self.also_broker,
        )
        return Controller(
            settings, draw_id=lambda: Uuid(rng.randbytes(16)), shuffle=rng.shuffle, wall_ms=lambda: self.now_ms
        )

    def replayed(self) -> Controller:
        """Another controller that has replayed the log from the beginning."""
        fresh = self.new_controller()
        values = ((each.offset, encode_record(each.record, each.version)) for each in self.log)
        fresh.recover_batch(1, ((offset, decode_any(value)[0]) for offset, value in values))
        return fresh

    def write(self, result: Result) -> None:
        write = self.controller.apply(result)
        self.last, self.last_versions = [], []
        if write is None:
            return
        offset = write.base_offset
        for batch in write.batches:
            for value in batch:
                record, version = decode_record(value)
                self.log.append(Written(offset, record, version))
                self.last.append(record)
                self.last_versions.append(version)
                offset += 1
        assert offset == self.controller.next_offset

    def ask(
        self, request: RequestBody[ResponseT], version: int | None = None, context: Context | None = None
    ) -> ResponseT:
        """Handle, write, answer."""
        version = API[request.API_KEY].max_version if version is None else version
        steady = None
        if isinstance(request, BrokerHeartbeatRequest):
            steady = self.controller.sessions.steady_heartbeat(request, self.now_ms)
        result = self.controller.handle(request, context or Context(version), self.now_ms)
        # What needs no turn is answered as if it had taken one.
        assert steady is None or (steady[0], ()) == (result.answer, result.records)
        self.write(result)
        return cast(ResponseT, result.answer)

    def tick(self, ms: int = 0) -> None:
        """Let time pass and do all that it brings."""
        self.now_ms += ms
        while (result := self.controller.run_timers(self.now_ms)) is not None:
            self.write(result)

    def expire(self) -> bool:
        """One pass over the sessions; whether somebody was fenced."""
        result = self.controller.expire_session(self.now_ms)
        if result is not None:
            self.write(result)
        return result is not None

    # ---- state

    def broker(self, broker_id: int) -> BrokerRegistration:
        return self.controller.image.brokers[broker_id]

    def topic_id(self, name: str) -> Uuid:
        return self.controller.image.topic_ids[name]

    def partition(self, name: str, number: int = 0) -> PartitionRegistration:
        return self.controller.image.topics[self.topic_id(name)].partitions[number]

    def changes(self) -> list[PartitionChangeRecord]:
        return [record for record in self.last if isinstance(record, PartitionChangeRecord)]

    def broker_changes(self) -> list[BrokerRegistrationChangeRecord]:
        return [record for record in self.last if isinstance(record, BrokerRegistrationChangeRecord)]

    # ---- requests

    def register(
        self,
        broker_id: int,
        dirs: int | tuple[Uuid, ...] = 3,
        *,
        number: int = 0,
        version: int | None = None,
        **fields: Any,
    ) -> BrokerRegistrationResponse:
        request: dict[str, Any] = {
            "cluster_id": self.cluster_id,
            "incarnation_id": incarnation(broker_id, number),
            "listeners": (BrokerRegistrationRequestListener(name="PLAINTEXT", host="localhost", port=9092),),
            "features": FEATURES,
            "log_dirs": directories(broker_id, dirs) if isinstance(dirs, int) else dirs,
        }
        return self.ask(BrokerRegistrationRequest(broker_id=broker_id, **(request | fields)), version)

    def beat(
        self,
        broker_id: int,
        *,
        epoch: int | None = None,
        offset: int = FOREVER,
        fence: bool = False,
        shut: bool = False,
        offline: tuple[Uuid, ...] = (),
        cordoned: tuple[Uuid, ...] | None = None,
    ) -> BrokerHeartbeatResponse:
        return self.ask(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=self.broker(broker_id).epoch if epoch is None else epoch,
                current_metadata_offset=offset,
                want_fence=fence,
                want_shut_down=shut,
                offline_log_dirs=offline,
                cordoned_log_dirs=cordoned,
            )
        )

    def join(self, broker_id: int, dirs: int = 3, **fields: Any) -> None:
        """Register and unfence."""
        assert self.register(broker_id, dirs, **fields).error_code == 0
        assert not self.beat(broker_id).is_fenced

    def create(self, name: str, *replicas: tuple[int, ...]) -> Uuid:
        """A topic with these replicas per partition."""
        answer = self.ask(
            CreateTopicsRequest(
                topics=(
                    CreateTopicsRequestTopic(
                        name=name,
                        assignments=tuple(
                            CreateTopicsRequestAssignment(partition_index=number, broker_ids=brokers)
                            for number, brokers in enumerate(replicas)
                        ),
                    ),
                )
            )
        )
        assert answer.topics[0].error_code == 0, answer
        return answer.topics[0].topic_id

    def assign(
        self, broker_id: int, *placed: tuple[Uuid, Uuid, tuple[int, ...]], epoch: int | None = None
    ) -> AssignReplicasToDirsResponse:
        """(directory, topic id, partitions) each."""
        return self.ask(
            AssignReplicasToDirsRequest(
                broker_id=broker_id,
                broker_epoch=self.broker(broker_id).epoch if epoch is None else epoch,
                directories=tuple(
                    AssignReplicasToDirsRequestDirectory(
                        id_=where,
                        topics=(
                            AssignReplicasToDirsRequestTopic(
                                topic_id=topic_id,
                                partitions=tuple(
                                    AssignReplicasToDirsRequestPartition(partition_index=number) for number in numbers
                                ),
                            ),
                        ),
                    )
                    for where, topic_id, numbers in placed
                ),
            )
        )

    def assign_all(self, broker_id: int) -> None:
        """Give every replica of a broker that has no directory one of its own, in turn."""
        dirs = self.broker(broker_id).log_dirs
        for number, (topic_id, partition) in enumerate(
            key for where in (ZERO, Uuid.of(0, 1)) for key in self.controller.index.in_directory(broker_id, where)
        ):
            self.assign(broker_id, (dirs[number % len(dirs)], topic_id, (partition,)))

    def alter_isr(
        self, name: str, isr: tuple[int, ...], *, number: int = 0, broker_id: int | None = None, **fields: Any
    ) -> AlterPartitionResponse:
        """The leader proposes an ISR."""
        now = self.partition(name, number)
        leader = now.leader if broker_id is None else broker_id
        proposal: dict[str, Any] = {
            "leader_epoch": now.leader_epoch,
            "partition_epoch": now.partition_epoch,
            "new_isr_with_epochs": tuple(AlterPartitionRequestBrokerState(broker_id=replica) for replica in isr),
        }
        return self.ask(
            AlterPartitionRequest(
                broker_id=leader,
                broker_epoch=self.broker(leader).epoch,
                topics=(
                    AlterPartitionRequestTopic(
                        topic_id=self.topic_id(name),
                        partitions=(AlterPartitionRequestPartition(partition_index=number, **(proposal | fields)),),
                    ),
                ),
            )
        )


def errors(answer: AssignReplicasToDirsResponse) -> list[int]:
    """The error codes of all replicas in an answer."""
    return [
        partition.error_code for place in answer.directories for topic in place.topics for partition in topic.partitions
    ]
