"""The metrics listener with TLS and logins, and files that are replaced while it runs."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from kjbod.errors import ConfigError, KjbodError
from kjbod.metrics import web
from kjbod.metrics.listener import CONNECTIONS_MAX, MetricsListener
from kjbod.metrics.vitals import Vitals
from kjbod.metrics.web import Web
from kjbod.metrics.web_settings import WebSettings
from scripts.rig.certificates import Authority, Certified
from tests.metrics.test_web_settings import HASH
from tests.wire.test_admission import ManualClock

GOOD: Final = ("scraper", "secret")
OTHER: Final = "$2b$04$sLe61BmI7geUI6GX5G627uerGHGL7UgAj6aO7aDUifYCqOuvoIaRq"
"""Of ``another``."""
SECOND_MS: Final = 1_000


class Site:
    """A web configuration file with certificates beside it, and a listener."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / "web.yml"
        self.authority = Authority.make()
        self.clock = ManualClock()
        self.listener: MetricsListener[None]

    def certify(self, one: Certified | None = None) -> Certified:
        one = one or self.authority.leaf("127.0.0.1")
        (self.home / "host.pem").write_text(one.chain_pem)
        (self.home / "host.key").write_text(one.key_pem())
        return one

    def write(self, *, tls: bool = True, users: dict[str, str] | None = None, more: str = "") -> None:
        text = f"tls_server_config:\n  cert_file: host.pem\n  key_file: host.key\n{more}" if tls else ""
        for name, hashed in (users or {}).items():
            text += f"basic_auth_users: {{{name}: '{hashed}'}}\n"
        self.file.write_text(text or "{}")

    async def open(self) -> None:
        self.listener = MetricsListener(lambda: None, lambda _: (), None, Vitals, Web(str(self.file), (), self.clock))
        await self.listener.open("127.0.0.1", 0)

    def later(self) -> None:
        """Files are looked at again."""
        self.clock.now_ms += SECOND_MS

    async def get(
        self,
        path: str = "/metrics",
        login: tuple[str, str] | None = None,
        client: Certified | None = None,
        headers: str = "",
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        secure: bool = True,
    ) -> str:
        """The first line of the answer, or what came instead."""
        context = ssl.create_default_context(cadata=self.authority.pem) if secure else None
        if context is not None:
            context.maximum_version = context.minimum_version = version
        if client is not None and context is not None:
            (self.home / "client.pem").write_text(client.chain_pem + client.key_pem())
            context.load_cert_chain(self.home / "client.pem")
        if login is not None:
            headers += f"Authorization: Basic {base64.b64encode(':'.join(login).encode()).decode()}\r\n"
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port, ssl=context)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
                return (await reader.read()).partition(b"\r\n")[0].decode()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def until(
        self,
        holds: Callable[[str], bool],
        client: Certified | None = None,
        login: tuple[str, str] | None = None,
        secure: bool = True,
    ) -> None:
        """Wait until the listener has looked at its files."""
        async with asyncio.timeout(20):
            while True:
                line = "refused"
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    line = await self.get(client=client, login=login, secure=secure)
                if holds(line):
                    return
                await asyncio.sleep(0.05)

    async def serial(self) -> int:
        """Serial number of the certificate that the listener shows."""
        context = ssl.create_default_context(cadata=self.authority.pem)
        _, writer = await asyncio.open_connection("127.0.0.1", self.listener.port, ssl=context)
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return int(shown, 16)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    found = Site(tmp_path)
    found.certify()
    yield found
    if hasattr(found, "listener"):
        found.listener.close()


OK, NO = "HTTP/1.1 200 OK", "HTTP/1.1 401 Unauthorized"


async def test_all_pages_are_served_with_tls_alone(site: Site) -> None:
    site.write()
    await site.open()
    for path in ("/metrics", "/healthz", "/readyz"):
        assert await site.get(path) == OK
    assert await site.get(version=ssl.TLSVersion.TLSv1_2) == OK
    assert await site.get(secure=False) == "", "plain text is answered with nothing"


