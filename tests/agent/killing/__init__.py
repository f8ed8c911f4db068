"""A storage agent for tests that dies, or has its worker die, right before the n-th system call of a move that changes
a disk, or the first one of a kind.

It is a plug-in like any other (entry-point group ``kjbod.storage``): the workers of ``posix``, in which those functions
of :mod:`os` that change a disk count their calls first. :class:`Killer` installs it for an agent's process, arms it and
says what was called.
"""

import mmap
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import kjbod_agent
from tests.agent.killing import storage, zygote

_PLAN: Final = struct.Struct("=iii")
AGENT: Final = 1
WORKER: Final = 2


class Killer:
    """One agent's plug-in, below ``base``."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir()
        for module in (storage, zygote):
            assert module.__file__ is not None
            shutil.copy(module.__file__, base / f"killing_{Path(module.__file__).name}")
        (base / "source").write_text(str(Path(kjbod_agent.__file__).parents[1]))
        info = base / "killing-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: killing\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[kjbod.storage]\nkilling = killing_storage:KillingStorageAgent\n")
        self._calls = base / "calls"
        self._calls.touch()
        (base / "plan").write_bytes(bytes(_PLAN.size))
        with open(base / "plan", "r+b") as file:
            self._plan = mmap.mmap(file.fileno(), _PLAN.size)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """For the agent's process."""
        return {**inherited, "PYTHONPATH": str(self.base)}

    def arm(self, whom: Literal["agent", "worker"], number: int) -> None:
        """Kill before the call of this number, from now on."""
        self._calls.write_text("")
        self._plan[:] = _PLAN.pack(AGENT if whom == "agent" else WORKER, number, 0)

    def arm_at(self, whom: Literal["agent", "worker"], pattern: str) -> None:
        """Kill before the first call that this regular expression matches. Two workers' calls come in no fixed order,
        so a number is another call the next time."""
        (self.base / "pattern").write_text(pattern)
        self.arm(whom, zygote.AT_PATTERN)

    def disarm(self) -> None:
        """Only count."""
        self.arm("agent", 0)

    def came(self) -> bool:
        """Whether it has come to the call to be killed at; from here on it only counts."""
        came = not self.armed
        self.disarm()
        return came

    @property
    def armed(self) -> bool:
        """Whether it has not killed yet."""
        return bool(_PLAN.unpack(self._plan[:])[1])

    def calls(self) -> list[str]:
        """What was called since it was armed; the last one was not carried out if it was the one to be killed at."""
        return self._calls.read_text().splitlines()


__all__ = ["Killer"]
