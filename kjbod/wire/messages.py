"""The messages that kjbod speaks, one class for all versions of each.

``python -m scripts.wire_schemas`` writes this file from Kafka's schemas and scripts/wire_messages.txt: change it there.

Names are Kafka's (``clients/src/main/resources/common/message/*.json``) in snake_case. Durations are milliseconds and
end in ``_ms``, error codes are plain integers (:mod:`kjbod.wire.error_codes`), ids are :class:`kjbod.ids.Uuid`, zero
where Kafka has none. Structs inside a message are named after it: ``FetchRequestPartition``.

Defaults are Kafka's, so that a caller sets only what matters. A field that a version lacks reads as its default;
writing another value than that to such a version raises, unless Kafka calls the field ignorable: then it is dropped.
"""

from typing import ClassVar

from msgspec import Struct

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.wire.apis import AUTHORIZED_OPERATIONS_OMITTED as AUTHORIZED_OPERATIONS_OMITTED
from kjbod.wire.apis import INT32_MAX, ApiSpec, api_specs
from kjbod.wire.apis import INT64_MAX as INT64_MAX
from kjbod.wire.apis import ApiKey as ApiKey
from kjbod.wire.apis import RequestBody as RequestBody
from kjbod.wire.apis import ResponseBody as ResponseBody
from kjbod.wire.apis import ResponseT as ResponseT
from kjbod.wire.codec import Ignorable

# ---------------------------------------------------------------- ApiVersions (18)


class ApiVersionsResponseApiVersion(Struct, frozen=True, kw_only=True):
    """The versions of one API that the peer accepts."""

    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponseSupportedFeatureKey(Struct, frozen=True, kw_only=True):
    """The levels of one feature that the peer understands. Below version 4 features with minimum 0 are left out."""

    name: str
    min_version: int
    max_version: int


class ApiVersionsResponseFinalizedFeatureKey(Struct, frozen=True, kw_only=True):
    """The level of one feature that the cluster has agreed on."""

    name: str
    max_version_level: int
    min_version_level: int


class ApiVersionsResponse(ResponseBody, frozen=True, kw_only=True):
    """Versions that the peer accepts. Always sent with response header version 0 (KIP-511)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.API_VERSIONS
    error_code: int = 0
    api_keys: tuple[ApiVersionsResponseApiVersion, ...] = ()
    throttle_time_ms: Ignorable[int] = 0
    supported_features: Ignorable[tuple[ApiVersionsResponseSupportedFeatureKey, ...]] = ()
    finalized_features_epoch: Ignorable[int] = -1
    finalized_features: Ignorable[tuple[ApiVersionsResponseFinalizedFeatureKey, ...]] = ()
    zk_migration_ready: Ignorable[bool] = False


class ApiVersionsRequest(RequestBody[ApiVersionsResponse], frozen=True, kw_only=True):
    """Asks which APIs, versions and features the peer knows; from version 5 with the cluster and the node that the
    client means (KIP-1242)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.API_VERSIONS
    client_software_name: Ignorable[str] = ""
    client_software_version: Ignorable[str] = ""
    cluster_id: Ignorable[str | None] = None
    node_id: Ignorable[int] = -1


# ---------------------------------------------------------------- SaslHandshake (17)


class SaslHandshakeResponse(ResponseBody, frozen=True, kw_only=True):
    """Whether the mechanism is offered, and those that are."""

    API_KEY: ClassVar[ApiKey] = ApiKey.SASL_HANDSHAKE
    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


class SaslHandshakeRequest(RequestBody[SaslHandshakeResponse], frozen=True, kw_only=True):
    """Names the mechanism by which a client authenticates. Behind version 0 its messages have no requests around them
    (KIP-43): servers here take that, clients send none."""

    API_KEY: ClassVar[ApiKey] = ApiKey.SASL_HANDSHAKE
    mechanism: str


# ---------------------------------------------------------------- SaslAuthenticate (36)


class SaslAuthenticateResponse(ResponseBody, frozen=True, kw_only=True):
    """The server's next message, and in the last one for how long it holds (KIP-368)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.SASL_AUTHENTICATE
    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: Ignorable[int] = 0


class SaslAuthenticateRequest(RequestBody[SaslAuthenticateResponse], frozen=True, kw_only=True):
    """The client's next message of its mechanism."""

    API_KEY: ClassVar[ApiKey] = ApiKey.SASL_AUTHENTICATE
    auth_bytes: bytes


# ---------------------------------------------------------------- BrokerRegistration (62)


