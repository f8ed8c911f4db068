"""Events of the kernel: each is logged, kept as evidence, and has a directory probed. Pure.

A disk that dies can fail thousands of requests a second and the kernel tells of each; a sick but living one can do so
for hours. So the lines in the log and the probes that are asked for are bounded, whatever comes in. Nothing is lost by
that: the events all say the same, "look", and looking is what the probe does.
"""

from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from kjbod_host.health.sources.api import KernelEvent

POLL_EVERY_MS = 1000
"""Time between two polls for changes without an event, and for events that were held back."""
PROBES_AT_ONCE = 5
"""Probes that events may ask for in a row, of one directory; after that one per probe interval."""
LINES_AT_ONCE = 5
"""Lines in the log per directory and ``POLL_EVERY_MS``; the rest is counted."""
RECENT_MS = 10_000
"""Time for which an event is kept as evidence."""
RECENT = 4
"""Maximum number of different texts kept for each directory."""


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
    """Receiver of the events of all sources, with rate limits.

    Args:
        interval_ms: one more probe may be asked for after each such time.
        say: gets a directory that the kernel spoke of, whether of damage, and the time.
        log: event name and fields.
    """

    def __init__(
        self,
        interval_ms: int,
        *,
        say: Callable[[str, bool, int], None],
        log: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._interval_ms = interval_ms
        self._say = say
        self._log = log
        self._directories: dict[str, _DirectoryEvents] = {}

    def start(self, paths: Iterable[str], now_ms: int) -> None:
        """Events are asked for of these directories from now on; what was known is forgotten."""
        self._directories = {path: _DirectoryEvents(filled_ms=now_ms) for path in paths}

    def polled(self, now_ms: int) -> None:
        """Handle the events that were held back."""
        for path, seen in self._directories.items():
            if seen.untold:
                self._log("directory.kernel.event", {"path": path, "text": f"and {seen.untold} more"})
            seen.lines, seen.untold = LINES_AT_ONCE, 0
            self._hand_on(path, seen, now_ms)

    def recent(self, path: str, now_ms: int) -> tuple[str, ...]:
        """Recent kernel messages about a directory, the oldest first."""
        seen = self._directories.get(path)
        since_ms = now_ms - RECENT_MS
        return tuple(text for at_ms, text in seen.recent if at_ms >= since_ms) if seen is not None else ()

    def came_in(self, event: KernelEvent, now_ms: int) -> None:
        """Take an event."""
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
            self._hand_on(path, seen, now_ms)

    def _tell(self, path: str, seen: _DirectoryEvents, event: KernelEvent) -> None:
        if not seen.lines:
            seen.untold += 1
            return
        seen.lines -= 1
        fields: dict[str, object] = {"path": path, "source": event.source, "text": event.text}
        self._log("directory.kernel.event", fields | ({"damage": True} if event.damage else {}))

    def _hand_on(self, path: str, seen: _DirectoryEvents, now_ms: int) -> None:
        """Request a probe, if the rate limit allows it now; else :meth:`polled` requests it later."""
        seen.tokens = min(PROBES_AT_ONCE, seen.tokens + (now_ms - seen.filled_ms) / self._interval_ms)
        seen.filled_ms = now_ms
        if seen.waiting and seen.tokens >= 1:
            damage, seen.damage, seen.waiting = seen.damage, False, False
            seen.tokens -= 1
            self._say(path, damage, now_ms)
