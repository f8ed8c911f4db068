"""The messages that administrators send to a broker or a controller, and other controllers to a controller; see
:mod:`kjbod.wire.messages`.

``python -m scripts.wire_schemas`` writes this file from Kafka's schemas and scripts/wire_admin_messages.txt.

They are apart from the others because most programs speak none of them, and should not pay for their classes. Importing
this module enters them into :data:`kjbod.wire.messages.API`.
"""

from typing import ClassVar

from msgspec import Struct

from kjbod.ids import ZERO, Uuid
from kjbod.wire.apis import AUTHORIZED_OPERATIONS_OMITTED, ApiKey, RequestBody, ResponseBody, api_specs
from kjbod.wire.codec import Ignorable
from kjbod.wire.messages import API

# ---------------------------------------------------------------- DescribeAcls (29)


class DescribeAclsResponseAclDescription(Struct, frozen=True, kw_only=True):
    """A permission or denial."""

    principal: str
    host: str
    operation: int
    permission_type: int


class DescribeAclsResponseResource(Struct, frozen=True, kw_only=True):
    """The entries of one resource pattern."""

    resource_type: int
    resource_name: str
    pattern_type: int = 3
    acls: tuple[DescribeAclsResponseAclDescription, ...] = ()


class DescribeAclsResponse(ResponseBody, frozen=True, kw_only=True):
    """The entries that match."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_ACLS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    resources: tuple[DescribeAclsResponseResource, ...] = ()


class DescribeAclsRequest(RequestBody[DescribeAclsResponse], frozen=True, kw_only=True):
    """Asks for the access control entries that match a filter; None matches all."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_ACLS
    resource_type_filter: int
    resource_name_filter: str | None = None
    pattern_type_filter: int = 3
    principal_filter: str | None = None
    host_filter: str | None = None
    operation: int
    permission_type: int


# ---------------------------------------------------------------- CreateAcls (30)


class CreateAclsResponseAclCreation(Struct, frozen=True, kw_only=True):
    """The outcome of one entry."""

    error_code: int = 0
    error_message: str | None = None


class CreateAclsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, in the order of the request."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_ACLS
    throttle_time_ms: int = 0
    results: tuple[CreateAclsResponseAclCreation, ...] = ()


class CreateAclsRequestAclCreation(Struct, frozen=True, kw_only=True):
    """An entry to create."""

    resource_type: int
    resource_name: str
    resource_pattern_type: int = 3
    principal: str
    host: str
    operation: int
    permission_type: int


class CreateAclsRequest(RequestBody[CreateAclsResponse], frozen=True, kw_only=True):
    """Creates access control entries."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_ACLS
    creations: tuple[CreateAclsRequestAclCreation, ...] = ()


# ---------------------------------------------------------------- DeleteAcls (31)


class DeleteAclsResponseMatchingAcl(Struct, frozen=True, kw_only=True):
    """An entry that a filter matched, and what came of it."""

    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str
    pattern_type: int = 3
    principal: str
    host: str
    operation: int
    permission_type: int


class DeleteAclsResponseFilter(Struct, frozen=True, kw_only=True):
    """ACLs that one filter deleted."""

    error_code: int = 0
    error_message: str | None = None
    matching_acls: tuple[DeleteAclsResponseMatchingAcl, ...] = ()


class DeleteAclsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, filter by filter, in the order of the request."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DELETE_ACLS
    throttle_time_ms: int = 0
    filter_results: tuple[DeleteAclsResponseFilter, ...] = ()


class DeleteAclsRequestFilter(Struct, frozen=True, kw_only=True):
    """Filter of the entries to delete; None matches all."""

    resource_type_filter: int
    resource_name_filter: str | None = None
    pattern_type_filter: int = 3
    principal_filter: str | None = None
    host_filter: str | None = None
    operation: int
    permission_type: int


class DeleteAclsRequest(RequestBody[DeleteAclsResponse], frozen=True, kw_only=True):
    """Deletes access control entries."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DELETE_ACLS
    filters: tuple[DeleteAclsRequestFilter, ...] = ()