class BrokerRegistrationRequestListener(Struct, frozen=True, kw_only=True):
    """An endpoint that the broker advertises."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerRegistrationRequestFeature(Struct, frozen=True, kw_only=True):
    """The levels of one feature that the broker understands."""

    name: str
    min_supported_version: int
    max_supported_version: int


class BrokerRegistrationResponse(ResponseBody, frozen=True, kw_only=True):
    """The broker epoch, which is the offset of the registration record."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BROKER_REGISTRATION
    throttle_time_ms: int = 0
    error_code: int = 0
    broker_epoch: int = -1


class BrokerRegistrationRequest(RequestBody[BrokerRegistrationResponse], frozen=True, kw_only=True):
    """A broker process introduces itself to the controller (KIP-631; ``log_dirs`` KIP-858)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BROKER_REGISTRATION
    broker_id: int
    cluster_id: str
    incarnation_id: Uuid
    listeners: tuple[BrokerRegistrationRequestListener, ...] = ()
    features: tuple[BrokerRegistrationRequestFeature, ...] = ()
    rack: str | None = None
    is_migrating_zk_broker: bool = False
    log_dirs: Ignorable[tuple[Uuid, ...]] = ()
    previous_broker_epoch: Ignorable[int] = -1


# ---------------------------------------------------------------- BrokerHeartbeat (63)


class BrokerHeartbeatResponse(ResponseBody, frozen=True, kw_only=True):
    """The broker's state as the controller sees it."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BROKER_HEARTBEAT
    throttle_time_ms: int = 0
    error_code: int = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


class BrokerHeartbeatRequest(RequestBody[BrokerHeartbeatResponse], frozen=True, kw_only=True):
    """A sign of life. ``offline_log_dirs`` needs version 1 (KIP-858), ``cordoned_log_dirs`` version 2 (KIP-1066, None
    is unchanged)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BROKER_HEARTBEAT
    broker_id: int
    broker_epoch: int = -1
    current_metadata_offset: int = 0
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[Uuid, ...] = ()
    cordoned_log_dirs: tuple[Uuid, ...] | None = None


# ---------------------------------------------------------------- AssignReplicasToDirs (73)


class AssignReplicasToDirsRequestPartition(Struct, frozen=True, kw_only=True):
    """A replica of the sender."""

    partition_index: int


class AssignReplicasToDirsRequestTopic(Struct, frozen=True, kw_only=True):
    """Replicas of one topic in one directory."""

    topic_id: Uuid
    partitions: tuple[AssignReplicasToDirsRequestPartition, ...] = ()


class AssignReplicasToDirsRequestDirectory(Struct, frozen=True, kw_only=True):
    """A log directory and what is in it."""

    id_: Uuid
    topics: tuple[AssignReplicasToDirsRequestTopic, ...] = ()


class AssignReplicasToDirsResponsePartition(Struct, frozen=True, kw_only=True):
    """The outcome for one replica."""

    partition_index: int
    error_code: int = 0


class AssignReplicasToDirsResponseTopic(Struct, frozen=True, kw_only=True):
    """The outcome for one topic in one directory."""

    topic_id: Uuid
    partitions: tuple[AssignReplicasToDirsResponsePartition, ...] = ()


class AssignReplicasToDirsResponseDirectory(Struct, frozen=True, kw_only=True):
    """The outcome for one log directory."""

    id_: Uuid
    topics: tuple[AssignReplicasToDirsResponseTopic, ...] = ()


class AssignReplicasToDirsResponse(ResponseBody, frozen=True, kw_only=True):
    """Mirrors the request, with an error code for each replica; empty where the whole request failed."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ASSIGN_REPLICAS_TO_DIRS
    throttle_time_ms: int = 0
    error_code: int = 0
    directories: tuple[AssignReplicasToDirsResponseDirectory, ...] = ()


class AssignReplicasToDirsRequest(RequestBody[AssignReplicasToDirsResponse], frozen=True, kw_only=True):
    """Tells the controller in which directory each replica lives (KIP-858)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ASSIGN_REPLICAS_TO_DIRS
    broker_id: int
    broker_epoch: int = -1
    directories: tuple[AssignReplicasToDirsRequestDirectory, ...] = ()


# ---------------------------------------------------------------- UnregisterBroker (64)


class UnregisterBrokerResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome; the message of a success is empty, not null."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UNREGISTER_BROKER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


class UnregisterBrokerRequest(RequestBody[UnregisterBrokerResponse], frozen=True, kw_only=True):
    """Removes a broker from the cluster for good."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UNREGISTER_BROKER
    broker_id: int


# ---------------------------------------------------------------- Fetch (1)


class FetchRequestReplicaState(Struct, frozen=True, kw_only=True):
    """The replica that fetches; -1 is a plain reader. From version 15; before, ``FetchRequest.replica_id``."""

    replica_id: int = -1
    replica_epoch: int = -1


