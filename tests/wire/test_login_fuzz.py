"""Logins that somebody damages on purpose: nobody is let in who has not proved who he is, nothing is left to chance or
to the event loop, and each connection ends or is answered."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kjbod.clock import SystemClock
from kjbod.runtime.loop import TRANSPORT_GONE
from kjbod.wire.limits import Limits
from kjbod.wire.server import Server, serve
from tests.depth import at, seeds
from tests.wire.conftest import Lines, Run, until
from tests.wire.login_fuzz import (
    LIFETIME_MS,
    client_steps,
    client_story,
    damaged,
    play,
    salted,
    server_story,
)
from tests.wire.test_server_login import APIS, Site

_CLIENTS_AT_ONCE = 16
_TLS_READ_BYTES = 65_536


@pytest.mark.parametrize("seed", seeds())
def test_nobody_is_let_in_by_damaged_frames_and_each_is_answered_or_the_end(seed: int) -> None:
    figures = play(server_story, at(quick=1_000, ci=4_000, deep=40_000), seed)
    counts = figures.counts
    assert counts["logins"] > counts["connections"] / 4 and counts["served"] and counts["closed"]


@pytest.mark.parametrize("seed", seeds())
def test_a_client_believes_no_server_that_does_not_know_the_password_and_says_so_in_a_line(seed: int) -> None:
    figures = play(client_story, at(quick=500, ci=2_000, deep=4_000), seed)
    assert figures.counts["let in"] and figures.counts["AuthenticationFailed"]


def test_the_judgement_finds_a_server_that_lets_anybody_in() -> None:
    anybody = mock.patch("hmac.compare_digest", lambda a, b: True)
    with anybody, pytest.raises(AssertionError, match="server_story, seed 1/"):
        play(server_story, 20_000, 1)


# ---------------------------------------------------------------------------------------------------- over real sockets


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def _started(site: Site, log: Lines, protocol: str) -> Server:
    listener = site.listener(protocol, refusal_delay_ms=0, reauthentication_ms={"PLAIN": LIFETIME_MS})
    return await serve(
        "127.0.0.1", 0, site.answer, apis=APIS, clock=SystemClock(), log=log, limits=Limits(), security=listener
    )


async def _all(connections: int, seed: int, one: Callable[[random.Random], Coroutine[Any, Any, None]]) -> None:
    turns = asyncio.Semaphore(_CLIENTS_AT_ONCE)

    async def in_turn(number: int) -> None:
        async with turns:
            await one(random.Random(f"{seed}/{number}"))

    await asyncio.gather(*(in_turn(number) for number in range(connections)))


async def _damaged_login(port: int, rng: random.Random) -> None:
    """Send what the client of a story sends, an answer or the end behind each, and wait for the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    steps = client_steps(rng, 0.3)
    answer: bytes | None = None
    with contextlib.suppress(StopIteration, *TRANSPORT_GONE, asyncio.IncompleteReadError):
        while True:
            step = steps.send(answer)
            if isinstance(step, bytes):
                writer.write(step)
                if rng.random() < 0.1 or not _is_whole(step):
                    break
                length = await reader.readexactly(4)
                answer = length + await reader.readexactly(int.from_bytes(length))
    await _end(reader, writer)


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say that no more will come, and wait for the end."""
    with contextlib.suppress(*TRANSPORT_GONE, OSError):
        writer.write_eof()
        await reader.read()
    writer.transport.abort()


def _is_whole(step: bytes) -> bool:
    return len(step) >= 4 and int.from_bytes(step[:4]) == len(step) - 4


async def _damaged_handshake(port: int, rng: random.Random) -> None:
    """Damage the records of a TLS handshake, one flight or each, and wait for the end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = rng.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
    came, leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(came, leaves)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(*TRANSPORT_GONE, OSError):
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            flight = leaves.read()
            writer.write(damaged(rng, flight) if flight and rng.random() < 0.6 else flight)
            if rng.random() < 0.3:
                break
            try:
                async with asyncio.timeout(0.02):  # a damaged length has the server wait for more, as it should
                    came.write(await reader.read(_TLS_READ_BYTES))
            except TimeoutError:
                break
    await _end(reader, writer)


@pytest.mark.parametrize("seed", seeds(deep=2))
@pytest.mark.parametrize(("protocol", "one"), [("SASL_PLAINTEXT", _damaged_login), ("SASL_SSL", _damaged_handshake)])
def test_a_listener_outlives_damaged_handshakes_and_keeps_nothing_of_them(
    run: Run[Any], site: Site, log: Lines, seed: int, protocol: str, one: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    async def story() -> None:
        async with await _started(site, log, protocol) as server:
            await _all(at(quick=50, ci=200, deep=2_500), seed, lambda rng: one(server.port, rng))
            await until(lambda: server.admissions.count == 0 and server.connections == 0)
            assert (server.admissions.logging_in, server.pending_bytes, server.unread.bytes) == (0, 0, 0)
            assert not server.admissions.silent and not server.admissions.trying

    with mock.patch("hashlib.pbkdf2_hmac", salted):
        run(story)
    assert {line["event"] for line in log.lines} <= {"connection.closed", "connection.refused"}
