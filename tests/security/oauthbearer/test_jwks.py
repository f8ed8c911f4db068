"""The keys of a listener, from a real endpoint or a file: read at the start, again in time and for a key that is not
there, without letting strangers have the endpoint flooded; nobody is let in without any."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.security.oauthbearer.exchange import Invalid, Verified
from kjbod.security.oauthbearer.jwks import MISSING_FOR_MS, Validator
from kjbod.security.oauthbearer.keys import Endpoint, ValidatorSettings
from scripts.rig.identity_provider import AUDIENCE, ISSUER, IdentityProvider, key_set, signing_key
from tests.wire.conftest import until


class Later(SystemClock):
    """The machine's clocks, of which the monotonic one may be put forward."""

    ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


def validator(provider: IdentityProvider, clock: Later | None = None, **changes: Any) -> Validator:
    endpoint = Endpoint("s: url", provider.keys_url, backoff_ms=1, backoff_max_ms=changes.pop("backoff_max_ms", 3))
    settings = ValidatorSettings(endpoint, audiences=(AUDIENCE,), issuer=ISSUER)
    return Validator(structs.replace(settings, **changes), clock)


async def verdict(listener: Validator, token: str) -> str:
    await listener.ready()
    try:
        return listener.verify(token).user
    except Invalid as error:
        return f"refused: {error}"


async def test_keys_are_asked_for_at_the_start_and_not_for_each_login(provider: IdentityProvider) -> None:
    listener = validator(provider)
    listener.load()
    assert [await verdict(listener, provider.token("alice")) for _ in range(3)] == ["alice"] * 3
    assert [path for path, *_ in provider.asked] == ["/keys"]


async def test_keys_that_are_old_are_read_again(provider: IdentityProvider) -> None:
    clock = Later()
    listener = validator(provider, clock, refresh_ms=60_000)
    before = provider.token("alice")
    assert await verdict(listener, before) == "alice"
    provider.key = signing_key()
    assert await verdict(listener, before) == "alice"
    clock.ahead_ms = 60_000
    await verdict(listener, before)
    await until(lambda: _user(listener, before) is None)
    assert await verdict(listener, provider.token("alice")) == "alice"
    assert len(provider.asked) == 2


async def test_keys_that_are_old_serve_on_while_the_endpoint_hangs(provider: IdentityProvider) -> None:
    clock = Later()
    listener = validator(provider, clock, refresh_ms=60_000)
    assert await verdict(listener, provider.token("alice")) == "alice"
    clock.ahead_ms = 60_000
    provider.gate.clear()
    try:
        assert await verdict(listener, provider.token("alice")) == "alice"
    finally:
        provider.gate.set()


async def test_a_key_that_is_not_there_is_looked_for_once_and_then_the_next_login_is_let_in(
    provider: IdentityProvider,
) -> None:
    clock = Later()
    listener = validator(provider, clock)
    assert await verdict(listener, provider.token()) == "kafka"
    clock.ahead_ms += 1_000
    provider.key = signing_key("second")
    token = provider.token("bob")
    assert "no key for ES256" in await verdict(listener, token)
    await until(lambda: len(provider.asked) == 2)
    await until(lambda: _user(listener, token) == "bob")


def _user(listener: Validator, token: str) -> str | None:
    try:
        found: Verified | None = listener.verify(token)
    except Invalid:
        found = None
    return None if found is None else found.user


async def answered(provider: IdentityProvider, listener: Any, times: int) -> None:
    """The endpoint was asked so often, and the last answer has come: while one is under way nobody asks anew."""
    await until(lambda: len(provider.asked) == times)
    await until(lambda: listener._under_way is not None and listener._under_way.done())


async def test_strangers_cannot_have_the_endpoint_asked_again_and_again(provider: IdentityProvider) -> None:
    clock = Later()
    listener = validator(provider, clock)
    await verdict(listener, provider.token())
    clock.ahead_ms += 1_000
    mine, provider.key = provider.key, signing_key("nobody")
    unknown = provider.token()
    provider.key = mine
    for number in range(100):
        provider.key = signing_key(f"nobody-{number}")
        _user(listener, provider.token())
    provider.key = mine
    await answered(provider, listener, 2)
    clock.ahead_ms += 1_000
    _user(listener, unknown)
    await answered(provider, listener, 3)
    clock.ahead_ms += MISSING_FOR_MS - 10_000
    _user(listener, unknown)
    assert await verdict(listener, provider.token()) == "kafka"
    assert len(provider.asked) == 3


async def test_nobody_is_let_in_while_there_are_no_keys_and_that_is_said_once(provider: IdentityProvider) -> None:
    clock = Later()
    listener = validator(provider, clock, backoff_max_ms=20)
    token = provider.token()
    provider.answers.extend([(503, b"")] * 100)
    with capture_logs() as lines:
        listener.load()
        for _ in range(3):
            refused = await verdict(listener, token)
            assert refused == f"refused: there are no keys yet: the key set {provider.keys_url} answers HTTP 503"
        provider.answers.clear()
        clock.ahead_ms += 1_000
        assert await verdict(listener, token) == "kafka"
    lines = [line for line in lines if provider.keys_url in str(line)]  # not those of a listener of a test before
    assert [line["event"] for line in lines] == ["security.keys.not.read", "security.keys.read"]
    assert lines[0]["reason"] == f"the key set {provider.keys_url} answers HTTP 503"


async def test_keys_from_before_go_on_to_serve_while_there_are_no_new_ones(provider: IdentityProvider) -> None:
    clock = Later()
    listener = validator(provider, clock, refresh_ms=1_000)
    token = provider.token()
    assert await verdict(listener, token) == "kafka"
    provider.answers.extend([(200, b"<html>"), (500, b"")] * 50)
    clock.ahead_ms = 1_000
    with capture_logs() as lines:
        assert await verdict(listener, token) == "kafka"
        await until(lambda: bool(lines))
    assert lines[0]["event"] == "security.keys.not.read" and lines[0]["keys"] == 1


async def test_a_file_of_keys_is_read_at_the_start_or_the_listener_does_not_start(tmp_path: Path) -> None:
    key, path = signing_key(), tmp_path / "keys.json"
    settings = ValidatorSettings(Endpoint("server.properties: url", f"file://{path}"))
    with pytest.raises(KjbodError, match=rf"^server.properties: url: {path}: No such file"):
        Validator(settings).load()
    path.write_text("{}")
    with pytest.raises(KjbodError, match=f"server.properties: url: file://{path}: expected a JSON Web Key Set"):
        Validator(settings).load()
    path.write_text(key_set(key))
    listener = Validator(settings)
    with capture_logs() as lines:
        listener.load()
    assert [line["event"] for line in lines] == ["security.tokens.of.anybody"]
    with IdentityProvider() as provider:
        provider.key, provider.changes = key, {"aud": None}
        assert await verdict(listener, provider.token("alice")) == "alice"


def test_a_listener_that_takes_unsigned_tokens_says_so() -> None:
    with capture_logs() as lines:
        Validator(ValidatorSettings()).load()
    assert [line["event"] for line in lines] == ["security.tokens.unsecured"]