class FetchRequestPartition(Struct, frozen=True, kw_only=True):
    """Position from which to read one partition."""

    partition: int
    current_leader_epoch: Ignorable[int] = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: Ignorable[int] = -1
    partition_max_bytes: int = 0
    replica_directory_id: Ignorable[Uuid] = ZERO
    high_watermark: Ignorable[int] = INT64_MAX


class FetchRequestTopic(Struct, frozen=True, kw_only=True):
    """A topic, by name up to version 12, by id from 13."""

    topic: Ignorable[str] = ""
    topic_id: Ignorable[Uuid] = ZERO
    partitions: tuple[FetchRequestPartition, ...] = ()


class FetchRequestForgottenTopic(Struct, frozen=True, kw_only=True):
    """Partitions to leave out of an incremental fetch session."""

    topic: Ignorable[str] = ""
    topic_id: Ignorable[Uuid] = ZERO
    partitions: tuple[int, ...] = ()


class EpochEndOffset(Struct, frozen=True, kw_only=True):
    """End of an epoch; -1 and -1: no divergence."""

    epoch: int = -1
    end_offset: int = -1


class LeaderIdAndEpoch(Struct, frozen=True, kw_only=True):
    """The leader that the answerer knows; -1 is unknown."""

    leader_id: int = -1
    leader_epoch: int = -1


class SnapshotId(Struct, frozen=True, kw_only=True):
    """A snapshot by the offset and epoch where it ends; -1 and -1: none."""

    end_offset: int = -1
    epoch: int = -1


class FetchResponseAbortedTransaction(Struct, frozen=True, kw_only=True):
    """A transaction that a reader of committed data leaves out."""

    producer_id: int
    first_offset: int


class FetchResponsePartition(Struct, frozen=True, kw_only=True):
    """The data of one partition: whole record batches, the first at or before the offset that was asked for."""

    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: Ignorable[int] = -1
    log_start_offset: Ignorable[int] = -1
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    snapshot_id: SnapshotId = SnapshotId()
    aborted_transactions: tuple[FetchResponseAbortedTransaction, ...] | None = ()
    preferred_read_replica: int = -1
    records: bytes | None = b""


class FetchResponseTopic(Struct, frozen=True, kw_only=True):
    """The data of one topic (Kafka: ``FetchableTopicResponse``)."""

    topic: Ignorable[str] = ""
    topic_id: Ignorable[Uuid] = ZERO
    partitions: tuple[FetchResponsePartition, ...] = ()


class FetchResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    """Address of a leader named in this response."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class FetchResponse(ResponseBody, frozen=True, kw_only=True):
    """Record batches and who leads."""

    API_KEY: ClassVar[ApiKey] = ApiKey.FETCH
    throttle_time_ms: Ignorable[int] = 0
    error_code: Ignorable[int] = 0
    session_id: int = 0
    responses: tuple[FetchResponseTopic, ...] = ()
    node_endpoints: Ignorable[tuple[FetchResponseNodeEndpoint, ...]] = ()


class FetchRequest(RequestBody[FetchResponse], frozen=True, kw_only=True):
    """Reads record batches; parked up to ``max_wait_ms`` until there are ``min_bytes``."""

    API_KEY: ClassVar[ApiKey] = ApiKey.FETCH
    cluster_id: Ignorable[str | None] = None
    replica_id: int = -1
    replica_state: FetchRequestReplicaState = FetchRequestReplicaState()
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = INT32_MAX
    isolation_level: int = 0
    session_id: Ignorable[int] = 0
    session_epoch: Ignorable[int] = -1
    topics: tuple[FetchRequestTopic, ...] = ()
    forgotten_topics_data: tuple[FetchRequestForgottenTopic, ...] = ()
    rack_id: Ignorable[str] = ""


# ---------------------------------------------------------------- FetchSnapshot (59)


class FetchSnapshotRequestPartition(Struct, frozen=True, kw_only=True):
    """The snapshot to read, and the byte to read from."""

    partition: int = 0
    current_leader_epoch: int = 0
    snapshot_id: SnapshotId = SnapshotId(end_offset=0, epoch=0)
    position: int = 0
    replica_directory_id: Ignorable[Uuid] = ZERO


class FetchSnapshotRequestTopic(Struct, frozen=True, kw_only=True):
    """The topic, by name."""

    name: str = METADATA_TOPIC_NAME
    partitions: tuple[FetchSnapshotRequestPartition, ...] = ()


class FetchSnapshotResponsePartition(Struct, frozen=True, kw_only=True):
    """A piece of a snapshot of ``size`` bytes, cut anywhere, not at batches. Kafka's schema gives the current leader no
    defaults of -1, so that absent reads as leader 0 in epoch 0."""

    index: int = 0
    error_code: int = 0
    snapshot_id: SnapshotId = SnapshotId(end_offset=0, epoch=0)
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch(leader_id=0, leader_epoch=0)
    size: int = 0
    position: int = 0
    unaligned_records: bytes = b""


class FetchSnapshotResponseTopic(Struct, frozen=True, kw_only=True):
    """The topic, by name."""

    name: str = METADATA_TOPIC_NAME
    partitions: tuple[FetchSnapshotResponsePartition, ...] = ()


class FetchSnapshotResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    """Address of a leader named in this response."""

    node_id: int
    host: str
    port: int


class FetchSnapshotResponse(ResponseBody, frozen=True, kw_only=True):
    """A piece of a snapshot."""

    API_KEY: ClassVar[ApiKey] = ApiKey.FETCH_SNAPSHOT
    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[FetchSnapshotResponseTopic, ...] = ()
    node_endpoints: Ignorable[tuple[FetchSnapshotResponseNodeEndpoint, ...]] = ()


class FetchSnapshotRequest(RequestBody[FetchSnapshotResponse], frozen=True, kw_only=True):
    """Reads a piece of a snapshot (KIP-630)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.FETCH_SNAPSHOT
    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = INT32_MAX
    topics: tuple[FetchSnapshotRequestTopic, ...] = ()


