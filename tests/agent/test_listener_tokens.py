"""Delegation tokens at an agent's listener: whom it forwards, and whose tokens it lists."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.config import load_config
from kjbod.config.keys import Config
from kjbod.metadata.acls import ALLOW, LITERAL, STANDARD_AUTHORIZER, Operation, ResourceType
from kjbod.metadata.records import AccessControlEntryRecord, DelegationTokenRecord
from kjbod.security.tokens import hmac_of
from kjbod.wire.admin_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenRequestOwner,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request
from kjbod.wire.messages import API, CreateTopicsRequest, CreateTopicsRequestTopic, RequestBody
from kjbod.wire.server import Peer
from kjbod_agent.admin.answers import Self
from scripts.rig.kafka import broker_properties
from scripts.rig.processes import free_port
from tests.agent.test_listener import CLUSTER_ID, EVENTS, FakeAgent

SECRET = "the secret"
ALL: dict[str, Any] = {"owners": None}
FORWARDED: tuple[RequestBody[Any], ...] = (
    CreateDelegationTokenRequest(max_lifetime_ms=-1),
    RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1),
    ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1),
)
Made = Callable[..., FakeAgent]


def token(number: int, owner: str, requester: str = "", renewers: tuple[str, ...] = ()) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=owner,
        requester=requester or owner,
        renewers=renewers,
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=2,
        token_id=f"t{number}",
    )


TOKENS = (
    token(0, "User:alice"),
    token(1, "User:bob", renewers=("User:alice", "User:carol")),
    token(2, "User:bob", requester="User:alice"),
    token(3, "User:bob"),
    token(4, "Group:alice"),
)


@pytest.fixture
def agent(tmp_path: Path) -> Made:
    def make(*acls: AccessControlEntryRecord, secret: str = SECRET, **lines: str) -> FakeAgent:
        path = tmp_path / "server.properties"
        more = {"delegation.token.secret.key": secret, "authorizer.class.name": STANDARD_AUTHORIZER} | lines
        text = broker_properties(1, free_port(), free_port(), [tmp_path / "d1"])
        path.write_text(text + "".join(f"{name}={value}\n" for name, value in more.items()))
        config: Config = load_config(path)
        made = FakeAgent(config, *acls)
        made.image.delegation_tokens.update({each.token_id: each for each in TOKENS})
        return made

    return make


async def answer(
    agent: FakeAgent, message: RequestBody[Any], who: str = "User:alice", *, by_token: bool = False
) -> Any:
    """What somebody is told whom a listener with SASL or TLS knows."""
    request = Request(message.API_KEY, API[message.API_KEY].max_version, 1, "c", message)
    async with agent.serving() as listeners:
        me = Self(node_id=1, cluster_id=CLUSTER_ID, listener="PLAINTEXT")
        return await listeners.answer(request, Peer("127.0.0.1", 1, who, by_token), me)


async def listed(agent: FakeAgent, who: str = "User:alice", **fields: Any) -> list[str]:
    found = await answer(agent, DescribeDelegationTokenRequest(**(ALL | fields)), who)
    assert found.error_code == 0
    return [each.token_id for each in found.tokens]


def owners(*principals: str) -> dict[str, Any]:
    parts = (principal.partition(":") for principal in principals)
    return {
        "owners": tuple(
            DescribeDelegationTokenRequestOwner(principal_type=kind, principal_name=name) for kind, _, name in parts
        )
    }


def allow(operation: Operation, kind: ResourceType, name: str) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=EVENTS,
        resource_type=kind,
        resource_name=name,
        pattern_type=LITERAL,
        principal="User:dave",
        host="*",
        operation=operation,
        permission_type=ALLOW,
    )


@pytest.mark.parametrize("request_", FORWARDED)
async def test_a_client_that_is_known_has_its_tokens_made_by_the_controller(
    agent: Made, request_: RequestBody[Any]
) -> None:
    made = agent()
    refused: Any = API[request_.API_KEY].response
    made.controller.answers = [refused(error_code=62)]
    assert (await answer(made, request_)).error_code == 62
    assert made.controller.senders == [("User:alice", "127.0.0.1")]
    assert made.controller.asked[0].message == request_


@pytest.mark.parametrize("request_", [*FORWARDED, DescribeDelegationTokenRequest(**ALL)])
@pytest.mark.parametrize(("who", "by_token"), [("User:ANONYMOUS", False), ("User:alice", True)])
async def test_nobody_without_a_name_or_by_a_token_is_told_anything(
    agent: Made, request_: RequestBody[Any], who: str, by_token: bool
) -> None:
    made = agent()
    told = await answer(made, request_, who, by_token=by_token)
    assert told.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert not made.controller.asked


async def test_a_token_for_somebody_else_needs_the_right_before_it_is_forwarded(agent: Made) -> None:
    made = agent(allow(Operation.CREATE_TOKENS, ResourceType.USER, "User:bob"))
    request = CreateDelegationTokenRequest(max_lifetime_ms=-1, owner_principal_type="User", owner_principal_name="bob")
    told = await answer(made, request)
    assert isinstance(told, CreateDelegationTokenResponse)
    assert (told.error_code, told.principal_name) == (ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "bob")
    assert not made.controller.asked
    assert (await answer(made, request, "User:dave")).error_code == 0
    assert len(made.controller.asked) == 1


@pytest.mark.parametrize("by_token", [True, False])
async def test_a_client_that_came_by_a_token_is_forwarded_as_one(agent: Made, by_token: bool) -> None:
    made = agent(**{"super.users": "User:alice"})
    request = CreateTopicsRequest(topics=(CreateTopicsRequestTopic(name="t"),), timeout_ms=1)
    await answer(made, request, by_token=by_token)
    assert made.controller.by_token == [by_token]


async def test_everybody_sees_the_tokens_that_concern_it(agent: Made) -> None:
    made = agent()
    assert await listed(made) == ["t0", "t1", "t2"]
    assert await listed(made, "User:bob") == ["t1", "t2", "t3"]
    assert await listed(made, "User:carol") == ["t1"]
    assert await listed(made, "User:dave") == []
    assert await listed(made, **owners("User:bob")) == ["t1", "t2"]
    assert await listed(made, **owners("User:carol", "User:nobody")) == ["t1"]
    assert await listed(made, **owners()) == []


async def test_rights_to_a_token_and_to_those_of_a_user_show_them(agent: Made) -> None:
    assert await listed(agent(allow(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "t3")), "User:dave") == ["t3"]
    of_bob = agent(allow(Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob"))
    assert await listed(of_bob, "User:dave") == ["t1", "t2", "t3"]
    everybody = agent(**{"super.users": "User:root"})
    assert await listed(everybody, "User:root") == ["t0", "t1", "t2", "t3", "t4"]


async def test_a_token_is_listed_with_its_hmac_and_all_that_it_has(agent: Made) -> None:
    found = await answer(agent(), DescribeDelegationTokenRequest(**ALL), "User:carol")
    (only,) = found.tokens
    assert only.hmac == hmac_of("t1", SECRET)
    assert (only.principal_type, only.principal_name, only.token_requester_principal_name) == ("User", "bob", "bob")
    assert [each.principal_name for each in only.renewers] == ["alice", "carol"]
    assert (only.issue_timestamp, only.expiry_timestamp, only.max_timestamp) == (1, 2, 3)


async def test_without_a_secret_key_no_tokens_are_listed(agent: Made) -> None:
    found = await answer(agent(secret=""), DescribeDelegationTokenRequest(**ALL))
    assert (found.error_code, found.tokens) == (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, ())
