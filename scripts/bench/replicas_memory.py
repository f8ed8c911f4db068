"""Disks in memory as a storage agent plug-in, for more replicas than a benchmark's disks take.

The agent finds it by name, as it finds any plug-in. Disks outlive it as a file: what was durable at its end.
"""

import json
import os
from pathlib import Path

from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent

NAME = "bench-memory"
ENVIRONMENT = "KJBOD_BENCH_DISKS"


def load(path: Path) -> dict[str, MemoryDisk]:
    """Disks by path of the log directory."""
    return {
        log_dir: MemoryDisk(
            meta_properties=disk["meta"].encode(),
            directories={name: text.encode() for name, text in disk["replicas"].items()},
            number=number,
            total_bytes=1 << 40,
            usable_bytes=1 << 39,
        )
        for number, (log_dir, disk) in enumerate(json.loads(path.read_text()).items(), 1)
    }


def save(path: Path, disks: dict[str, MemoryDisk]) -> None:
    """Keep them for the next process."""
    content = {
        log_dir: {
            "meta": (disk.meta_properties or b"").decode(),
            "replicas": {name: (text or b"").decode() for name, text in disk.directories.items()},
        }
        for log_dir, disk in disks.items()
    }
    path.write_text(json.dumps(content))


class BenchStorageAgent(MemoryStorageAgent):
    """Disks in memory that are read from a file, and written to it at the end."""

    def __init__(self, options: StorageOptions) -> None:
        self._file = Path(os.environ[ENVIRONMENT])
        super().__init__(options, load(self._file))

    async def close(self) -> None:
        """Close, and keep what there is."""
        await super().close()
        save(self._file, self.disks)


def install(packages: Path) -> None:
    """Make the plug-in known to an interpreter that has ``packages`` on its path."""
    info = packages / "kjbod_bench-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kjbod-bench\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[kjbod.storage]\n{NAME} = {__name__}:BenchStorageAgent\n")
