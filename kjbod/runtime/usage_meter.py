"""Memory, processor time and descriptors of this process and its worker processes, read by psutil from ``/proc``.

The event loop reads only files that need no lock of a stuck process: ``stat``, ``statm`` and the directory of
descriptors. ``smaps_rollup``, which has proportional memory (PSS), needs the lock of a process's address space and may
wait for its holder. So a thread reads it, with a limit of :data:`MEASURE_TIMEOUT_MS`. A process that does not answer in
time counts as unmeasured, and is not read again before it has answered. The thread's wait can be killed
(``mmap_read_lock_killable``), so it does not delay the end of a process.
"""

import asyncio
import contextlib
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import psutil
from msgspec import Struct, field

from kjbod.clock import Clock
from kjbod.runtime.waiting import is_done_in_time
from kjbod.usage import Usage, Use

MEASURE_TIMEOUT_MS: Final = 500
SAMPLE_MS: Final = 30_000
"""Interval of processor time samples. *Lately* is the time of the last one or two samples."""
LATELY_MS_MIN: Final = 1_000
"""Shortest time for a percentage: below it one clock tick would be a percent."""
THREADS_MAX: Final = 4
"""Maximum threads that wait for processes which do not answer. With that many, nothing more is measured."""

_GROUPS: Final = ("own", "workers", "helpers")


class _Seen(Struct, frozen=True):
    """Values of a process, as read on the event loop."""

    pid: int
    created: float
    rss_bytes: int
    virtual_bytes: int
    cpu_s: float
    descriptors: int


def _look_at(pid: int) -> _Seen | None:
    """Read a process; None: the process has ended.

    Raises:
        psutil.Error, OSError: the process cannot be read now.
    """
    try:
        process = psutil.Process(pid)
        memory, times = process.memory_info(), process.cpu_times()
        cpu_s, descriptors = times.user + times.system, _descriptors(process)
        return _Seen(pid, process.create_time(), memory.rss, memory.vms, cpu_s, descriptors)
    except psutil.NoSuchProcess:
        return None


def _descriptors(process: psutil.Process) -> int:
    """Return the number of open descriptors; 0 if this process may not read them."""
    try:
        return process.num_fds()
    except psutil.AccessDenied:
        return 0


def _memory_of(pid: int) -> tuple[int, int] | None:
    """Return PSS and USS of a process in bytes; None if they cannot be read. May wait."""
    try:
        found = psutil.Process(pid).memory_full_info()
    except (psutil.Error, OSError):
        return None
    return found.pss, found.uss


class _Clocked(Struct):
    """Processor time of a group, including its ended processes."""

    ended_s: float = 0.0
    living: dict[tuple[int, float], float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        return self.ended_s + sum(self.living.values())

    def note(self, seen: Iterable[_Seen], unread: Collection[int]) -> None:
        now = {(one.pid, one.created): one.cpu_s for one in seen}
        for process, seconds in self.living.items():
            if process not in now and process[0] in unread:
                now[process] = seconds
            elif process not in now:
                self.ended_s += seconds
        self.living = now


class UsageMeter:
    """Meter of the resources that this program's processes use. It reads on request, and samples processor time
    periodically.

    Args:
        clock: the time.
        workers: returns the process ids of workers that access disks; 0 is none.
        helpers: returns the process ids of other helper processes.
        memory_of: reads the memory of a process, in a thread; may wait.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        workers: Callable[[], Iterable[int]] = tuple,
        helpers: Callable[[], Iterable[int]] = tuple,
        memory_of: Callable[[int], tuple[int, int] | None] = _memory_of,
    ) -> None:
        self._clock = clock
        self._pids: Mapping[str, Callable[[], Iterable[int]]] = {
            "own": lambda: (os.getpid(),),
            "workers": workers,
            "helpers": helpers,
        }
        self._memory_of = memory_of
        self._clocked = {group: _Clocked() for group in _GROUPS}
        self._kept: deque[tuple[int, dict[str, float]]] = deque(maxlen=2)
        self._turn = asyncio.Lock()
        self._threads: list[threading.Thread] = []
        self._asked: set[int] = set()
        """Processes that a thread is reading."""
        self._keep()

    async def run(self) -> None:
        """Take samples of processor time until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_MS / 1000)
            self._keep()

    async def read(self) -> Usage | None:
        """Read the use of resources, within :data:`MEASURE_TIMEOUT_MS`. None if not even this process can be read now
        (no free descriptor)."""
        seen = self._look()
        if not seen["own"]:
            return None
        async with self._turn:
            memory = await self._measure([one.pid for group in _GROUPS for one in seen[group]])
        own = seen["own"][0]
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return Usage(
            own=self._use("own", seen["own"], memory),
            workers=self._use("workers", seen["workers"], memory),
            helpers=self._use("helpers", seen["helpers"], memory),
            virtual_bytes=own.virtual_bytes,
            descriptors_max=None if soft == resource.RLIM_INFINITY else soft,
            started_ms=round(own.created * 1000),
        )

    def _look(self) -> dict[str, list[_Seen]]:
        found: dict[str, list[_Seen]] = {}
        for group in _GROUPS:
            seen, unread = [], []
            for pid in dict.fromkeys(self._pids[group]()):
                try:
                    one = _look_at(pid) if pid else None
                except (psutil.Error, OSError):
                    unread.append(pid)
                else:
                    seen += [] if one is None else [one]
            self._clocked[group].note(seen, unread)
            found[group] = seen
        return found

    def _keep(self) -> None:
        self._look()
        totals = {group: clocked.total_s for group, clocked in self._clocked.items()}
        self._kept.append((self._clock.monotonic_ms(), totals))

    def _use(self, group: str, seen: list[_Seen], memory: Mapping[int, tuple[int, int]]) -> Use:
        told = [memory[one.pid] for one in seen if one.pid in memory]
        return Use(
            processes=len(seen),
            rss_bytes=sum(one.rss_bytes for one in seen),
            pss_bytes=sum(pss for pss, _ in told) if told or not seen else None,
            uss_bytes=sum(uss for _, uss in told) if told or not seen else None,
            unmeasured=len(seen) - len(told),
            cpu_s=self._clocked[group].total_s,
            cpu_percent=self._percent(group),
            descriptors=sum(one.descriptors for one in seen),
        )

    def _percent(self, group: str) -> float | None:
        """Return the percentage of processor time since the oldest kept sample."""
        since_ms, totals = self._kept[0]
        passed_ms = self._clock.monotonic_ms() - since_ms
        if passed_ms < LATELY_MS_MIN:
            return None
        return 100_000 * (self._clocked[group].total_s - totals[group]) / passed_ms

    async def _measure(self, pids: list[int]) -> dict[int, tuple[int, int]]:
        """Return PSS and USS of the processes that can be read in time."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        wanted = [pid for pid in pids if pid not in self._asked]
        found: dict[int, tuple[int, int]] = {}
        if not wanted or len(self._threads) >= THREADS_MAX:
            return found
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def measure() -> None:
            for pid in wanted:
                self._asked.add(pid)
                memory = self._memory_of(pid)
                self._asked.discard(pid)
                if memory is not None:
                    found[pid] = memory
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_settle, done)

        # Not an executor: the end of the process waits for its threads.
        thread = threading.Thread(target=measure, name="kjbod-usage", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the host cannot start another thread
            return found
        self._threads.append(thread)
        await is_done_in_time(done, MEASURE_TIMEOUT_MS, self._clock)
        return dict(found)


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
