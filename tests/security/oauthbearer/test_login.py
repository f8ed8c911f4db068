"""The tokens of a login, from a real endpoint over HTTP and HTTPS, or from files: got once for however many ask,
renewed in time, and without a secret in what is said."""

import asyncio
import dataclasses
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kjbod.errors import KjbodError
from kjbod.security.oauthbearer.keys import (
    CLIENT_ASSERTION,
    CLIENT_SECRET,
    FILE,
    JWT_BEARER,
    UNSECURED,
    Assertion,
    Endpoint,
    TokenSettings,
)
from kjbod.security.oauthbearer.login import AGAIN_AFTER_MS, Tokens
from kjbod.security.oauthbearer.tokens import part_of
from kjbod.security.tls_keys import Tls
from scripts.rig.certificates import Authority
from scripts.rig.identity_provider import CLIENT_ID, IdentityProvider, signing_key
from scripts.rig.identity_provider import CLIENT_SECRET as SECRET
from tests.security.oauthbearer.test_jwks import Later
from tests.wire.conftest import until

TIMEOUT_MS = 20_000


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


def settings(provider: IdentityProvider, secret: str = SECRET, **changes: Any) -> TokenSettings:
    endpoint = Endpoint("c: url", provider.token_url, backoff_ms=1, backoff_max_ms=3)
    return TokenSettings(
        CLIENT_SECRET, dataclasses.replace(endpoint, **changes), client_id=CLIENT_ID, client_secret=secret
    )


async def refused(tokens: Tokens, timeout_ms: int = TIMEOUT_MS) -> str:
    with pytest.raises(KjbodError) as caught:
        await tokens.current(timeout_ms=timeout_ms)
    assert SECRET not in str(caught.value) and str(caught.value).isprintable()
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_an_endpoint_is_asked_once_for_all_who_need_a_token(provider: IdentityProvider) -> None:
    tokens = Tokens(settings(provider))
    found = await asyncio.gather(*(tokens.current(timeout_ms=TIMEOUT_MS) for _ in range(10)))
    assert len({one.value for one in found}) == 1 and found[0].subject == CLIENT_ID
    assert await tokens.current(timeout_ms=0) == found[0]
    assert [path for path, *_ in provider.asked] == ["/token"]


async def test_a_token_is_renewed_before_its_end_though_nobody_asks(provider: IdentityProvider) -> None:
    provider.changes = {"exp": int(time.time()) + 3}
    short = Tokens(settings(provider))
    with capture_logs() as lines:
        token = await short.current(timeout_ms=TIMEOUT_MS)
        provider.changes = {}
        await until(lambda: len(provider.asked) == 2)
        await until(lambda: bool(lines))
        assert (await short.current(timeout_ms=0)).value != token.value
    assert [line["event"] for line in lines] == ["security.token.renewed"]
    assert token.value not in str(lines)


async def test_a_token_that_a_server_has_not_taken_is_got_anew_and_not_faster_than_that(
    provider: IdentityProvider,
) -> None:
    clock = Later()
    tokens = Tokens(settings(provider), clock)
    for ahead_ms, asked in ((0, 1), (AGAIN_AFTER_MS, 2), (AGAIN_AFTER_MS, 2)):
        clock.ahead_ms = ahead_ms
        if asked > 1:
            tokens.not_believed()
        await tokens.current(timeout_ms=TIMEOUT_MS)
        assert len(provider.asked) == asked


async def test_a_token_from_before_serves_while_there_is_no_new_one(provider: IdentityProvider) -> None:
    provider.changes = {"exp": int(time.time()) + 3}
    tokens = Tokens(settings(provider))
    with capture_logs() as lines:
        token = await tokens.current(timeout_ms=TIMEOUT_MS)
        provider.answers.extend([(503, b'{"error": "later"}')] * 50)
        await until(lambda: bool(lines))
        assert await tokens.current(timeout_ms=0) == token
        await until(lambda: time.time() * 1000 >= token.expires_ms)
        assert await refused(tokens) == (
            f"LoginUnavailable: the token endpoint {provider.token_url} answers HTTP 503: later"
        )
    assert {line["event"] for line in lines} == {"security.token.not.renewed"} and len(lines) == 1


