"""Report files with known truth, and one Spark session for all tests."""

import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.report_names import base_name, partition_path
from kjbod.fleet.schema import EVENTS, SAMPLES, DirectoryState, Event, EventKind, Sample, latency_bucket
from kjbod_host.files.report_files import finished_content

T0_MS = 1_793_534_400_000  # 2026-11-01 12:00 UTC
GIB = 1 << 30


class Agent:
    """Makes the lines of one agent's run; ``at_ms`` is time since :data:`T0_MS`, and the monotonic clock at once."""

    def __init__(self, host: str = "h1", broker_id: int = 1, boot_id: str = "run-one-1", dirs: int = 3) -> None:
        self.host, self.broker_id, self.boot_id = host, broker_id, boot_id
        self.paths = [f"/var/lib/kafka/d{n}" for n in range(1, dirs + 1)]
        self.lines: dict[str, list[str]] = {SAMPLES: [], EVENTS: []}

    def event(self, at_ms: float, kind: str, path: str | None = None, **more: Any) -> Event:
        if path is not None:
            more = {
                "dir_id": self.dir_id(path),
                "device": f"loop{path[-1]} 7:{path[-1]}",
                "serial": f"S{self.broker_id}{path[-1]}",
            } | more
        event = Event(
            ts=int(T0_MS + at_ms),
            mono_ns=int(at_ms * 1e6),
            boot_id=self.boot_id,
            kind=kind,
            fleet="4L6g3nShT-eMCtK--X86sw",
            host=self.host,
            broker_id=self.broker_id,
            path=path,
            **more,
        )
        self.lines[EVENTS].append(event.to_json_line())
        return event

    def sample(self, at_ms: int, seq: int, path: str, state: str = DirectoryState.ONLINE, **more: Any) -> Sample:
        known: dict[str, Any] = {
            "dir_id": self.dir_id(path),
            "device": f"loop{path[-1]}",
            "serial": f"S{self.broker_id}{path[-1]}",
            "bytes_total": 4 * GIB,
            "bytes_used": GIB,
            "partitions": 10,
            "leaders": 3,
        }
        sample = Sample(
            ts=T0_MS + at_ms,
            mono_ns=at_ms * 1_000_000,
            boot_id=self.boot_id,
            seq=seq,
            fleet="4L6g3nShT-eMCtK--X86sw",
            rack=f"r{self.broker_id}",
            host=self.host,
            broker_id=self.broker_id,
            path=path,
            state=state,
            **(known | more),
        )
        self.lines[SAMPLES].append(sample.to_json_line())
        return sample

    def dir_id(self, path: str) -> str:
        return f"dir{self.broker_id}-{path[-1]}AAAAAAAAAAAAAAAA"

    def start(self, at_ms: float = 0) -> None:
        self.event(at_ms, EventKind.AGENT_STARTED)
        self.event(at_ms + 300, EventKind.REGISTERED)
        for index, path in enumerate(self.paths):
            for partition in range(10):
                at = at_ms + 900 + 40 * index + partition
                attrs = {"topic": "orders", "partition": str(partition)}
                self.event(at, EventKind.REPLICA_CREATED, path, attrs=attrs)
        self.event(at_ms + 1_400, EventKind.ASSIGNMENTS_ACKNOWLEDGED, attrs={"count": "30"})
        self.event(at_ms + 1_900, EventKind.UNFENCED)

    def fail(self, at_ms: float, path: str, *, acknowledged: bool = True, evidence: str = "") -> None:
        """First sign 1,200 ms before the verdict at ``at_ms``; sent 2 ms, acknowledged 31 ms, moved 48 ms after it."""
        text = evidence or f"pwrite({path}/.probe) failed with EIO: loop{path[-1]}, 3 of 3 probes"
        attrs = {"previous": "online", "state": "suspect"}
        self.event(at_ms - 1_200, EventKind.STATE_CHANGED, path, attrs=attrs)
        attrs = {"cause": "io_error", "evidence": text, "errno": "EIO", "call": "pwrite"}
        self.event(at_ms, EventKind.DIR_FAILED, path, partitions=10, leaders=3, attrs=attrs)
        self.event(at_ms + 2, EventKind.OFFLINE_SENT, path)
        if acknowledged:
            self.event(at_ms + 31, EventKind.ACKNOWLEDGED, path)
            self.event(at_ms + 48, EventKind.LEADERSHIP_MOVED, path, leaders=3)

    def write(self, root: Path) -> list[Path]:
        """Finished files, as the agent's writer leaves them."""
        return [
            write_file(root, stream, lines, self.host, self.boot_id) for stream, lines in self.lines.items() if lines
        ]