# ---------------------------------------------------------------- CreateTopics (19)


class CreateTopicsRequestAssignment(Struct, frozen=True, kw_only=True):
    """The replicas of one partition, placed by hand (Kafka: ``CreatableReplicaAssignment``)."""

    partition_index: int
    broker_ids: tuple[int, ...] = ()


class CreateTopicsRequestConfig(Struct, frozen=True, kw_only=True):
    """A configuration of the new topic (Kafka: ``CreatableTopicConfig``)."""

    name: str
    value: str | None = None


class CreateTopicsRequestTopic(Struct, frozen=True, kw_only=True):
    """A topic to create; -1 asks for the cluster's default (KIP-464) or goes with ``assignments``."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[CreateTopicsRequestAssignment, ...] = ()
    configs: tuple[CreateTopicsRequestConfig, ...] = ()


class CreateTopicsResponseConfig(Struct, frozen=True, kw_only=True):
    """A configuration that the new topic has (Kafka: ``CreatableTopicConfigs``)."""

    name: str
    value: str | None = None
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


class CreateTopicsResponseTopic(Struct, frozen=True, kw_only=True):
    """The outcome for one topic (Kafka: ``CreatableTopicResult``)."""

    name: str
    topic_id: Ignorable[Uuid] = ZERO
    error_code: int = 0
    error_message: Ignorable[str | None] = None
    topic_config_error_code: Ignorable[int] = 0
    num_partitions: Ignorable[int] = -1
    replication_factor: Ignorable[int] = -1
    configs: Ignorable[tuple[CreateTopicsResponseConfig, ...] | None] = ()


class CreateTopicsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, topic by topic."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_TOPICS
    throttle_time_ms: Ignorable[int] = 0
    topics: tuple[CreateTopicsResponseTopic, ...] = ()


class CreateTopicsRequest(RequestBody[CreateTopicsResponse], frozen=True, kw_only=True):
    """Creates topics."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_TOPICS
    topics: tuple[CreateTopicsRequestTopic, ...] = ()
    timeout_ms: int = 60_000
    validate_only: bool = False


# ---------------------------------------------------------------- DeleteTopics (20)


class DeleteTopicsRequestTopic(Struct, frozen=True, kw_only=True):
    """A topic by name, or by id where the name is null (Kafka: ``DeleteTopicState``)."""

    name: str | None = None
    topic_id: Uuid = ZERO


class DeleteTopicsResponseTopic(Struct, frozen=True, kw_only=True):
    """The outcome for one topic (Kafka: ``DeletableTopicResult``)."""

    name: str | None = ""
    topic_id: Ignorable[Uuid] = ZERO
    error_code: int = 0
    error_message: Ignorable[str | None] = None


class DeleteTopicsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, topic by topic."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DELETE_TOPICS
    throttle_time_ms: Ignorable[int] = 0
    responses: tuple[DeleteTopicsResponseTopic, ...] = ()


class DeleteTopicsRequest(RequestBody[DeleteTopicsResponse], frozen=True, kw_only=True):
    """Deletes topics: ``topic_names`` up to version 5, ``topics`` from 6."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DELETE_TOPICS
    topics: tuple[DeleteTopicsRequestTopic, ...] = ()
    topic_names: Ignorable[tuple[str, ...]] = ()
    timeout_ms: int = 0


# ---------------------------------------------------------------- DescribeCluster (60)


class DescribeClusterResponseBroker(Struct, frozen=True, kw_only=True):
    """A node of the kind that was asked for."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: Ignorable[bool] = False


