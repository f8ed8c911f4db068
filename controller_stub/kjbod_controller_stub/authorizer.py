"""Who may ask what of the controller (``ControllerApis``, ``AuthHelper``).

Brokers need CLUSTER_ACTION on the cluster resource, administrators ALTER, DESCRIBE, ALTER_CONFIGS, or CREATE and DELETE
on it. :data:`REQUIRED` names the decision for every API; :class:`Authorizer` makes it. :class:`AllowAll` is the one
there is while the listener takes PLAINTEXT only, where nobody has a name.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Protocol

from kjbod.wire.messages import ApiKey

ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated connection."""


class Operation(IntEnum):
    """``common.acl.AclOperation``, those that concern the controller."""

    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    ALTER_CONFIGS = 11


REQUIRED: Mapping[ApiKey, Operation | None] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: None,  # asked before anybody has a name
        ApiKey.FETCH: Operation.CLUSTER_ACTION,
        ApiKey.FETCH_SNAPSHOT: Operation.CLUSTER_ACTION,
        ApiKey.BROKER_REGISTRATION: Operation.CLUSTER_ACTION,
        ApiKey.BROKER_HEARTBEAT: Operation.CLUSTER_ACTION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS: Operation.CLUSTER_ACTION,
        ApiKey.ALTER_PARTITION: Operation.CLUSTER_ACTION,
        ApiKey.CONTROLLER_REGISTRATION: Operation.CLUSTER_ACTION,
        ApiKey.UNREGISTER_BROKER: Operation.ALTER,
        ApiKey.CREATE_TOPICS: Operation.CREATE,
        ApiKey.DELETE_TOPICS: Operation.DELETE,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Operation.ALTER_CONFIGS,
        ApiKey.DESCRIBE_CLUSTER: Operation.DESCRIBE,
        ApiKey.DESCRIBE_QUORUM: Operation.DESCRIBE,
        ApiKey.METADATA: Operation.DESCRIBE,
    }
)
"""The operation on the cluster resource that each API needs; an API that is missing here is refused."""


class Authorizer(Protocol):
    """Decides on one operation on the cluster resource."""

    def allows(self, principal: str, operation: Operation) -> bool: ...


class AllowAll:
    """Everybody may do everything."""

    def allows(self, principal: str, operation: Operation) -> bool:
        return True


def is_authorized(authorizer: Authorizer, principal: str, api_key: ApiKey) -> bool:
    """Whether ``principal`` may use the API."""
    if api_key not in REQUIRED:
        return False
    operation = REQUIRED[api_key]
    return operation is None or authorizer.allows(principal, operation)
