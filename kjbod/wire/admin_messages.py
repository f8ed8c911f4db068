"""The messages that administrators send to a broker or a controller, and other controllers to a controller; see
:mod:`kjbod.wire.messages`.

``python -m scripts.wire_schemas`` writes this file from Kafka's schemas and scripts/wire_admin_messages.txt.

They are apart from the others because most programs speak none of them, and should not pay for their classes. Importing
this module enters them into :data:`kjbod.wire.messages.API`.
"""

from typing import ClassVar

from kjbod.ids import ZERO, Uuid
from kjbod.quick_dataclass import dataclass
from kjbod.wire.apis import AUTHORIZED_OPERATIONS_OMITTED, ApiKey, RequestBody, ResponseBody, api_specs
from kjbod.wire.codec import ignorable
from kjbod.wire.messages import API

# ---------------------------------------------------------------- DescribeAcls (29)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponseAclDescription:
    """A permission or denial."""

    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponseResource:
    """The entries of one resource pattern."""

    resource_type: int
    resource_name: str
    pattern_type: int = 3
    acls: tuple[DescribeAclsResponseAclDescription, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse(ResponseBody):
    """The entries that match."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_ACLS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    resources: tuple[DescribeAclsResponseResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest(RequestBody[DescribeAclsResponse]):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsResponseAclCreation:
    """The outcome of one entry."""

    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsResponse(ResponseBody):
    """The outcome, in the order of the request."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_ACLS
    throttle_time_ms: int = 0
    results: tuple[CreateAclsResponseAclCreation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequestAclCreation:
    """An entry to create."""

    resource_type: int
    resource_name: str
    resource_pattern_type: int = 3
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequest(RequestBody[CreateAclsResponse]):
    """Creates access control entries."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_ACLS
    creations: tuple[CreateAclsRequestAclCreation, ...] = ()


# ---------------------------------------------------------------- DeleteAcls (31)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponseMatchingAcl:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponseFilter:
    """ACLs that one filter deleted."""

    error_code: int = 0
    error_message: str | None = None
    matching_acls: tuple[DeleteAclsResponseMatchingAcl, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponse(ResponseBody):
    """The outcome, filter by filter, in the order of the request."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DELETE_ACLS
    throttle_time_ms: int = 0
    filter_results: tuple[DeleteAclsResponseFilter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequestFilter:
    """Filter of the entries to delete; None matches all."""

    resource_type_filter: int
    resource_name_filter: str | None = None
    pattern_type_filter: int = 3
    principal_filter: str | None = None
    host_filter: str | None = None
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequest(RequestBody[DeleteAclsResponse]):
    """Deletes access control entries."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DELETE_ACLS
    filters: tuple[DeleteAclsRequestFilter, ...] = ()


# ---------------------------------------------------------------- AlterConfigs (33)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponseResourceResponse:
    """The outcome for one resource."""

    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse(ResponseBody):
    """The outcome, resource by resource."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS
    throttle_time_ms: int = 0
    responses: tuple[AlterConfigsResponseResourceResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequestAlterableConfig:
    """A key and its new value; None takes the default."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequestResource:
    """All dynamic configuration of one resource."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterConfigsRequestAlterableConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest(RequestBody[AlterConfigsResponse]):
    """Replaces the dynamic configuration of resources whole (deprecated since KIP-339)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS
    resources: tuple[AlterConfigsRequestResource, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- CreatePartitions (37)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponseTopic:
    """The outcome for one topic."""

    name: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse(ResponseBody):
    """The outcome, topic by topic."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS
    throttle_time_ms: int = 0
    results: tuple[CreatePartitionsResponseTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequestAssignment:
    """The brokers of one new partition."""

    broker_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequestTopic:
    """Number of partitions that a topic is to have; assignments of the new ones, or None."""

    name: str
    count: int
    assignments: tuple[CreatePartitionsRequestAssignment, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest(RequestBody[CreatePartitionsResponse]):
    """Adds partitions to topics."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_PARTITIONS
    topics: tuple[CreatePartitionsRequestTopic, ...] = ()
    timeout_ms: int
    validate_only: bool = False


# ---------------------------------------------------------------- CreateDelegationToken (38)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDelegationTokenResponse(ResponseBody):
    """The token; below version 3 a broker leaves out who asked for it."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_DELEGATION_TOKEN
    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ignorable("")
    token_requester_principal_name: str = ignorable("")
    issue_timestamp: int = 0
    expiry_timestamp: int = 0
    max_timestamp: int = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDelegationTokenRequestCreatableRenewers:
    """Somebody who may renew the token."""

    principal_type: str
    principal_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDelegationTokenRequest(RequestBody[CreateDelegationTokenResponse]):
    """Creates a delegation token (KIP-48)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.CREATE_DELEGATION_TOKEN
    owner_principal_type: str | None = ""
    owner_principal_name: str | None = ""
    renewers: tuple[CreateDelegationTokenRequestCreatableRenewers, ...] = ()
    max_lifetime_ms: int


# ---------------------------------------------------------------- RenewDelegationToken (39)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewDelegationTokenResponse(ResponseBody):
    """The new expiry."""

    API_KEY: ClassVar[ApiKey] = ApiKey.RENEW_DELEGATION_TOKEN
    error_code: int = 0
    expiry_timestamp: int = 0
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewDelegationTokenRequest(RequestBody[RenewDelegationTokenResponse]):
    """Renews a delegation token."""

    API_KEY: ClassVar[ApiKey] = ApiKey.RENEW_DELEGATION_TOKEN
    hmac: bytes
    renew_period_ms: int


# ---------------------------------------------------------------- ExpireDelegationToken (40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireDelegationTokenResponse(ResponseBody):
    """The new expiry."""

    API_KEY: ClassVar[ApiKey] = ApiKey.EXPIRE_DELEGATION_TOKEN
    error_code: int = 0
    expiry_timestamp: int = 0
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireDelegationTokenRequest(RequestBody[ExpireDelegationTokenResponse]):
    """Sets when a delegation token expires."""

    API_KEY: ClassVar[ApiKey] = ApiKey.EXPIRE_DELEGATION_TOKEN
    hmac: bytes
    expiry_time_period_ms: int


# ---------------------------------------------------------------- DescribeDelegationToken (41)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeDelegationTokenResponseRenewer:
    """Somebody who may renew a token."""

    principal_type: str
    principal_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeDelegationTokenResponseToken:
    """A token."""

    principal_type: str
    principal_name: str
    token_requester_principal_type: str = ignorable("")
    token_requester_principal_name: str = ignorable("")
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    token_id: str
    hmac: bytes
    renewers: tuple[DescribeDelegationTokenResponseRenewer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeDelegationTokenResponse(ResponseBody):
    """The tokens."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_DELEGATION_TOKEN
    error_code: int = 0
    tokens: tuple[DescribeDelegationTokenResponseToken, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeDelegationTokenRequestOwner:
    """Owner whose tokens are asked for."""

    principal_type: str
    principal_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeDelegationTokenRequest(RequestBody[DescribeDelegationTokenResponse]):
    """Asks for tokens: those of some owners, None: all."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_DELEGATION_TOKEN
    owners: tuple[DescribeDelegationTokenRequestOwner, ...] | None


# ---------------------------------------------------------------- ElectLeaders (43)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponsePartition:
    """The outcome for one partition."""

    partition_id: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponseReplicaElection:
    """The outcomes of one topic."""

    topic: str
    partition_result: tuple[ElectLeadersResponsePartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse(ResponseBody):
    """The outcome, partition by partition."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS
    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: tuple[ElectLeadersResponseReplicaElection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequestTopicPartition:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest(RequestBody[ElectLeadersResponse]):
    """Elects leaders: 0 the preferred ones, 1 unclean ones; None is all partitions (KIP-460)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ELECT_LEADERS
    election_type: int = 0
    topic_partitions: tuple[ElectLeadersRequestTopicPartition, ...] | None = None
    timeout_ms: int = 60_000


# ---------------------------------------------------------------- DescribeClientQuotas (48)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponseEntity:
    """A part of an entity; a name of None is the default."""

    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponseValue:
    """A limit."""

    key: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponseEntry:
    """An entity and its limits."""

    entity: tuple[DescribeClientQuotasResponseEntity, ...]
    values: tuple[DescribeClientQuotasResponseValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponse(ResponseBody):
    """The entities that match; None with an error."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: tuple[DescribeClientQuotasResponseEntry, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasRequestComponent:
    """A part of a filter: an exact name (0), the default (1) or any name (2) of a type."""

    entity_type: str
    match_type: int
    match: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasRequest(RequestBody[DescribeClientQuotasResponse]):
    """Asks for client quotas; strict: of entities that have no other parts."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    components: tuple[DescribeClientQuotasRequestComponent, ...]
    strict: bool = False


# ---------------------------------------------------------------- AlterClientQuotas (49)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasResponseEntity:
    """A part of the entity; None is the default."""

    entity_type: str
    entity_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasResponseEntry:
    """The outcome for one entity."""

    error_code: int = 0
    error_message: str | None = None
    entity: tuple[AlterClientQuotasResponseEntity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasResponse(ResponseBody):
    """The outcome, entity by entity."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS
    throttle_time_ms: int = 0
    entries: tuple[AlterClientQuotasResponseEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasRequestEntity:
    """A part of the entity, as ``user`` or ``client-id``; None is the default."""

    entity_type: str
    entity_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasRequestOp:
    """A limit to set or to remove."""

    key: str
    value: float
    remove: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasRequestEntry:
    """Changes for one entity."""

    entity: tuple[AlterClientQuotasRequestEntity, ...] = ()
    ops: tuple[AlterClientQuotasRequestOp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasRequest(RequestBody[AlterClientQuotasResponse]):
    """Alters client quotas (KIP-546)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS
    entries: tuple[AlterClientQuotasRequestEntry, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- DescribeUserScramCredentials (50)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponseCredential:
    """A mechanism of a user; what is secret stays so."""

    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponseResult:
    """The credentials of a user."""

    user: str
    error_code: int = 0
    error_message: str | None = None
    credential_infos: tuple[DescribeUserScramCredentialsResponseCredential, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse(ResponseBody):
    """A result for each user."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: tuple[DescribeUserScramCredentialsResponseResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequestUser:
    """A user."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest(RequestBody[DescribeUserScramCredentialsResponse]):
    """Asks which SCRAM credentials users have; None or nobody: all users."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    users: tuple[DescribeUserScramCredentialsRequestUser, ...] | None


# ---------------------------------------------------------------- AlterUserScramCredentials (51)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResponseResult:
    """The outcome for one user."""

    user: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsResponse(ResponseBody):
    """The outcome, user by user."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    throttle_time_ms: int = 0
    results: tuple[AlterUserScramCredentialsResponseResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequestScramCredentialDeletion:
    """A credential to remove."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequestScramCredentialUpsertion:
    """A credential to write; the password itself is never sent."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentialsRequest(RequestBody[AlterUserScramCredentialsResponse]):
    """Alters SCRAM credentials (KIP-554)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    deletions: tuple[AlterUserScramCredentialsRequestScramCredentialDeletion, ...] = ()
    upsertions: tuple[AlterUserScramCredentialsRequestScramCredentialUpsertion, ...] = ()


# ---------------------------------------------------------------- Vote (52)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponsePartition:
    """The vote of one partition's replica."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int
    vote_granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseTopic:
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[VoteResponsePartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponseNodeEndpoint:
    """Address of a leader."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(ResponseBody):
    """The votes."""

    API_KEY: ClassVar[ApiKey] = ApiKey.VOTE
    error_code: int = 0
    topics: tuple[VoteResponseTopic, ...] = ()
    node_endpoints: tuple[VoteResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequestPartition:
    """A candidate of one partition's quorum."""

    partition_index: int
    replica_epoch: int
    replica_id: int
    replica_directory_id: Uuid = ignorable(ZERO)
    voter_directory_id: Uuid = ignorable(ZERO)
    last_offset_epoch: int
    last_offset: int
    pre_vote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequestTopic:
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[VoteRequestPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(RequestBody[VoteResponse]):
    """A candidate asks for a vote (KIP-595)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.VOTE
    cluster_id: str | None = None
    voter_id: int = ignorable(-1)
    topics: tuple[VoteRequestTopic, ...] = ()


# ---------------------------------------------------------------- BeginQuorumEpoch (53)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponsePartition:
    """The replica's opinion of the leader."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponseTopic:
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[BeginQuorumEpochResponsePartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponseNodeEndpoint:
    """Address of a leader."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse(ResponseBody):
    """Opinions of the replicas on the leader."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BEGIN_QUORUM_EPOCH
    error_code: int = 0
    topics: tuple[BeginQuorumEpochResponseTopic, ...] = ()
    node_endpoints: tuple[BeginQuorumEpochResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestPartition:
    """The leader of one partition's quorum."""

    partition_index: int
    voter_directory_id: Uuid = ignorable(ZERO)
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestTopic:
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[BeginQuorumEpochRequestPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequestLeaderEndpoint:
    """Address of the leader."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest(RequestBody[BeginQuorumEpochResponse]):
    """A leader says that its epoch has begun (KIP-595)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.BEGIN_QUORUM_EPOCH
    cluster_id: str | None = None
    voter_id: int = ignorable(-1)
    topics: tuple[BeginQuorumEpochRequestTopic, ...] = ()
    leader_endpoints: tuple[BeginQuorumEpochRequestLeaderEndpoint, ...] = ignorable(())


# ---------------------------------------------------------------- EndQuorumEpoch (54)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponsePartition:
    """The replica's opinion of the leader."""

    partition_index: int
    error_code: int = 0
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponseTopic:
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[EndQuorumEpochResponsePartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponseNodeEndpoint:
    """Address of a leader."""

    node_id: int = 0
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse(ResponseBody):
    """Opinions of the replicas on the end of the epoch."""

    API_KEY: ClassVar[ApiKey] = ApiKey.END_QUORUM_EPOCH
    error_code: int = 0
    topics: tuple[EndQuorumEpochResponseTopic, ...] = ()
    node_endpoints: tuple[EndQuorumEpochResponseNodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestReplicaInfo:
    """A voter that is to follow."""

    candidate_id: int = 0
    candidate_directory_id: Uuid = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestPartition:
    """The leader of one partition's quorum, and who is to follow it."""

    partition_index: int
    leader_id: int
    leader_epoch: int
    preferred_successors: tuple[int, ...] = ignorable(())
    preferred_candidates: tuple[EndQuorumEpochRequestReplicaInfo, ...] = ignorable(())


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestTopic:
    """The partitions of one topic."""

    topic_name: str
    partitions: tuple[EndQuorumEpochRequestPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequestLeaderEndpoint:
    """Address of the leader."""

    name: str = ""
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest(RequestBody[EndQuorumEpochResponse]):
    """A leader steps down (KIP-595)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.END_QUORUM_EPOCH
    cluster_id: str | None = None
    topics: tuple[EndQuorumEpochRequestTopic, ...] = ()
    leader_endpoints: tuple[EndQuorumEpochRequestLeaderEndpoint, ...] = ignorable(())


# ---------------------------------------------------------------- UpdateFeatures (57)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponseUpdatableFeature:
    """The outcome for one feature; below version 2 only."""

    feature: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse(ResponseBody):
    """The outcome: since version 2 all or nothing."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: tuple[UpdateFeaturesResponseUpdatableFeature, ...] = ignorable(())


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequestFeatureUpdateKey:
    """The level to finalize; 0 removes it. Type 1 upgrades, 2 downgrades safely, 3 unsafely."""

    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest(RequestBody[UpdateFeaturesResponse]):
    """Finalizes feature levels (KIP-584, KIP-1022)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_FEATURES
    timeout_ms: int = 60_000
    feature_updates: tuple[UpdateFeaturesRequestFeatureUpdateKey, ...] = ()
    validate_only: bool = False


# ---------------------------------------------------------------- AllocateProducerIds (67)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse(ResponseBody):
    """A block of producer ids."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALLOCATE_PRODUCER_IDS
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id_start: int = 0
    producer_id_len: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest(RequestBody[AllocateProducerIdsResponse]):
    """A broker asks for producer ids."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ALLOCATE_PRODUCER_IDS
    broker_id: int
    broker_epoch: int = -1


# ---------------------------------------------------------------- ListConfigResources (74)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponseConfigResource:
    """A resource that has dynamic configuration; below version 1 all are client metrics (16)."""

    resource_name: str
    resource_type: int = ignorable(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponse(ResponseBody):
    """The resources."""

    API_KEY: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES
    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: tuple[ListConfigResourcesResponseConfigResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesRequest(RequestBody[ListConfigResourcesResponse]):
    """Asks which resources have dynamic configuration; no types: all that are supported (KIP-1142)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.LIST_CONFIG_RESOURCES
    resource_types: tuple[int, ...] = ()


# ---------------------------------------------------------------- AddRaftVoter (80)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRaftVoterResponse(ResponseBody):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ADD_RAFT_VOTER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRaftVoterRequestListener:
    """Address of the new voter."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRaftVoterRequest(RequestBody[AddRaftVoterResponse]):
    """Adds a voter to the quorum (KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.ADD_RAFT_VOTER
    cluster_id: str | None = None
    timeout_ms: int
    voter_id: int
    voter_directory_id: Uuid
    listeners: tuple[AddRaftVoterRequestListener, ...] = ()
    ack_when_committed: bool = True


# ---------------------------------------------------------------- RemoveRaftVoter (81)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRaftVoterResponse(ResponseBody):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.REMOVE_RAFT_VOTER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRaftVoterRequest(RequestBody[RemoveRaftVoterResponse]):
    """Removes a voter from the quorum (KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.REMOVE_RAFT_VOTER
    cluster_id: str | None = None
    voter_id: int
    voter_directory_id: Uuid


# ---------------------------------------------------------------- UpdateRaftVoter (82)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterResponseCurrentLeader:
    """The leader of the quorum."""

    leader_id: int = -1
    leader_epoch: int = -1
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterResponse(ResponseBody):
    """The outcome."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_RAFT_VOTER
    throttle_time_ms: int = 0
    error_code: int = 0
    current_leader: UpdateRaftVoterResponseCurrentLeader = UpdateRaftVoterResponseCurrentLeader()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterRequestListener:
    """Address of the voter."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterRequestKRaftVersionFeature:
    """The levels of kraft.version that the voter knows."""

    min_supported_version: int = 0
    max_supported_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRaftVoterRequest(RequestBody[UpdateRaftVoterResponse]):
    """A voter says how it is reached and what it knows (KIP-853)."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UPDATE_RAFT_VOTER
    cluster_id: str | None = None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: Uuid
    listeners: tuple[UpdateRaftVoterRequestListener, ...] = ()
    k_raft_version_feature: UpdateRaftVoterRequestKRaftVersionFeature = UpdateRaftVoterRequestKRaftVersionFeature()


# ---------------------------------------------------------------- DescribeTopicPartitions (75)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsCursor:
    """Position at which the next answer goes on."""

    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    """A topic."""

    error_code: int = 0
    name: str | None
    topic_id: Uuid = ZERO
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: int = AUTHORIZED_OPERATIONS_OMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponse(ResponseBody):
    """Topics by name, up to a number of partitions."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    throttle_time_ms: int = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: DescribeTopicPartitionsCursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequestTopic:
    """A topic."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequest(RequestBody[DescribeTopicPartitionsResponse]):
    """Asks for topics, all where none is named, page by page."""

    API_KEY: ClassVar[ApiKey] = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    topics: tuple[DescribeTopicPartitionsRequestTopic, ...] = ()
    response_partition_limit: int = 2_000
    cursor: DescribeTopicPartitionsCursor | None = None


# ---------------------------------------------------------------- UnregisterController (94)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerResponse(ResponseBody):
    """The outcome; the message of a success is empty, not null."""

    API_KEY: ClassVar[ApiKey] = ApiKey.UNREGISTER_CONTROLLER
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerRequest(RequestBody[UnregisterControllerResponse]):
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
