"""Authorization by the ACLs of the metadata, with the decisions of Kafka's ``StandardAuthorizer``. Pure.

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

An ACL is *of a resource* when its type is the same and its name is the same, ``*``, or with pattern PREFIXED a prefix
of the resource's name. An ACL is *for a request* when principal, host and operation match. The principal matches if it
is equal or ``User:*``; the host if it is equal, ``*``, or a network with that address (:mod:`.networks`); the operation
if it is equal or ALL. An ACL that allows READ, WRITE, DELETE or ALTER allows DESCRIBE too, and ALTER_CONFIGS allows
DESCRIBE_CONFIGS. An ACL that denies them denies nothing else.

An authorizer class other than Kafka's own may use rules that are not in the metadata. With such a class, only ACLs and
``super.users`` allow anything, whatever ``allow.everyone.if.no.acl.found`` is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.metadata.networks import is_in_network
from kjbod.metadata.records import AccessControlEntryRecord

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of type CLUSTER (``Resource.CLUSTER_NAME``)."""
WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
ANY: Final = 1
"""Matches every type, pattern type, operation or permission in a filter."""
MATCH: Final = 2
"""``PatternType.MATCH``, in a filter: all patterns that match a resource of this name."""
LITERAL: Final = 3
"""``PatternType.LITERAL``."""
PREFIXED: Final = 4
"""``PatternType.PREFIXED``."""
DENY: Final = 2
"""``AclPermissionType.DENY``."""
ALLOW: Final = 3
"""``AclPermissionType.ALLOW``."""


class ResourceType(IntEnum):
    """``common.resource.ResourceType``."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


_O = Operation
IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    _O.DESCRIBE: frozenset({_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}
"""Operations of an allowing ACL that also allow the key's operation."""
SUPPORTED: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
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
"""Operations of each resource type (``AclEntry.supportedOperations``), for the authorized operations in answers."""


class Rules(Struct, frozen=True, kw_only=True):
    """Authorizer settings from the configuration.

    Attributes:
        class_name: ``authorizer.class.name``; empty: every client may do everything.
        super_users: principals of ``super.users``.
        allow_everyone: ``allow.everyone.if.no.acl.found``.
    """

    class_name: str = ""
    super_users: frozenset[str] = frozenset()
    allow_everyone: bool = False

    @classmethod
    def of(cls, class_name: str, super_users: str, allow_everyone: bool) -> "Rules":
        """Return the rules from the texts of the configuration; ``super_users`` is ``User:a;User:b``."""
        users = frozenset(user.strip() for user in super_users.split(";") if user.strip())
        return cls(class_name=class_name, super_users=users, allow_everyone=allow_everyone)

    @property
    def known(self) -> bool:
        """Return whether the authorizer decides by the ACLs in the metadata alone."""
        return self.class_name in ("", STANDARD_AUTHORIZER)

    @property
    def open_by_default(self) -> bool:
        """Return whether every client may use a resource without ACLs."""
        return self.allow_everyone and self.known


