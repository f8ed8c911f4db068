"""Processes that query a disk: the process behind the helper's socket, or a child. Both run :mod:`.asker`.

This module never waits for such a process. A child that does not answer in time is killed, and ends when the kernel
releases it. The child has no descriptors of this process, and ends with it.
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
"""Maximum size of an answer from sysfs and smartctl; 20 KiB are usual."""


class Answer(Struct, frozen=True):
    """Answer of a process that queried a disk.

    Attributes:
        content: the whole output.
        source: source of the data: ``helper``, ``smartctl`` or ``sysfs``.
        reason: why a better source was not used.
    """

    content: bytes
    source: str
    reason: str = ""


class Processes:
    """Starter of processes that query disks.

    Args:
        helper: path of the helper's socket.
        timeout_ms: how long a disk may take to answer.
    """

    def __init__(self, helper: str, timeout_ms: int = ASK_TIMEOUT_MS) -> None:
        self._helper = helper
        self._timeout_ms = timeout_ms
        self._left: dict[int, str] = {}
        """Disks, by the pid of the process that queries it."""

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of children that query a disk, or are stuck."""
        return tuple(self._left)

    async def ask(self, name: str) -> Answer:
        """Query a disk, by its kernel name.

        Raises:
            TimeoutError: no answer in time, or an earlier child is still stuck on this disk.
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
            raise TimeoutError  # one stuck child is enough
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
        """Forget children that have ended."""
        for pid in tuple(self._left):
            if helpers.has_ended(pid):
                del self._left[pid]


async def _content(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a process the name of a disk, and read its output to the end."""
    writer.write(f"{name}\n".encode())
    content = bytearray()
    while more := await reader.read(ANSWER_BYTES_MAX):
        content += more
        if len(content) > ANSWER_BYTES_MAX:
            raise OSError(errno.EMSGSIZE, f"smartctl says more than {ANSWER_BYTES_MAX} bytes")
    return bytes(content)
