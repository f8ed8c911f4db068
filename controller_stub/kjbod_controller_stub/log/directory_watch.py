"""Watch the controller's own directory with probes in a child process, which may hang without harm to the controller.

The directory has failed when two probes in a row fail, or when a probe, or the log's own writer, does not come back in
``kjbod.blind.timeout.ms``. Only time in which this process ran counts, and of a probe only that in which its child did
(:mod:`kjbod.observed`). A full disk is not a failure: if the log cannot grow, its writer says so. The event loop never
touches the directory for this.

The child itself is nothing of the disk. One that ends, does not start, or does not run, is made anew, each time after a
longer pause; meanwhile the log's writer is watched alone.

``kjbod_host.health.core`` decides about several directories together, by witnesses, device counters and mounts. None of
these is here, and the log's writer is watched besides the probe. On that core this module was 43 lines longer, the
controller had 27 modules and 0.7 MiB more, and the watch took 1.1 ms of processor time a second instead of 0.5 ms.
"""

import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kjbod.clock import Clock
from kjbod.errors import StorageError
from kjbod.observed import ObservedTimeout, could_go_on
from kjbod.runtime.logging import get_logger
from kjbod.runtime.loop import TRANSPORT_GONE
from kjbod.runtime.waiting import is_done_in_time, process_sleep
from kjbod_controller_stub.log import probe

ERRORS_IN_A_ROW = 2
_RESTART_PAUSE_S = 1.0
_RESTART_PAUSE_MAX_S = 60.0
_START_TIMEOUT_MS = 30_000
"""A child that has not said that it is ready by then never will; an interpreter starts in a tenth of a second."""
_END_TIMEOUT_S = 1.0
_KILLED_TIMEOUT_MS = 300
"""So long a child that was killed may sleep in the kernel until it is left behind. One that does not sleep there ends,
and is waited for: an event loop must not be closed over what is left of it."""
_NOTHING_LEFT = "no descriptor, process or memory to be had"

_log = get_logger()


class DirectoryHungError(StorageError):
    """The directory does not respond; any thread that waits for it may wait for ever."""


class Writer(Protocol):
    """Methods of the log's writer that the watch uses."""

    @property
    def writes(self) -> int:
        """Number of groups of batches that were written."""

    @property
    def writing(self) -> bool:
        """Whether a group is being written."""


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

    def process_ids(self) -> tuple[int, ...]:
        """Process id of the child that probes, if any."""
        return () if self._child is None else (self._child.pid,)

    async def run(self, writer: Writer) -> None:
        """Watch until the directory fails, or until cancelled.

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
        pause_s = _RESTART_PAUSE_S
        while True:
            child = await self._ready_child()
            began = self._now()
            answer = "" if child is None else await self._ask(child, began)
            if not answer:
                await self._end()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RESTART_PAUSE_MAX_S)
                continue
            pause_s = _RESTART_PAUSE_S
            if answer != "ok":
                errors += 1
                first = first if errors > 1 else began
                _log.warning("log.dir.probe.failed", path=str(self._directory), reason=answer, in_a_row=errors)
                if errors >= ERRORS_IN_A_ROW:
                    _, _, what = answer.partition(" ")
                    raise StorageError(f"the metadata log directory {self._directory} has failed since {first}: {what}")
                continue
            errors = 0
            await asyncio.sleep(self._interval_ms / 1000)

    async def _ready_child(self) -> asyncio.subprocess.Process | None:
        """Return a started child; None if the start failed. That is logged, and does not count as a disk failure."""
        if self._child is not None:
            return self._child
        script = str(Path(probe.__file__))
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", script, str(self._directory), *map(str, self._identity)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        try:
            self._child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It is there in no time, and has to be ended.
            with contextlib.suppress(OSError, RuntimeError):
                self._child = await starting
            raise
        except (OSError, RuntimeError) as error:
            number = getattr(error, "errno", 0) or 0  # uvloop says -1 where there is no descriptor
            self._tell("not.started", reason=os.strerror(number) if number > 0 else _NOTHING_LEFT)
            return None
        assert self._child.stdout is not None
        ready = asyncio.ensure_future(self._child.stdout.readline())
        try:
            if not await is_done_in_time(ready, _START_TIMEOUT_MS, self._clock):
                self._tell("not.ready", pid=self._child.pid)
                return None
            if not _line(ready):
                self._tell("ended", pid=self._child.pid)
                return None
        finally:
            ready.cancel()
        return self._child

    async def _ask(self, child: asyncio.subprocess.Process, began: str) -> str:
        """Return the child's answer; empty if the child ended or did not run. That is logged, and does not count as a
        disk failure.

        Raises:
            DirectoryHungError: it waits for the disk.
        """
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(*TRANSPORT_GONE):  # the end of its output says that it ended
            child.stdin.write(b"\n")
            await child.stdin.drain()
        answer = asyncio.ensure_future(child.stdout.readline())
        now_ms = self._clock.monotonic_ms()
        hung, idle = ObservedTimeout(self._timeout_ms, now_ms), ObservedTimeout(self._timeout_ms, now_ms)
        try:
            while not (await asyncio.wait({answer}, timeout=hung.step_ms / 1000))[0]:
                now_ms = self._clock.monotonic_ms()
                runs = could_go_on(*process_sleep(child.pid))
                if hung.is_over(now_ms, counts=runs):
                    raise DirectoryHungError(
                        f"the metadata log directory {self._directory} has not answered a probe since {began}"
                    )
                if idle.is_over(now_ms, counts=not runs):
                    self._tell("stopped", pid=child.pid)
                    return ""
            if not _line(answer):
                self._tell("ended", pid=child.pid)
            return _line(answer)
        finally:
            answer.cancel()

    async def _watch_writer(self, writer: Writer) -> None:
        """Watch the log's own fsync, which may hang while probes succeed."""
        seen = -1
        since = ""
        patience = ObservedTimeout(self._timeout_ms, self._clock.monotonic_ms())
        while True:
            now_ms = self._clock.monotonic_ms()
            if not writer.writing or writer.writes != seen:
                seen, since = writer.writes, self._now()
                patience = ObservedTimeout(self._timeout_ms, now_ms)
            elif patience.is_over(now_ms):
                raise DirectoryHungError(
                    f"a write to the metadata log in {self._directory} has not come back since {since}"
                )
            await asyncio.sleep(patience.step_ms / 1000)

    def _tell(self, what: str, **more: object) -> None:
        """Log the end of the child. A new child is started; until then nothing probes."""
        _log.warning(f"log.dir.probe.{what}", path=str(self._directory), **more)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")

    async def _end(self) -> None:
        """Let the child go, and wait for its end; one that hangs in the kernel goes when the kernel lets it. Where this
        is cancelled the child is still there to be ended."""
        child = self._child
        if child is None or child.stdin is None:
            return
        child.stdin.close()
        ended = asyncio.ensure_future(child.wait())
        try:
            if not (await asyncio.wait({ended}, timeout=_END_TIMEOUT_S))[0]:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await is_done_in_time(
                    ended, _KILLED_TIMEOUT_MS, self._clock, counts=lambda: process_sleep(child.pid)[0] == "D"
                )
        finally:
            ended.cancel()
        self._child = None


def _line(read: "asyncio.Future[bytes]") -> str:
    """Return the line that was read; empty at any end of the stream."""
    if isinstance(read.exception(), TRANSPORT_GONE):
        return ""
    return read.result().decode(errors="replace").strip()
