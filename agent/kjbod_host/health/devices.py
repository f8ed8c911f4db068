"""Devices under the log directories: length of each silence, and whether the counters work. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from kjbod_host.health import block
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.silence import DeviceSilence, observe_device

BUSY_EVERY_MS = 100
"""Time between two samples while a device is busy. A silence is noticed at most that much later."""
IDLE_EVERY_MS = 500
"""Time between two samples while devices serve only kjbod's probes."""
BUSY_REQUESTS = 32
"""Requests completed since the last sample. More than a probe makes: another process uses the device."""
STILL_PROBES = 3
"""Passed probes in a row, each with an fsync, after which unchanged counters count as broken."""


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
        gap_ms: the most that one sample may add to a silence.
    """

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms
        self._silences: dict[str, DeviceSilence] = {}
        self._completed: dict[str, int] = {}

    def sample(self, device: BlockDevice, read: Sequence[BlockCounters | None], now_ms: int) -> Reading:
        """Take a sample of the devices of a directory; ``read``: the counters of each, None where there are none."""
        found: list[BlockCounters] = []
        hung_ms, after_flush, ended_ms = 0, False, 0
        for name, counters in zip(device.names, read, strict=True):
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
        """Whether other processes use the device, by the samples since the last call."""
        busy = False
        for name in device.names:
            silence = self._silences.get(name)
            if silence is not None:
                completed = silence.counters.completed
                done = completed - self._completed.get(name, completed)
                self._completed[name] = completed
                busy = busy or silence.counters.in_flight > 0 or done > BUSY_REQUESTS
        return busy
