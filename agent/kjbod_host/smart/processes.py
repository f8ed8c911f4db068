"""Processes that ask a disk: the helper's behind its socket, or one of our own. See :mod:`.asker`, which both are.

None is waited for. One of our own that does not answer in time is killed, and ends when the kernel lets go of it; it
has nothing of this process, and dies with it.
"""

import asyncio
import contextlib
import errno
import os
import signal
from typing import Final

from msgspec import Struct

from kjbod_host import helpers
from kjbod_host.smart import asker
from kjbod_host.smart.rights import has_rights
from kjbod_host.smart.schedule import ASK_TIMEOUT_MS
from kjbod_host.smart.words import NO_RIGHTS

ANSWER_BYTES_MAX: Final = 256 << 10
"""Of what sysfs and smartctl say of a disk; 20 KiB are usual."""


class Answer(Struct, frozen=True):
    """Answer of a process that asked a disk.

    Attributes:
        content: all that it said.
        source: whom it asked: ``helper``, ``smartctl`` or ``sysfs``.
        reason: why none that knows more.
    """

    content: bytes
    source: str
    reason: str = ""


class Processes:
    """Starts them, and lets go of them.

    Args:
        helper: path of the helper's socket.
        timeout_ms: how long a disk may take to answer.
    """

    def __init__(self, helper: str, timeout_ms: int = ASK_TIMEOUT_MS) -> None:
        self._helper = helper
        self._timeout_ms = timeout_ms
        self._left: dict[int, str] = {}
        """Disks, by the pid of who asks."""

    def process_ids(self) -> tuple[int, ...]:
        """Processes of ours that ask, or are stuck."""
        return tuple(self._left)

    async def ask(self, name: str) -> Answer:
        """The answer for a disk, by its kernel name.

        Raises:
            TimeoutError: there is none in time, or one that was asked before is still stuck.
            OSError: there is no room for a process, or it says too much (EMSGSIZE).
        """
        async with asyncio.timeout(self._timeout_ms / 1000):
            try:
                reader, writer = await asyncio.open_unix_connection(self._helper)
            except FileNotFoundError:
                return await self._ask_own(name, "")
            except OSError as error:
                return await self._ask_own(name, f"{self._helper}: {error.strerror or error}")
            try:
                return Answer(await _content(name, reader, writer), "helper")
            finally:
                writer.transport.abort()

    async def _ask_own(self, name: str, trouble: str) -> Answer:
        self.reap()
        if name in self._left.values():
            raise TimeoutError  # one that is stuck is enough
        source, reason = "smartctl", trouble
        if not has_rights():
            source = "sysfs"
            reason = trouble or NO_RIGHTS
        pid, ours = helpers.start_connected(asker.__file__, str(os.getpid()), source, at=[0, 1])
        self._left[pid] = name
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                return Answer(await _content(name, reader, writer), source, reason)
            finally:
                writer.transport.abort()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.reap()

    def reap(self) -> None:
        """Forget those that have ended."""
        for pid in tuple(self._left):
            if helpers.has_ended(pid):
                del self._left[pid]


async def _content(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Words of a process about a disk, to their end."""
    writer.write(f"{name}\n".encode())
    content = bytearray()
    while more := await reader.read(ANSWER_BYTES_MAX):
        content += more
        if len(content) > ANSWER_BYTES_MAX:
            raise OSError(errno.EMSGSIZE, f"smartctl says more than {ANSWER_BYTES_MAX} bytes")
    return bytes(content)
