"""Random requests to a controller, plausible ones and odd ones, as functions of what its log says.

Everything random is decided when a step is made; only ids and epochs are filled in for each side.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata import versions
from kjbod.wire.admin_messages import (
    AllocateProducerIdsRequest,
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartition,
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdateKey,
)
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
)
from kjbod_controller_stub.configs.java_order import FULL_TIMELINES
from tests.controller.pair import Act, MakeRequest, Silence, View
from tests.controller.world import FEATURES, directory, incarnation

BROKERS = (1, 2, 3, 4, 5)
DIRECTORIES = {1: 3, 2: 3, 3: 2, 4: 1, 5: 3}
"""How many directories each broker has."""
TOPICS = ("a", "b", "c", "d")
FOREVER = 2**60

Step: TypeAlias = tuple[str, MakeRequest]
Part: TypeAlias = tuple[str, Act]
"""A step, or what is no plain request."""


@dataclass(frozen=True, slots=True)
class Listener:
    port: int = 9092

    def __call__(self) -> tuple[BrokerRegistrationRequestListener, ...]:
        return (BrokerRegistrationRequestListener(name="PLAINTEXT", host="localhost", port=self.port),)


def dirs_of(broker_id: int) -> tuple[Uuid, ...]:
    return tuple(directory(broker_id, number) for number in range(DIRECTORIES.get(broker_id % 10, 1)))


def register(broker_id: int, cluster: str, number: int = 0, **fields: Any) -> MakeRequest:
    """A registration; ``previous_broker_epoch``: None is what the broker has now."""

    def make(view: View) -> BrokerRegistrationRequest:
        values: dict[str, Any] = {
            "cluster_id": cluster,
            "incarnation_id": incarnation(broker_id, number),
            "listeners": Listener()(),
            "features": FEATURES,
            "log_dirs": dirs_of(broker_id),
            "rack": f"rack-{broker_id % 2}",
        } | fields
        if values.get("previous_broker_epoch", 0) is None:
            values["previous_broker_epoch"] = view.epoch(broker_id)
        return BrokerRegistrationRequest(broker_id=broker_id, **values)

    return make


def beat(broker_id: int, *, behind: bool = False, epoch: int = 0, **fields: Any) -> MakeRequest:
    """A heartbeat; ``epoch``: added to the right one."""

    def make(view: View) -> BrokerHeartbeatRequest:
        right = view.epoch(broker_id)
        offset = max(right - 1, 0) if behind else view.image.offset
        return BrokerHeartbeatRequest(
            broker_id=broker_id, broker_epoch=right + epoch, current_metadata_offset=offset, **fields
        )

    return make


def create(name: str, replicas: Sequence[tuple[int, ...]], **configs: str) -> MakeRequest:
    """A topic with its replicas given; ``_`` of a configuration's name is a dot."""
    topic = CreateTopicsRequestTopic(
        name=name,
        assignments=tuple(
            CreateTopicsRequestAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(replicas)
        ),
        configs=tuple(
            CreateTopicsRequestConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ),
    )
    return lambda view: CreateTopicsRequest(topics=(topic,))


def assign(broker_id: int, *placed: tuple[Uuid, str, Sequence[int]], epoch: int = 0) -> MakeRequest:
    """(directory, topic, partitions) each."""

    def make(view: View) -> AssignReplicasToDirsRequest:
        return AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=view.epoch(broker_id) + epoch,
            directories=tuple(
                AssignReplicasToDirsRequestDirectory(
                    id_=where,
                    topics=(
                        AssignReplicasToDirsRequestTopic(
                            topic_id=view.topic_id(topic),
                            partitions=tuple(
                                AssignReplicasToDirsRequestPartition(partition_index=number) for number in numbers
                            ),
                        ),
                    ),
                )
                for where, topic, numbers in placed
            ),
        )

    return make


