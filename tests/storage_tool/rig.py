"""One node's configuration and directories, and the storage tool run on them."""

import random
from collections.abc import Callable
from pathlib import Path

from kjbod.config import Config, load_config
from kjbod.storage_tool import FormatOptions, describe_directories, format_directories

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class FixedClock:
    """The moment at which everything in these tests happens."""

    def monotonic_ms(self) -> int:
        return 0

    def monotonic_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_795_199_121_000


class Node:
    """One node's configuration and directories, and the tool run on them."""

    def __init__(self, root: Path, role: str, directories: tuple[str, ...], *changes: str) -> None:
        self.root = root
        self.directories = [root / name for name in directories]
        lines = {
            "process.roles": role,
            "node.id": "1" if role == "broker" else "3000",
            "controller.quorum.bootstrap.servers": "127.0.0.1:19093",
            "listeners": "PLAINTEXT://127.0.0.1:19092" if role == "broker" else "CONTROLLER://127.0.0.1:19093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": ",".join(map(str, self.directories)),
        }
        lines |= dict(change.split("=", 1) for change in changes)
        root.mkdir(parents=True, exist_ok=True)
        self.path = root / "server.properties"
        self.path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.warnings: list[str] = []

    @property
    def config(self) -> Config:
        return load_config(self.path)

    def format(self, cluster_id: str = CLUSTER_ID, seed: int = 1, **options: object) -> list[str]:
        """The lines of standard output."""
        lines: list[str] = []
        given = FormatOptions(cluster_id=cluster_id, **options)  # type: ignore[arg-type]
        rng = random.Random(seed)
        format_directories(self.config, given, rng=rng, clock=FixedClock(), out=lines.append, warn=self.warnings.append)
        return lines

    def info(self) -> tuple[int, list[str]]:
        """Exit code and the lines of standard output."""
        lines: list[str] = []
        return describe_directories(self.config, lines.append, self.warnings.append), lines

    def meta(self, name: str) -> dict[str, str]:
        text = (self.root / name / "meta.properties").read_text()
        return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


MakeNode = Callable[..., Node]