def write_file(root: Path, stream: str, lines: list[str], host: str, boot_id: str, number: int = 0) -> Path:
    path = root / partition_path(stream, T0_MS) / f"{base_name(host, boot_id, T0_MS, number)}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = b"".join(line.encode() + b"\n" for line in lines)
    path.write_bytes(gzip.compress(finished_content(plain, recovered=False), mtime=0))
    return path


def write_demo(root: Path) -> None:
    """Three agents with three directories each, for a minute: one disk dies and is acknowledged, one dies while the
    controller is away and the agent gives up."""
    rng = random.Random(858)
    for broker_id in (1, 2, 3):
        agent = Agent(f"kafka-{broker_id}", broker_id, f"run{broker_id}abcdef")
        agent.start(100 * broker_id)
        first, second, third = agent.paths
        for seq in range(60):
            for index, path in enumerate(agent.paths):
                failed = broker_id == 1 and ((path == second and seq > 20) or (path == third and seq > 40))
                if broker_id == 1 and seq > 46:
                    continue
                leaders = 0 if failed else 3 + (1 if seq > 20 and (broker_id, index) in {(2, 0), (2, 1), (3, 2)} else 0)
                probe_us = 900 + rng.randrange(400)
                agent.sample(
                    1_000 * seq + 2_000,
                    seq,
                    path,
                    DirectoryState.FAILED if failed else DirectoryState.ONLINE,
                    leaders=leaders,
                    bytes_used=int((0.3 + 0.2 * index + 0.07 * broker_id) * 4 * GIB) + seq * 100_000,
                    probe_us=probe_us,
                    probe_histogram={latency_bucket(probe_us): 1},
                )
        if broker_id == 1:
            agent.fail(21_500, second)
            agent.fail(42_000, third, acknowledged=False)
            agent.event(46_020, EventKind.TIMEOUT_SHUTDOWN, third)
            reason = "log.dir.failure.timeout.ms passed without acknowledgement of /var/lib/kafka/d3"
            agent.event(46_090, EventKind.AGENT_STOPPED, attrs={"reason": reason, "exit_code": "74"})
        assert first
        agent.write(root)


@pytest.fixture
def demo_reports(tmp_path: Path) -> Path:
    write_demo(tmp_path / "reports")
    return tmp_path / "reports"


@pytest.fixture(scope="module")
def torn_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same, and the one of its files that is torn."""
    root = tmp_path_factory.mktemp("torn") / "reports"
    write_demo(root)
    torn = next(root.glob("samples/*/*/kafka-3.*"))
    torn.write_bytes(torn.read_bytes()[:-500])
    return root, torn


@pytest.fixture(scope="session")
def spark(with_spark: None) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="needs the fleet extra")
    from kjbod.fleet.session import spark_session

    with spark_session("local[2]") as session:
        yield session


@pytest.fixture
def frames(spark: Any) -> Iterator[Callable[..., Any]]:
    """The events of agents, as ingest reads them from files."""
    kept: list[Any] = []

    def read(*agents: Agent) -> Any:
        from kjbod.fleet.ingest.lines import parsed
        from kjbod.fleet.schema import columns

        lines = [(line, "file:/inbox/events/a.jsonl", 1) for agent in agents for line in agent.lines[EVENTS]]
        text = spark.createDataFrame(lines, "value STRING, _uri STRING, _bytes BIGINT")
        kept.append(parsed(text, "file:/inbox").select(*columns(Event)).persist())
        return kept[-1]

    yield read
    for table in kept:
        table.unpersist()  # each query is compared with all that is kept


@pytest.fixture
def make_agent() -> type[Agent]:
    """The maker of an agent's lines."""
    return Agent
