"""Authorization of requests to the controller (``ControllerApis``, ``AuthHelper``). Pure.

:data:`REQUIRED` names the operation on the cluster resource for every API; a request without it is refused whole. Where
it names none the request is about resources of its own, and :mod:`.request_screening` takes out what its sender may
not do.

The decisions are those of ``StandardAuthorizer`` over the ACLs in the metadata (:mod:`kjbod.metadata.acls`); without
``authorizer.class.name`` everybody may do everything.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from kjbod.metadata.acls import CLUSTER_NAME, Operation, ResourceType
from kjbod.wire.messages import ApiKey

ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated connection."""

REQUIRED: Mapping[ApiKey, Operation | None] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: None,  # asked before anybody has a name, and so are these
        ApiKey.SASL_HANDSHAKE: None,
        ApiKey.SASL_AUTHENTICATE: None,
        ApiKey.FETCH: Operation.CLUSTER_ACTION,
        ApiKey.FETCH_SNAPSHOT: Operation.CLUSTER_ACTION,
        ApiKey.VOTE: Operation.CLUSTER_ACTION,
        ApiKey.BEGIN_QUORUM_EPOCH: Operation.CLUSTER_ACTION,
        ApiKey.END_QUORUM_EPOCH: Operation.CLUSTER_ACTION,
        ApiKey.UPDATE_RAFT_VOTER: Operation.CLUSTER_ACTION,
        ApiKey.BROKER_REGISTRATION: Operation.CLUSTER_ACTION,
        ApiKey.BROKER_HEARTBEAT: Operation.CLUSTER_ACTION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS: Operation.CLUSTER_ACTION,
        ApiKey.ALTER_PARTITION: Operation.CLUSTER_ACTION,
        ApiKey.CONTROLLER_REGISTRATION: Operation.CLUSTER_ACTION,
        ApiKey.ENVELOPE: Operation.CLUSTER_ACTION,
        ApiKey.ALLOCATE_PRODUCER_IDS: Operation.CLUSTER_ACTION,
        ApiKey.ADD_RAFT_VOTER: Operation.ALTER,
        ApiKey.REMOVE_RAFT_VOTER: Operation.ALTER,
        ApiKey.UNREGISTER_BROKER: Operation.ALTER,
        ApiKey.UNREGISTER_CONTROLLER: Operation.ALTER,
        ApiKey.UPDATE_FEATURES: Operation.ALTER,
        ApiKey.ELECT_LEADERS: Operation.ALTER,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
        ApiKey.CREATE_ACLS: Operation.ALTER,
        ApiKey.DELETE_ACLS: Operation.ALTER,
        ApiKey.DESCRIBE_CLUSTER: Operation.ALTER,
        ApiKey.ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
        ApiKey.DESCRIBE_ACLS: Operation.DESCRIBE,
        ApiKey.DESCRIBE_QUORUM: Operation.DESCRIBE,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
        ApiKey.METADATA: Operation.DESCRIBE,
        ApiKey.LIST_CONFIG_RESOURCES: Operation.DESCRIBE_CONFIGS,
        # Resource by resource:
        ApiKey.CREATE_TOPICS: None,
        ApiKey.DELETE_TOPICS: None,
        ApiKey.CREATE_PARTITIONS: None,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: None,
        ApiKey.ALTER_CONFIGS: None,
        ApiKey.DESCRIBE_CONFIGS: None,
        # For oneself:
        ApiKey.CREATE_DELEGATION_TOKEN: None,
        ApiKey.RENEW_DELEGATION_TOKEN: None,
        ApiKey.EXPIRE_DELEGATION_TOKEN: None,
    }
)
"""The operation on the cluster resource that each API needs; an API that is missing here is refused."""


class Permissions(Protocol):
    """Permissions of one principal on one host (:class:`kjbod.metadata.acls.Acls`)."""

    @property
    def unrestricted(self) -> bool: ...

    def allow(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool: ...

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int: ...


Authorizer: TypeAlias = Callable[[str, str], Permissions]
"""The permissions of a principal on a host."""


def is_authorized(permissions: Permissions, api_key: ApiKey) -> bool:
    """Return whether the principal may use the API."""
    if api_key not in REQUIRED:
        return False
    operation = REQUIRED[api_key]
    return operation is None or permissions.allow(operation, ResourceType.CLUSTER)