class DescribeClusterResponse(ResponseBody, frozen=True, kw_only=True):
    """Members of the cluster. Endpoint types: 1 brokers, 2 controllers (KIP-919)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[DescribeClusterResponseBroker, ...] = ()
    cluster_authorized_operations: int = AUTHORIZED_OPERATIONS_OMITTED


class DescribeClusterRequest(RequestBody[DescribeClusterResponse], frozen=True, kw_only=True):
    """Asks who is in the cluster."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False


# ---------------------------------------------------------------- Metadata (3)


class MetadataRequestTopic(Struct, frozen=True, kw_only=True):
    """A topic by name, or by id where the name is null (from version 10)."""

    topic_id: Ignorable[Uuid] = ZERO
    name: str | None = ""


class MetadataResponseBroker(Struct, frozen=True, kw_only=True):
    """A broker and where it is reached."""

    node_id: int
    host: str
    port: int
    rack: Ignorable[str | None] = None


class MetadataResponsePartition(Struct, frozen=True, kw_only=True):
    """Leader and replicas of one partition; ``offline_replicas`` counts failed directories too."""

    error_code: int = 0
    partition_index: int
    leader_id: int = -1
    leader_epoch: Ignorable[int] = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: Ignorable[tuple[int, ...]] = ()


class MetadataResponseTopic(Struct, frozen=True, kw_only=True):
    """A topic and its partitions."""

    error_code: int = 0
    name: str | None = ""
    topic_id: Ignorable[Uuid] = ZERO
    is_internal: Ignorable[bool] = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: Ignorable[int] = AUTHORIZED_OPERATIONS_OMITTED


class MetadataResponse(ResponseBody, frozen=True, kw_only=True):
    """Brokers, topics, partitions and leaders."""

    API_KEY: ClassVar[ApiKey] = ApiKey.METADATA
    throttle_time_ms: Ignorable[int] = 0
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: Ignorable[str | None] = None
    controller_id: Ignorable[int] = -1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: Ignorable[int] = AUTHORIZED_OPERATIONS_OMITTED
    error_code: Ignorable[int] = 0


