"""Logins by Kerberos with a real KDC: our client at our listener, tickets that end, and what is said of whatever is
wrong."""

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.security import kerberos_login
from kjbod.security.aside import in_thread
from kjbod.security.channel import Security
from kjbod.security.kerberos import GssError
from kjbod.security.kerberos_login import Tickets
from kjbod.security.kerberos_names import parse_rules
from kjbod.security.keys import ChannelSettings, Kerberos, ListenerSettings, Login
from kjbod.security.listener import ListenerSecurity
from kjbod.wire.client import AuthenticationFailed, Connection
from kjbod.wire.connection import api_versions_response
from kjbod.wire.frames import Request
from kjbod.wire.limits import Limits
from kjbod.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ResponseBody,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kjbod.wire.server import Peer, Server, serve
from scripts.bench.false_positives_conditions import find_libfaketime
from scripts.rig.kdc import REALM, SERVER, SERVICE
from tests.security.conftest import Realm
from tests.wire.conftest import SERVED, Lines

APIS = {**SERVED, ApiKey.SASL_HANDSHAKE: (1, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
HEARTBEAT = BrokerHeartbeatRequest(broker_id=1)
TIMEOUT_MS = 20_000


class ManualClock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms


def login(keytab: Path, principal: str) -> Kerberos:
    return Kerberos("client.properties: sasl.jaas.config", principal, str(keytab), service=SERVICE)


def client(kerberos: Kerberos) -> Security:
    return Security(
        ChannelSettings("SASL_PLAINTEXT", login=Login("GSSAPI", kerberos.principal or "cache", kerberos=kerberos))
    )


class Site:
    """A listener with GSSAPI, who was seen at it, and its log."""

    def __init__(self, realm: Realm, rules: str = "DEFAULT", reauthentication_ms: int = 0) -> None:
        self.seen: list[str] = []
        self.log = Lines()
        self.settings = ListenerSettings(
            "SASL_PLAINTEXT",
            mechanisms={"GSSAPI": {}},
            reauthentication_ms={"GSSAPI": reauthentication_ms} if reauthentication_ms else {},
            kerberos=Kerberos("server.properties: KafkaServer", SERVER, str(realm.server)),
            kerberos_rules=parse_rules(rules),
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        security = ListenerSecurity(self.settings)
        await asyncio.to_thread(security.load)
        async with await serve(
            "127.0.0.1", 0, self._answer, apis=APIS, clock=SystemClock(), log=self.log, limits=Limits(),
            security=security,
        ) as server:  # fmt: skip
            yield server

    def refusals(self) -> list[str]:
        return [reason for reason in self.log.reasons() if reason.startswith("GSSAPI: ")]

    async def _answer(self, request: Request, peer: Peer) -> ResponseBody | None:
        if isinstance(request.message, ApiVersionsRequest):
            return api_versions_response(request, APIS)
        self.seen.append(peer.principal)
        return BrokerHeartbeatResponse(is_caught_up=True)


async def beat(server: Server, security: Security, host: str = "localhost") -> None:
    async with await Connection.open(
        host, server.port, client_id="t", clock=SystemClock(), security=security
    ) as connection:
        assert (await connection.request(HEARTBEAT, timeout_ms=TIMEOUT_MS)).is_caught_up


async def test_a_client_is_known_by_the_short_name_of_its_principal(realm: Realm) -> None:
    site = Site(realm, rules="RULE:[2:$1-$2]/U,DEFAULT")
    async with site.serving() as server:
        await beat(server, client(login(realm.alice, "alice")))
        await beat(server, client(login(realm.bob, "bob/admin")), host="127.0.0.1")
    assert site.seen == ["User:alice", "User:BOB-ADMIN"] and not site.log.lines


async def test_a_client_whom_no_rule_names_is_refused_and_the_log_says_why(realm: Realm) -> None:
    site = Site(realm, rules="RULE:[2:$1]")
    async with site.serving() as server:
        with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism GSSAPI") as caught:
            await beat(server, client(login(realm.alice, "alice")))
    assert "rule" not in str(caught.value)
    (reason,) = site.refusals()
    assert reason == f"GSSAPI: no rule of sasl.kerberos.principal.to.local.rules applies to 'alice@{REALM}'"


async def test_a_login_that_holds_for_a_time_is_renewed(realm: Realm) -> None:
    site = Site(realm, reauthentication_ms=1_500)
    async with (
        site.serving() as server,
        await Connection.open(
            "localhost", server.port, client_id="t", clock=SystemClock(), security=client(login(realm.alice, "alice"))
        ) as connection,
    ):
        while connection.logins < 2:
            assert (await connection.request(HEARTBEAT, timeout_ms=TIMEOUT_MS)).is_caught_up
    assert set(site.seen) == {"User:alice"} and not site.log.lines


async def test_garbage_for_a_token_is_refused_and_the_listener_serves_on(realm: Realm) -> None:
    site = Site(realm)
    async with site.serving() as server:
        for garbage in (b"", b"garbage", b"\x60\x82\xff\xff" + b"x" * 100, b"\0" * 60_000):
            async with await Connection.open("localhost", server.port, client_id="t", clock=SystemClock()) as stranger:
                await stranger.request(SaslHandshakeRequest(mechanism="GSSAPI"), timeout_ms=TIMEOUT_MS)
                answer = await stranger.request(SaslAuthenticateRequest(auth_bytes=garbage), timeout_ms=TIMEOUT_MS)
                assert answer.error_code == 58 and not answer.auth_bytes
        await beat(server, client(login(realm.alice, "alice")))
    assert site.seen == ["User:alice"] and len(site.log.lines) == 4


# ---------------------------------------------------------------- what is wrong is said in one line

WRONG: dict[str, tuple[Callable[[Realm], Kerberos], str]] = {
    "no keytab": (lambda realm: login(Path("/nowhere"), "alice"), "keyTab=/nowhere: No such file or directory: "),
    "no such key": (lambda realm: login(realm.alice, "bob"), "no key of this principal in the keytab"),
    "unknown server": (
        lambda realm: structs.replace(login(realm.alice, "alice"), service="nobody"),
        "the KDC does not know the server: see sasl.kerberos.service.name, and the host name that was asked for",
    ),
    "no cache": (
        lambda realm: Kerberos("f: k", uses_cache=True, cache="/nowhere", service=SERVICE),
        "f: k: there is no ticket cache",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_with_our_login_is_said_in_one_line(realm: Realm, name: str) -> None:
    make, said = WRONG[name]
    async with Site(realm).serving() as server:
        with pytest.raises(AuthenticationFailed) as caught:
            await beat(server, client(make(realm)))
        assert f"at localhost:{server.port}: " in str(caught.value)
    assert said in str(caught.value) and "\n" not in str(caught.value)


async def test_keys_that_have_changed_at_the_kdc_are_named_at_both_ends(realm: Realm) -> None:
    realm.kdc.admin("cpw -randkey alice")
    realm.kdc.admin(f"cpw -randkey {SERVER}")
    site = Site(realm)
    async with site.serving() as server:
        with pytest.raises(
            AuthenticationFailed, match="a key of the keytab is not that of the KDC any more: see keyTab"
        ):
            await beat(server, client(login(realm.alice, "alice")))
        with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism GSSAPI"):
            await beat(server, client(login(realm.bob, "bob/admin")))
    (reason,) = site.refusals()
    assert "key" in reason and "keytab" in reason


async def test_a_kdc_that_does_not_answer_is_named_and_the_next_attempt_finds_it(realm: Realm) -> None:
    security = client(login(realm.alice, "alice"))
    async with Site(realm).serving() as server:
        realm.kdc.stop()
        with pytest.raises(AuthenticationFailed, match=r"no KDC of krb5.conf can be reached \(Cannot contact any KDC"):
            await beat(server, security)
        realm.kdc.start()
        await beat(server, security)


async def test_a_kdc_that_hangs_holds_up_no_event_loop(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kerberos_login, "KDC_TIMEOUT_MS", 200)
    realm.kdc.stop()

    async def silence(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await gone.wait()
        writer.close()

    asked, gone = asyncio.Event(), asyncio.Event()
    async with Site(realm).serving() as server, await asyncio.start_server(silence, "127.0.0.1", realm.kdc.port):
        with pytest.raises(AuthenticationFailed, match="Kerberos failed: no answer within 200 ms"):
            await beat(server, client(login(realm.alice, "alice")))
        assert asked.is_set()
        gone.set()


_ACCEPT = """
import sys
from kjbod.security.kerberos import GssapiServer
from kjbod.security.kerberos_login import Acceptor
from kjbod.security.keys import Kerberos
machine = GssapiServer(Acceptor(Kerberos("server", sys.argv[1], sys.argv[2])).context, str)
token = bytes.fromhex(sys.stdin.read())
machine.work(token)
try:
    machine.answer(token)
except Exception as error:
    print(error.reason)
"""


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ("+0", ""),
        ("+20m", "the clocks of this host, of its peer and of the KDC are too far apart (Clock skew too great)"),
        ("-20m", "the clocks of this host, of its peer and of the KDC are too far apart (Ticket not yet valid)"),
        ("+3h", "a ticket has ended, or the clocks of two hosts differ (Ticket expired)"),
    ],
)
def test_a_listener_whose_clock_is_wrong_says_so_in_its_log(
    realm: Realm, machine_can: Callable[[Callable[[], object]], None], offset: str, said: str
) -> None:
    machine_can(find_libfaketime)
    token = step(Tickets(login(realm.alice, "alice")))
    done = subprocess.run(
        [sys.executable, "-c", _ACCEPT, SERVER, str(realm.server)],
        input=token.hex(),
        env={**os.environ, "LD_PRELOAD": str(find_libfaketime()), "FAKETIME": offset},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said


def test_a_listener_does_not_start_without_the_key_of_its_principal(realm: Realm) -> None:
    settings = Site(realm).settings
    assert settings.kerberos is not None
    for other, said in (({"principal": "kafka/elsewhere"}, "the keytab has no key of this principal"),
                        ({"keytab": "/nowhere"}, "keyTab=/nowhere: No such file")):  # fmt: skip
        wrong = dataclasses.replace(settings, kerberos=replace(settings.kerberos, **other))
        with pytest.raises(KjbodError, match=f"server.properties: KafkaServer: {said}"):
            ListenerSecurity(wrong).load()


# ---------------------------------------------------------------- tickets


class Renewals:
    """Renewals under way, and what was logged of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[Future[object]] = []
        self.warned: list[str] = []
        monkeypatch.setattr(kerberos_login, "in_thread", self._begin)
        monkeypatch.setattr(kerberos_login._log, "warning", lambda _event, reason: self.warned.append(reason))

    def _begin(self, work: Callable[[], object], trouble: str) -> None:
        self.begun.append(in_thread(work, trouble))

    def count(self) -> int:
        """How many have begun, all of which have ended."""
        for each in self.begun:
            each.result(30)
        return len(self.begun)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    return Renewals(monkeypatch)


def step(tickets: Tickets) -> bytes:
    return tickets.context("localhost").step(None)


HOUR_MS = 3_600_000


def test_a_ticket_is_renewed_in_its_time_while_the_old_one_serves(realm: Realm, renewals: Renewals) -> None:
    clock = ManualClock()
    tickets = Tickets(login(realm.alice, "alice"), clock)
    assert step(tickets)
    first = tickets._credentials
    clock.now_ms = int(HOUR_MS * 0.79)
    assert step(tickets) and renewals.count() == 0
    clock.now_ms = int(HOUR_MS * 0.86)
    assert step(tickets) and renewals.count() == 1
    assert tickets._credentials is not first and step(tickets) and renewals.count() == 1


def test_a_kdc_that_is_away_is_told_once_and_asked_again_after_a_pause(realm: Realm, renewals: Renewals) -> None:
    clock = ManualClock()
    tickets = Tickets(login(realm.alice, "alice"), clock)
    assert step(tickets)
    first = tickets._credentials
    realm.kdc.stop()
    clock.now_ms = HOUR_MS - 300_000
    assert step(tickets) and renewals.count() == 1 and tickets._credentials is first
    clock.now_ms += 59_000
    assert step(tickets) and renewals.count() == 1
    clock.now_ms += 2_000
    assert step(tickets) and renewals.count() == 2
    assert len(renewals.warned) == 1 and "no KDC of krb5.conf can be reached" in renewals.warned[0]
    clock.now_ms = HOUR_MS
    with pytest.raises(GssError, match=r"no KDC of krb5.conf can be reached"):
        step(tickets)
    realm.kdc.start()
    assert step(tickets) and tickets._credentials is not first


async def test_a_server_with_another_key_is_believed_again_without_the_end_of_our_ticket(
    realm: Realm, renewals: Renewals
) -> None:
    kerberos = structs.replace(login(realm.alice, "alice"), renew_pause_ms=0)
    security, site = client(kerberos), Site(realm)
    async with site.serving() as server:
        await beat(server, security)
        realm.server.unlink()
        realm.kdc.admin(f"cpw -randkey {SERVER}")
        realm.kdc.admin(f"ktadd -norandkey -k {realm.server} {SERVER}")
        for _ in range(2):  # the second one asks for another ticket, and goes on with the old one meanwhile
            with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism GSSAPI"):
                await beat(server, security)
        assert await asyncio.to_thread(renewals.count) == 1
        await beat(server, security)


def test_a_ticket_of_the_ticket_cache_serves_and_kinit_renews_it(
    realm: Realm, renewals: Renewals, tmp_path: Path
) -> None:
    cache, clock = tmp_path / "cache", ManualClock()
    realm.kdc.kinit(realm.alice, "alice", cache, "-r", "1d")
    kerberos = Kerberos("f: k", uses_cache=True, cache=str(cache), service=SERVICE, kinit="kinit")
    tickets = Tickets(kerberos, clock)
    assert step(tickets)
    before = cache.stat().st_ino, cache.stat().st_mtime_ns
    clock.now_ms = int(HOUR_MS * 0.9)
    assert step(tickets) and renewals.count() == 1 and renewals.warned == []
    assert (cache.stat().st_ino, cache.stat().st_mtime_ns) != before
    tickets = Tickets(structs.replace(kerberos, kinit="/nowhere/kinit"), clock)
    assert step(tickets)
    clock.now_ms += int(HOUR_MS * 0.9)
    assert step(tickets) and renewals.count() == 2
    assert renewals.warned == ["/nowhere/kinit -R: [Errno 2] No such file or directory: '/nowhere/kinit'"]


def test_a_keytab_serves_where_the_ticket_cache_does_not(realm: Realm, tmp_path: Path) -> None:
    both = structs.replace(login(realm.alice, "alice"), uses_cache=True, cache=str(tmp_path / "none"))
    assert step(Tickets(both))