class AclFilter(Struct, frozen=True, kw_only=True):
    """A filter of ACL entries (``AclBindingFilter``); None and ``ANY`` match all."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission_type: int = ANY

    def matches(self, entry: AccessControlEntryRecord) -> bool:
        """Return whether the filter matches the entry."""
        return (
            self.resource_type in (ANY, entry.resource_type)
            and self._has_pattern(entry)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission_type in (ANY, entry.permission_type)
        )

    def _has_pattern(self, entry: AccessControlEntryRecord) -> bool:
        if self.pattern_type not in (ANY, MATCH, entry.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == entry.resource_name:
            return True
        if self.pattern_type != MATCH:
            return False
        if entry.pattern_type == PREFIXED:
            return self.resource_name.startswith(entry.resource_name)
        return entry.resource_name == WILDCARD


def _content(entry: AccessControlEntryRecord) -> tuple[object, ...]:
    return (
        entry.resource_type,
        entry.resource_name,
        entry.pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission_type,
    )


class AclIndex:
    """All ACL entries, indexed by resource."""

    def __init__(self, entries: Iterable[AccessControlEntryRecord] = ()) -> None:
        self._by_id: dict[Uuid, AccessControlEntryRecord] = {}
        self._literal: dict[tuple[int, str], list[AccessControlEntryRecord]] = {}
        self._prefixed: dict[tuple[int, str], list[AccessControlEntryRecord]] = {}
        self._contents: Counter[tuple[object, ...]] = Counter()
        self._prefix_lengths: Counter[int] = Counter()
        """Distinct prefix lengths are few, so a request with many names is not compared with every ACL."""
        for entry in entries:
            self._insert(entry)

    def __contains__(self, entry: AccessControlEntryRecord) -> bool:
        """Return whether an equal entry exists, whatever its id."""
        return _content(entry) in self._contents

    def add(self, entry: AccessControlEntryRecord) -> None:
        """Add an ACL, or replace the ACL with the same id."""
        self.remove(entry.id)
        self._insert(entry)

    def remove(self, acl_id: Uuid) -> None:
        """Remove an ACL, if it exists."""
        entry = self._by_id.pop(acl_id, None)
        if entry is None:
            return
        known, key = self._place(entry)
        known[key].remove(entry)
        if not known[key]:
            del known[key]
        self._count(entry, -1)

    def _insert(self, entry: AccessControlEntryRecord) -> None:
        self._by_id[entry.id] = entry
        known, key = self._place(entry)
        known.setdefault(key, []).append(entry)
        self._count(entry, 1)

    def _place(
        self, entry: AccessControlEntryRecord
    ) -> tuple[dict[tuple[int, str], list[AccessControlEntryRecord]], tuple[int, str]]:
        known = self._prefixed if entry.pattern_type == PREFIXED else self._literal
        return known, (entry.resource_type, entry.resource_name)

    def _count(self, entry: AccessControlEntryRecord, change: int) -> None:
        counts: list[tuple[Counter[Any], Any]] = [(self._contents, _content(entry))]
        if entry.pattern_type == PREFIXED:
            counts.append((self._prefix_lengths, len(entry.resource_name)))
        for counter, key in counts:
            counter[key] += change
            if not counter[key]:
                del counter[key]

    def of(self, resource_type: int, name: str) -> list[AccessControlEntryRecord]:
        """Return the entries of a resource."""
        found = [*self._literal.get((resource_type, name), ()), *self._literal.get((resource_type, WILDCARD), ())]
        for length in self._prefix_lengths:
            if length <= len(name):
                found += self._prefixed.get((resource_type, name[:length]), ())
        return found

    def candidates(self, wanted: AclFilter) -> Iterator[AccessControlEntryRecord]:
        """Yield the entries that may match, each once; only a few if the filter names a resource."""
        if wanted.resource_name is None:
            for lists in (self._literal, self._prefixed):
                for entries in lists.values():
                    yield from entries
            return
        types = ResourceType if wanted.resource_type == ANY else (wanted.resource_type,)
        for kind in types:
            if wanted.pattern_type == MATCH:
                yield from {entry.id: entry for entry in self.of(kind, wanted.resource_name)}.values()
            else:
                yield from self._literal.get((kind, wanted.resource_name), ())
                yield from self._prefixed.get((kind, wanted.resource_name), ())


class Acls:
    """The decisions for one principal on one host, by the current ACLs.

    Args:
        rules: authorizer settings from the configuration.
        entries: all ACLs of the metadata, or an index of them.
        principal: ``User:alice``.
        host: address of the client.
    """

    def __init__(
        self, rules: Rules, entries: Iterable[AccessControlEntryRecord] | AclIndex, *, principal: str, host: str
    ) -> None:
        self._open = not rules.class_name or principal in rules.super_users
        self._default = rules.open_by_default
        self._principal = principal
        self._host = host
        if isinstance(entries, AclIndex):
            self._index = entries
        else:
            self._index = AclIndex(() if self._open else entries)

    @property
    def unrestricted(self) -> bool:
        """Return whether the principal may do everything."""
        return self._open

    def allow(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the principal may perform the operation on the resource."""
        if self._open:
            return True
        found = self._index.of(resource_type, name)
        if not found:
            return self._default
        answers = {entry.permission_type == ALLOW for entry in found if self._is_for(entry, operation)}
        return answers == {True}

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the principal may perform on the resource, one bit each
        (``Utils.to32BitField``)."""
        return sum(1 << each for each in SUPPORTED[resource_type] if self.allow(each, resource_type, name))

    def _is_for(self, entry: AccessControlEntryRecord, operation: Operation) -> bool:
        if entry.principal not in (self._principal, WILDCARD_PRINCIPAL):
            return False
        if entry.host not in (self._host, WILDCARD) and not is_in_network(self._host, entry.host):
            return False
        if entry.operation == Operation.ALL:
            return True
        if entry.permission_type == ALLOW:
            return entry.operation in IMPLIED_BY.get(operation, (operation,))
        return entry.operation == operation
