"""btrfs' own count of errors on each of its devices: ``/sys/fs/btrfs/UUID/devinfo/N/error_stats`` (Linux 5.14).

Needs no privilege. It wakes nobody, so it is read once a second. The counts are kept over mounts until
``btrfs device stats --reset``: an increase counts, and an old count is told once at the start, in the log line
``health.btrfs.errors``.

``corruption_errs`` and ``generation_errs`` are told as damage. They mean that what the disk gave back was not what was
written, in metadata or in the content of any file: the file system mends it where it has another copy, else the reader
gets EIO, and a probe of other files passes all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog
from msgspec import Struct, field

from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.descriptor_watch import read_text, reason_of
from kjbod_host.health.sysfs import SYS

_log = structlog.get_logger("kjbod.health")

_MEANING = {
    "write_errs": "writes failed",
    "read_errs": "reads failed",
    "flush_errs": "flushes failed",
    "corruption_errs": "checksums of what was read are wrong, in file content or in metadata",
    "generation_errs": "metadata of another time were read",
}
_DAMAGE = frozenset({"corruption_errs", "generation_errs"})


class _FileSystem(Struct):
    """A btrfs file system under watch: its counts by device number (btrfs' own) and name."""

    directory: Path
    paths: tuple[str, ...]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


def parse_error_stats(text: str) -> dict[str, int]:
    """Return the counts in ``"write_errs 0\
read_errs 2\
..."`` by name; empty for ``"invalid"`` and other forms."""
    fields = [line.split() for line in text.splitlines()]
    return {f[0]: int(f[1]) for f in fields if len(f) == 2 and f[1].isascii() and f[1].isdecimal()}


class BtrfsStats:
    """Implements ``KernelSource``; see the head of this module."""

    name = "btrfs-stats"

    def __init__(self, sys: Path = SYS) -> None:
        self._sys = sys
        self._file_systems: list[_FileSystem] = []

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        self._on_event = on_event
        result: dict[str, str | None] = {}
        by_directory: dict[Path, list[str]] = {}
        for subject in subjects:
            try:
                directory = self._directory_of(subject)
            except OSError as error:
                result[subject.path] = reason_of(error)
            except LookupError as error:
                result[subject.path] = str(error.args[0])
            else:
                result[subject.path] = None
                by_directory.setdefault(directory, []).append(subject.path)
        for directory, paths in by_directory.items():
            system = _FileSystem(directory, tuple(paths))
            system.counts = _read(system)
            if not system.counts:
                result.update(dict.fromkeys(paths, f"{directory}/devinfo/*/error_stats: not there (Linux 5.14 has it)"))
                continue
            self._file_systems.append(system)
            old = {device: {n: c for n, c in counts.items() if c} for device, counts in system.counts.items()}
            if any(old.values()):
                _log.warning("health.btrfs.errors", paths=paths, uuid=directory.name, devices=old)
        return result

    def _directory_of(self, subject: Subject) -> Path:
        if subject.mount is None:
            raise LookupError("its mount is not in the mount table")
        if subject.mount.fstype != "btrfs":
            raise LookupError(f"{subject.mount.fstype} has no such counters")
        name = subject.mount.source.rpartition("/")[2]
        mapped = {read_text(path): path.parent.parent.name for path in self._sys.glob("block/dm-*/dm/name")}
        for devices in self._sys.glob("fs/btrfs/*/devices"):
            if (devices / mapped.get(name, name)).exists():
                return devices.parent
        raise LookupError(f"no file system in {self._sys}/fs/btrfs has the device {subject.mount.source}")

    def poll(self) -> None:
        for system in self._file_systems:
            now = _read(system)
            for device, counts in now.items():
                before = system.counts.get(device, {})
                grown = {name: count for name, count in counts.items() if count > before.get(name, 0)}
                if grown:
                    self._tell(system, device, before, grown)
            if now:  # nothing is there after an unmount, which the mount table tells
                system.counts = now

    def _tell(self, system: _FileSystem, device: str, before: dict[str, int], grown: dict[str, int]) -> None:
        said = [f"{_MEANING.get(n, n)} ({n} {count}, was {before.get(n, 0)})" for n, count in grown.items()]
        text = f"btrfs on its device {device}: {'; '.join(said)}"
        damage = not _DAMAGE.isdisjoint(grown)
        self._on_event(KernelEvent(source=self.name, paths=system.paths, text=text, damage=damage))

    def close(self) -> None:
        self._file_systems.clear()


def _read(system: _FileSystem) -> dict[str, dict[str, int]]:
    found = {}
    for stats in sorted(system.directory.glob("devinfo/*/error_stats")):
        if counts := parse_error_stats(read_text(stats) or ""):
            found[stats.parent.name] = counts
    return found