class MetadataRequest(RequestBody[MetadataResponse], frozen=True, kw_only=True):
    """Asks about topics; None is all of them (in version 0, which has no null, an empty list is)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.METADATA
    topics: tuple[MetadataRequestTopic, ...] | None = ()
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


# ---------------------------------------------------------------- DescribeQuorum (55)


class DescribeQuorumRequestPartition(Struct, frozen=True, kw_only=True):
    """A partition of a raft topic."""

    partition_index: int = 0


class DescribeQuorumRequestTopic(Struct, frozen=True, kw_only=True):
    """A raft topic; there is one."""

    topic_name: str = METADATA_TOPIC_NAME
    partitions: tuple[DescribeQuorumRequestPartition, ...] = (DescribeQuorumRequestPartition(),)


class DescribeQuorumResponseReplicaState(Struct, frozen=True, kw_only=True):
    """Progress of a voter or observer; timestamps are milliseconds since 1970, -1 unknown."""

    replica_id: int
    replica_directory_id: Ignorable[Uuid] = ZERO
    log_end_offset: int = -1
    last_fetch_timestamp: Ignorable[int] = -1
    last_caught_up_timestamp: Ignorable[int] = -1


class DescribeQuorumResponsePartition(Struct, frozen=True, kw_only=True):
    """The state of the quorum."""

    partition_index: int = 0
    error_code: int = 0
    error_message: Ignorable[str | None] = ""
    leader_id: int = -1
    leader_epoch: int = 0
    high_watermark: int = -1
    current_voters: tuple[DescribeQuorumResponseReplicaState, ...] = ()
    observers: tuple[DescribeQuorumResponseReplicaState, ...] = ()


class DescribeQuorumResponseTopic(Struct, frozen=True, kw_only=True):
    """The raft topic."""

    topic_name: str = METADATA_TOPIC_NAME
    partitions: tuple[DescribeQuorumResponsePartition, ...] = ()


class DescribeQuorumResponseListener(Struct, frozen=True, kw_only=True):
    """An endpoint of a voter."""

    name: str
    host: str
    port: int


class DescribeQuorumResponseNode(Struct, frozen=True, kw_only=True):
    """A voter and where it is reached."""

    node_id: int
    listeners: tuple[DescribeQuorumResponseListener, ...] = ()


class DescribeQuorumResponse(ResponseBody, frozen=True, kw_only=True):
    """Leader and followers of the metadata quorum, and their progress (KIP-595, KIP-836, KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_QUORUM
    error_code: int = 0
    error_message: Ignorable[str | None] = ""
    topics: tuple[DescribeQuorumResponseTopic, ...] = ()
    nodes: Ignorable[tuple[DescribeQuorumResponseNode, ...]] = ()


class DescribeQuorumRequest(RequestBody[DescribeQuorumResponse], frozen=True, kw_only=True):
    """Asks for the state of the metadata quorum."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_QUORUM
    topics: tuple[DescribeQuorumRequestTopic, ...] = (DescribeQuorumRequestTopic(),)


# ---------------------------------------------------------------- AlterPartition (56)


class AlterPartitionRequestBrokerState(Struct, frozen=True, kw_only=True):
    """A member of the new ISR; epoch -1 is not checked."""

    broker_id: int
    broker_epoch: int = -1


class AlterPartitionRequestPartition(Struct, frozen=True, kw_only=True):
    """The ISR that a leader proposes: ``new_isr`` in version 2, ``new_isr_with_epochs`` from 3."""

    partition_index: int
    leader_epoch: int = 0
    new_isr: tuple[int, ...] = ()
    new_isr_with_epochs: tuple[AlterPartitionRequestBrokerState, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class AlterPartitionRequestTopic(Struct, frozen=True, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO
    partitions: tuple[AlterPartitionRequestPartition, ...] = ()


class AlterPartitionResponsePartition(Struct, frozen=True, kw_only=True):
    """The state of the partition after the change."""

    partition_index: int
    error_code: int = 0
    leader_id: int = 0
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class AlterPartitionResponseTopic(Struct, frozen=True, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO
    partitions: tuple[AlterPartitionResponsePartition, ...] = ()


class AlterPartitionResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, partition by partition."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_PARTITION
    throttle_time_ms: int = 0
    error_code: int = 0
    topics: tuple[AlterPartitionResponseTopic, ...] = ()


class AlterPartitionRequest(RequestBody[AlterPartitionResponse], frozen=True, kw_only=True):
    """A leader changes the ISR of its partitions (KIP-497)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_PARTITION
    broker_id: int
    broker_epoch: int = -1
    topics: tuple[AlterPartitionRequestTopic, ...] = ()


# ---------------------------------------------------------------- ControllerRegistration (70)


class ControllerRegistrationRequestListener(Struct, frozen=True, kw_only=True):
    """An endpoint that the controller advertises."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class ControllerRegistrationRequestFeature(Struct, frozen=True, kw_only=True):
    """The levels of one feature that the controller understands."""

    name: str
    min_supported_version: int
    max_supported_version: int


class ControllerRegistrationResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CONTROLLER_REGISTRATION
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


class ControllerRegistrationRequest(RequestBody[ControllerRegistrationResponse], frozen=True, kw_only=True):
    """A controller introduces itself to the active one (KIP-919)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CONTROLLER_REGISTRATION
    controller_id: int
    incarnation_id: Uuid
    zk_migration_ready: bool = False
    listeners: tuple[ControllerRegistrationRequestListener, ...] = ()
    features: tuple[ControllerRegistrationRequestFeature, ...] = ()


# ---------------------------------------------------------------- DescribeLogDirs (35)


class DescribeLogDirsRequestTopic(Struct, frozen=True, kw_only=True):
    """Partitions of one topic to tell of (Kafka: ``DescribableLogDirTopic``)."""

    topic: str
    partitions: tuple[int, ...] = ()


class DescribeLogDirsResponsePartition(Struct, frozen=True, kw_only=True):
    """A replica: its size in bytes, and how many offsets it is behind (-1 unknown)."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool = False


class DescribeLogDirsResponseTopic(Struct, frozen=True, kw_only=True):
    """Replicas of one topic in one directory."""

    name: str
    partitions: tuple[DescribeLogDirsResponsePartition, ...] = ()


class DescribeLogDirsResponseResult(Struct, frozen=True, kw_only=True):
    """A log directory, by its absolute path; bytes from version 4 (KIP-827), cordons from 5 (KIP-1066)."""

    error_code: int = 0
    log_dir: str
    topics: tuple[DescribeLogDirsResponseTopic, ...] = ()
    total_bytes: Ignorable[int] = -1
    usable_bytes: Ignorable[int] = -1
    is_cordoned: Ignorable[bool] = False


class DescribeLogDirsResponse(ResponseBody, frozen=True, kw_only=True):
    """The log directories of the broker that was asked."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_LOG_DIRS
    throttle_time_ms: int = 0
    error_code: Ignorable[int] = 0
    results: tuple[DescribeLogDirsResponseResult, ...] = ()


class DescribeLogDirsRequest(RequestBody[DescribeLogDirsResponse], frozen=True, kw_only=True):
    """Asks what lies in which log directory (KIP-113); None is all topics."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_LOG_DIRS
    topics: tuple[DescribeLogDirsRequestTopic, ...] | None = None


# ---------------------------------------------------------------- AlterReplicaLogDirs (34)


class AlterReplicaLogDirsRequestTopic(Struct, frozen=True, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: tuple[int, ...] = ()


class AlterReplicaLogDirsRequestDir(Struct, frozen=True, kw_only=True):
    """A directory by its absolute path, and the replicas that are to lie in it."""

    path: str
    topics: tuple[AlterReplicaLogDirsRequestTopic, ...] = ()


class AlterReplicaLogDirsResponsePartition(Struct, frozen=True, kw_only=True):
    """The outcome for one replica."""

    partition_index: int
    error_code: int = 0


class AlterReplicaLogDirsResponseTopic(Struct, frozen=True, kw_only=True):
    """The outcome for one topic."""

    topic_name: str
    partitions: tuple[AlterReplicaLogDirsResponsePartition, ...] = ()


class AlterReplicaLogDirsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, replica by replica."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_REPLICA_LOG_DIRS
    throttle_time_ms: int = 0
    results: tuple[AlterReplicaLogDirsResponseTopic, ...] = ()


class AlterReplicaLogDirsRequest(RequestBody[AlterReplicaLogDirsResponse], frozen=True, kw_only=True):
    """Moves replicas between directories of the broker that is asked (KIP-113)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_REPLICA_LOG_DIRS
    dirs: tuple[AlterReplicaLogDirsRequestDir, ...] = ()


# ---------------------------------------------------------------- DescribeConfigs (32)


class DescribeConfigsRequestResource(Struct, frozen=True, kw_only=True):
    """A resource; types: 2 topic, 4 broker. Keys None: all."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


class DescribeConfigsResponseSynonym(Struct, frozen=True, kw_only=True):
    """Another source of a value."""

    name: str
    value: str | None = None
    source: int = 0


class DescribeConfigsResponseConfig(Struct, frozen=True, kw_only=True):
    """A value. Sources (``ConfigSource``): 1 topic, 2 broker, 3 default of all brokers, 4 static, 5 Kafka's."""

    name: str
    value: str | None = None
    read_only: bool = False
    config_source: Ignorable[int] = -1
    is_sensitive: bool = False
    synonyms: Ignorable[tuple[DescribeConfigsResponseSynonym, ...]] = ()
    config_type: Ignorable[int] = 0
    documentation: Ignorable[str | None] = None


class DescribeConfigsResponseResult(Struct, frozen=True, kw_only=True):
    """A resource."""

    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str
    configs: tuple[DescribeConfigsResponseConfig, ...] = ()


class DescribeConfigsResponse(ResponseBody, frozen=True, kw_only=True):
    """Configurations, resource by resource."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CONFIGS
    throttle_time_ms: int = 0
    results: tuple[DescribeConfigsResponseResult, ...] = ()


class DescribeConfigsRequest(RequestBody[DescribeConfigsResponse], frozen=True, kw_only=True):
    """Asks for the configuration of resources."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CONFIGS
    resources: tuple[DescribeConfigsRequestResource, ...] = ()
    include_synonyms: Ignorable[bool] = False
    include_documentation: Ignorable[bool] = False


# ---------------------------------------------------------------- IncrementalAlterConfigs (44)


class IncrementalAlterConfigsRequestConfig(Struct, frozen=True, kw_only=True):
    """A change (Kafka: ``AlterableConfig``); operations: 0 set, 1 delete, 2 append, 3 subtract."""

    name: str
    config_operation: int = 0
    value: str | None = None


class IncrementalAlterConfigsRequestResource(Struct, frozen=True, kw_only=True):
    """Changes of one resource; types: 2 topic, 4 broker."""

    resource_type: int
    resource_name: str
    configs: tuple[IncrementalAlterConfigsRequestConfig, ...] = ()


class IncrementalAlterConfigsResponseResource(Struct, frozen=True, kw_only=True):
    """The outcome for one resource."""

    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


class IncrementalAlterConfigsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, resource by resource."""

    API_KEY: ClassVar[ApiKey] = ApiKey.INCREMENTAL_ALTER_CONFIGS
    throttle_time_ms: int = 0
    responses: tuple[IncrementalAlterConfigsResponseResource, ...] = ()


class IncrementalAlterConfigsRequest(RequestBody[IncrementalAlterConfigsResponse], frozen=True, kw_only=True):
    """Changes configurations (KIP-339)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.INCREMENTAL_ALTER_CONFIGS
    resources: tuple[IncrementalAlterConfigsRequestResource, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- AlterPartitionReassignments (45)


class AlterPartitionReassignmentsRequestPartition(Struct, frozen=True, kw_only=True):
    """The brokers that are to have a partition; None cancels what is in progress."""

    partition_index: int
    replicas: tuple[int, ...] | None = None


class AlterPartitionReassignmentsRequestTopic(Struct, frozen=True, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: tuple[AlterPartitionReassignmentsRequestPartition, ...] = ()


class AlterPartitionReassignmentsResponsePartition(Struct, frozen=True, kw_only=True):
    """The outcome for one partition."""

    partition_index: int
    error_code: int = 0
    error_message: str | None = None


class AlterPartitionReassignmentsResponseTopic(Struct, frozen=True, kw_only=True):
    """The outcome for one topic."""

    name: str
    partitions: tuple[AlterPartitionReassignmentsResponsePartition, ...] = ()


class AlterPartitionReassignmentsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, partition by partition."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    throttle_time_ms: int = 0
    allow_replication_factor_change: Ignorable[bool] = True
    error_code: int = 0
    error_message: str | None = None
    responses: tuple[AlterPartitionReassignmentsResponseTopic, ...] = ()


class AlterPartitionReassignmentsRequest(RequestBody[AlterPartitionReassignmentsResponse], frozen=True, kw_only=True):
    """Moves partitions between brokers (KIP-455)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True
    topics: tuple[AlterPartitionReassignmentsRequestTopic, ...] = ()


# ---------------------------------------------------------------- ListPartitionReassignments (46)


class ListPartitionReassignmentsRequestTopic(Struct, frozen=True, kw_only=True):
    """Partitions of one topic."""

    name: str
    partition_indexes: tuple[int, ...] = ()


class ListPartitionReassignmentsResponsePartition(Struct, frozen=True, kw_only=True):
    """A reassignment in progress."""

    partition_index: int
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


class ListPartitionReassignmentsResponseTopic(Struct, frozen=True, kw_only=True):
    """Reassignments of one topic."""

    name: str
    partitions: tuple[ListPartitionReassignmentsResponsePartition, ...] = ()


class ListPartitionReassignmentsResponse(ResponseBody, frozen=True, kw_only=True):
    """Reassignments in progress."""

    API_KEY: ClassVar[ApiKey] = ApiKey.LIST_PARTITION_REASSIGNMENTS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    topics: tuple[ListPartitionReassignmentsResponseTopic, ...] = ()


class ListPartitionReassignmentsRequest(RequestBody[ListPartitionReassignmentsResponse], frozen=True, kw_only=True):
    """Asks which reassignments are in progress; None is all."""

    API_KEY: ClassVar[ApiKey] = ApiKey.LIST_PARTITION_REASSIGNMENTS
    timeout_ms: int = 60_000
    topics: tuple[ListPartitionReassignmentsRequestTopic, ...] | None = None


# ---------------------------------------------------------------- Envelope (58)


class EnvelopeResponse(ResponseBody, frozen=True, kw_only=True):
    """The answer that the forwarded request got, header and body."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ENVELOPE
    response_data: bytes | None = None
    error_code: int = 0


class EnvelopeRequest(RequestBody[EnvelopeResponse], frozen=True, kw_only=True):
    """A client's request that a broker forwards (KIP-590): header and body, who sent it, and from which address."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ENVELOPE
    request_data: bytes
    request_principal: bytes | None = None
    client_host_address: bytes


# ---------------------------------------------------------------- registry


API: dict[ApiKey, ApiSpec] = api_specs(
    (
        (FetchRequest, FetchResponse, 4, 18),
        (MetadataRequest, MetadataResponse, 0, 13),
        (SaslHandshakeRequest, SaslHandshakeResponse, 0, 1),
        (ApiVersionsRequest, ApiVersionsResponse, 0, 5),
        (CreateTopicsRequest, CreateTopicsResponse, 2, 7),
        (DeleteTopicsRequest, DeleteTopicsResponse, 1, 6),
        (DescribeConfigsRequest, DescribeConfigsResponse, 1, 4),
        (AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, 1, 2),
        (DescribeLogDirsRequest, DescribeLogDirsResponse, 1, 5),
        (SaslAuthenticateRequest, SaslAuthenticateResponse, 0, 2),
        (IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, 0, 1),
        (AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, 0, 1),
        (ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, 0, 0),
        (DescribeQuorumRequest, DescribeQuorumResponse, 0, 2),
        (AlterPartitionRequest, AlterPartitionResponse, 2, 3),
        (EnvelopeRequest, EnvelopeResponse, 0, 0),
        (FetchSnapshotRequest, FetchSnapshotResponse, 0, 1),
        (DescribeClusterRequest, DescribeClusterResponse, 0, 2),
        (BrokerRegistrationRequest, BrokerRegistrationResponse, 0, 4),
        (BrokerHeartbeatRequest, BrokerHeartbeatResponse, 0, 2),
        (UnregisterBrokerRequest, UnregisterBrokerResponse, 0, 0),
        (ControllerRegistrationRequest, ControllerRegistrationResponse, 0, 0),
        (AssignReplicasToDirsRequest, AssignReplicasToDirsResponse, 0, 0),
    )
)
"""Every API that kjbod can read and write, those of :mod:`kjbod.wire.admin_messages` where that was imported; what a
server offers is its own choice."""
