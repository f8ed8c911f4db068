"""Read TLS connections into an existing buffer.

Without a buffer, asyncio and uvloop allocate 256 KiB for each read of a connection (``SSLProtocol``), which the C
library maps and unmaps each time. That was a third of the cost of a heartbeat over TLS.
"""

import asyncio
import threading
from typing import Final

BUFFER_BYTES: Final = 64 * 1024
_of_thread = threading.local()


def _buffer() -> bytearray:
    """Return the buffer of this thread. Data is copied out before the next read."""
    found: bytearray | None = getattr(_of_thread, "buffer", None)
    if found is None:
        found = _of_thread.buffer = bytearray(BUFFER_BYTES)
    return found


class IntoBuffer(asyncio.BufferedProtocol):
    """Protocol that reads for another protocol into this buffer. The class must not be an :class:`asyncio.Protocol`
    too, because uvloop ignores the buffer of such a class."""

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
