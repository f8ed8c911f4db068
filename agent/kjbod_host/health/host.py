"""Sources of facts about a host's disks that touch none of them: the mount table and the block counters."""

from collections.abc import Callable
from typing import Protocol

from kjbod_host.health import mountinfo, mounts, sysfs
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.mounts import Mount


class HostSources(Protocol):
    """Facts that the kernel tells about a host without any disk being touched. No method blocks."""

    def read_mounts(self) -> tuple[Mount, ...] | None:
        """The mount table, the same object while it is unchanged; None when this host or simulation has none."""

    def block_device_of(self, mount: Mount) -> BlockDevice:
        """The block device under a mount."""

    def below(self, device: BlockDevice) -> BlockDevice | None:
        """The devices one layer below; None when the device is at the bottom."""

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        """Counters of a device, the sums of several; None when there are none."""

    def watch_mounts(self, changed: Callable[[], None]) -> tuple[Callable[[], None], str | None]:
        """Call back at each change. Returns how to end that, and why it does not work (None when it does)."""


class LinuxSources:
    """``/proc`` and ``/sys`` of this host."""

    def __init__(self) -> None:
        self._mountinfo = b""
        self._mounts: tuple[Mount, ...] = ()

    def read_mounts(self) -> tuple[Mount, ...] | None:
        try:
            content = mountinfo.read_mountinfo()
        except OSError:
            return None
        if content != self._mountinfo:
            self._mountinfo, self._mounts = content, mounts.parse_mountinfo(content)
        return self._mounts

    def block_device_of(self, mount: Mount) -> BlockDevice:
        return sysfs.block_device_of(mount)

    def below(self, device: BlockDevice) -> BlockDevice | None:
        return sysfs.below(device)

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        return sysfs.read_counters(device)

    def watch_mounts(self, changed: Callable[[], None]) -> tuple[Callable[[], None], str | None]:
        watcher = mountinfo.MountWatcher(changed)
        return watcher.close, watcher.start()


class NoSources:
    """A host that tells nothing: probes and deadlines alone. For simulations."""

    def read_mounts(self) -> tuple[Mount, ...] | None:
        return None

    def block_device_of(self, mount: Mount) -> BlockDevice:
        return BlockDevice((), mount.device, reason="no sources")

    def below(self, device: BlockDevice) -> BlockDevice | None:
        return None

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        return None

    def watch_mounts(self, changed: Callable[[], None]) -> tuple[Callable[[], None], str | None]:
        return (lambda: None), "no sources"
