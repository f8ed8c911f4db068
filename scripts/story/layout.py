"""Paths of everything of one demonstration, and the ``server.properties`` of its nodes.

The files are Kafka's: the controller's starts a real Kafka controller as well, a broker's would start a real broker.
"""

import dataclasses
from pathlib import Path

BROKERS = (1, 2, 3)
DISKS_PER_BROKER = 3
TOPIC = "orders"
PARTITIONS = 30
REPLICATION_FACTOR = 3
FAILURE_TIMEOUT_MS = 4000
"""``log.dir.failure.timeout.ms`` of the brokers: Kafka's default of 30 s is long to watch."""
REPORT_INTERVAL_MS = 1000
REPORT_ROTATE_MS = 5000


@dataclasses.dataclass(frozen=True)
class Layout:
    """Paths; ``work`` goes away at the end, ``out`` stays."""

    work: Path
    out: Path

    @property
    def reports(self) -> Path:
        """Health reports of all agents: not on a watched disk."""
        return self.out / "reports"

    @property
    def logs(self) -> Path:
        """A log file per process."""
        return self.out / "logs"

    @property
    def fleet(self) -> Path:
        """The fleet report."""
        return self.out / "fleet"

    def config(self, name: str) -> Path:
        """``server.properties`` of a node."""
        return self.work / f"{name}.properties"

    def metadata(self, broker: int) -> Path:
        """A broker's metadata log directory."""
        return self.work / f"broker{broker}-metadata"

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.logs / f"{name}.log"


def broker_properties(layout: Layout, broker: int) -> dict[str, object]:
    """Properties of a broker beyond the rig's. Keys that begin with ``kjbod.`` are not Kafka's."""
    return {
        "metadata.log.dir": layout.metadata(broker),
        "log.dir.failure.timeout.ms": FAILURE_TIMEOUT_MS,
        "kjbod.host": f"broker-{broker}",
        "kjbod.placement.full.percent": 100,  # whatever else lies on this machine's disk
        "kjbod.state.dir": layout.work / f"broker{broker}-state",
        "kjbod.reports.dir": layout.reports,
        "kjbod.reports.interval.ms": REPORT_INTERVAL_MS,
        "kjbod.reports.rotate.interval.ms": REPORT_ROTATE_MS,
    }