async def test_a_wrong_secret_is_said_once_with_the_endpoints_words_and_not_tried_again(
    provider: IdentityProvider,
) -> None:
    line = await refused(Tokens(settings(provider, secret="hunter2")))
    assert line == (
        f"KjbodError: the token endpoint {provider.token_url} answers HTTP 401: invalid_client: no such client\\x1b[31m"
    )
    assert len(provider.asked) == 1


async def test_an_endpoint_that_fails_is_tried_again_and_then_spared(provider: IdentityProvider) -> None:
    provider.answers.extend([(503, b""), (500, b"")])
    assert (await Tokens(settings(provider)).current(timeout_ms=TIMEOUT_MS)).value
    assert len(provider.asked) == 3
    tokens = Tokens(settings(provider, backoff_ms=0, backoff_max_ms=3_600_000))
    provider.answers.append((503, b""))
    for _ in range(3):
        assert "answers HTTP 503" in await refused(tokens)
    assert len(provider.asked) == 4


async def test_nothing_that_an_endpoint_does_takes_longer_than_it_may(provider: IdentityProvider) -> None:
    provider.gate.clear()
    line = await refused(Tokens(settings(provider)), timeout_ms=30)
    assert line == f"LoginUnavailable: the token endpoint {provider.token_url} gave no token within 30 ms"
    line = await refused(Tokens(settings(provider, read_timeout_ms=20)))
    assert line.startswith(f"LoginUnavailable: the token endpoint {provider.token_url} did not answer in time")


async def test_an_answer_has_a_size_at_most(provider: IdentityProvider) -> None:
    provider.answers.append((200, b" " * (1024 * 1024 + 1)))
    assert "answers more than 1048576 bytes" in await refused(Tokens(settings(provider)))


