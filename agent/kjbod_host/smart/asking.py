"""The shell that queries SMART and NVMe health of the disks below the log directories, one after the other.

Each question goes to a process that may hang in the kernel (:mod:`.processes`): that of a helper which systemd starts
with the rights that smartctl needs, where its socket (``kjbod.smart.socket``) is there; else one of our own, which asks
smartctl where this process has these rights, and sysfs alone where it has not. Which disk is asked when:
:mod:`.schedule`. No verdict rests on what they say, and none waits for it.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.sysfs import SYS
from kjbod_host.health.watched import DirectoryStatus
from kjbod_host.reporter import Log
from kjbod_host.smart.processes import Answer
from kjbod_host.smart.readings import Smart, of_directory, over
from kjbod_host.smart.schedule import ASK_TIMEOUT_MS, Lying, Past, next_disk, well_disks
from kjbod_host.smart.smartctl import (
    UNREAD_BITS,
    exit_status,
    explain,
    parse_facts,
    parse_smartctl,
    why_no_json,
    why_unread,
)
from kjbod_host.smart.words import NOT_INSTALLED

ROUND_MS: Final = 5_000
"""Time between two checks whether a query is due."""
TEXT_BYTES_MAX: Final = 256
"""Bytes kept of an output that is no JSON: its first line has the version."""


class CanAsk(Protocol):
    """Part of :class:`.processes.Processes` that is used here."""

    async def ask(self, name: str) -> Answer: ...

    def reap(self) -> None: ...


class SmartAsking:
    """Health data of the disks, from their last answers.

    Args:
        interval_ms: between two questions to a disk; 0: none is asked.
        processes: ask a disk.
        clock: the time.
        log: the log.
        statuses: of the log directories now.
        sys: root of sysfs.
    """

    def __init__(
        self,
        interval_ms: int,
        processes: CanAsk,
        clock: Clock,
        log: Log,
        statuses: Callable[[], Iterable[DirectoryStatus]],
        *,
        sys: Path = SYS,
    ) -> None:
        self._interval_ms = interval_ms
        self._processes = processes
        self._clock = clock
        self._log = log
        self._statuses = statuses
        self._sys = sys
        self._past: dict[str, Past] = {}
        """Last query by kernel name. The next two attributes are also by kernel name."""
        self._sequences: dict[str, str] = {}
        self._read: dict[str, Smart] = {}
        self._told: dict[str, str] = {}
        """Last log text about a disk, and (under "") about the source."""

    def of(self, device: BlockDevice) -> Smart | None:
        """Return the health of a directory's disks; None: no disk has answered yet."""
        read = {name: self._read[name] for name in device.disks if name in self._read}
        # A journal on a disk of its own wears it, and is no room of the directory.
        return of_directory({n: replace(s, capacity_bytes=None) if n in device.journal else s for n, s in read.items()})

    async def run(self) -> None:
        """Query disks until cancelled."""
        if self._interval_ms == 0:
            return
        while True:
            while (name := self._next()) is not None:
                await self._ask(name)
            self._processes.reap()
            await asyncio.sleep(min(ROUND_MS, self._interval_ms) / 1000)

    def _next(self) -> str | None:
        lying = [Lying(s.device.disks, s.health.health, s.last_probe is not None) for s in self._statuses()]
        disks = well_disks(lying)
        for name in disks:
            self._note_replaced(name)
        for name in [name for name in self._read if name not in disks]:
            self._forget(name)
        return next_disk(disks, self._past, self._clock.monotonic_ms(), self._interval_ms)

    def _note_replaced(self, name: str) -> None:
        """Forget a disk that was replaced: the kernel gives each added disk a new sequence number."""
        try:
            sequence = (self._sys / "block" / name / "diskseq").read_text()
        except OSError:
            sequence = ""
        if self._sequences.setdefault(name, sequence) != sequence:
            self._sequences[name] = sequence
            self._forget(name)

    def _forget(self, name: str) -> None:
        for table in (self._read, self._past, self._told):
            table.pop(name, None)

    async def _ask(self, name: str) -> None:
        asked_ms = self._clock.monotonic_ms()
        self._past[name] = Past(asked_ms)
        try:
            answer = await self._processes.ask(name)
        except TimeoutError:
            self._past[name] = Past(asked_ms, hung=True)
            reason = f"no answer in {ASK_TIMEOUT_MS // 1000} s: it is not asked again for a day"
            self._log.warning("smart.unanswered", disk=name, paths=self._paths(name), reason=reason)
        except OSError as error:
            self._tell_unread(name, error.strerror or str(error))
        else:
            self._answered(name, answer)

    def _answered(self, name: str, answer: Answer) -> None:
        first, _, rest = answer.content.partition(b"\n")
        facts = parsed(first)
        if not isinstance(facts, Mapping):
            self._tell_unread(name, "who asks it says nothing of it")
            return
        source, reason = answer.source, answer.reason
        if source != "sysfs" and not facts.get("smartctl"):
            source, reason = "sysfs", NOT_INSTALLED
        self._tell_source(source, reason)
        document = None if source == "sysfs" else parsed(rest)
        unread = None if source == "sysfs" else why_unread(document)
        smart = replace(over(parse_facts(facts), parse_smartctl(document)), at_ms=self._clock.wall_ms())
        if unread is None:
            self._read[name] = smart
            self._tell_failing(name, smart, exit_status(document) or 0)
        else:
            self._read.setdefault(name, smart)  # what was read before, with its time, says more
            self._tell_unread(name, unread)

    # ------------------------------------------------------------------------------------------------------------ words

    def _tell_source(self, source: str, reason: str) -> None:
        if self._is_news("", f"{source} {reason}"):
            self._log.info("smart.source", source=source, **({"reason": reason} if reason else {}))

    def _tell_unread(self, name: str, reason: str) -> None:
        if self._is_news(name, reason):
            self._log.info("smart.unread", disk=name, paths=self._paths(name), reason=reason)

    def _tell_failing(self, name: str, smart: Smart, status: int) -> None:
        if self._is_news(name, f"failing {smart.critical_warning}" if smart.is_failing else "") and smart.is_failing:
            self._log.warning(
                "smart.failing",
                disk=name,
                serial=smart.serial,
                paths=self._paths(name),
                critical_warning=smart.critical_warning,
                reason=explain(status & ~UNREAD_BITS) or "the disk says so itself",
            )

    def _is_news(self, subject: str, text: str) -> bool:
        before, self._told[subject] = self._told.get(subject), text
        return before != text

    def _paths(self, name: str) -> list[str]:
        return [status.path for status in self._statuses() if name in status.device.disks]


async def ask_once(processes: CanAsk, name: str) -> tuple[Smart | None, str | None]:
    """Return the health of a disk, by its kernel name, as smartctl reads it now, and why smartctl can read none.

    Health is None where nothing was read in time; the reason is None where it concerns this disk alone.
    """
    try:
        answer = await processes.ask(name)
    except (TimeoutError, OSError):
        return None, None
    document = parsed(answer.content.partition(b"\n")[2])
    return parse_smartctl(document), why_no_json(document)


def parsed(content: bytes) -> Any:
    """Return parsed JSON; the text if it is no JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content[:TEXT_BYTES_MAX].decode("utf-8", "replace")
