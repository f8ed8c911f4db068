"""Steps of users of kafka-python and confluent-kafka on a cluster, whose outcomes are compared like the tools'."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import confluent_kafka
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonPartition
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType
from kafka.admin import NewTopic as PythonTopic
from kafka.errors import KafkaError as PythonError

from scripts.brokers.cluster import RealCluster
from scripts.brokers.tools import Outcome, Step, names_of, normal
from scripts.rig.processes import wait_until

Call = Callable[[], object]
_WAIT_S: Final = 60.0
_PARTITIONS: Final = 12


class Clients:
    """Does one step after the other and keeps what they came to."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.outcomes: list[Outcome] = []
        self._names = names_of(cluster)

    def step(self, name: str, call: Call, mask: str = "") -> None:
        """Its result, or its error, as lines; everything in an order of its own."""
        code = 0
        try:
            said = "\n".join(_lines(call()))
        except KafkaException as error:
            code, said = 1, f"{error.args[0].name()}: {error.args[0].str()}"
        except PythonError as error:
            code, said = 1, f"{type(error).__name__}: {error}"
        self.outcomes.append(normal(Step(name, mask=mask), code, said, self._names))

    # ---- confluent-kafka

    def confluent(self) -> None:
        admin = self.cluster.admin
        name = "confluent-kafka"
        assignment = [[1, 2], [2, 3], [3, 1]]
        topic = NewTopic("cf", num_partitions=3, replica_assignment=assignment, config={"retention.ms": "60000"})
        self.step(
            f"{name} create_topics validate_only", lambda: _results(admin.create_topics([topic], validate_only=True))
        )
        self.step(f"{name} create_topics", lambda: _results(admin.create_topics([topic])))
        self.step(f"{name} create_topics again", lambda: _results(admin.create_topics([topic])))
        self.cluster.wait_for("the topic", lambda: ("cf", 2) in self.cluster.partitions())
        self.step(f"{name} list_topics", lambda: _partitions(admin, "cf"))
        self.step(
            f"{name} create_partitions", lambda: _results(admin.create_partitions([NewPartitions("cf", 4, [[1, 2]])]))
        )
        self.step(f"{name} create_partitions down", lambda: _results(admin.create_partitions([NewPartitions("cf", 2)])))
        self.step(f"{name} describe_cluster", lambda: _cluster(admin))
        self._configs(admin, f"{name} incremental_alter_configs")
        self._acls(admin, name)
        self._scram(admin, name)
        partition = TopicPartition("cf", 0)
        self.step(
            f"{name} elect_leaders",
            lambda: {
                str(k.partition): str(v)
                for k, v in admin.elect_leaders(ElectionType.PREFERRED, [partition]).result().items()
            },
        )
        self.step(f"{name} delete_topics", lambda: _results(admin.delete_topics(["cf"])))
        self.step(f"{name} delete_topics unknown", lambda: _results(admin.delete_topics(["nowhere"])))

    def _configs(self, admin: AdminClient, name: str) -> None:
        def alter(kind: Any, key: str, value: str | None, operation: Any, *, which: str = "cf") -> object:
            entry = ConfigEntry(key, value, incremental_operation=operation)
            resource = ConfigResource(kind, which, incremental_configs=[entry])
            return _results(admin.incremental_alter_configs([resource]))

        def value(key: str) -> object:
            resource = ConfigResource(ResourceType.TOPIC, "cf")
            return admin.describe_configs([resource])[resource].result()[key].value

        topic, op = ResourceType.TOPIC, AlterConfigOpType
        self.step(f"{name} set", lambda: alter(topic, "max.message.bytes", "12345", op.SET))
        self.step(f"{name} append", lambda: alter(topic, "cleanup.policy", "compact", op.APPEND))
        self.step(f"{name} append to what is no list", lambda: alter(topic, "retention.ms", "1", op.APPEND))
        self.step(f"{name} bad value", lambda: alter(topic, "retention.ms", "soon", op.SET))
        wait_until(lambda: value("max.message.bytes") == "12345", _WAIT_S, "brokers to know the value")
        self.step(
            f"{name} values", lambda: [value(key) for key in ("max.message.bytes", "cleanup.policy", "retention.ms")]
        )
        self.step(f"{name} subtract", lambda: alter(topic, "cleanup.policy", "delete", op.SUBTRACT))
        self.step(f"{name} delete", lambda: alter(topic, "max.message.bytes", None, op.DELETE))
        wait_until(lambda: value("max.message.bytes") != "12345", _WAIT_S, "brokers to know the value")
        self.step(f"{name} values then", lambda: [value(key) for key in ("max.message.bytes", "cleanup.policy")])

    def _acls(self, admin: AdminClient, name: str) -> None:
        binding = AclBinding(
            ResourceType.TOPIC,
            "cf",
            ResourcePatternType.LITERAL,
            "User:zoe",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        nothing: Any = None  # any name, any host: its type does not say so
        every = AclBindingFilter(
            ResourceType.ANY, nothing, ResourcePatternType.ANY, "User:zoe",
            nothing, AclOperation.ANY, AclPermissionType.ANY
        )  # fmt: skip
        self.step(f"{name} create_acls", lambda: _results(admin.create_acls([binding])))
        wait_until(lambda: admin.describe_acls(every).result(), _WAIT_S, "brokers to know the ACL")
        self.step(f"{name} describe_acls", lambda: [str(acl) for acl in admin.describe_acls(every).result()])
        self.step(f"{name} delete_acls", lambda: [str(acl) for acl in admin.delete_acls([every])[every].result()])
        wait_until(lambda: not admin.describe_acls(every).result(), _WAIT_S, "brokers to forget the ACL")

    def _scram(self, admin: AdminClient, name: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5000)
        few = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 100)

        def alter(change: Any) -> object:
            return _results(admin.alter_user_scram_credentials([change]))

        def describe() -> object:
            futures: Any = admin.describe_user_scram_credentials(["zoe"])
            found = futures["zoe"].result()
            return [f"{entry.mechanism.name} {entry.iterations}" for entry in found.scram_credential_infos]

        def known() -> bool:
            try:
                return bool(describe())
            except KafkaException:
                return False

        self.step(f"{name} scram upsert", lambda: alter(UserScramCredentialUpsertion("zoe", info, b"secret", b"salt")))
        wait_until(known, _WAIT_S, "brokers to know the credential")
        self.step(f"{name} scram describe", describe)
        self.step(f"{name} scram too few", lambda: alter(UserScramCredentialUpsertion("zoe", few, b"secret", b"salt")))
        self.step(f"{name} scram delete", lambda: alter(UserScramCredentialDeletion("zoe", info.mechanism)))
        self.step(f"{name} scram delete again", lambda: alter(UserScramCredentialDeletion("nobody", info.mechanism)))
        wait_until(lambda: not known(), _WAIT_S, "brokers to forget the credential")
        self.step(f"{name} scram describe nobody", describe)

    # ---- kafka-python

    def python(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap.split(","))
        try:
            self._python(admin)
        finally:
            admin.close()

    def _python(self, admin: KafkaAdminClient) -> None:
        name = "kafka-python"
        topic = PythonTopic("py", replica_assignments={0: [1, 2], 1: [2, 3]}, topic_configs={"retention.ms": "60000"})
        self.step(f"{name} create_topics", lambda: admin.create_topics([topic]), mask=r"topic_id=\S+")
        self.step(f"{name} create_topics again", lambda: admin.create_topics([topic]))
        self.cluster.wait_for("the topic", lambda: ("py", 1) in self.cluster.partitions())
        self.step(f"{name} describe_topics", lambda: _described(admin, "py"), mask=r"topic_id.*")
        self.step(f"{name} describe_cluster", lambda: _sorted(admin.describe_cluster()), mask=r".*controller_id.*")
        self.step(f"{name} describe_features", admin.describe_features, mask=r"\d{2,}")
        self.step(f"{name} describe_metadata_quorum", lambda: sorted(admin.describe_metadata_quorum()))
        # Any broker may be asked, and each knows the topic when it has fetched it.
        wait_until(
            lambda: all("py" in str(admin.list_config_resources()) for _ in range(10)), _WAIT_S, "all to know it"
        )
        self.step(f"{name} list_config_resources", admin.list_config_resources)
        resource = PythonResource(ConfigResourceType.TOPIC, "py", {"segment.bytes": "1048576"})
        self.step(f"{name} alter_configs", lambda: admin.alter_configs([resource]))
        asked = PythonResource(ConfigResourceType.TOPIC, "py")
        wait_until(lambda: "1048576" in str(admin.describe_configs([asked])), _WAIT_S, "brokers to know the value")
        self.step(f"{name} describe_configs", lambda: admin.describe_configs([asked]))
        self.step(f"{name} reset_configs", lambda: admin.reset_configs([resource]))
        first = PythonPartition("py", 0)
        self.step(f"{name} alter_partition_reassignments", lambda: admin.alter_partition_reassignments({first: [3, 2]}))
        self.cluster.wait_for("the move", lambda: sorted(self.cluster.partitions()["py", 0].isrs) == [2, 3])
        self.step(f"{name} list_partition_reassignments", admin.list_partition_reassignments)
        self.step(f"{name} reassign to an unknown broker", lambda: admin.alter_partition_reassignments({first: [9]}))
        self.step(f"{name} cancel what is not in progress", lambda: admin.alter_partition_reassignments({first: None}))
        self.step(f"{name} elect_leaders", lambda: admin.elect_leaders(0, [first]))
        self.step(f"{name} create_partitions", lambda: admin.create_partitions({"py": 3}))
        self.step(f"{name} update_features", lambda: admin.update_features({"no.such": (1, 1)}))
        self.step(f"{name} delete_topics", lambda: admin.delete_topics(["py"]))

    # ---- cordoned directories (KIP-1066)

    def cordon(self) -> None:
        """New replicas keep out of cordoned directories, and out of a broker that has no others."""
        self._set_cordoned("*")
        self._create("free", copies=2)
        self.step("cordoned: brokers of a new topic", lambda: self._brokers("free"))
        self.step("cordoned: three copies", lambda: _results(self._creation("three", 3)))
        self._set_cordoned(str(self.cluster.log_dirs[1, 1]))
        self._create("partly", copies=3)
        self.step("cordoned: directories of a new topic", lambda: self._dirs_of_broker_1("partly"))
        self._set_cordoned(None)
        self._create("again", copies=3)
        self.step("cordoned no more: directories of a new topic", lambda: self._dirs_of_broker_1("again"))

    def _creation(self, topic: str, copies: int) -> Mapping[Any, Any]:
        return self.cluster.admin.create_topics(
            [NewTopic(topic, num_partitions=_PARTITIONS, replication_factor=copies)]
        )

    def _create(self, topic: str, *, copies: int) -> None:
        """Again while the controller has not heard of the change: the broker tells it by its next heartbeat."""

        def done() -> bool:
            try:
                _results(self._creation(topic, copies))
            except KafkaException as error:
                return str(error.args[0].name()) == "TOPIC_ALREADY_EXISTS"
            return True

        wait_until(done, _WAIT_S, f"topic {topic}")
        self.cluster.wait_until_in_sync()

    def _set_cordoned(self, value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry("cordoned.log.dirs", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        _results(self.cluster.admin.incremental_alter_configs([resource]))
        time.sleep(3)  # the broker hears of it, and its heartbeat tells the controller: neither can be asked

    def _brokers(self, topic: str) -> list[int]:
        parts = self.cluster.partitions().items()
        return sorted({broker for (name, _), part in parts if name == topic for broker in part.replicas})

    def _dirs_of_broker_1(self, topic: str) -> list[int]:
        dirs = {number: path for (broker, number), path in self.cluster.log_dirs.items() if broker == 1}

        def replicas() -> list[int]:
            return [number for number, path in dirs.items() for _ in path.glob(f"{topic}-*")]

        wait_until(lambda: len(replicas()) == _PARTITIONS, _WAIT_S, f"the replicas of {topic}")
        return sorted(set(replicas()))


def _lines(value: object) -> Iterable[str]:
    """A value of a client as lines, so that they can be sorted."""
    if isinstance(value, Mapping):
        return [f"{key}: {_sorted(item)}" for key, item in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [str(_sorted(item)) for item in value]
    return str(_sorted(value)).splitlines()


def _sorted(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, set)):
        return sorted((_sorted(item) for item in value), key=str)
    return value


def _results(futures: Mapping[Any, Any]) -> list[str]:
    return [f"{getattr(key, 'name', key)}: {future.result()}" for key, future in futures.items()]


def _partitions(admin: AdminClient, topic: str) -> list[str]:
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [f"{number} leader {part.leader} replicas {part.replicas}" for number, part in found.items()]


def _described(admin: KafkaAdminClient, topic: str) -> object:
    """From any broker, once it knows the topic."""
    answers: list[Any] = []

    def known() -> bool:
        answers.append(admin.describe_topics([topic]))
        return bool(answers[-1][0]["error_code"] == 0)

    wait_until(known, _WAIT_S, f"a broker to know {topic}")
    return answers[-1]


def _cluster(admin: AdminClient) -> list[str]:
    found = admin.describe_cluster(include_authorized_operations=True).result()
    nodes = [f"{node.id} {node.host}:{node.port} {node.rack}" for node in found.nodes]
    operations = sorted(operation.name for operation in found.authorized_operations)
    return [*nodes, f"cluster {found.cluster_id}", *operations]


def run_clients(cluster: RealCluster) -> list[Outcome]:
    """On a cluster that has been started."""
    assert confluent_kafka.version()
    clients = Clients(cluster)
    clients.confluent()
    clients.python()
    clients.cordon()
    return clients.outcomes
