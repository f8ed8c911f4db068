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
    """A protocol with ``data_received`` becomes one that is read so."""

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_buffer())

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(_buffer())[:nbytes]))
