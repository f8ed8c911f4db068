"""The agent's side of a file process: sends requests, and never waits longer than their limit."""

import asyncio
import contextlib
import errno
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import kjbod
import kjbod_host
from kjbod_host import helpers
from kjbod_host.files import file_worker
from kjbod_host.storage.worker import Unframer, frame

REAP_MS: Final = 500
_GONE: Final = "the process that does file calls has died"
_SOURCES: Final = sorted({str(Path(module.__file__ or "").parents[1]) for module in (kjbod, kjbod_host)})
_NAME_ROOM: Final = " " * 24


class FileProcess:
    """Client of a process that does the file calls of one folder in order. A dead process is replaced.

    Args:
        name: of the process, at most 15 bytes.
        libraries: directories of packages that it needs, beside Python's own and kjbod.
    """

    def __init__(self, name: str, libraries: Sequence[str] = ()) -> None:
        self._name = name
        self._sources = [*_SOURCES, *libraries]
        self._wire: _Wire | None = None
        self._lock: list[Any] | None = None
        self._closed = False
        self._starting = asyncio.Lock()
        self._pids: list[int] = []
        self._holder = 0

    async def call(self, operation: str, *arguments: Any) -> Any:
        """Result of an operation of :mod:`.file_worker`. A caller that is cancelled leaves the operation to its end.

        Raises:
            OSError: the call's; or EPIPE: the process has died.
        """
        return await (await self._connected()).ask(operation, arguments)

    async def take(self, folder: Path, owner: str, patience_ms: int) -> str | None:
        """Lock a folder for as long as this process lives, see :func:`.file_worker.take`.

        Raises:
            OSError: of the folder.
        """
        taken, self._holder = cast("tuple[str | None, int]", await self.call("take", str(folder), owner, patience_ms))
        if taken is None:
            self._lock = [str(folder), owner, patience_ms]
        return taken

    def tell(self, operation: str, *arguments: Any) -> None:
        """Request an operation without waiting for its result."""
        if self._wire is not None:
            self._wire.ask(operation, arguments).add_done_callback(_ignore)

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of the process with the lock and of all processes that have not ended; the last one works."""
        return (*((self._holder,) if self._holder else ()), *self._pids)

    def rest(self) -> None:
        """End the process, a stuck one as soon as it can; the next call starts another one. Waits for nothing."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
            self._reap_soon()

    def close(self) -> None:
        """Accept no more calls. The process ends by itself, a stuck one as soon as it can. Does not wait."""
        self._closed = True
        if self._wire is not None:
            self._wire.close()
            self._wire = None
            self._reap_soon()

    async def _connected(self) -> "_Wire":
        async with self._starting:
            if self._closed:
                raise OSError(errno.EPIPE, "this process is ending")
            if self._wire is not None and not self._wire.lost:
                return self._wire
            self._reap()
            self._holder = 0  # it ends with the pipe of the process that is gone
            pid, ours, life = self._start()
            self._pids.append(pid)
            wire = _Wire(life)
            await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=ours)
            self._wire = wire
            if self._lock is not None:
                wire.ask("take", self._lock).add_done_callback(self._taken_again)
            return wire

    def _taken_again(self, taken: asyncio.Future[Any]) -> None:
        if not taken.cancelled() and taken.exception() is None:
            self._holder = taken.result()[1]

    def _reap_soon(self) -> None:
        """Reap ending processes again and again, until none is left as a zombie."""
        self._reap()
        if self._wire is None and self._pids:
            with contextlib.suppress(RuntimeError):  # no loop: this process ends as well
                asyncio.get_running_loop().call_later(REAP_MS / 1000, self._reap_soon)

    def _reap(self) -> None:
        for pid in tuple(self._pids):
            if helpers.has_ended(pid):
                self._pids.remove(pid)

    def _start(self) -> tuple[int, socket.socket, int]:
        """Exec it; its pid, and our ends of its socket and of its pipe. Blocks for an exec from the system's disk, some
        milliseconds.

        Raises:
            OSError: there is no room for it.
        """
        read_end, life = os.pipe2(os.O_CLOEXEC)
        arguments = [str(os.getpid()), self._name, json.dumps(self._sources), _NAME_ROOM]
        try:
            pid, ours = helpers.start_connected(
                file_worker.__file__,
                *arguments,
                at=[file_worker.CONTROL_FD],
                descriptors={file_worker.LIFE_FD: read_end},
            )
        except OSError:
            os.close(life)
            raise
        finally:
            os.close(read_end)
        return pid, ours, life


class _Wire(asyncio.Protocol):
    """The socket to one process."""

    def __init__(self, life: int) -> None:
        self.lost = False
        self._life = life
        self._unframer = Unframer()
        self._calls = helpers.Calls()
        self._transport: asyncio.Transport

    def ask(self, operation: str, arguments: Any) -> asyncio.Future[Any]:
        """Send a request; return the future of its result."""
        number, answer = self._calls.begin()
        if self.lost:
            self._calls.fail(_GONE)
        else:
            self._transport.write(frame({"n": number, "op": operation, "args": list(arguments)}))
        return answer

    def close(self) -> None:
        """Close the socket, and fail all waiting requests."""
        self.connection_lost(None)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for answer in self._unframer.feed(data):
            waiting = self._calls.take(answer["n"])
            if waiting is None:
                continue
            if "error" in answer:
                waiting.set_exception(OSError(*answer["error"]))
            else:
                waiting.set_result(answer["ok"])

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        os.close(self._life)  # whoever holds a lock for it ends
        self._calls.fail(_GONE)


def _ignore(answer: asyncio.Future[Any]) -> None:
    """Ignore the result of a request, and its error."""
    if not answer.cancelled():
        answer.exception()
