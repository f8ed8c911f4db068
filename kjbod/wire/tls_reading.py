"""Reading of TLS connections into a buffer that is there.

Without one asyncio and uvloop make 256 KiB for each read of a connection (``SSLProtocol``), which the C library maps
and gives back each time: that was a third of what a heartbeat over TLS costs.
"""

import asyncio
import threading
from typing import Final

BUFFER_BYTES: Final = 64 * 1024
_of_thread = threading.local()


def _buffer() -> bytearray:
    """The buffer of this thread: what is read is copied out of it before anybody else reads."""
    found: bytearray | None = getattr(_of_thread, "buffer", None)
    if found is None:
        found = _of_thread.buffer = bytearray(BUFFER_BYTES)
    return found


class IntoBuffer(asyncio.BufferedProtocol):
    """A protocol in front of another one, for which it is read so. It must be none of its kind: uvloop passes over the
    buffer of whatever is an :class:`asyncio.Protocol` too."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_buffer())

    def buffer_updated(self, nbytes: int) -> None:
        self.protocol.data_received(bytes(memoryview(_buffer())[:nbytes]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self.protocol.eof_received()

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()
