"""The condition of an agent or a guard in one line: how ``kjbod status`` begins, what ``kjbod status --check`` exits
with, and what ``systemctl status`` shows. Pure."""

import enum
from typing import Final

from msgspec import Struct

from kjbod.problems import Problem

ONLINE: Final = "online"


class Level(enum.IntEnum):
    """Severity of a condition; the value is the exit code of ``kjbod status --check``."""

    OK = 0
    DEGRADED = 1
    CRITICAL = 2


class Condition(Struct, frozen=True):
    """Condition of an agent or a guard; ``reasons`` is empty when it is well. ``problems`` are the same reasons with a
    line for each directory; an agent has none."""

    level: Level
    reasons: tuple[str, ...]
    well: str
    """Text of a condition without reasons."""
    problems: tuple[Problem, ...] = ()

    @property
    def line(self) -> str:
        """Condition in one line: ``OK: running, unfenced, 12 directories online``."""
        return f"{self.level.name}: {'; '.join(self.reasons) or self.well}"
