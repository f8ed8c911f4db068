"""Events of the kernel as they come in: told in the log, kept as evidence, handed on as a wake-up.

A disk that dies can fail thousands of requests a second and the kernel tells of each; a sick but living one can do so
for hours. So the lines in the log and the probes that are asked for are bounded, whatever comes in. Nothing is lost by
that: the events all say the same, "look", and looking is what the probe does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from kjbod.clock import Clock
from kjbod_host.health.sources.api import KernelEvent, KernelSource, Subject

POLL_EVERY_MS = 1000
"""For what raises no event, and for what was held back."""
PROBES_AT_ONCE = 5
"""Probes that events may ask for in a row, of one directory; after that one per probe interval."""
LINES_AT_ONCE = 5
"""Lines in the log per directory and ``POLL_EVERY_MS``; the rest is counted."""
RECENT_MS = 10_000
"""For so long an event explains what becomes of the directory."""
RECENT = 4
"""Different texts kept for each directory."""
ACTIVE = "active"


class _DirectoryEvents(Struct):
    """Events that came in for one directory."""

    tokens: float = PROBES_AT_ONCE
    filled_ms: int = 0
    waiting: bool = False
    damage: bool = False
    lines: int = LINES_AT_ONCE
    untold: int = 0
    recent: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=RECENT))


class KernelEvents:
    """Takes the events of all sources.

    Args:
        sources: where events come from; may be none.
        clock: monotonic time.
        interval_ms: one more probe may be asked for after each such time.
        say: gets a directory that the kernel spoke of, and whether of damage.
        log: event name and fields.
    """

    def __init__(
        self,
        sources: Sequence[KernelSource],
        *,
        clock: Clock,
        interval_ms: int,
        say: Callable[[str, bool], None],
        log: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._interval_ms = interval_ms
        self._say = say
        self._log = log
        self._directories: dict[str, _DirectoryEvents] = {}

    def start(self, subjects: Sequence[Subject]) -> dict[str, object]:
        """Begin, on the running event loop.

        Returns:
            By source: ``"active"``, or why it is not; by path where that differs.
        """
        now_ms = self._clock.monotonic_ms()
        self._directories = {subject.path: _DirectoryEvents(filled_ms=now_ms) for subject in subjects}
        told: dict[str, object] = {}
        for source in self._sources:
            try:
                reasons = dict(source.start(subjects, self._came_in))
            except Exception as error:  # noqa: BLE001  each source is optional, also one with a bug
                reasons = {subject.path: f"{type(error).__name__}: {error}" for subject in subjects}
            states = {subject.path: reasons.get(subject.path) or ACTIVE for subject in subjects}
            told[source.name] = next(iter(states.values())) if len(set(states.values())) == 1 else states
        return told

    def poll(self) -> None:
        """Ask the sources that raise no events, and catch up with what was held back."""
        for source in self._sources:
            self._try(source, source.poll)
        for path, seen in self._directories.items():
            if seen.untold:
                self._log("directory.kernel.event", {"path": path, "text": f"and {seen.untold} more"})
            seen.lines, seen.untold = LINES_AT_ONCE, 0
            self._hand_on(path, seen)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(POLL_EVERY_MS / 1000)
            self.poll()

    def recent(self, path: str) -> tuple[str, ...]:
        """Recent kernel messages about a directory, the oldest first."""
        seen = self._directories.get(path)
        since_ms = self._clock.monotonic_ms() - RECENT_MS
        return tuple(text for at_ms, text in seen.recent if at_ms >= since_ms) if seen is not None else ()

    def close(self) -> None:
        """End all sources."""
        for source in self._sources:
            self._try(source, source.close)

    def _try(self, source: KernelSource, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  the other sources and the probes go on
            reason = f"{type(error).__name__}: {error}"
            self._log("health.source.trouble", {"source": source.name, "reason": reason})

    def _came_in(self, event: KernelEvent) -> None:
        now_ms = self._clock.monotonic_ms()
        for path in event.paths:
            seen = self._directories.get(path)
            if seen is None:
                continue
            known = [text for _, text in seen.recent]
            if event.text in known:
                del seen.recent[known.index(event.text)]
            seen.recent.append((now_ms, event.text))
            self._tell(path, seen, event)
            seen.waiting = True
            seen.damage = seen.damage or event.damage
            self._hand_on(path, seen)

    def _tell(self, path: str, seen: _DirectoryEvents, event: KernelEvent) -> None:
        if not seen.lines:
            seen.untold += 1
            return
        seen.lines -= 1
        fields: dict[str, object] = {"path": path, "source": event.source, "text": event.text}
        self._log("directory.kernel.event", fields | ({"damage": True} if event.damage else {}))

    def _hand_on(self, path: str, seen: _DirectoryEvents) -> None:
        """Ask for a probe, if one may be asked for now; else :meth:`poll` does."""
        now_ms = self._clock.monotonic_ms()
        seen.tokens = min(PROBES_AT_ONCE, seen.tokens + (now_ms - seen.filled_ms) / self._interval_ms)
        seen.filled_ms = now_ms
        if seen.waiting and seen.tokens >= 1:
            damage, seen.damage, seen.waiting = seen.damage, False, False
            seen.tokens -= 1
            self._say(path, damage)
