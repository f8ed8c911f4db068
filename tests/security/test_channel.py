"""TLS of files that change while connections come and go, and that cannot be read at times."""

import asyncio
import ssl
from pathlib import Path

import pytest

from kjbod.errors import KjbodError
from kjbod.security.channel import Security
from kjbod.security.contexts import client_context
from kjbod.security.keys import SSL, ChannelSettings
from kjbod.security.tls_keys import Tls
from scripts.rig.certificates import Authority

TIMEOUT_MS = 20_000


def settings(base: Path, authority: Authority) -> ChannelSettings:
    tls = Tls("s", authority.leaf("localhost").keystore(base), authority.truststore(base))
    return ChannelSettings(SSL, tls)


async def test_plain_text_has_neither_tls_nor_a_login() -> None:
    assert await Security().context(timeout_ms=1) is None and await Security().mechanism("c1", timeout_ms=1) is None


async def test_a_certificate_that_was_replaced_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    authority = Authority.make()
    security = Security(settings(tmp_path, authority))
    first = await security.context(timeout_ms=TIMEOUT_MS)
    assert await security.context(timeout_ms=TIMEOUT_MS) is first and security.expires_at is not None
    authority.leaf("localhost").keystore(tmp_path, "new.pem")
    (tmp_path / "new.pem").replace(tmp_path / "keystore.pem")
    again = first
    while again is first:  # a busy machine may need longer than a connection waits for it
        await asyncio.sleep(0.01)
        again = await security.context(timeout_ms=TIMEOUT_MS)
    assert isinstance(again, ssl.SSLContext)


async def test_while_a_file_is_half_written_the_one_from_before_counts(tmp_path: Path) -> None:
    security = Security(settings(tmp_path, Authority.make()))
    first = await security.context(timeout_ms=TIMEOUT_MS)
    (tmp_path / "keystore.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    assert await security.context(timeout_ms=TIMEOUT_MS) is first


async def test_a_file_that_was_never_good_is_named_and_looked_at_again(tmp_path: Path) -> None:
    authority = Authority.make()
    found = settings(tmp_path, authority)
    (tmp_path / "keystore.pem").unlink()
    security = Security(found)
    for _ in range(2):
        with pytest.raises(KjbodError, match=r"s: ssl.keystore.location=.*keystore.pem: .*No such file"):
            await security.context(timeout_ms=TIMEOUT_MS)
    authority.leaf("localhost").keystore(tmp_path)
    assert await security.context(timeout_ms=TIMEOUT_MS) is not None


async def test_trouble_that_passes_is_forgotten() -> None:
    troubles: list[BaseException] = [OSError(24, "Too many open files"), MemoryError(), KeyboardInterrupt()]

    def make(_tls: Tls) -> ssl.SSLContext:
        if troubles:
            raise troubles.pop()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    security = Security(ChannelSettings(SSL, Tls("s")), make=make)
    for kind in ("KeyboardInterrupt", "MemoryError", "OSError"):
        with pytest.raises(KjbodError, match=f"TLS cannot be set up: {kind}"):
            await security.context(timeout_ms=TIMEOUT_MS)
    assert await security.context(timeout_ms=TIMEOUT_MS) is not None


async def test_a_certificate_that_has_ended_does_not_take_the_place_of_a_good_one(tmp_path: Path) -> None:
    authority = Authority.make()
    security = Security(settings(tmp_path, authority))
    first = await security.context(timeout_ms=TIMEOUT_MS)
    authority.expired("localhost").keystore(tmp_path)
    assert await security.context(timeout_ms=TIMEOUT_MS) is first
    authority.leaf("localhost").keystore(tmp_path)
    while await security.context(timeout_ms=TIMEOUT_MS) is first:  # noqa: ASYNC110  the look goes on behind it
        await asyncio.sleep(0.01)


async def test_a_broken_file_is_told_and_read_once(tmp_path: Path) -> None:
    made: list[Tls] = []

    def make(tls: Tls) -> ssl.SSLContext:
        made.append(tls)
        return client_context(tls)

    security = Security(settings(tmp_path, Authority.make()), make=make)
    await security.context(timeout_ms=TIMEOUT_MS)
    (tmp_path / "keystore.pem").write_text("broken")
    for _ in range(3):
        await security.context(timeout_ms=TIMEOUT_MS)
    assert len(made) == 2


async def test_a_file_that_was_not_readable_for_a_moment_is_read_when_it_is(tmp_path: Path) -> None:
    authority = Authority.make()
    security = Security(settings(tmp_path, authority))
    first = await security.context(timeout_ms=TIMEOUT_MS)
    moments = [OSError(24, "Too many open files")]

    def make(tls: Tls) -> ssl.SSLContext:
        if moments:
            raise moments.pop()
        return client_context(tls)

    security._make = make
    authority.leaf("localhost").keystore(tmp_path)
    assert await security.context(timeout_ms=TIMEOUT_MS) is first
    keystore = tmp_path / "keystore.pem"
    before_ns = keystore.stat().st_ctime_ns
    while keystore.stat().st_ctime_ns == before_ns:  # a file's times go by ticks of the kernel, of milliseconds
        keystore.chmod(0o600)  # as a tool that rotates does behind the copy
    assert await security.context(timeout_ms=TIMEOUT_MS) is not first


async def test_where_ours_has_ended_anyway_new_authorities_are_taken(tmp_path: Path) -> None:
    authority = Authority.make()
    found = settings(tmp_path, authority)
    authority.expired("localhost").keystore(tmp_path)
    security = Security(found)
    first = await security.context(timeout_ms=TIMEOUT_MS)
    Authority.make("Another CA").truststore(tmp_path)
    assert await security.context(timeout_ms=TIMEOUT_MS) is not first
