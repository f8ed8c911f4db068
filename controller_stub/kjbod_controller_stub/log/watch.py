"""The controller's own directory is watched like any other: by probes in a child, which may hang in its place.

The directory has failed when two probes in a row fail, or when a probe, or the log's own writer, does not come back in
``kjbod.blind.timeout.ms``. A full disk is not a failure: if the log cannot grow, its writer says so. The event loop
never touches the directory for this.
"""

import asyncio
import contextlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kjbod.clock import Clock
from kjbod.errors import StorageError
from kjbod.runtime.logging import get_logger
from kjbod_controller_stub.log import probe

ERRORS_IN_A_ROW = 2
_RESTART_PAUSE_S = 1.0
_END_TIMEOUT_S = 1.0

_log = get_logger()


class DirectoryHungError(StorageError):
    """The directory does not answer: whoever waits for it waits for ever."""


class Writer(Protocol):
    """What is to be known of the log's writer."""

    @property
    def writes(self) -> int:
        """How many groups of batches were written."""

    @property
    def writing(self) -> bool:
        """Whether one is being written."""


class DirectoryWatch:
    """Watches one directory. :meth:`run` ends only with its failure."""

    def __init__(
        self, directory: Path, identity: tuple[int, int], *, interval_ms: int, timeout_ms: int, clock: Clock
    ) -> None:
        self._directory = directory
        self._identity = identity
        """Device and inode: another directory in its place has none of our log."""
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._child: asyncio.subprocess.Process | None = None

    async def run(self, writer: Writer) -> None:
        """Until the directory fails, or cancelled.

        Raises:
            DirectoryHungError: it does not answer; names it and since when.
            StorageError: it fails; names it, the step and since when.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_writer(writer))
                await self._probe_for_ever()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._end()

    async def _probe_for_ever(self) -> None:
        errors = 0
        first = ""
        while True:
            child = await self._ready_child()
            began = self._now()
            try:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    answer = await self._ask(child)
            except TimeoutError:
                raise DirectoryHungError(
                    f"the metadata log directory {self._directory} has not answered a probe since {began}"
                ) from None
            if answer == "ok":
                errors = 0
            elif not answer:
                _log.warning("log.dir.probe.ended", path=str(self._directory), pid=child.pid)
                await self._end()
                await asyncio.sleep(_RESTART_PAUSE_S)
                continue
            else:
                errors += 1
                first = first if errors > 1 else began
                _log.warning("log.dir.probe.failed", path=str(self._directory), reason=answer, in_a_row=errors)
                if errors >= ERRORS_IN_A_ROW:
                    _, _, what = answer.partition(" ")
                    raise StorageError(f"the metadata log directory {self._directory} has failed since {first}: {what}")
                continue
            await asyncio.sleep(self._interval_ms / 1000)

    async def _ready_child(self) -> asyncio.subprocess.Process:
        """A child that has started; that takes as long as it takes, and is nothing of the disk."""
        if self._child is None:
            script = str(Path(probe.__file__))
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", script, str(self._directory), *map(str, self._identity)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._child.stdout is not None
            await self._child.stdout.readline()
        return self._child

    async def _ask(self, child: asyncio.subprocess.Process) -> str:
        """What the child answers; nothing where it ended, which says nothing about the disk."""
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(ConnectionError):
            child.stdin.write(b"\n")
            await child.stdin.drain()
        return (await child.stdout.readline()).decode(errors="replace").strip()

    async def _watch_writer(self, writer: Writer) -> None:
        """The log's own fsync may hang while others get through."""
        seen = -1
        since_ms, since = self._clock.monotonic_ms(), self._now()
        while True:
            if not writer.writing or writer.writes != seen:
                seen = writer.writes
                since_ms, since = self._clock.monotonic_ms(), self._now()
            elif self._clock.monotonic_ms() - since_ms >= self._timeout_ms:
                raise DirectoryHungError(
                    f"a write to the metadata log in {self._directory} has not come back since {since}"
                )
            await asyncio.sleep(min(self._interval_ms, self._timeout_ms / 4) / 1000)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")

    async def _end(self) -> None:
        """Let the child go; one that hangs in the kernel goes when the kernel lets it."""
        child, self._child = self._child, None
        if child is None or child.stdin is None:
            return
        child.stdin.close()
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
