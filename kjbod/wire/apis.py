"""APIs of kjbod, and the base classes of their messages; :mod:`kjbod.wire.messages` re-exports all of them."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
AUTHORIZED_OPERATIONS_OMITTED = -(2**31)
"""Value of ``clusterAuthorizedOperations`` and similar fields if the client did not ask."""


class ApiKey(IntEnum):
    """The APIs that kjbod speaks; a peer may offer others."""

    FETCH = 1
    METADATA = 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    ALLOCATE_PRODUCER_IDS = 67
    CONTROLLER_REGISTRATION = 70
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    UNREGISTER_CONTROLLER = 94


class ResponseBody(Struct, frozen=True):
    """Base of all responses."""

    API_KEY: ClassVar[ApiKey]


ResponseT = TypeVar("ResponseT", bound=ResponseBody)


class RequestBody(Struct, Generic[ResponseT], frozen=True):
    """Base of all requests; the parameter is the response that answers it."""

    API_KEY: ClassVar[ApiKey]


class ApiSpec(Struct, frozen=True):
    """An API: its messages and the versions of Kafka's schema that kjbod can read and write."""

    key: ApiKey
    request: type[RequestBody[Any]]
    response: type[ResponseBody]
    min_version: int
    max_version: int


def api_specs(
    rows: Iterable[tuple[type[RequestBody[Any]], type[ResponseBody], int, int]],
) -> dict[ApiKey, ApiSpec]:
    """Rows of request, response, lowest and highest version, by API key."""
    return {row[0].API_KEY: ApiSpec(row[0].API_KEY, *row) for row in rows}
