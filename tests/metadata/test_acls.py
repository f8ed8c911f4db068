"""Who may do what: the table of StandardAuthorizer, as far as the listener needs it."""

from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.acls import (
    ALLOW,
    CLUSTER_NAME,
    PREFIXED,
    STANDARD_AUTHORIZER,
    SUPPORTED,
    Acls,
    Operation,
    ResourceType,
    Rules,
)
from kjbod.metadata.records import AccessControlEntryRecord

DENY = 2
LITERAL = 3
ALICE = "User:alice"
CLUSTER, TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC
STRICT = Rules(class_name=STANDARD_AUTHORIZER)
OPEN = Rules(class_name=STANDARD_AUTHORIZER, allow_everyone=True)


def acl(
    operation: Operation,
    *,
    permission: int = ALLOW,
    resource: ResourceType = CLUSTER,
    name: str = CLUSTER_NAME,
    **changes: Any,
) -> AccessControlEntryRecord:
    fields = {"pattern_type": LITERAL, "principal": ALICE, "host": "*", **changes}
    return AccessControlEntryRecord(
        id=Uuid(bytes(15) + bytes([operation])),
        resource_type=resource,
        resource_name=name,
        operation=operation,
        permission_type=permission,
        **fields,
    )


def decide(rules: Rules, *entries: AccessControlEntryRecord, principal: str = ALICE, host: str = "10.0.0.1") -> Acls:
    return Acls(rules, entries, principal=principal, host=host)


def test_without_an_authorizer_everybody_may_do_everything() -> None:
    denied = acl(Operation.ALTER, permission=DENY)
    assert decide(Rules(), denied).allow(Operation.ALTER, CLUSTER)


def test_super_users_may_do_everything_and_others_with_a_similar_name_may_not() -> None:
    rules = Rules.of(STANDARD_AUTHORIZER, "User:admin; User:alice;", False)
    denied = acl(Operation.ALTER, permission=DENY)
    assert decide(rules, denied).allow(Operation.ALTER, CLUSTER)
    assert not decide(rules, denied, principal="User:alic").allow(Operation.ALTER, CLUSTER)


@pytest.mark.parametrize(("rules", "allowed"), [(STRICT, False), (OPEN, True)])
def test_a_resource_without_acls_is_open_only_where_the_configuration_says_so(rules: Rules, allowed: bool) -> None:
    other = acl(Operation.READ, resource=TOPIC, name="other")
    assert decide(rules, other).allow(Operation.ALTER, CLUSTER) is allowed
    assert decide(rules, other).allow(Operation.READ, TOPIC, "mine") is allowed


def test_a_resource_with_an_acl_for_somebody_else_is_closed_to_me() -> None:
    theirs = acl(Operation.ALTER, principal="User:bob")
    assert not decide(OPEN, theirs).allow(Operation.ALTER, CLUSTER)


def test_an_unknown_authorizer_class_opens_nothing_that_no_acl_opens() -> None:
    rules = Rules(class_name="com.example.Authorizer", allow_everyone=True)
    assert not decide(rules).allow(Operation.DESCRIBE, CLUSTER)
    assert decide(rules, acl(Operation.DESCRIBE)).allow(Operation.DESCRIBE, CLUSTER)


def test_deny_goes_before_allow_whatever_their_order() -> None:
    allowed, denied = acl(Operation.ALTER), acl(Operation.ALTER, permission=DENY, principal="User:*")
    assert not decide(OPEN, allowed, denied).allow(Operation.ALTER, CLUSTER)
    assert not decide(OPEN, denied, allowed).allow(Operation.ALTER, CLUSTER)


@pytest.mark.parametrize("operation", list(Operation)[1:])
def test_all_covers_each_operation_to_allow_and_to_deny(operation: Operation) -> None:
    assert decide(STRICT, acl(Operation.ALL)).allow(operation, CLUSTER)
    assert not decide(OPEN, acl(Operation.ALL, permission=DENY)).allow(operation, CLUSTER)


@pytest.mark.parametrize("given", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_who_may_change_may_describe_and_who_may_not_change_still_may(given: Operation) -> None:
    assert decide(STRICT, acl(given)).allow(Operation.DESCRIBE, CLUSTER)
    assert not decide(STRICT, acl(given)).allow(Operation.DESCRIBE_CONFIGS, CLUSTER)
    seen = decide(STRICT, acl(Operation.DESCRIBE), acl(given, permission=DENY))
    assert seen.allow(Operation.DESCRIBE, CLUSTER)


def test_who_may_change_configurations_may_describe_them() -> None:
    assert decide(STRICT, acl(Operation.ALTER_CONFIGS)).allow(Operation.DESCRIBE_CONFIGS, CLUSTER)
    assert not decide(STRICT, acl(Operation.DESCRIBE_CONFIGS)).allow(Operation.ALTER_CONFIGS, CLUSTER)
    assert not decide(STRICT, acl(Operation.CREATE)).allow(Operation.DESCRIBE, CLUSTER)


@pytest.mark.parametrize(
    ("pattern", "name", "covers"),
    [(LITERAL, "events", True), (LITERAL, "event", False), (LITERAL, "*", True), (PREFIXED, "eve", True),
     (PREFIXED, "events", True), (PREFIXED, "events-", False), (PREFIXED, "*", False)],
)  # fmt: skip
def test_names_are_literal_a_wildcard_or_a_prefix(pattern: int, name: str, covers: bool) -> None:
    entry = acl(Operation.READ, resource=TOPIC, name=name, pattern_type=pattern)
    assert decide(STRICT, entry).allow(Operation.READ, TOPIC, "events") is covers


@pytest.mark.parametrize(
    ("principal", "host", "covers"),
    [(ALICE, "*", True), ("User:*", "*", True), (ALICE, "10.0.0.1", True), (ALICE, "10.0.0.2", False),
     ("User:bob", "*", False), ("*", "*", False)],
)  # fmt: skip
def test_principal_and_host_are_the_same_or_a_wildcard(principal: str, host: str, covers: bool) -> None:
    assert (
        decide(STRICT, acl(Operation.ALTER, principal=principal, host=host)).allow(Operation.ALTER, CLUSTER) is covers
    )


def test_an_acl_of_another_resource_type_does_not_count() -> None:
    entry = acl(Operation.ALTER, resource=TOPIC, name=CLUSTER_NAME)
    assert not decide(STRICT, entry).allow(Operation.ALTER, CLUSTER)


def test_authorized_operations_are_a_bit_each() -> None:
    assert decide(Rules()).operations(TOPIC, "t") == sum(1 << each for each in SUPPORTED[TOPIC]) == 0b110111111000
    assert decide(STRICT, acl(Operation.DELETE, resource=TOPIC, name="t")).operations(TOPIC, "t") == (
        1 << Operation.DELETE | 1 << Operation.DESCRIBE
    )
    assert decide(STRICT).operations(CLUSTER) == 0