def alter_isr(
    topic: str,
    number: int,
    isr: Sequence[int],
    *,
    broker_id: int | None = None,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    member_epoch: int = 0,
    recovery: int = 0,
) -> MakeRequest:
    """AlterPartition by the leader, or by ``broker_id``; the epochs are added to the right ones."""

    def make(view: View) -> AlterPartitionRequest:
        now = view.partition(topic, number)
        sender = broker_id if broker_id is not None else now.leader if now is not None else 1
        proposal = AlterPartitionRequestPartition(
            partition_index=number,
            leader_epoch=(now.leader_epoch if now else 0) + leader_epoch,
            partition_epoch=(now.partition_epoch if now else 0) + partition_epoch,
            leader_recovery_state=recovery,
            new_isr_with_epochs=tuple(
                AlterPartitionRequestBrokerState(broker_id=member, broker_epoch=view.epoch(member) + member_epoch)
                for member in isr
            ),
        )
        return AlterPartitionRequest(
            broker_id=sender,
            broker_epoch=view.epoch(sender),
            topics=(AlterPartitionRequestTopic(topic_id=view.topic_id(topic), partitions=(proposal,)),),
        )

    return make


def reassign(topic: str, number: int, replicas: tuple[int, ...] | None, *, factor: bool = True) -> MakeRequest:
    partition = AlterPartitionReassignmentsRequestPartition(partition_index=number, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=factor,
        topics=(AlterPartitionReassignmentsRequestTopic(name=topic, partitions=(partition,)),),
    )
    return lambda view: request


def elect(kind: int, *partitions: tuple[str, Sequence[int]]) -> MakeRequest:
    """None of them: all partitions."""
    wanted = tuple(
        ElectLeadersRequestTopicPartition(topic=topic, partitions=tuple(numbers)) for topic, numbers in partitions
    )
    return lambda view: ElectLeadersRequest(election_type=kind, topic_partitions=wanted or None)


def configure(kind: int, resource: str, *changes: tuple[str, int, str | None]) -> MakeRequest:
    """(name, operation, value) each."""
    request = IncrementalAlterConfigsRequest(
        resources=(
            IncrementalAlterConfigsRequestResource(
                resource_type=kind,
                resource_name=resource,
                configs=tuple(
                    IncrementalAlterConfigsRequestConfig(name=name, config_operation=operation, value=value)
                    for name, operation, value in changes
                ),
            ),
        )
    )
    return lambda view: request


def grow(topic: str, count: int, assignments: Sequence[tuple[int, ...]] | None) -> MakeRequest:
    wanted = CreatePartitionsRequestTopic(
        name=topic,
        count=count,
        assignments=None
        if assignments is None
        else tuple(CreatePartitionsRequestAssignment(broker_ids=brokers) for brokers in assignments),
    )
    return lambda view: CreatePartitionsRequest(topics=(wanted,), timeout_ms=30_000)


def delete(*names: str) -> MakeRequest:
    return lambda view: DeleteTopicsRequest(
        topics=tuple(DeleteTopicsRequestTopic(name=name) for name in names), timeout_ms=30_000
    )


def delete_by_id(name: str) -> MakeRequest:
    return lambda view: DeleteTopicsRequest(
        topics=(DeleteTopicsRequestTopic(name=None, topic_id=view.topic_id(name)),), timeout_ms=30_000
    )


def unregister(broker_id: int) -> MakeRequest:
    return lambda view: UnregisterBrokerRequest(broker_id=broker_id)


def quota(entity: Sequence[tuple[str, str | None]], key: str, value: float, *, remove: bool = False) -> MakeRequest:
    entry = AlterClientQuotasRequestEntry(
        entity=tuple(AlterClientQuotasRequestEntity(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=(AlterClientQuotasRequestOp(key=key, value=value, remove=remove),),
    )
    return lambda view: AlterClientQuotasRequest(entries=(entry,))


def scram(name: str, mechanism: int, iterations: int) -> MakeRequest:
    upsertion = AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"p" * 32
    )
    return lambda view: AlterUserScramCredentialsRequest(upsertions=(upsertion,))


def unscram(name: str, mechanism: int) -> MakeRequest:
    deletion = AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=mechanism)
    return lambda view: AlterUserScramCredentialsRequest(deletions=(deletion,))


def producer_ids(broker_id: int, epoch: int = 0) -> MakeRequest:
    return lambda view: AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=view.epoch(broker_id) + epoch)


def update(*updates: tuple[str, int, int], validate_only: bool = False) -> MakeRequest:
    """(feature, level, upgrade type) each."""
    request = UpdateFeaturesRequest(
        feature_updates=tuple(
            UpdateFeaturesRequestFeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ),
        validate_only=validate_only,
    )
    return lambda view: request


