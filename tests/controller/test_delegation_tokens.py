"""Delegation tokens on the controller: who gets one, for how long, who may renew and end it, and what none may cost."""

import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.config.keys import LONG_MAX
from kjbod.metadata import versions
from kjbod.metadata.acls import ALLOW, LITERAL, STANDARD_AUTHORIZER, Operation, ResourceType
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    encode_record,
)
from kjbod.security.credentials import MetadataCredentials
from kjbod.security.tokens import hmac_of, password_of
from kjbod.wire.admin_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenRequestCreatableRenewers,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.access import tokens
from kjbod_controller_stub.access.tokens import TokenSettings
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.results import Result
from tests.controller.world import World

SECRET = "the secret"
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
LONGS = st.integers(-(2**63), LONG_MAX)


def world_of(**fields: Any) -> World:
    return World(**{"tokens": TokenSettings(secret_key=SECRET)} | fields)


def asking(name: str = "alice", **fields: Any) -> Context:
    """A client that a broker forwards for."""
    return Context(3, f"User:{name}", **{"forwarded": True} | fields)


def renewers(*names: str, kind: str = "User") -> tuple[CreateDelegationTokenRequestCreatableRenewers, ...]:
    return tuple(
        CreateDelegationTokenRequestCreatableRenewers(principal_type=kind, principal_name=name) for name in names
    )


def create(world: World, context: Context | None = None, **fields: Any) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(**{"max_lifetime_ms": -1} | fields)
    return world.ask(request, context=context or asking())


def renew(world: World, token: bytes, period_ms: int = -1, context: Context | None = None) -> tuple[int, int]:
    request = RenewDelegationTokenRequest(hmac=token, renew_period_ms=period_ms)
    answer = world.ask(request, context=context or asking())
    return answer.error_code, answer.expiry_timestamp


def expire(world: World, token: bytes, period_ms: int = -1, context: Context | None = None) -> tuple[int, int]:
    request = ExpireDelegationTokenRequest(hmac=token, expiry_time_period_ms=period_ms)
    answer = world.ask(request, context=context or asking())
    return answer.error_code, answer.expiry_timestamp


def all_three(world: World, context: Context, token: bytes = b"x") -> list[tuple[int, int]]:
    made = create(world, context)
    return [(made.error_code, made.expiry_timestamp), renew(world, token, 1, context), expire(world, token, 1, context)]


def test_a_token_is_its_id_and_the_hmac_that_is_in_no_record() -> None:
    world = world_of()
    answer = create(world, renewers=renewers("bob", "carol"))
    now_ms = world.now_ms
    assert world.last == [
        DelegationTokenRecord(
            owner="User:alice",
            requester="User:alice",
            renewers=("User:bob", "User:carol"),
            issue_timestamp=now_ms,
            max_timestamp=now_ms + WEEK_MS,
            expiration_timestamp=now_ms + DAY_MS,
            token_id=answer.token_id,
        )
    ]
    assert answer == CreateDelegationTokenResponse(
        principal_type="User",
        principal_name="alice",
        token_requester_principal_type="User",
        token_requester_principal_name="alice",
        issue_timestamp=now_ms,
        expiry_timestamp=now_ms + DAY_MS,
        max_timestamp=now_ms + WEEK_MS,
        token_id=answer.token_id,
        hmac=hmac.new(SECRET.encode(), answer.token_id.encode(), hashlib.sha512).digest(),
    )
    assert answer.hmac not in encode_record(world.last[0], 0)
    assert create(world).token_id != answer.token_id


@pytest.mark.parametrize(("secret", "key"), [("s", b"s"), ("geheim ✓", "geheim ✓".encode()), ("\ud800", b"?")])
def test_the_secret_key_is_its_utf8_as_in_java(secret: str, key: bytes) -> None:
    assert hmac_of("an id", secret) == hmac.new(key, b"an id", hashlib.sha512).digest()
    assert base64.b64decode(password_of("an id", secret)) == hmac_of("an id", secret)