# ---------------------------------------------------------------- AlterConfigs (33)


class AlterConfigsResponseResourceResponse(Struct, frozen=True, kw_only=True):
    """The outcome for one resource."""

    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


class AlterConfigsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, resource by resource."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS
    throttle_time_ms: int = 0
    responses: tuple[AlterConfigsResponseResourceResponse, ...] = ()


class AlterConfigsRequestAlterableConfig(Struct, frozen=True, kw_only=True):
    """A key and its new value; None takes the default."""

    name: str
    value: str | None = None


class AlterConfigsRequestResource(Struct, frozen=True, kw_only=True):
    """All dynamic configuration of one resource."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterConfigsRequestAlterableConfig, ...] = ()


class AlterConfigsRequest(RequestBody[AlterConfigsResponse], frozen=True, kw_only=True):
    """Replaces the dynamic configuration of resources whole (deprecated since KIP-339)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS
    resources: tuple[AlterConfigsRequestResource, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- CreatePartitions (37)


class CreatePartitionsResponseTopic(Struct, frozen=True, kw_only=True):
    """The outcome for one topic."""

    name: str
    error_code: int = 0
    error_message: str | None = None


class CreatePartitionsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, topic by topic."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS
    throttle_time_ms: int = 0
    results: tuple[CreatePartitionsResponseTopic, ...] = ()


class CreatePartitionsRequestAssignment(Struct, frozen=True, kw_only=True):
    """The brokers of one new partition."""

    broker_ids: tuple[int, ...] = ()


class CreatePartitionsRequestTopic(Struct, frozen=True, kw_only=True):
    """Number of partitions that a topic is to have; assignments of the new ones, or None."""

    name: str
    count: int
    assignments: tuple[CreatePartitionsRequestAssignment, ...] | None = None


class CreatePartitionsRequest(RequestBody[CreatePartitionsResponse], frozen=True, kw_only=True):
    """Adds partitions to topics."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS
    topics: tuple[CreatePartitionsRequestTopic, ...] = ()
    timeout_ms: int
    validate_only: bool = False


# ---------------------------------------------------------------- CreateDelegationToken (38)


class CreateDelegationTokenResponse(ResponseBody, frozen=True, kw_only=True):
    """The token; below version 3 a broker leaves out who asked for it."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_DELEGATION_TOKEN
    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: Ignorable[str] = ""
    token_requester_principal_name: Ignorable[str] = ""
    issue_timestamp: int = 0
    expiry_timestamp: int = 0
    max_timestamp: int = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: int = 0


class CreateDelegationTokenRequestCreatableRenewers(Struct, frozen=True, kw_only=True):
    """Somebody who may renew the token."""

    principal_type: str
    principal_name: str


class CreateDelegationTokenRequest(RequestBody[CreateDelegationTokenResponse], frozen=True, kw_only=True):
    """Creates a delegation token (KIP-48)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_DELEGATION_TOKEN
    owner_principal_type: str | None = ""
    owner_principal_name: str | None = ""
    renewers: tuple[CreateDelegationTokenRequestCreatableRenewers, ...] = ()
    max_lifetime_ms: int


# ---------------------------------------------------------------- RenewDelegationToken (39)


class RenewDelegationTokenResponse(ResponseBody, frozen=True, kw_only=True):
    """The new expiry."""

    API_KEY: ClassVar[ApiKey] = ApiKey.RENEW_DELEGATION_TOKEN
    error_code: int = 0
    expiry_timestamp: int = 0
    throttle_time_ms: int = 0


class RenewDelegationTokenRequest(RequestBody[RenewDelegationTokenResponse], frozen=True, kw_only=True):
    """Renews a delegation token."""

    API_KEY: ClassVar[ApiKey] = ApiKey.RENEW_DELEGATION_TOKEN
    hmac: bytes
    renew_period_ms: int


# ---------------------------------------------------------------- ExpireDelegationToken (40)


class ExpireDelegationTokenResponse(ResponseBody, frozen=True, kw_only=True):
    """The new expiry."""

    API_KEY: ClassVar[ApiKey] = ApiKey.EXPIRE_DELEGATION_TOKEN
    error_code: int = 0
    expiry_timestamp: int = 0
    throttle_time_ms: int = 0


class ExpireDelegationTokenRequest(RequestBody[ExpireDelegationTokenResponse], frozen=True, kw_only=True):
    """Sets when a delegation token expires."""

    API_KEY: ClassVar[ApiKey] = ApiKey.EXPIRE_DELEGATION_TOKEN
    hmac: bytes
    expiry_time_period_ms: int


# ---------------------------------------------------------------- DescribeDelegationToken (41)


class DescribeDelegationTokenResponseRenewer(Struct, frozen=True, kw_only=True):
    """Somebody who may renew a token."""

    principal_type: str
    principal_name: str


class DescribeDelegationTokenResponseToken(Struct, frozen=True, kw_only=True):
    """A token."""

    principal_type: str
    principal_name: str
    token_requester_principal_type: Ignorable[str] = ""
    token_requester_principal_name: Ignorable[str] = ""
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    token_id: str
    hmac: bytes
    renewers: tuple[DescribeDelegationTokenResponseRenewer, ...] = ()


class DescribeDelegationTokenResponse(ResponseBody, frozen=True, kw_only=True):
    """The tokens."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_DELEGATION_TOKEN
    error_code: int = 0
    tokens: tuple[DescribeDelegationTokenResponseToken, ...] = ()
    throttle_time_ms: int = 0


class DescribeDelegationTokenRequestOwner(Struct, frozen=True, kw_only=True):
    """Owner whose tokens are asked for."""

    principal_type: str
    principal_name: str


class DescribeDelegationTokenRequest(RequestBody[DescribeDelegationTokenResponse], frozen=True, kw_only=True):
    """Asks for tokens: those of some owners, None: all."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_DELEGATION_TOKEN
    owners: tuple[DescribeDelegationTokenRequestOwner, ...] | None


# ---------------------------------------------------------------- ElectLeaders (43)


class ElectLeadersResponsePartition(Struct, frozen=True, kw_only=True):
    """The outcome for one partition."""

    partition_id: int
    error_code: int = 0
    error_message: str | None = None


class ElectLeadersResponseReplicaElection(Struct, frozen=True, kw_only=True):
    """The outcomes of one topic."""

    topic: str
    partition_result: tuple[ElectLeadersResponsePartition, ...] = ()


class ElectLeadersResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, partition by partition."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS
    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: tuple[ElectLeadersResponseReplicaElection, ...] = ()


class ElectLeadersRequestTopicPartition(Struct, frozen=True, kw_only=True):
    """Partitions of one topic."""

    topic: str
    partitions: tuple[int, ...] = ()


class ElectLeadersRequest(RequestBody[ElectLeadersResponse], frozen=True, kw_only=True):
    """Elects leaders: 0 the preferred ones, 1 unclean ones; None is all partitions (KIP-460)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS
    election_type: int = 0
    topic_partitions: tuple[ElectLeadersRequestTopicPartition, ...] | None = None
    timeout_ms: int = 60_000


# ---------------------------------------------------------------- DescribeClientQuotas (48)


class DescribeClientQuotasResponseEntity(Struct, frozen=True, kw_only=True):
    """A part of an entity; a name of None is the default."""

    entity_type: str
    entity_name: str | None


class DescribeClientQuotasResponseValue(Struct, frozen=True, kw_only=True):
    """A limit."""

    key: str
    value: float


class DescribeClientQuotasResponseEntry(Struct, frozen=True, kw_only=True):
    """An entity and its limits."""

    entity: tuple[DescribeClientQuotasResponseEntity, ...]
    values: tuple[DescribeClientQuotasResponseValue, ...]


class DescribeClientQuotasResponse(ResponseBody, frozen=True, kw_only=True):
    """The entities that match; None with an error."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: tuple[DescribeClientQuotasResponseEntry, ...] | None = None


class DescribeClientQuotasRequestComponent(Struct, frozen=True, kw_only=True):
    """A part of a filter: an exact name (0), the default (1) or any name (2) of a type."""

    entity_type: str
    match_type: int
    match: str | None = None


class DescribeClientQuotasRequest(RequestBody[DescribeClientQuotasResponse], frozen=True, kw_only=True):
    """Asks for client quotas; strict: of entities that have no other parts."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    components: tuple[DescribeClientQuotasRequestComponent, ...]
    strict: bool = False


# ---------------------------------------------------------------- AlterClientQuotas (49)


class AlterClientQuotasResponseEntity(Struct, frozen=True, kw_only=True):
    """A part of the entity; None is the default."""

    entity_type: str
    entity_name: str | None = None


class AlterClientQuotasResponseEntry(Struct, frozen=True, kw_only=True):
    """The outcome for one entity."""

    error_code: int = 0
    error_message: str | None = None
    entity: tuple[AlterClientQuotasResponseEntity, ...] = ()


class AlterClientQuotasResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, entity by entity."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS
    throttle_time_ms: int = 0
    entries: tuple[AlterClientQuotasResponseEntry, ...] = ()


class AlterClientQuotasRequestEntity(Struct, frozen=True, kw_only=True):
    """A part of the entity, as ``user`` or ``client-id``; None is the default."""

    entity_type: str
    entity_name: str | None = None


class AlterClientQuotasRequestOp(Struct, frozen=True, kw_only=True):
    """A limit to set or to remove."""

    key: str
    value: float
    remove: bool


class AlterClientQuotasRequestEntry(Struct, frozen=True, kw_only=True):
    """Changes for one entity."""

    entity: tuple[AlterClientQuotasRequestEntity, ...] = ()
    ops: tuple[AlterClientQuotasRequestOp, ...] = ()


class AlterClientQuotasRequest(RequestBody[AlterClientQuotasResponse], frozen=True, kw_only=True):
    """Alters client quotas (KIP-546)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS
    entries: tuple[AlterClientQuotasRequestEntry, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- DescribeUserScramCredentials (50)


class DescribeUserScramCredentialsResponseCredential(Struct, frozen=True, kw_only=True):
    """A mechanism of a user; what is secret stays so."""

    mechanism: int
    iterations: int


class DescribeUserScramCredentialsResponseResult(Struct, frozen=True, kw_only=True):
    """The credentials of a user."""

    user: str
    error_code: int = 0
    error_message: str | None = None
    credential_infos: tuple[DescribeUserScramCredentialsResponseCredential, ...] = ()


class DescribeUserScramCredentialsResponse(ResponseBody, frozen=True, kw_only=True):
    """A result for each user."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: tuple[DescribeUserScramCredentialsResponseResult, ...] = ()


class DescribeUserScramCredentialsRequestUser(Struct, frozen=True, kw_only=True):
    """A user."""

    name: str


class DescribeUserScramCredentialsRequest(RequestBody[DescribeUserScramCredentialsResponse], frozen=True, kw_only=True):
    """Asks which SCRAM credentials users have; None or nobody: all users."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    users: tuple[DescribeUserScramCredentialsRequestUser, ...] | None


# ---------------------------------------------------------------- AlterUserScramCredentials (51)


class AlterUserScramCredentialsResponseResult(Struct, frozen=True, kw_only=True):
    """The outcome for one user."""

    user: str
    error_code: int = 0
    error_message: str | None = None


class AlterUserScramCredentialsResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome, user by user."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    throttle_time_ms: int = 0
    results: tuple[AlterUserScramCredentialsResponseResult, ...] = ()


class AlterUserScramCredentialsRequestScramCredentialDeletion(Struct, frozen=True, kw_only=True):
    """A credential to remove."""

    name: str
    mechanism: int


class AlterUserScramCredentialsRequestScramCredentialUpsertion(Struct, frozen=True, kw_only=True):
    """A credential to write; the password itself is never sent."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentialsRequest(RequestBody[AlterUserScramCredentialsResponse], frozen=True, kw_only=True):
    """Alters SCRAM credentials (KIP-554)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    deletions: tuple[AlterUserScramCredentialsRequestScramCredentialDeletion, ...] = ()
    upsertions: tuple[AlterUserScramCredentialsRequestScramCredentialUpsertion, ...] = ()


# ---------------------------------------------------------------- Vote (52)


class VoteResponsePartition(Struct, frozen=True, kw_only=True):
    """The vote of one partition's replica."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int
    vote_granted: bool


class VoteResponseTopic(Struct, frozen=True, kw_only=True):
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[VoteResponsePartition, ...] = ()


class VoteResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    """Address of a leader."""

    node_id: int = 0
    host: str = ""
    port: int = 0


class VoteResponse(ResponseBody, frozen=True, kw_only=True):
    """The votes."""

    API_KEY: ClassVar[ApiKey] = ApiKey.VOTE
    error_code: int = 0
    topics: tuple[VoteResponseTopic, ...] = ()
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


class VoteRequestPartition(Struct, frozen=True, kw_only=True):
    """A candidate of one partition's quorum."""

    partition_index: int
    replica_epoch: int
    replica_id: int
    replica_directory_id: Ignorable[Uuid] = ZERO
    voter_directory_id: Ignorable[Uuid] = ZERO
    last_offset_epoch: int
    last_offset: int
    pre_vote: bool = False


class VoteRequestTopic(Struct, frozen=True, kw_only=True):
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[VoteRequestPartition, ...] = ()


class VoteRequest(RequestBody[VoteResponse], frozen=True, kw_only=True):
    """A candidate asks for a vote (KIP-595)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.VOTE
    cluster_id: str | None = None
    voter_id: Ignorable[int] = -1
    topics: tuple[VoteRequestTopic, ...] = ()


# ---------------------------------------------------------------- BeginQuorumEpoch (53)


class BeginQuorumEpochResponsePartition(Struct, frozen=True, kw_only=True):
    """The replica's opinion of the leader."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


class BeginQuorumEpochResponseTopic(Struct, frozen=True, kw_only=True):
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[BeginQuorumEpochResponsePartition, ...] = ()


class BeginQuorumEpochResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    """Address of a leader."""

    node_id: int = 0
    host: str = ""
    port: int = 0


class BeginQuorumEpochResponse(ResponseBody, frozen=True, kw_only=True):
    """Opinions of the replicas on the leader."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BEGIN_QUORUM_EPOCH
    error_code: int = 0
    topics: tuple[BeginQuorumEpochResponseTopic, ...] = ()
    node_endpoints: tuple[BeginQuorumEpochResponseNodeEndpoint, ...] = ()


class BeginQuorumEpochRequestPartition(Struct, frozen=True, kw_only=True):
    """The leader of one partition's quorum."""

    partition_index: int
    voter_directory_id: Ignorable[Uuid] = ZERO
    leader_id: int
    leader_epoch: int


class BeginQuorumEpochRequestTopic(Struct, frozen=True, kw_only=True):
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[BeginQuorumEpochRequestPartition, ...] = ()


class BeginQuorumEpochRequestLeaderEndpoint(Struct, frozen=True, kw_only=True):
    """Address of the leader."""

    name: str = ""
    host: str = ""
    port: int = 0


class BeginQuorumEpochRequest(RequestBody[BeginQuorumEpochResponse], frozen=True, kw_only=True):
    """A leader says that its epoch has begun (KIP-595)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BEGIN_QUORUM_EPOCH
    cluster_id: str | None = None
    voter_id: Ignorable[int] = -1
    topics: tuple[BeginQuorumEpochRequestTopic, ...] = ()
    leader_endpoints: Ignorable[tuple[BeginQuorumEpochRequestLeaderEndpoint, ...]] = ()


# ---------------------------------------------------------------- EndQuorumEpoch (54)


class EndQuorumEpochResponsePartition(Struct, frozen=True, kw_only=True):
    """The replica's opinion of the leader."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


class EndQuorumEpochResponseTopic(Struct, frozen=True, kw_only=True):
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[EndQuorumEpochResponsePartition, ...] = ()


class EndQuorumEpochResponseNodeEndpoint(Struct, frozen=True, kw_only=True):
    """Address of a leader."""

    node_id: int = 0
    host: str = ""
    port: int = 0


class EndQuorumEpochResponse(ResponseBody, frozen=True, kw_only=True):
    """Opinions of the replicas on the end of the epoch."""

    API_KEY: ClassVar[ApiKey] = ApiKey.END_QUORUM_EPOCH
    error_code: int = 0
    topics: tuple[EndQuorumEpochResponseTopic, ...] = ()
    node_endpoints: tuple[EndQuorumEpochResponseNodeEndpoint, ...] = ()


class EndQuorumEpochRequestReplicaInfo(Struct, frozen=True, kw_only=True):
    """A voter that is to follow."""

    candidate_id: int = 0
    candidate_directory_id: Uuid = ZERO


class EndQuorumEpochRequestPartition(Struct, frozen=True, kw_only=True):
    """The leader of one partition's quorum, and who is to follow it."""

    partition_index: int
    leader_id: int
    leader_epoch: int
    preferred_successors: Ignorable[tuple[int, ...]] = ()
    preferred_candidates: Ignorable[tuple[EndQuorumEpochRequestReplicaInfo, ...]] = ()


class EndQuorumEpochRequestTopic(Struct, frozen=True, kw_only=True):
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[EndQuorumEpochRequestPartition, ...] = ()


class EndQuorumEpochRequestLeaderEndpoint(Struct, frozen=True, kw_only=True):
    """Address of the leader."""

    name: str = ""
    host: str = ""
    port: int = 0


class EndQuorumEpochRequest(RequestBody[EndQuorumEpochResponse], frozen=True, kw_only=True):
    """A leader steps down (KIP-595)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.END_QUORUM_EPOCH
    cluster_id: str | None = None
    topics: tuple[EndQuorumEpochRequestTopic, ...] = ()
    leader_endpoints: Ignorable[tuple[EndQuorumEpochRequestLeaderEndpoint, ...]] = ()


# ---------------------------------------------------------------- UpdateFeatures (57)


class UpdateFeaturesResponseUpdatableFeature(Struct, frozen=True, kw_only=True):
    """The outcome for one feature; below version 2 only."""

    feature: str
    error_code: int = 0
    error_message: str | None = None


class UpdateFeaturesResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome: since version 2 all or nothing."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: Ignorable[tuple[UpdateFeaturesResponseUpdatableFeature, ...]] = ()


class UpdateFeaturesRequestFeatureUpdateKey(Struct, frozen=True, kw_only=True):
    """The level to finalize; 0 removes it. Type 1 upgrades, 2 downgrades safely, 3 unsafely."""

    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = 1


class UpdateFeaturesRequest(RequestBody[UpdateFeaturesResponse], frozen=True, kw_only=True):
    """Finalizes feature levels (KIP-584, KIP-1022)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES
    timeout_ms: int = 60_000
    feature_updates: tuple[UpdateFeaturesRequestFeatureUpdateKey, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- AllocateProducerIds (67)


class AllocateProducerIdsResponse(ResponseBody, frozen=True, kw_only=True):
    """A block of producer ids."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALLOCATE_PRODUCER_IDS
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id_start: int = 0
    producer_id_len: int = 0


class AllocateProducerIdsRequest(RequestBody[AllocateProducerIdsResponse], frozen=True, kw_only=True):
    """A broker asks for producer ids."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALLOCATE_PRODUCER_IDS
    broker_id: int
    broker_epoch: int = -1


# ---------------------------------------------------------------- ListConfigResources (74)


class ListConfigResourcesResponseConfigResource(Struct, frozen=True, kw_only=True):
    """A resource that has dynamic configuration; below version 1 all are client metrics (16)."""

    resource_name: str
    resource_type: Ignorable[int] = 16


class ListConfigResourcesResponse(ResponseBody, frozen=True, kw_only=True):
    """The resources."""

    API_KEY: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES
    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: tuple[ListConfigResourcesResponseConfigResource, ...] = ()


class ListConfigResourcesRequest(RequestBody[ListConfigResourcesResponse], frozen=True, kw_only=True):
    """Asks which resources have dynamic configuration; no types: all that are supported (KIP-1142)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES
    resource_types: tuple[int, ...] = ()


# ---------------------------------------------------------------- AddRaftVoter (80)


class AddRaftVoterResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ADD_RAFT_VOTER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


class AddRaftVoterRequestListener(Struct, frozen=True, kw_only=True):
    """Address of the new voter."""

    name: str
    host: str
    port: int


class AddRaftVoterRequest(RequestBody[AddRaftVoterResponse], frozen=True, kw_only=True):
    """Adds a voter to the quorum (KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ADD_RAFT_VOTER
    cluster_id: str | None = None
    timeout_ms: int
    voter_id: int
    voter_directory_id: Uuid
    listeners: tuple[AddRaftVoterRequestListener, ...] = ()
    ack_when_committed: bool = True


# ---------------------------------------------------------------- RemoveRaftVoter (81)


class RemoveRaftVoterResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.REMOVE_RAFT_VOTER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


class RemoveRaftVoterRequest(RequestBody[RemoveRaftVoterResponse], frozen=True, kw_only=True):
    """Removes a voter from the quorum (KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.REMOVE_RAFT_VOTER
    cluster_id: str | None = None
    voter_id: int
    voter_directory_id: Uuid


# ---------------------------------------------------------------- UpdateRaftVoter (82)


class UpdateRaftVoterResponseCurrentLeader(Struct, frozen=True, kw_only=True):
    """The leader of the quorum."""

    leader_id: int = -1
    leader_epoch: int = -1
    host: str = ""
    port: int = 0


class UpdateRaftVoterResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_RAFT_VOTER
    throttle_time_ms: int = 0
    error_code: int = 0
    current_leader: UpdateRaftVoterResponseCurrentLeader = UpdateRaftVoterResponseCurrentLeader()


class UpdateRaftVoterRequestListener(Struct, frozen=True, kw_only=True):
    """Address of the voter."""

    name: str
    host: str
    port: int


class UpdateRaftVoterRequestKRaftVersionFeature(Struct, frozen=True, kw_only=True):
    """The levels of kraft.version that the voter knows."""

    min_supported_version: int = 0
    max_supported_version: int = 0


class UpdateRaftVoterRequest(RequestBody[UpdateRaftVoterResponse], frozen=True, kw_only=True):
    """A voter says how it is reached and what it knows (KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_RAFT_VOTER
    cluster_id: str | None = None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: Uuid
    listeners: tuple[UpdateRaftVoterRequestListener, ...] = ()
    k_raft_version_feature: UpdateRaftVoterRequestKRaftVersionFeature = UpdateRaftVoterRequestKRaftVersionFeature()


# ---------------------------------------------------------------- DescribeTopicPartitions (75)


class DescribeTopicPartitionsCursor(Struct, frozen=True, kw_only=True):
    """Position at which the next answer goes on."""

    topic_name: str
    partition_index: int


class DescribeTopicPartitionsResponsePartition(Struct, frozen=True, kw_only=True):
    """A partition, with its eligible leader replicas (KIP-966)."""

    error_code: int = 0
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    offline_replicas: tuple[int, ...] = ()


class DescribeTopicPartitionsResponseTopic(Struct, frozen=True, kw_only=True):
    """A topic."""

    error_code: int = 0
    name: str | None
    topic_id: Uuid = ZERO
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: int = AUTHORIZED_OPERATIONS_OMITTED


class DescribeTopicPartitionsResponse(ResponseBody, frozen=True, kw_only=True):
    """Topics by name, up to a number of partitions."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    throttle_time_ms: int = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: DescribeTopicPartitionsCursor | None = None


class DescribeTopicPartitionsRequestTopic(Struct, frozen=True, kw_only=True):
    """A topic."""

    name: str


class DescribeTopicPartitionsRequest(RequestBody[DescribeTopicPartitionsResponse], frozen=True, kw_only=True):
    """Asks for topics, all where none is named, page by page."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    topics: tuple[DescribeTopicPartitionsRequestTopic, ...] = ()
    response_partition_limit: int = 2_000
    cursor: DescribeTopicPartitionsCursor | None = None


# ---------------------------------------------------------------- UnregisterController (94)


class UnregisterControllerResponse(ResponseBody, frozen=True, kw_only=True):
    """The outcome; the message of a success is empty, not null."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UNREGISTER_CONTROLLER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


class UnregisterControllerRequest(RequestBody[UnregisterControllerResponse], frozen=True, kw_only=True):
    """Removes the registration of a controller that is gone for good (KIP-1312)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UNREGISTER_CONTROLLER
    controller_id: int


# ---------------------------------------------------------------- registry


API.update(
    api_specs(
        (
            (DescribeAclsRequest, DescribeAclsResponse, 1, 3),
            (CreateAclsRequest, CreateAclsResponse, 1, 3),
            (DeleteAclsRequest, DeleteAclsResponse, 1, 3),
            (AlterConfigsRequest, AlterConfigsResponse, 0, 2),
            (CreatePartitionsRequest, CreatePartitionsResponse, 0, 3),
            (CreateDelegationTokenRequest, CreateDelegationTokenResponse, 1, 3),
            (RenewDelegationTokenRequest, RenewDelegationTokenResponse, 1, 2),
            (ExpireDelegationTokenRequest, ExpireDelegationTokenResponse, 1, 2),
            (DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, 1, 3),
            (ElectLeadersRequest, ElectLeadersResponse, 0, 2),
            (DescribeClientQuotasRequest, DescribeClientQuotasResponse, 0, 1),
            (AlterClientQuotasRequest, AlterClientQuotasResponse, 0, 1),
            (DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, 0, 0),
            (AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, 0, 0),
            (VoteRequest, VoteResponse, 0, 2),
            (BeginQuorumEpochRequest, BeginQuorumEpochResponse, 0, 1),
            (EndQuorumEpochRequest, EndQuorumEpochResponse, 0, 1),
            (UpdateFeaturesRequest, UpdateFeaturesResponse, 0, 2),
            (AllocateProducerIdsRequest, AllocateProducerIdsResponse, 0, 0),
            (ListConfigResourcesRequest, ListConfigResourcesResponse, 0, 1),
            (DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, 0, 0),
            (AddRaftVoterRequest, AddRaftVoterResponse, 0, 1),
            (RemoveRaftVoterRequest, RemoveRaftVoterResponse, 0, 0),
            (UpdateRaftVoterRequest, UpdateRaftVoterResponse, 0, 0),
            (UnregisterControllerRequest, UnregisterControllerResponse, 0, 0),
        )
    )
)