def list_reassignments() -> MakeRequest:
    return lambda view: ListPartitionReassignmentsRequest(topics=None)


# ---------------------------------------------------------------- random ones


class RandomRequests:
    """An endless story. ``view`` is that of one side; what is chosen with it is right for both while they agree.

    ``first_broker``: its brokers have this id and the four after it. A story should have brokers of its own: a topic
    that was deleted can stay behind in what a real controller remembers of a broker, and fails it later.
    ``silences``: brokers also fall silent.
    """

    def __init__(
        self,
        rng: random.Random,
        cluster_id: str,
        view: Callable[[], View],
        first_broker: int = 1,
        *,
        silences: bool = False,
    ) -> None:
        self._rng = rng
        self._cluster_id = cluster_id
        self._view = view
        self._brokers = tuple(first_broker + number for number in range(len(BROKERS)))
        self._incarnations = dict.fromkeys(self._brokers, 0)
        self._kinds: list[tuple[Callable[[], Step], int]] = [
            (self._register, 6),
            (self._heartbeat, 26),
            (self._assign, 12),
            (self._create, 8),
            (self._delete, 2),
            (self._grow, 3),
            (self._isr, 14),
            (self._elect, 5),
            (self._reassign, 8),
            (self._configure, 6),
            (self._quota, 3),
            (self._scram, 2),
            (self._producers, 2),
            (self._unregister, 1),
            (self._features, 4),
        ]
        self._pending: list[Part] = []
        """What comes next: around a silence."""
        self._silences = silences

    def opening(self) -> list[Step]:
        """Brokers that join, and topics on them."""
        steps: list[Step] = []
        for broker_id in self._brokers[:4]:
            steps.append((f"register {broker_id}", register(broker_id, self._cluster_id)))
            steps.append((f"unfence {broker_id}", beat(broker_id)))
        steps += [(f"create {name}", create(name, self._replicas(3))) for name in TOPICS[:2]]
        return steps

    def next(self) -> Part:
        """The next request, or a silence."""
        if self._silences and (self._pending or self._chance(6)):
            self._pending = self._pending or self._silence()
            return self._pending.pop(0)
        kinds, weights = zip(*self._kinds, strict=True)
        make: Callable[[], Step] = self._rng.choices(kinds, weights)[0]
        return make()

    # ---- choices

    def _chance(self, percent: int) -> bool:
        return self._rng.randrange(100) < percent

    def _broker(self) -> int:
        return self._rng.choice(self._brokers)

    def _topic(self) -> str:
        existing = sorted(self._view().image.topic_ids)
        return self._rng.choice(existing) if existing and self._chance(95) else self._rng.choice((*TOPICS, "none"))

    def _partition(self, topic: str) -> int:
        image = self._view().image
        count = len(image.topics[image.topic_ids[topic]].partitions) if topic in image.topic_ids else 1
        return self._rng.randrange(count) if self._chance(95) else count + 3

    def _some(self, least: int = 1, most: int = 3) -> tuple[int, ...]:
        registered = sorted(self._view().image.brokers) or list(self._brokers)
        if self._chance(4):
            registered.append(77)
        count = min(self._rng.randint(least, most), len(registered))
        return tuple(self._rng.sample(registered, count))

    def _replicas(self, partitions: int) -> list[tuple[int, ...]]:
        registered = sorted(self._view().image.brokers) or list(self._brokers[:4])
        factor = min(self._rng.randint(1, 3), len(registered))
        return [tuple(self._rng.sample(registered, factor)) for _ in range(partitions)]

    def _directory(self, broker_id: int) -> Uuid:
        if self._chance(85):
            return self._rng.choice(dirs_of(broker_id))
        return self._rng.choice(
            (LOST, UNASSIGNED, MIGRATING, Uuid.of(4, 4), Uuid.of(0, 50), directory(self._brokers[0], 0))
        )

    # ---- silences

    def _silence(self) -> list[Part]:
        """What happens before it, it, and how who was silent comes back."""
        silent = self._silent()
        parts: list[Part] = [self._before(broker_id) for broker_id in silent if self._chance(50)]
        if self._chance(30):  # perhaps it has to wait until those who are silent have applied something
            leaving = self._broker()
            parts.append((f"shut down {leaving}", beat(leaving, want_shut_down=True)))
        parts.append((f"silence of {silent}", Silence(silent)))
        for broker_id in silent:
            parts += self._back(broker_id)
        return parts

    def _silent(self) -> tuple[int, ...]:
        """One broker, or two that have no partition in common."""
        registered = sorted(self._view().image.brokers) or list(self._brokers)
        wanted = self._rng.sample(registered, min(2, len(registered)))
        topics = self._view().image.topics.values()
        apart = not any(
            set(wanted) <= set(partition.replicas) for topic in topics for partition in topic.partitions.values()
        )
        return tuple(wanted) if apart and self._chance(50) else (wanted[0],)

    def _before(self, broker_id: int) -> Step:
        what = self._rng.randrange(4)
        if what == 0:
            number = self._incarnations[broker_id] + 1
            name = f"register {broker_id} as {number} while it has a session"
            return name, register(broker_id, self._cluster_id, number, previous_broker_epoch=None)
        if what == 1:
            return f"shut down {broker_id}", beat(broker_id, want_shut_down=True)
        if what == 2:
            return f"fence {broker_id}", beat(broker_id, want_fence=True)
        lost = dirs_of(broker_id)[:1]
        return f"{broker_id} loses {lost}", beat(broker_id, offline_log_dirs=lost)

    def _back(self, broker_id: int) -> list[Part]:
        what = self._rng.randrange(8)
        parts: list[Part] = []
        if what == 0:
            return parts
        if what in (1, 2, 3):
            self._incarnations[broker_id] += 1
            previous = self._rng.choice((None, None, -1, 5))
            number = self._incarnations[broker_id]
            name = f"{broker_id} is back as {number}, before {previous}"
            parts.append((name, register(broker_id, self._cluster_id, number, previous_broker_epoch=previous)))
        elif what == 4:
            number = self._incarnations[broker_id]
            parts.append((f"{broker_id} registers again", register(broker_id, self._cluster_id, number)))
        return [*parts, (f"unfence {broker_id}", beat(broker_id))]

    # ---- requests

    def _register(self) -> Step:
        broker_id = self._broker()
        fields: dict[str, Any] = {}
        if self._chance(30):
            self._incarnations[broker_id] += 1
            fields["previous_broker_epoch"] = self._rng.choice((None, None, -1, 5))
        odd = self._rng.randrange(24)
        if odd == 0:
            fields["log_dirs"] = ()
        elif odd == 1:
            fields["log_dirs"] = dirs_of(broker_id)[:1] * 2
        elif odd == 2:
            fields["log_dirs"] = (self._rng.choice((LOST, UNASSIGNED, MIGRATING, Uuid.of(0, 99))),)
        elif odd == 3:
            fields["log_dirs"] = (directory(self._brokers[broker_id % 5], 0),)
        elif odd == 4:
            fields["log_dirs"] = tuple(reversed(dirs_of(broker_id)))[:2]
        elif odd == 5:
            fields["cluster_id"] = "another"
        elif odd == 6:
            fields["features"] = FEATURES[1:]
        elif odd == 7:
            lacking = self._rng.randrange(1, len(FEATURES))
            fields["features"] = FEATURES[:lacking] + FEATURES[lacking + 1 :]
        elif odd == 8:
            older = BrokerRegistrationRequestFeature(
                name=versions.METADATA_VERSION, min_supported_version=7, max_supported_version=self._rng.randint(7, 29)
            )
            fields["features"] = (older, *FEATURES[1:])
        elif odd == 9:
            fields["listeners"] = ()
        elif odd == 10:
            fields["is_migrating_zk_broker"] = True
        name = f"register {broker_id} as {self._incarnations[broker_id]} {sorted(fields)} {odd}"
        return name, register(broker_id, self._cluster_id, self._incarnations[broker_id], **fields)

    def _heartbeat(self) -> Step:
        broker_id = self._broker()
        fields: dict[str, Any] = {}
        odd = self._rng.randrange(24)
        if odd in (0, 1):
            fields["want_fence"] = True
        elif odd in (2, 3):
            fields["want_shut_down"] = True
        elif odd == 4:
            fields |= {"want_fence": True, "want_shut_down": True}
        elif odd in (5, 6, 7, 8):
            count = self._rng.randint(1, 2)
            fields["offline_log_dirs"] = tuple(self._directory(broker_id) for _ in range(count))
            fields["want_fence"] = self._chance(5)
        elif odd == 9:
            fields["offline_log_dirs"] = dirs_of(broker_id)
        elif odd == 10:
            fields["epoch"] = self._rng.choice((-1, 1))
        elif odd == 11:
            fields["behind"] = True
        elif odd in (12, 13):
            fields["cordoned_log_dirs"] = tuple(self._directory(broker_id) for _ in range(self._rng.randint(0, 3)))
        return f"heartbeat {broker_id} {fields}", beat(broker_id, **fields)

    def _assign(self) -> Step:
        broker_id = self._broker()
        placed = []
        for _ in range(self._rng.randint(1, 3)):
            topic = self._topic()
            placed.append((self._directory(broker_id), topic, [self._partition(topic)]))
        epoch = 1 if self._chance(3) else 0
        return f"assign {broker_id} {placed}", assign(broker_id, *placed, epoch=epoch)

    def _create(self) -> Step:
        name = self._rng.choice(TOPICS)
        replicas = self._replicas(self._rng.randint(1, 4))
        configs: dict[str, str] = {}
        if self._chance(40):
            configs["min_insync_replicas"] = self._rng.choice(("1", "2", "2", "3", "0", "x"))
        if self._chance(10):
            configs["unclean_leader_election_enable"] = "true"
        if self._chance(5):
            configs[self._rng.choice(("no_such_config", "retention_ms"))] = self._rng.choice(("1000", "-5"))
        odd = self._rng.randrange(20)
        if odd == 0:
            replicas[0] = self._brokers[:1] * 2
        elif odd == 1:
            replicas[-1] = replicas[-1][:1]
        elif odd == 2:
            replicas[0] = (88,)
        elif odd == 3:
            name = self._rng.choice(("", ".", "..", "x" * 250, "a b", "a.b", "a_b"))
        return f"create {name} {replicas} {configs}", create(name, replicas, **configs)

    def _delete(self) -> Step:
        topic = self._topic()
        if self._chance(30):
            return f"delete {topic} by id", delete_by_id(topic)
        return f"delete {topic}", delete(topic)

    def _grow(self) -> Step:
        topic = self._topic()
        image = self._view().image
        existing = image.topics[image.topic_ids[topic]].partitions if topic in image.topic_ids else {}
        factor = len(existing[0].replicas) if 0 in existing else 1
        more = self._rng.choice((1, 1, 2, 0, -1))
        if len(existing) in FULL_TIMELINES and len({len(one.replicas) for one in existing.values()}) > 1:
            more = 0  # whose replicas Kafka counts depends on what was changed since
        registered = sorted(image.brokers) or list(self._brokers)
        wanted = max(1, more + (self._rng.choice((-1, 1)) if self._chance(8) else 0))
        assignments = [tuple(self._rng.sample(registered, min(factor, len(registered)))) for _ in range(wanted)]
        count = len(existing) + more
        return f"grow {topic} to {count} {assignments}", grow(topic, count, assignments)

    def _isr(self) -> Step:
        topic = self._topic()
        number = self._partition(topic)
        now = self._view().partition(topic, number)
        members = list(now.replicas if now else self._brokers[:1])
        if now and self._chance(60) and now.leader >= 0:
            isr = tuple(each for each in members if each == now.leader or self._chance(60))
        else:
            isr = tuple(self._rng.sample(members, self._rng.randint(1, len(members))))
        fields: dict[str, Any] = {}
        odd = self._rng.randrange(20)
        if odd == 0:
            fields["broker_id"] = self._broker()
        elif odd == 1:
            fields["leader_epoch"] = self._rng.choice((-1, 1))
        elif odd == 2:
            fields["partition_epoch"] = self._rng.choice((-1, 1))
        elif odd == 3:
            fields["member_epoch"] = 1
        elif odd == 4:
            fields["recovery"] = 1
        elif odd == 5:
            isr = (*isr, 66)
        return f"isr {topic}-{number} {isr} {fields}", alter_isr(topic, number, isr, **fields)

    def _elect(self) -> Step:
        kind = self._rng.choice((0, 0, 1))
        if self._chance(15):
            return f"elect {kind} all", elect(kind)
        topic = self._topic()
        number = self._partition(topic)
        return f"elect {kind} {topic}-{number}", elect(kind, (topic, [number]))

    def _reassign(self) -> Step:
        if self._chance(15):
            return "list reassignments", list_reassignments()
        topic = self._topic()
        number = self._partition(topic)
        target = None if self._chance(25) else self._some()
        if target and self._chance(5):
            target = (target[0], target[0])
        factor = not self._chance(15)
        return f"reassign {topic}-{number} {target} {factor}", reassign(topic, number, target, factor=factor)

    def _configure(self) -> Step:
        kind, resource = self._rng.choice(((2, self._topic()), (2, self._topic()), (4, ""), (4, str(self._broker()))))
        name, value = self._rng.choice(
            (
                ("min.insync.replicas", self._rng.choice(("1", "2", "3", "0"))),
                ("unclean.leader.election.enable", self._rng.choice(("true", "false"))),
                ("retention.ms", "60000"),
                ("cleanup.policy", self._rng.choice(("compact", "delete"))),
                ("no.such.config", "1"),
            )
        )
        operation = self._rng.choice((0, 0, 0, 1, 1, 2, 3))
        change = (name, operation, None if operation == 1 else value)
        return f"configure {kind} {resource} {change}", configure(kind, resource, change)

    def _quota(self) -> Step:
        entity: list[tuple[str, str | None]] = [
            self._rng.choice(
                (("user", "alice"), ("user", None), ("client-id", "app"), ("ip", "127.0.0.1"), ("what", "x"))
            )
        ]
        if self._chance(30):
            entity.append(("client-id", "more"))
        key = self._rng.choice(
            ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "connection_creation_rate", "no")
        )
        value = self._rng.choice((1.0, 1024.0, 0.5, -1.0, 0.0))
        remove = self._chance(30)
        return f"quota {entity} {key} {value} {remove}", quota(entity, key, value, remove=remove)

    def _scram(self) -> Step:
        name, mechanism = self._rng.choice(("alice", "bob", "")), self._rng.choice((1, 2, 2, 3))
        if self._chance(40):
            return f"unscram {name} {mechanism}", unscram(name, mechanism)
        iterations = self._rng.choice((4096, 8192, 100, 20_000))
        return f"scram {name} {mechanism} {iterations}", scram(name, mechanism, iterations)

    def _producers(self) -> Step:
        broker_id = self._broker()
        epoch = 1 if self._chance(15) else 0
        return f"producer ids {broker_id} {epoch}", producer_ids(broker_id, epoch)

    def _unregister(self) -> Step:
        broker_id = self._broker()
        return f"unregister {broker_id}", unregister(broker_id)

    def _features(self) -> Step:
        names = (*versions.SUPPORTED_FEATURES, "no.such.feature")
        updates = []
        for name in self._rng.sample(names, self._rng.choice((1, 1, 1, 2, 3))):
            _, high = versions.SUPPORTED_FEATURES.get(name, (0, 0))
            if name == versions.METADATA_VERSION:
                level = self._rng.choice((30, 29, 24, 23, 22, 17, 16, 7, 6, 31))
            else:
                level = self._rng.choice((0, high, high, high + 1, -1))
            updates.append((name, level, self._rng.choice((1, 1, 2, 3, 0))))
        # An upgrade cannot be taken back, and the stories that follow are to run at this level too.
        validate = self._chance(40) or any(name == versions.METADATA_VERSION and kind == 1 for name, _, kind in updates)
        return f"features {updates} {validate}", update(*updates, validate_only=validate)


def cleaning(view: View) -> list[Step]:
    """Requests that leave as little as they can of a story."""
    steps: list[Step] = [
        (f"clean broker {broker_id}", unregister(broker_id)) for broker_id in sorted(view.image.brokers)
    ]
    steps += [(f"clean topic {name}", delete(name)) for name in sorted(view.image.topic_ids)]
    for (kind, resource), values in sorted(view.image.configs.items()):
        changes = tuple((name, 1, None) for name in sorted(values))
        steps.append((f"clean configs {kind} {resource}", configure(kind, resource, *changes)))
    for mechanism, name in sorted(view.image.scram):
        steps.append((f"clean scram {name}", unscram(name, mechanism)))
    for entity, limits in view.image.quotas.items():
        parts = [(part.entity_type, part.entity_name) for part in entity]
        steps += [("clean quota", quota(parts, key, 0.0, remove=True)) for key in limits]
    return steps