@pytest.mark.parametrize(
    ("asked_ms", "expires_ms", "max_ms"),
    [
        (-1, DAY_MS, WEEK_MS),
        (0, DAY_MS, WEEK_MS),
        (-(2**63), DAY_MS, WEEK_MS),
        (1, 1, 1),
        (DAY_MS + 5, DAY_MS, DAY_MS + 5),
        (LONG_MAX, DAY_MS, WEEK_MS),
    ],
)
def test_a_lifetime_is_at_most_what_is_configured(asked_ms: int, expires_ms: int, max_ms: int) -> None:
    answer = create(world_of(), max_lifetime_ms=asked_ms)
    assert (answer.expiry_timestamp - answer.issue_timestamp, answer.max_timestamp - answer.issue_timestamp) == (
        expires_ms,
        max_ms,
    )


def test_a_lifetime_beyond_all_times_ends_with_them() -> None:
    forever = TokenSettings(secret_key=SECRET, max_lifetime_ms=LONG_MAX, expiry_time_ms=LONG_MAX)
    world = world_of(tokens=forever)
    token = create(world, max_lifetime_ms=LONG_MAX)
    assert (token.expiry_timestamp, token.max_timestamp) == (LONG_MAX, LONG_MAX)
    assert renew(world, token.hmac, LONG_MAX) == (0, LONG_MAX)
    assert expire(world, token.hmac, LONG_MAX) == (0, LONG_MAX)


def test_without_a_secret_key_there_are_no_tokens() -> None:
    world = World()
    assert all_three(world, asking()) == [(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0)] * 3
    assert not world.last
    told = create(world)
    assert (told.principal_type, told.principal_name, told.token_requester_principal_name) == ("User", "alice", "alice")


def test_there_are_no_tokens_before_the_metadata_version_that_has_them() -> None:
    world = world_of(metadata_version=versions.DELEGATION_TOKENS - 1)
    assert all_three(world, asking()) == [(ErrorCode.UNSUPPORTED_VERSION, 0)] * 3
    assert create(world_of(metadata_version=versions.DELEGATION_TOKENS)).error_code == 0


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize(
    "context",
    [Context(3), asking(token_authenticated=True), asking(token_authenticated=True, forwarded=False)],
)
def test_who_has_no_name_and_who_came_by_a_token_gets_no_token(context: Context, secret: str | None) -> None:
    world = world_of(tokens=TokenSettings(secret_key=secret))
    assert all_three(world, context) == [(NOT_ALLOWED, -1)] * 3
    assert not world.last


@pytest.mark.parametrize("context", [asking(forwarded=False), Context(3, forwarded=True)])
def test_who_has_a_name_may_come_straight_and_a_broker_speaks_for_anybody(context: Context) -> None:
    assert create(world_of(), context).error_code == 0


# ---------------------------------------------------------------- for somebody else


def may_create(principal: str, owner: str) -> AccessControlEntryRecord:
    world = world_of()
    return AccessControlEntryRecord(
        id=world.controller._draw_id(),
        resource_type=ResourceType.USER,
        resource_name=owner,
        pattern_type=LITERAL,
        principal=principal,
        host="*",
        operation=Operation.CREATE_TOKENS,
        permission_type=ALLOW,
    )


def test_a_token_for_somebody_else_needs_the_right_to_create_tokens_of_that_user() -> None:
    world = world_of(acl_rules=AclRules(class_name=STANDARD_AUTHORIZER))
    of_bob: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    refused = create(world, **of_bob)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.expiry_timestamp) == ("bob", -1)
    assert not world.last
    assert create(world).error_code == 0  # of oneself

    world.write(Result(records=(may_create("User:alice", "User:bob"),)))
    made = create(world, **of_bob)
    (record,) = world.last
    assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
    assert isinstance(record, DelegationTokenRecord)
    assert (record.owner, record.requester) == ("User:bob", "User:alice")
    assert create(world, owner_principal_type="User", owner_principal_name="carol").error_code == 65
    assert renew(world, made.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)  # who asked is not who has it
    assert renew(world, made.hmac, context=asking("bob"))[0] == 0


def test_an_owner_without_a_type_is_refused_as_by_kafka() -> None:
    world = world_of()
    refused = create(world, owner_principal_type=None, owner_principal_name="bob")
    assert (refused.error_code, refused.principal_name) == (ErrorCode.UNKNOWN_SERVER_ERROR, "ANONYMOUS")
    assert create(world, owner_principal_type=None, owner_principal_name=None).principal_name == "alice"


def test_renewers_are_users() -> None:
    world = world_of()
    refused = create(world, renewers=(*renewers("bob"), *renewers("staff", kind="Group")))
    assert (refused.error_code, refused.expiry_timestamp) == (ErrorCode.INVALID_PRINCIPAL_TYPE, 0)
    assert not world.last


