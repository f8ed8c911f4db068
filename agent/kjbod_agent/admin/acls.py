"""Who may do what, by the ACLs in the metadata: as much of Kafka's ``StandardAuthorizer`` as the listener needs. Pure.

Theory
------
A request is allowed to a principal, from a host, by the first of these lines that applies (``StandardAuthorizerData``):

====================================================  =======
no ``authorizer.class.name``                          allowed
one of ``super.users``                                allowed
an ACL of the resource that denies it                 denied
an ACL of the resource that allows it                 allowed
the resource has ACLs, none for this                  denied
it has none at all                                    ``allow.everyone.if.no.acl.found``
====================================================  =======

An ACL is *of a resource* when its type is the same and its name is: the same, ``*``, or with pattern PREFIXED a
beginning of it. It is *for a request* when its principal is the same or ``User:*``, its host the same or ``*``, and its
operation the same or ALL. One that allows READ, WRITE, DELETE or ALTER allows DESCRIBE too, and ALTER_CONFIGS allows
DESCRIBE_CONFIGS; one that denies them denies nothing else.

Another class than Kafka's own may know things that are not in the metadata. With such a one nothing is allowed that an
ACL or ``super.users`` does not allow, whatever ``allow.everyone.if.no.acl.found`` says.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kjbod.metadata.records import AccessControlEntryRecord

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the one resource of type CLUSTER (``Resource.CLUSTER_NAME``)."""
WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
PREFIXED: Final = 4
"""``PatternType.PREFIXED``; LITERAL is 3."""
ALLOW: Final = 3
"""``AclPermissionType.ALLOW``; DENY is 2."""


class ResourceType(IntEnum):
    """``common.resource.ResourceType``."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Operation(IntEnum):
    """``common.acl.AclOperation``."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_O = Operation
IMPLIED_BY: Final = {
    _O.DESCRIBE: frozenset({_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}
"""Operations of an ACL that allows, for those that it also allows by another name."""
SUPPORTED: Final = {
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
}
"""What can be done with a resource (``AclEntry.supportedOperations``), for the authorized operations in answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The part of the configuration.

    Attributes:
        class_name: ``authorizer.class.name``; empty: everybody may do everything.
        super_users: ``super.users``, taken apart.
        allow_everyone: ``allow.everyone.if.no.acl.found``.
    """

    class_name: str = ""
    super_users: frozenset[str] = frozenset()
    allow_everyone: bool = False

    @classmethod
    def of(cls, class_name: str, super_users: str, allow_everyone: bool) -> "Rules":
        """From the texts of the configuration; ``super_users`` is ``User:a;User:b``."""
        users = frozenset(user.strip() for user in super_users.split(";") if user.strip())
        return cls(class_name=class_name, super_users=users, allow_everyone=allow_everyone)

    @property
    def known(self) -> bool:
        """Whether the ACLs in the metadata are all that the authorizer goes by."""
        return self.class_name in ("", STANDARD_AUTHORIZER)

    @property
    def open_by_default(self) -> bool:
        """Whether a resource without ACLs is open to everybody."""
        return self.allow_everyone and self.known


class Acls:
    """The decisions for one principal on one host, over the ACLs as they are now.

    Args:
        rules: the part of the configuration.
        entries: all ACLs of the metadata.
        principal: ``User:alice``.
        host: address of the client.
    """

    def __init__(self, rules: Rules, entries: Iterable[AccessControlEntryRecord], *, principal: str, host: str) -> None:
        self._open = not rules.class_name or principal in rules.super_users
        self._default = rules.open_by_default
        self._principal = principal
        self._host = host
        self._literal: dict[tuple[int, str], list[AccessControlEntryRecord]] = {}
        self._prefixed: dict[tuple[int, str], list[AccessControlEntryRecord]] = {}
        for entry in () if self._open else entries:
            known = self._prefixed if entry.pattern_type == PREFIXED else self._literal
            known.setdefault((entry.resource_type, entry.resource_name), []).append(entry)
        self._prefix_lengths = {len(prefix) for _, prefix in self._prefixed}
        """Few: so a request with many names does not compare each of them with every ACL."""

    def allow(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the principal may do this with the resource."""
        if self._open:
            return True
        found = self._of(resource_type, name)
        if not found:
            return self._default
        answers = {entry.permission_type == ALLOW for entry in found if self._is_for(entry, operation)}
        return answers == {True}

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """All that the principal may do with the resource, one bit per operation (``Utils.to32BitField``)."""
        return sum(1 << each for each in SUPPORTED[resource_type] if self.allow(each, resource_type, name))

    def _of(self, resource_type: ResourceType, name: str) -> list[AccessControlEntryRecord]:
        found = [*self._literal.get((resource_type, name), ()), *self._literal.get((resource_type, WILDCARD), ())]
        for length in self._prefix_lengths:
            if length <= len(name):
                found += self._prefixed.get((resource_type, name[:length]), ())
        return found

    def _is_for(self, entry: AccessControlEntryRecord, operation: Operation) -> bool:
        if entry.principal not in (self._principal, WILDCARD_PRINCIPAL):
            return False
        if entry.host not in (self._host, WILDCARD):
            return False
        if entry.operation == Operation.ALL:
            return True
        if entry.permission_type == ALLOW:
            return entry.operation in IMPLIED_BY.get(operation, (operation,))
        return entry.operation == operation