async def test_older_versions_than_wanted_are_refused(site: Site) -> None:
    site.write(more="  min_version: TLS13\n")
    await site.open()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await site.get(version=ssl.TLSVersion.TLSv1_2)
    assert await site.get() == OK


@pytest.mark.parametrize("tls", [True, False])
async def test_only_users_are_answered_whatever_they_ask_for(site: Site, tls: bool) -> None:
    site.write(tls=tls, users={"scraper": HASH})
    await site.open()
    for path in ("/metrics", "/healthz", "/readyz", "/elsewhere"):
        assert await site.get(path, secure=tls) == NO
    for login in (("scraper", "Secret"), ("scraper", ""), ("", "secret"), ("nobody", "secret"), ("scraper:", "secret")):
        assert await site.get(login=login, secure=tls) == NO, login
    for header in ("Basic", "Basic ", "Basic !", "Basic c2NyYXBlcg==", "Bearer c2NyYXBlcjpzZWNyZXQ=", "Basic /////w=="):
        assert await site.get(headers=f"Authorization: {header}\r\n", secure=tls) == NO, header
    assert await site.get(login=GOOD, headers="Authorization: Basic x\r\n", secure=tls) == NO, "two logins"
    for _ in range(2):
        assert await site.get(login=GOOD, secure=tls) == OK
    assert await site.get(headers="authorization:basic  c2NyYXBlcjpzZWNyZXQ=\r\n", secure=tls) == OK
    assert await site.get("/readyz", login=GOOD, secure=tls) == OK


async def test_a_good_login_is_computed_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(users={"scraper": HASH})
    await site.open()
    asked: list[bool] = []
    knows = WebSettings.knows

    def counted(settings: WebSettings, name: str, password: bytes) -> bool:
        asked.append(knows(settings, name, password))
        return asked[-1]

    monkeypatch.setattr(WebSettings, "knows", counted)
    for password in ("secret", "secret", "wrong", "wrong", "secret"):
        await site.get(login=("scraper", password))
    assert asked == [True, False, False]


async def test_a_client_has_to_show_a_certificate_of_the_authorities(site: Site) -> None:
    (site.home / "ca.pem").write_text(site.authority.pem)
    site.write(more="  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n")
    await site.open()
    assert await site.get(client=site.authority.client("prometheus")) == OK
    for client in (None, Authority.make("another").client("prometheus")):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await site.get(client=client) == ""


async def test_authorities_are_replaced_without_a_restart(site: Site) -> None:
    (site.home / "ca.pem").write_text(site.authority.pem)
    site.write(more="  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n")
    await site.open()
    client, others = site.authority.client("prometheus"), Authority.make("the next one")
    assert await site.get(client=client) == OK
    (site.home / "ca.pem").write_text(others.pem)
    await site.until(lambda line: line != OK, client)
    await site.until(lambda line: line == OK, others.client("prometheus"))


async def test_a_replaced_certificate_is_shown_without_a_restart(site: Site) -> None:
    site.write()
    before = site.certify()
    await site.open()
    assert await site.serial() == before.certificate.serial_number
    after = site.certify()
    async with asyncio.timeout(20):
        while True:
            if await site.serial() == after.certificate.serial_number:
                return
            await asyncio.sleep(0.05)


async def test_logins_are_replaced_without_a_restart(site: Site) -> None:
    site.write(users={"scraper": HASH})
    await site.open()
    assert await site.get(login=GOOD) == OK
    site.write(users={"scraper": OTHER})
    assert await site.get(login=GOOD) == OK, "looked at once a second"
    site.later()
    await site.until(lambda line: line == NO, login=GOOD)
    assert await site.get(login=("scraper", "another")) == OK
    site.write(users={"new": HASH})
    site.later()
    await site.until(lambda line: line == NO, login=("scraper", "another"))
    assert await site.get(login=("new", "secret")) == OK