# ---------------------------------------------------------------- renew and expire


def test_the_owner_and_the_renewers_may_renew_and_nobody_else() -> None:
    world = world_of()
    token = create(world, renewers=renewers("bob"))
    world.tick(1_000)
    for name in ("alice", "bob"):
        assert renew(world, token.hmac, context=asking(name)) == (0, world.now_ms + DAY_MS)
        (record,) = world.last
        assert record == world.controller.image.delegation_tokens[token.token_id]
    assert renew(world, token.hmac, context=asking("carol")) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert expire(world, token.hmac, context=asking("carol")) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert not world.last


@pytest.mark.parametrize(
    ("period_ms", "expires_ms"),
    [(-1, DAY_MS), (0, DAY_MS), (5_000, 5_000), (LONG_MAX, DAY_MS), (-(2**63), DAY_MS)],
)
def test_a_renewed_token_expires_at_most_a_configured_time_later(period_ms: int, expires_ms: int) -> None:
    world = world_of()
    token = create(world)
    assert renew(world, token.hmac, period_ms) == (0, world.now_ms + expires_ms)


def test_a_token_is_not_renewed_beyond_its_lifetime() -> None:
    world = world_of()
    token = create(world, max_lifetime_ms=10_000)
    world.now_ms += 9_000
    assert renew(world, token.hmac) == (0, token.max_timestamp)
    assert expire(world, token.hmac, DAY_MS) == (0, token.max_timestamp)


def test_a_token_that_has_expired_is_not_renewed_and_can_be_ended() -> None:
    world = world_of()
    token = create(world, max_lifetime_ms=10_000)
    world.now_ms += 10_000
    assert renew(world, token.hmac)[0] == 0  # in its last millisecond
    world.now_ms += 1
    assert renew(world, token.hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert expire(world, token.hmac, 5) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert renew(world, token.hmac, context=asking("carol"))[0] == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(world, token.hmac, 5, asking("carol"))[0] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert expire(world, token.hmac) == (0, world.now_ms)


def test_a_negative_period_ends_a_token_at_once_and_any_other_one_later() -> None:
    world = world_of()
    token = create(world)
    assert expire(world, token.hmac, 0) == (0, world.now_ms)
    assert expire(world, token.hmac, 7_000) == (0, world.now_ms + 7_000)
    assert expire(world, token.hmac, -5) == (0, world.now_ms)
    assert world.last == [RemoveDelegationTokenRecord(token_id=token.token_id)]
    assert renew(world, token.hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert expire(world, token.hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)


@pytest.mark.parametrize("wrong", [b"", b"x", bytes(64), bytes(100_000)])
def test_a_token_is_found_by_its_hmac_alone(wrong: bytes) -> None:
    world = world_of()
    token = create(world)
    for bad in (wrong, token.token_id.encode(), token.hmac[:-1], token.hmac + b"\0"):
        assert renew(world, bad) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
        assert expire(world, bad) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)


@given(st.lists(st.tuples(st.sampled_from("cre"), LONGS, LONGS.map(abs)), max_size=8))
def test_no_times_that_a_client_sends_or_that_pass_break_a_record(steps: list[tuple[str, int, int]]) -> None:
    world = world_of()
    token = create(world).hmac
    for what, number, passes_ms in steps:
        world.now_ms += passes_ms % WEEK_MS
        if what == "c":
            token = create(world, max_lifetime_ms=number).hmac
        elif what == "r":
            renew(world, token, number)
        else:
            expire(world, token, number)
        for each in world.controller.image.delegation_tokens.values():
            assert each.issue_timestamp <= each.max_timestamp and each.expiration_timestamp <= each.max_timestamp
    assert world.replayed().image.delegation_tokens == world.controller.image.delegation_tokens


# ---------------------------------------------------------------- removal, restart


def test_expired_tokens_are_removed_when_it_is_time_to_look() -> None:
    world = world_of(tokens=TokenSettings(secret_key=SECRET, check_interval_ms=60_000))
    world.controller.activate(world.now_ms)
    short, long = create(world, max_lifetime_ms=10_000), create(world)
    world.tick(59_999)
    assert len(world.controller.image.delegation_tokens) == 2
    world.tick(1)
    assert world.last == [RemoveDelegationTokenRecord(token_id=short.token_id)]
    assert list(world.controller.image.delegation_tokens) == [long.token_id]


def test_many_expired_tokens_are_removed_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "REMOVED_AT_ONCE_MAX", 3)
    world = world_of(tokens=TokenSettings(secret_key=SECRET, check_interval_ms=60_000))
    world.controller.activate(world.now_ms)
    for _ in range(7):
        create(world, max_lifetime_ms=10_000)
    results = []
    world.now_ms += 60_000
    while (result := world.controller.run_timers(world.now_ms)) is not None:
        results.append(len(result.records))
        assert result.notes[0].fields == {"count": len(result.records)}
        world.write(result)
    assert results == [3, 3, 1]