async def test_an_endpoint_that_drips_is_not_waited_for() -> None:
    """Each byte comes in time, and the whole answer never."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def drip() -> None:
            peer, _ = listening.accept()
            with peer:
                while not stop.wait(0.01):
                    try:
                        peer.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        endpoint = Endpoint("c: url", url, read_timeout_ms=100, backoff_ms=0, backoff_max_ms=0)
        line = await refused(Tokens(TokenSettings(CLIENT_SECRET, endpoint)))
        stop.set()
        thread.join()
    assert line.startswith(f"LoginUnavailable: the token endpoint {url} did not answer in time")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 " + b"2" * 100_000,
    ],
)
async def test_an_answer_that_is_no_http_is_one_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        endpoint = Endpoint("c: url", url, backoff_ms=0, backoff_max_ms=0)
        line = await refused(Tokens(TokenSettings(CLIENT_SECRET, endpoint)))
        thread.join()
    assert line.startswith(f"LoginUnavailable: the token endpoint {url} cannot be asked: ") and len(line) < 400


async def test_who_gives_up_waiting_leaves_nothing_to_the_event_loop(provider: IdentityProvider) -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    provider.gate.clear()
    tokens = Tokens(settings(provider, secret="hunter2"))
    assert "gave no token" in await refused(tokens, timeout_ms=1)
    provider.gate.set()
    assert "HTTP 401" in await refused(tokens)
    gc.collect()
    assert heard == []


async def test_an_endpoint_that_is_not_there_or_speaks_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    endpoint = Endpoint("c: url", f"http://127.0.0.1:{port}/token", backoff_ms=0, backoff_max_ms=0)
    line = await refused(Tokens(TokenSettings(CLIENT_SECRET, endpoint)))
    assert (
        line
        == f"LoginUnavailable: the token endpoint http://127.0.0.1:{port}/token cannot be asked: Connection refused"
    )


async def test_a_certificate_that_is_not_believed_is_said_and_one_that_is_serves(tmp_path: Path) -> None:
    authority = Authority.make()
    trusted = Tls("client.properties", truststore=authority.truststore(tmp_path))
    with IdentityProvider(authority.leaf("127.0.0.1"), tmp_path) as provider:
        good = settings(provider)
        assert good.endpoint is not None
        found = Tokens(dataclasses.replace(good, endpoint=dataclasses.replace(good.endpoint, tls=trusted)))
        assert (await found.current(timeout_ms=TIMEOUT_MS)).subject == CLIENT_ID
        by_system = dataclasses.replace(good.endpoint, tls=Tls("client.properties"))
        line = await refused(Tokens(dataclasses.replace(good, endpoint=by_system)))
        assert "certificate authority that is not in ssl.truststore.location" in line and provider.token_url in line
    with IdentityProvider(authority.leaf("elsewhere.example"), tmp_path) as provider:
        other = settings(provider)
        assert other.endpoint is not None
        other = dataclasses.replace(other, endpoint=dataclasses.replace(other.endpoint, tls=trusted))
        assert "is for another address" in await refused(Tokens(other))


async def test_a_token_may_stand_in_a_file(tmp_path: Path, provider: IdentityProvider) -> None:
    path = tmp_path / "token"
    tokens = Tokens(TokenSettings(FILE, Endpoint("c: url", f"file://{path}", backoff_max_ms=0)))
    assert (
        await refused(tokens)
        == f"KjbodError: c: url: {path}: No such file or directory: expected a file that can be read"
    )
    path.write_text(provider.token("from-a-file") + "\n")
    assert (await tokens.current(timeout_ms=TIMEOUT_MS)).subject == "from-a-file"
    path.write_text(provider.token(exp=100, iat=1))
    assert "gives a token that ended" in await refused(Tokens(tokens.settings))
    path.write_bytes(b"\xff")
    assert await refused(Tokens(tokens.settings)) == "KjbodError: c: url: expected a file with a token"


@pytest.mark.parametrize("kind", ["RSA", "EC"])
async def test_an_assertion_is_signed_with_a_key_of_a_file(
    tmp_path: Path, provider: IdentityProvider, kind: str
) -> None:
    key, algorithm = signing_key("mine", kind), "RS256" if kind == "RSA" else "ES256"
    pem, template = tmp_path / "key.pem", tmp_path / "template.json"
    pem.write_bytes(key.as_pem(private=True, password="pass"))
    template.write_text(json.dumps({"header": {"kid": "mine"}, "payload": {"aud": "idp"}}))
    assertion = Assertion(
        private_key=str(pem), passphrase="pass", algorithm=algorithm, claims={"iss": "me"}, template=str(template)
    )
    grant = dataclasses.replace(settings(provider), grant=JWT_BEARER, client_secret=None, assertion=assertion)
    assert (await Tokens(grant).current(timeout_ms=TIMEOUT_MS)).subject == "asserted"
    sent = provider.asked[-1][2]["assertion"]
    assert part_of(sent, 0) == {"alg": algorithm, "typ": "JWT", "kid": "mine"}
    assert part_of(sent, 1)["aud"] == "idp" and part_of(sent, 1)["iss"] == "me"
    wrong = dataclasses.replace(grant, assertion=dataclasses.replace(assertion, passphrase="wrong"))
    line = await refused(Tokens(wrong))
    assert f"sasl.oauthbearer.assertion.private.key.file: {pem}: expected a private {kind}" in line


async def test_an_assertion_may_stand_in_a_file(tmp_path: Path, provider: IdentityProvider) -> None:
    path = tmp_path / "assertion"
    path.write_text("a.b.c\n")
    by_file = dataclasses.replace(
        settings(provider), grant=CLIENT_ASSERTION, client_secret=None, assertion=Assertion(str(path))
    )
    assert (await Tokens(by_file).current(timeout_ms=TIMEOUT_MS)).value
    assert provider.asked[-1][2]["client_assertion"] == "a.b.c" and provider.asked[-1][2]["client_id"] == CLIENT_ID


async def test_a_token_without_a_signature_is_made_here_and_said_to_be_one() -> None:
    with capture_logs() as lines:
        tokens = Tokens(TokenSettings(UNSECURED, options={"unsecuredLoginStringClaim_sub": "alice"}))
        assert (await tokens.current(timeout_ms=TIMEOUT_MS)).subject == "alice"
    assert [line["event"] for line in lines] == ["security.login.unsecured"]
