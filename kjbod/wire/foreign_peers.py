"""Questions to a peer that closed the connection instead of an answer: does it speak TLS, or ask for SASL?"""

import asyncio
import contextlib
import ssl

from kjbod.wire.disconnections import speaks_tls
from kjbod.wire.frames import TLS_RECORDS

TLS_QUESTION_TIMEOUT_MS = 700
"""How long a peer may take to show that it speaks TLS, or asks for SASL, connecting included."""


async def require_no_tls(peer: str, address: tuple[str, int] | None) -> None:
    """Ask a peer that closed the connection instead of an answer whether it waits for TLS: most servers say nothing to
    what is no TLS (asyncio and Kafka among them), and everything to a ClientHello.

    Raises:
        ForeignPeer: it speaks TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is trusted to what comes
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    if address is not None and await _first_bytes(address, hello.read(), len(TLS_RECORDS[0])) in TLS_RECORDS:
        raise speaks_tls(peer)


async def _first_bytes(address: tuple[str, int], question: bytes, count: int) -> bytes | None:
    """The first bytes that a server answers to ``question``; None: fewer, or not in time."""
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
