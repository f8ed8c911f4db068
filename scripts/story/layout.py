"""Where everything of one demonstration lies, and the ``server.properties`` of its nodes.

The files are Kafka's: the controller's starts a real Kafka controller as well, a broker's would start a real broker.
"""

import dataclasses
from pathlib import Path

BROKERS = (1, 2, 3)
DISKS_PER_BROKER = 3
CONTROLLER_ID = 3000
TOPIC = "orders"
PARTITIONS = 30
REPLICATION_FACTOR = 3
FAILURE_TIMEOUT_MS = 4000
"""``log.dir.failure.timeout.ms`` of the brokers: Kafka's default of 30 s is long to watch."""
REPORT_INTERVAL_MS = 1000
REPORT_ROTATE_MS = 5000


@dataclasses.dataclass(frozen=True)
class Layout:
    """Paths and ports; ``work`` goes away at the end, ``out`` stays."""

    work: Path
    out: Path
    controller_port: int
    broker_ports: dict[int, int]

    @property
    def reports(self) -> Path:
        """Health reports of all agents: not on a watched disk."""
        return self.out / "reports"

    @property
    def logs(self) -> Path:
        """One log file per process."""
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


def controller_properties(layout: Layout) -> str:
    """The controller's ``server.properties``."""
    address = f"127.0.0.1:{layout.controller_port}"
    return "\n".join(
        [
            "process.roles=controller",
            f"node.id={CONTROLLER_ID}",
            f"controller.quorum.bootstrap.servers={address}",
            f"listeners=CONTROLLER://{address}",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={layout.work}/controller",
            "",
        ]
    )


def broker_properties(layout: Layout, broker: int, log_dirs: list[Path]) -> str:
    """A JBOD broker's ``server.properties``; only the keys that begin with ``kjbod.`` are not Kafka's."""
    return "\n".join(
        [
            "process.roles=broker",
            f"node.id={broker}",
            f"controller.quorum.bootstrap.servers=127.0.0.1:{layout.controller_port}",
            f"listeners=PLAINTEXT://127.0.0.1:{layout.broker_ports[broker]}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={','.join(str(path) for path in log_dirs)}",
            f"metadata.log.dir={layout.metadata(broker)}",
            f"log.dir.failure.timeout.ms={FAILURE_TIMEOUT_MS}",
            f"kjbod.host=broker-{broker}",
            "kjbod.placement.full.percent=100",  # whatever else lies on this machine's disk
            f"kjbod.state.dir={layout.work}/broker{broker}-state",
            f"kjbod.reports.dir={layout.reports}",
            f"kjbod.reports.interval.ms={REPORT_INTERVAL_MS}",
            f"kjbod.reports.rotate.interval.ms={REPORT_ROTATE_MS}",
            "",
        ]
    )
