"""Delegation tokens: ours and a real controller of 4.3.1 answer and write alike."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec import structs

from kjbod.clock import SystemClock
from kjbod.config.keys import LONG_MAX
from kjbod.metadata import versions
from kjbod.metadata.acls import STANDARD_AUTHORIZER, Operation, ResourceType
from kjbod.security.tokens import hmac_of
from kjbod.wire.admin_messages import (
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    CreateDelegationTokenRequestCreatableRenewers,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_response, encode_request
from kjbod.wire.messages import EnvelopeRequest, RequestBody
from kjbod.wire.principals import ForwardedPrincipal, encode_principal
from scripts.rig.kafka import RELEASE, KafkaKit
from scripts.rig.processes import Processes
from tests.controller.pair import Side
from tests.controller.random_requests import update
from tests.controller.test_acls import acl
from tests.controller.test_administration_kafka import LOCALHOST
from tests.controller.test_differential import both
from tests.depth import only_deep

SECRET = "a secret key ✓"
HOUR_MS = 3_600_000
"""Times are compared by it: a story takes less."""
SETTLED_S = 30.0

Ask: TypeAlias = Callable[["Told"], RequestBody[Any]]
"""Makes a request from the tokens of a side."""


@dataclasses.dataclass
class Told:
    """One controller, and the tokens that it made."""

    side: Side
    hmacs: list[bytes] = dataclasses.field(default_factory=list)
    """In their order."""

    async def ask(self, request: RequestBody[Any], who: str | None, *, by_token: bool = False, version: int) -> Any:
        """The answer, straight or, with a principal, in an Envelope."""
        if who is None:
            return await self.side.connection.request(request, timeout_ms=30_000, version=version)
        envelope = EnvelopeRequest(
            request_data=encode_request(request, version, 5, "client")[4:],
            request_principal=encode_principal(ForwardedPrincipal.of(who, token_authenticated=by_token)),
            client_host_address=LOCALHOST,
        )
        answer = await self.side.connection.request(envelope, timeout_ms=30_000)
        assert answer.error_code == 0 and answer.response_data is not None
        return decode_response(answer.response_data, request.API_KEY, version).message

    async def settle(self, number: int, code: int) -> None:
        """Wait until the controller knows of a token what its log says: Kafka's learns it from there, a little later.
        Asked by somebody who may change nothing."""
        request = RenewDelegationTokenRequest(hmac=self.hmacs[number], renew_period_ms=1)
        async with asyncio.timeout(SETTLED_S):
            while (await self.ask(request, "User:nobody", version=2)).error_code != code:
                pass

    def plain(self, value: Any, now_ms: int) -> dict[str, Any]:
        """An answer or a record without what is by chance: times by hours from now, tokens by their numbers."""
        found: dict[str, Any] = {"type": type(value).__name__}
        for field in structs.fields(value):
            inner = getattr(value, field.name)
            if field.name.endswith("timestamp") and inner not in (-1, 0, LONG_MAX):
                inner = f"in {round((inner - now_ms) / HOUR_MS)} h"
            elif field.name == "token_id" and inner:
                inner = f"token {self.hmacs.index(hmac_of(inner, SECRET))}"
            elif field.name == "hmac" and inner:
                inner = inner == hmac_of(value.token_id, SECRET)
            found[field.name] = inner
        return found


@dataclasses.dataclass(frozen=True)
class Step:
    """A request that both get.

    Attributes:
        ask: makes it.
        who: for whom a broker forwards it; None: nobody does.
        by_token: whether that one has shown a token.
        version: of the request.
        then: number of a token, and what a stranger who renews it is told behind the answer.
    """

    ask: Ask
    who: str | None = "User:alice"
    by_token: bool = False
    version: int = 2
    then: tuple[int, int] | None = None

    async def of(self, told: Told) -> tuple[Any, list[Any]]:
        """The answer, and the records that it brought."""
        now_ms = SystemClock().wall_ms()
        answer = await told.ask(self.ask(told), self.who, by_token=self.by_token, version=self.version)
        if getattr(answer, "token_id", ""):
            told.hmacs.append(answer.hmac)
        found = [told.plain(record, now_ms) for record, _, _ in await told.side._read_fresh()]
        if self.then is not None:
            await told.settle(*self.then)
        return told.plain(answer, now_ms), found


def create(*, who: str | None = "User:alice", by_token: bool = False, version: int = 3, **fields: Any) -> Step:
    request = CreateDelegationTokenRequest(**{"max_lifetime_ms": -1} | fields)
    return Step(lambda _: request, who, by_token, version)


def renew(token: int | bytes, period_ms: int = -1, **fields: Any) -> Step:
    return Step(lambda told: RenewDelegationTokenRequest(hmac=_hmac(told, token), renew_period_ms=period_ms), **fields)


def expire(token: int | bytes, period_ms: int = -1, **fields: Any) -> Step:
    return Step(
        lambda told: ExpireDelegationTokenRequest(hmac=_hmac(told, token), expiry_time_period_ms=period_ms), **fields
    )


def _hmac(told: Told, token: int | bytes) -> bytes:
    return token if isinstance(token, bytes) else told.hmacs[token]


def renewers(*principals: str) -> tuple[CreateDelegationTokenRequestCreatableRenewers, ...]:
    parts = (principal.partition(":") for principal in principals)
    return tuple(
        CreateDelegationTokenRequestCreatableRenewers(principal_type=kind, principal_name=name)
        for kind, _, name in parts
    )


def owner(kind: str | None, name: str | None) -> dict[str, Any]:
    return {"owner_principal_type": kind, "owner_principal_name": name}


KNOWN, UNKNOWN = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, ErrorCode.DELEGATION_TOKEN_NOT_FOUND
EXPIRED = ErrorCode.DELEGATION_TOKEN_EXPIRED
TOO_EARLY = (create(), create(version=1), renew(b"x"), expire(b"x"), create(who=None))
CREATED = (
    create(renewers=renewers("User:bob", "User:carol", "User:bob")),  # token 0
    create(version=1),
    create(version=2, max_lifetime_ms=5 * HOUR_MS),
    create(max_lifetime_ms=0),
    create(max_lifetime_ms=48 * HOUR_MS),
    create(max_lifetime_ms=LONG_MAX),
    create(max_lifetime_ms=-(2**63)),
    create(**owner("User", "alice")),
    create(**owner("User", "")),
    create(**owner(None, None)),
    create(**owner("User", "bob")),
    create(**owner("User", "dave")),
    create(**owner("Group", "bob")),
    create(**owner("", "bob")),
    create(**owner(None, "bob")),
    create(renewers=renewers("User:bob", "Group:staff")),
    create(renewers=renewers("user:bob")),
    create(renewers=renewers("User:")),
    create(who="User:ANONYMOUS"),
    create(who="User:a:b=c,d"),
    create(who=None),
    create(by_token=True),
    create(by_token=True, **owner("User", "dave")),
)
CHANGED = (
    renew(0, then=(0, KNOWN)),
    renew(0, who="User:bob"),
    renew(0, who="User:dave"),
    renew(0, 3 * HOUR_MS),
    renew(0, 0),
    renew(0, -(2**63)),
    renew(0, LONG_MAX),
    renew(0, version=1),
    renew(0, by_token=True),
    renew(0, who=None),
    renew(b""),
    renew(b"unknown"),
    renew(2, then=(2, KNOWN)),
    renew(4, LONG_MAX),
    expire(0, 7 * HOUR_MS),
    expire(0, LONG_MAX),
    expire(0, 8 * HOUR_MS, who="User:carol"),
    expire(0, 7 * HOUR_MS, who="User:dave"),
    expire(0, by_token=True),
    expire(0, who=None),
    expire(b""),
    expire(0, 0, then=(0, EXPIRED)),
    renew(0),
    renew(0, who="User:dave"),
    expire(0, 5),
    expire(0, 5, who="User:dave"),
    expire(0, version=1, then=(0, UNKNOWN)),
    renew(0),
    expire(0),
    expire(2, -(2**63), then=(2, UNKNOWN)),
)


async def tell(pair: Iterable[Told], steps: Iterable[Step]) -> list[str]:
    """What differs."""
    real, ours = pair
    found = []
    for number, step in enumerate(steps):
        kafkas, kjbods = await step.of(real), await step.of(ours)
        if kafkas != kjbods:
            found.append(f"{number}: {step.ask(ours)}\n  4.3.1: {kafkas}\n  ours:  {kjbods}")
    return found


@pytest.mark.usefixtures("newest_kit")
async def test_tokens_are_made_renewed_and_ended_as_by_kafka(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    extra = (
        f"delegation.token.secret.key={SECRET}\nauthorizer.class.name={STANDARD_AUTHORIZER}\n"
        "super.users=User:ANONYMOUS\n"
    ).replace("✓", "\\u2713")
    early = versions.DELEGATION_TOKENS - 1
    bobs = acl(Operation.CREATE_TOKENS, ResourceType.USER, "User:bob", principal="User:alice")
    async with both(newest_kit, processes, tmp_path / "tokens", level=early, extra=extra) as pair:
        sides = [Told(pair.real), Told(pair.ours)]
        found = await tell(sides, TOO_EARLY)
        upgraded = update((versions.METADATA_VERSION, versions.release_level(RELEASE), 1))
        for name, make in (("upgrade", upgraded), ("allow", lambda _: CreateAclsRequest(creations=(bobs,)))):
            assert await pair.step(name, make) is None, name
        found += await tell(sides, (*CREATED, *CHANGED))
        images = [told.side.view.image.delegation_tokens for told in sides]
    assert not found, "\n".join(found)
    assert len(images[0]) == len(images[1]) == len(sides[0].hmacs) - 2 > 10


@pytest.mark.usefixtures("newest_kit")
@only_deep("another pair of controllers")
async def test_expired_tokens_are_removed_as_by_kafka(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    extra = f"delegation.token.secret.key={SECRET}\ndelegation.token.expiry.check.interval.ms=500\n"
    written: list[list[Any]] = []
    async with both(newest_kit, processes, tmp_path / "expired", extra=extra.replace("✓", "\\u2713")) as pair:
        for side in (pair.real, pair.ours):
            told = Told(side)
            for step in (create(), create(max_lifetime_ms=1)):
                await step.of(told)
            found: list[Any] = []
            async with asyncio.timeout(SETTLED_S):
                while not found:
                    found = [told.plain(record, 0) for record, _, _ in await side._read_fresh()]
            written.append(found)
    assert written[0] == written[1] == [{"type": "RemoveDelegationTokenRecord", "token_id": "token 1"}]
