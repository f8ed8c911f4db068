"""Connections that wait for their handshake: what they cost, who gives way, and that nothing of them goes on."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kjbod.clock import SystemClock
from kjbod.wire import handshakes
from kjbod.wire.limits import Limits
from kjbod.wire.server import Server, serve
from tests.wire.conftest import Lines, Run, until
from tests.wire.test_server_login import APIS, Site, beat

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def hello() -> bytes:
    """A ClientHello."""
    context, leaves = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), leaves).do_handshake()
    return leaves.read()


async def started(site: Site, log: Lines, **limits: Any) -> Server:
    listener = site.listener("SASL_SSL")
    return await serve(
        "127.0.0.1", 0, site.answer, apis=APIS, clock=SystemClock(), log=log, limits=Limits(**limits), security=listener
    )


async def opened(server: Server, *pieces: bytes) -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    return reader, writer


async def end_of(reader: asyncio.StreamReader) -> None:
    """Wait for it: a reset where bytes of ours were not read."""
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


def test_half_a_client_hello_begins_no_handshake_and_the_rest_of_it_does(
    run: Run[Any], site: Site, log: Lines, hello: bytes
) -> None:
    async def story() -> None:
        async with await started(site, log) as server:
            reader, writer = await opened(server, hello[:3])
            await until(lambda: len(server.admissions.silent) == 1)
            writer.write(hello[3:100])
            await beat(server, site.client("SASL_SSL"))
            assert not server._shaking_hands and len(server.admissions.silent) == 1
            writer.write(hello[100:])
            assert (await reader.readexactly(2)) == b"\x16\x03"
            writer.transport.abort()
            await until(lambda: server.admissions.count == 0)

    run(story)


def test_who_sends_half_a_client_hello_and_ends_is_let_go_at_once(
    run: Run[Any], site: Site, log: Lines, hello: bytes
) -> None:
    async def story() -> None:
        async with await started(site, log) as server:
            reader, writer = await opened(server, hello[:100])
            await until(lambda: len(server.admissions.silent) == 1)
            writer.write_eof()
            await end_of(reader)
            writer.transport.abort()
            assert server.admissions.count == 0

    run(story)
    assert log.reasons() == ["no TLS handshake: the client has gone"]


def test_while_half_a_client_hello_is_there_the_event_loop_has_nothing_to_do(
    run: Run[Any], site: Site, log: Lines, hello: bytes
) -> None:
    looks: list[int] = []
    look: Callable[..., None] = handshakes.Handshakes._look

    def counted(self: Any, arrival: Any, **others: Any) -> None:
        looks.append(1)
        look(self, arrival, **others)

    async def story() -> None:
        async with await started(site, log) as server:
            _, writer = await opened(server, hello[:100])
            await until(lambda: bool(looks))
            for _ in range(5):
                await beat(server, site.client("SASL_SSL"))
            writer.transport.abort()
            await until(lambda: server.admissions.count == 0)

    with mock.patch.object(handshakes.Handshakes, "_look", counted):
        run(story)
    assert len(looks) < 20  # two or three of it, and some of each client that logs in


def test_a_client_that_logs_in_at_once_gets_the_place_of_one_that_is_silent(
    run: Run[Any], site: Site, log: Lines, hello: bytes
) -> None:
    async def story() -> None:
        async with await started(site, log, max_logging_in=2) as server:
            silent = [await opened(server, piece) for piece in (b"", hello[:9])]
            await until(lambda: server.admissions.logging_in == 2)
            for reader, _ in silent:
                await beat(server, site.client("SASL_SSL"))
                silent.append(await opened(server))
                await end_of(reader)
                if len(silent) == 4:
                    break
            for _, writer in silent:
                writer.transport.abort()

    run(story)
    assert set(log.reasons()) == {"no TLS handshake: it was silent, and its place was needed"}


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x00\x00\x00\x10"])
def test_what_is_no_client_hello_ends_without_a_handshake(run: Run[Any], site: Site, log: Lines, sent: bytes) -> None:
    async def story() -> None:
        async with await started(site, log) as server:
            with mock.patch.object(server, "_begin_handshake", side_effect=AssertionError):
                reader, writer = await opened(server, sent)
                await end_of(reader)
                writer.transport.abort()
            assert server.admissions.count == 0

    run(story)
    assert log.reasons()[0].startswith("no TLS handshake: what came is no ")


def test_of_many_client_hellos_that_come_at_once_two_begin_in_a_turn(
    run: Run[Any], site: Site, log: Lines, hello: bytes
) -> None:
    begun: list[int] = []

    async def story() -> None:
        async with await started(site, log) as server:
            waiting = server._handshakes
            assert waiting is not None
            begin = waiting._begin
            with mock.patch.object(waiting, "_begin_some"):
                streams = [await opened(server, hello) for _ in range(20)]
                await until(lambda: len(waiting._due) == 20)
            turn = 0

            def noted(arrival: handshakes.Arrival) -> None:
                begun.append(turn)
                begin(arrival)

            with mock.patch.object(waiting, "_begin", noted):
                waiting._begin_some()
                while len(begun) < len(streams):
                    turn += 1
                    await asyncio.sleep(0)
            for reader, writer in streams:
                assert (await reader.readexactly(2)) == b"\x16\x03"
                writer.transport.abort()

    run(story)
    assert len(begun) == 20
    assert max(map(begun.count, begun[2:])) <= handshakes.HANDSHAKES_AT_ONCE