BROKEN: Final = {
    "half of it": "tls_server_config: [",
    "a key that is not there": "tls_server_config: {cert_file: host.pem, key_file: none}",
    "without TLS": f"basic_auth_users: {{scraper: '{HASH}'}}",
    "nothing": "",
    "a password": "tls_server_config: {cert_file: host.pem, key_file: host.key}\nbasic_auth_users: {scraper: secret}",
    "another key": "tls_server_config: {cert_file: host.pem, key_file: other.key}",
}


@pytest.mark.parametrize("name", [*BROKEN, "no file"])
async def test_what_cannot_be_used_changes_nothing_and_is_said_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr(web, "_log", SimpleNamespace(warning=lambda _, reason: said.append(reason)))
    site.write(users={"scraper": HASH})
    (site.home / "other.key").write_text(site.authority.leaf("127.0.0.1").key_pem())
    await site.open()
    if name in BROKEN:
        site.file.write_text(BROKEN[name])
    else:
        site.file.unlink()
    async with asyncio.timeout(20):
        while not said:
            site.later()
            assert (await site.get(login=GOOD), await site.get()) == (OK, NO)
    for _ in range(3):
        site.later()
        assert (await site.get(login=GOOD), await site.get()) == (OK, NO)
    assert site.listener._web is not None and site.listener._web.certificate is not None
    assert site.listener._web.certificate.not_renewed == said[0], "kjbod status is DEGRADED"
    assert len(said) == 1 and str(site.home) in said[0] and HASH not in said[0], said


@pytest.mark.parametrize("name", [*BROKEN, "no file"])
async def test_a_start_with_what_cannot_be_used_listens_nowhere(site: Site, name: str) -> None:
    (site.home / "other.key").write_text(site.authority.leaf("127.0.0.1").key_pem())
    if name in BROKEN:
        site.file.write_text(BROKEN[name])
    if name in ("nothing", "without TLS"):
        await site.open()  # plain text is what it says
        return
    with pytest.raises(KjbodError, match=str(site.home)):
        await site.open()
    with pytest.raises(AssertionError):
        _ = site.listener.port


async def test_a_file_without_users_lets_nobody_in_while_the_listener_had_some(site: Site) -> None:
    """An editor that empties a file before it writes it must not let everybody in for a second."""
    site.write(tls=False, users={"scraper": HASH})
    await site.open()
    for text in ("", "{}", "basic_auth_users: {}"):
        site.file.write_text(text)
        site.later()
        for _ in range(5):
            assert await site.get(secure=False) == NO
    site.write(tls=False, users={"new": HASH})
    site.later()
    await site.until(lambda line: line == OK, login=("new", "secret"), secure=False)


async def test_users_may_come_to_a_listener_that_had_none(site: Site) -> None:
    site.write()
    await site.open()
    assert await site.get() == OK
    site.write(users={"scraper": HASH})
    site.later()
    await site.until(lambda line: line == NO)


async def test_files_below_a_watched_directory_are_refused(site: Site) -> None:
    site.write()
    for inside in (site.home, site.home.parent):
        with pytest.raises(ConfigError, match="outside the disks that are watched"):
            await Web(str(site.file), [str(inside)]).load()
    await Web(str(site.file), [str(site.home / "elsewhere")]).load()


async def test_silent_connections_keep_no_scraper_out(site: Site) -> None:
    site.write()
    await site.open()
    silent = [await asyncio.open_connection("127.0.0.1", site.listener.port) for _ in range(3 * CONNECTIONS_MAX)]
    assert await site.get() == OK
    for _, writer in silent:
        writer.close()


async def test_the_certificate_is_known_with_its_end(site: Site) -> None:
    site.write()
    found = Web(str(site.file))
    assert found.certificate is None
    await found.load()
    assert found.certificate is not None and found.certificate.not_after_ms is not None
    assert found.certificate.path == str(site.home / "host.pem")
