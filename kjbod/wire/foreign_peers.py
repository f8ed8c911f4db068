"""Probe a peer that closed the connection without an answer: does it require TLS or SASL?"""

import asyncio
import contextlib
import ssl

from kjbod.wire.disconnections import speaks_tls
from kjbod.wire.frames import TLS_RECORDS

TLS_QUESTION_TIMEOUT_MS = 700
"""Time limit in which a peer must show that it requires TLS or SASL, including the connection."""


async def require_no_tls(peer: str, address: tuple[str, int] | None) -> None:
    """Check whether a peer that closed the connection without an answer requires TLS. Most TLS servers, asyncio and
    Kafka included, are silent to plain text but answer a ClientHello.

    Raises:
        ForeignPeer: the peer speaks TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data of this connection is trusted
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    if address is not None and await _first_bytes(address, hello.read(), len(TLS_RECORDS[0])) in TLS_RECORDS:
        raise speaks_tls(peer)


async def _first_bytes(address: tuple[str, int], question: bytes, count: int) -> bytes | None:
    """Return the first bytes of a server's answer to ``question``; None: fewer, or not in time."""
    writer = None
    try:
        async with asyncio.timeout(TLS_QUESTION_TIMEOUT_MS / 1000):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(question)
            return await reader.readexactly(count)
    except (OSError, asyncio.IncompleteReadError):  # a TimeoutError is an OSError
        return None
    finally:
        if writer is not None:
            writer.transport.abort()
