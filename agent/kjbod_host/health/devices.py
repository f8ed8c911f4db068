"""The devices under the log directories: how long each has been silent, and whether its counters count at all."""

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kjbod_host.health import block
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.silence import DeviceSilence, observe_device

if TYPE_CHECKING:
    from kjbod_host.health.host import HostSources


BUSY_EVERY_MS = 100
"""Between two samples of devices that have something to do. A silence is noticed that much after its begin at most."""
IDLE_EVERY_MS = 500
"""Between two samples of devices that have nothing to do but our probes."""
BUSY_REQUESTS = 32
"""Completed since the last sample: more than a probe makes, so somebody uses the device."""
STILL_PROBES = 3
"""Probes in a row, each with an fsync, that passed while the counters stood still: the counters do not count."""


class Reading(Struct, frozen=True):
    """Counters of the devices of a directory now, summed, and the longest silence of any device among several.

    ``after_flush`` and ``ended_ms``: of any device, and the longest; see ``silence.py``.
    """

    counters: BlockCounters | None
    hung_ms: int = 0
    after_flush: bool = False
    ended_ms: int = 0


class DeviceWatch:
    """Samples of devices, shared by all directories on them.

    Args:
        sources: where counters come from.
        gap_ms: the most that one sample may add to a silence.
    """

    def __init__(self, sources: "HostSources", gap_ms: int) -> None:
        self._sources = sources
        self._gap_ms = gap_ms
        self._silences: dict[str, DeviceSilence] = {}
        self._completed: dict[str, int] = {}

    def read(self, device: BlockDevice, now_ms: int) -> Reading:
        """Sample the devices of a directory."""
        found: list[BlockCounters] = []
        hung_ms, after_flush, ended_ms = 0, False, 0
        for name in device.names:
            single = device if len(device.names) == 1 else replace(device, names=(name,))
            counters = self._sources.read_counters(single)
            if counters is None:  # pulled out; of several devices the others still tell
                self._silences.pop(name, None)
                self._completed.pop(name, None)
                continue
            silence = self._silences[name] = observe_device(self._silences.get(name), counters, now_ms, self._gap_ms)
            hung_ms = max(hung_ms, silence.hung_ms)
            after_flush = after_flush or silence.after_flush
            ended_ms = max(ended_ms, silence.ended_ms)
            found.append(counters)
        return Reading(block.total(found), hung_ms, after_flush, ended_ms) if found else Reading(None)

    def is_busy(self, device: BlockDevice) -> bool:
        """Whether somebody but our probes uses it, by the samples since the last call."""
        busy = False
        for name in device.names:
            silence = self._silences.get(name)
            if silence is not None:
                completed = silence.counters.completed
                done = completed - self._completed.get(name, completed)
                self._completed[name] = completed
                busy = busy or silence.counters.in_flight > 0 or done > BUSY_REQUESTS
        return busy


class CounterCheck:
    """Whether the counters of a directory's device move with its probes."""

    def __init__(self) -> None:
        self._still = 0

    def passed(self, before: BlockCounters | None, after: BlockCounters | None) -> bool:
        """A probe passed between these two. False when the counters do not count."""
        moved = before is None or after is None or before.completed != after.completed
        self._still = 0 if moved else self._still + 1
        return self._still < STILL_PROBES

    def start_again(self) -> None:
        """With other counters."""
        self._still = 0


def instead_of(device: BlockDevice, sources: "HostSources") -> BlockDevice:
    """The device to read where the counters of another do not count: the one below it, or one without counters."""
    return sources.below(device) or device.without_counters(
        f"the counters of {' '.join(device.names)} stand still while probes pass"
    )