def test_a_restarted_controller_knows_its_tokens() -> None:
    world = world_of()
    kept, ended = create(world), create(world)
    renew(world, kept.hmac, 5_000)
    expire(world, ended.hmac)
    world.controller = world.replayed()
    assert renew(world, kept.hmac)[0] == 0
    assert expire(world, ended.hmac)[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_with_another_secret_key_the_tokens_of_the_old_one_are_unknown() -> None:
    world = world_of()
    token = create(world)
    world.tokens = TokenSettings(secret_key="another")
    world.controller = world.replayed()
    assert renew(world, token.hmac)[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert renew(world, hmac_of(token.token_id, "another"))[0] == 0


# ---------------------------------------------------------------- limits


def test_a_token_has_a_thousand_renewers_at_most() -> None:
    world = world_of()
    names = [str(number) for number in range(tokens.RENEWERS_MAX + 1)]
    assert create(world, renewers=renewers(*names)).error_code == ErrorCode.POLICY_VIOLATION
    assert not world.last
    assert create(world, renewers=renewers(*names[1:])).error_code == 0


def test_one_principal_has_asked_for_a_number_of_tokens_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_OF_ONE_MAX", 2)
    world = world_of()
    first, second = create(world), create(world, owner_principal_type="User", owner_principal_name="bob")
    renew(world, first.hmac)
    assert second.error_code == 0
    for controller in (world.controller, world.replayed()):
        world.controller = controller
        assert create(world).error_code == ErrorCode.POLICY_VIOLATION
        assert not world.last
    assert create(world, asking("bob")).error_code == 0
    expire(world, first.hmac)
    assert create(world).error_code == 0


def test_a_cluster_has_a_number_of_tokens_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 2)
    world = world_of()
    create(world, asking("a"))
    create(world, asking("b"))
    assert create(world, asking("c")).error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("character", ["x", "ä"])
def test_no_principal_is_too_long_for_a_record_that_kafka_reads(character: str) -> None:
    world = world_of()
    room = (tokens.PRINCIPAL_BYTES_MAX - len("User:")) // len(character.encode())
    fits, too_long = character * room, character * (room + 1)
    for fields in (
        {"owner_principal_type": "User", "owner_principal_name": too_long},
        {"renewers": renewers(too_long)},
    ):
        assert create(world, **fields).error_code == ErrorCode.INVALID_REQUEST
        assert not world.last
    assert create(world, asking(too_long)).error_code == ErrorCode.INVALID_REQUEST
    assert create(world, asking(fits), renewers=renewers(fits)).error_code == 0


def test_the_secret_key_is_not_shown() -> None:
    world = world_of()
    create(world)
    assert SECRET not in repr(world.controller.settings)


# ---------------------------------------------------------------- as a login


def credentials(controller: Controller, secret: str | None = SECRET) -> MetadataCredentials:
    return MetadataCredentials(lambda: controller.image, secret)


def test_a_token_is_a_login_of_its_owner_while_it_is_in_the_metadata() -> None:
    world = world_of()
    token = create(world, owner_principal_type="User", owner_principal_name="b:ob")
    known = credentials(world.controller).of_token(token.token_id)
    assert known is not None
    assert (known.owner, known.expires_ms) == ("b:ob", token.expiry_timestamp)
    assert known.password == base64.b64encode(token.hmac).decode()
    assert known.password not in repr(known)
    assert credentials(world.controller, None).of_token(token.token_id) is None
    assert credentials(world.controller).of_token("another") is None
    assert credentials(world.controller).of_user("SCRAM-SHA-256", token.token_id) is None
    expire(world, token.hmac, context=asking("b:ob"))
    assert credentials(world.controller).of_token(token.token_id) is None
