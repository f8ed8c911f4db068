"""Reporter of an agent: writes each event to the log, and to the health report.

Names of log events and their fields are stable: people search for them and tests wait for them. The report's columns
are :mod:`kjbod.fleet.schema`'s.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct, field

from kjbod import __version__
from kjbod.clock import Clock
from kjbod.fleet.schema import DirectoryState, Event, EventKind, Sample
from kjbod.ids import Uuid
from kjbod_host.health.evidence import Evidence, Verdict
from kjbod_host.health.monitor import DirectoryStatus
from kjbod_host.log_lines import LogLine
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.smart.readings import Smart, columns

RAW_EVERY_MS: Final = 3_600_000
"""Time between two samples with the raw attributes of a directory's disks."""


class Log(Protocol):
    """The part of a structlog logger that the agent uses."""

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...

    def error(self, event: str, **fields: Any) -> Any: ...


def write(log: Log, lines: Iterable[LogLine]) -> None:
    """Write lines that decisions have made."""
    for line in lines:
        getattr(log, line.level)(line.event, **line.fields)


class Reports(Protocol):
    """Sink for lines of the health report; never blocks or raises (:class:`kjbod_host.report_writer.ReportWriter`)."""

    def event(self, event: Event) -> None: ...

    def sample(self, sample: Sample) -> None: ...


class Sender(Struct, frozen=True, kw_only=True):
    """The agent that reports."""

    host: str
    broker_id: int
    boot_id: str
    """The incarnation id: names one run of the agent."""
    fleet: str
    """Cluster id."""
    rack: str | None = None


class Reporter(Struct):
    """Writer of events to the log and to the health report."""

    sender: Sender
    clock: Clock
    log: Log
    reports: Reports
    _samples: int = 0
    _before: dict[str, tuple[int, int, Counter[str]]] = field(default_factory=dict)
    """Probes, failed probes and histogram of the last sample, by path and directory id."""
    _evidence: dict[str, Evidence] = field(default_factory=dict)
    _raw_ms: dict[str, int] = field(default_factory=dict)
    """When a sample last had the raw attributes of a directory's disks, monotonic."""

    def started(self, log_dirs: Mapping[str, Uuid], unreadable: Mapping[str, str]) -> None:
        """Report the start: the directories are loaded and locked."""
        text = {path: str(directory_id) for path, directory_id in log_dirs.items()}
        self.log.info("agent.started", broker_id=self.sender.broker_id, log_dirs=text, unreadable=dict(unreadable))
        counts = {"log_dirs": str(len(log_dirs)), "unreadable": str(len(unreadable))}
        self._event(EventKind.AGENT_STARTED, attrs=counts | {"version": __version__})

    def registered(self, broker_epoch: int) -> None:
        """Report that the controller has accepted the registration."""
        self.log.info("agent.registered", broker_epoch=broker_epoch)
        self._event(EventKind.REGISTERED, attrs={"broker_epoch": str(broker_epoch)})

    def unfenced(self) -> None:
        """Report that the broker is unfenced and may lead."""
        self.log.info("agent.unfenced")
        self._event(EventKind.UNFENCED)

    def fenced(self) -> None:
        """Report that the broker is fenced and may not lead."""
        self.log.warning("agent.fenced")
        self._event(EventKind.FENCED)

    def verdict(self, verdict: Verdict) -> None:
        """Report a change of a directory's health."""
        say = self.log.info if verdict.state == "online" else self.log.warning
        say(
            "directory.verdict",
            path=verdict.path,
            directory_id=verdict.directory_id,
            state=str(verdict.state),
            cause=str(verdict.cause),
            evidence=verdict.evidence.as_dict(),
        )
        self._evidence[verdict.directory_id] = verdict.evidence
        attrs = {"previous": str(verdict.previous), "state": str(verdict.state), "cause": str(verdict.cause)}
        self._event(EventKind.STATE_CHANGED, dir_id=verdict.directory_id, path=verdict.path, attrs=attrs)

    def directory_failed(
        self, directory_id: Uuid, path: str, cause: str, text: str, *, partitions: int, leaders: int | None
    ) -> None:
        """Report a directory that is offline for the rest of this process."""
        self.log.error(
            "directory.failed",
            path=path,
            directory_id=str(directory_id),
            cause=cause,
            evidence=text,
            partitions=partitions,
            leaders=leaders,
        )
        evidence = self._evidence.get(str(directory_id))
        attrs = {"cause": cause, "evidence": text}
        if evidence is not None:
            attrs |= {k: v for k, v in (("errno", evidence.errno), ("call", evidence.call)) if v}
            if evidence.age_ms is not None:
                attrs["latency_ms"] = f"{evidence.age_ms:.0f}"
        self._event(
            EventKind.DIR_FAILED,
            dir_id=str(directory_id),
            path=path,
            partitions=partitions,
            leaders=leaders,
            attrs=attrs,
        )

    def offline_sent(self, directories: Mapping[Uuid, str]) -> None:
        """Report the first heartbeat with these failed directories; ``directories`` are paths by id."""
        self.log.info("directory.offline.sent", directory_ids=[str(d) for d in directories])
        for directory_id, path in directories.items():
            self._event(EventKind.OFFLINE_SENT, dir_id=str(directory_id), path=path)

    def offline_acknowledged(self, directories: Mapping[Uuid, str], latencies_ms: Iterable[int]) -> None:
        """Report that the controller has acknowledged failed directories; latencies count from their verdicts."""
        self.log.info(
            "directory.offline.acknowledged",
            directory_ids=[str(d) for d in directories],
            latency_ms=max(latencies_ms, default=0),
        )
        for directory_id, path in directories.items():
            self._event(EventKind.ACKNOWLEDGED, dir_id=str(directory_id), path=path)

    def leadership_moved(self, directory_id: Uuid, path: str, leaders: int) -> None:
        """Report that the committed metadata show no leader on a failed directory any more."""
        self.log.info("directory.leadership.moved", directory_id=str(directory_id), path=path, leaders=leaders)
        self._event(EventKind.LEADERSHIP_MOVED, dir_id=str(directory_id), path=path, leaders=leaders)

    def assignments_acknowledged(self, count: int) -> None:
        """Report that the controller has recorded assignments."""
        self.log.info("assignments.acknowledged", count=count)
        self._event(EventKind.ASSIGNMENTS_ACKNOWLEDGED, attrs={"count": str(count)})

    def replica_created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid, path: str) -> None:
        """Report a new replica directory on disk."""
        number = partition.partition
        self.log.info("replica.created", topic=topic, partition=number, path=f"{path}/{topic}-{number}")
        attrs = {"topic": topic, "partition": str(number)}
        self._event(EventKind.REPLICA_CREATED, dir_id=str(directory_id), path=path, attrs=attrs)

    def timed_out(self, directory_id: Uuid, path: str) -> None:
        """Report that ``log.dir.failure.timeout.ms`` has passed for a directory."""
        self._event(EventKind.TIMEOUT_SHUTDOWN, dir_id=str(directory_id), path=path)

    def stopping(self, reason: str) -> None:
        """Log that the agent is stopping."""
        self.log.info("agent.stopping", reason=reason)

    def stopped(self, exit_code: int, reason: str) -> None:
        """Write the last line of the report. The last log line, ``agent.stopped``, follows after the report is
        closed."""
        self._event(EventKind.AGENT_STOPPED, attrs={"reason": reason, "exit_code": str(exit_code)})

    def sample(
        self, statuses: Iterable[DirectoryStatus], replicas: Mapping[str, int], leaders: Mapping[str, int]
    ) -> None:
        """Write a sample of each directory into the report; counts are by directory id."""
        sequence, self._samples = self._samples, self._samples + 1
        for status in statuses:
            self.reports.sample(self._sample(status, sequence, replicas, leaders))

    def sample_unreadable(self, directories: Mapping[str, Uuid | None]) -> None:
        """Write a sample of each directory that is offline since the start, in the round of the last sample."""
        for path, directory_id in directories.items():
            self.reports.sample(
                Sample(
                    ts=self.clock.wall_ms(),
                    mono_ns=self.clock.monotonic_ns(),
                    boot_id=self.sender.boot_id,
                    seq=max(0, self._samples - 1),
                    fleet=self.sender.fleet,
                    rack=self.sender.rack,
                    host=self.sender.host,
                    broker_id=self.sender.broker_id,
                    dir_id=None if directory_id is None else str(directory_id),
                    path=path,
                    state=str(DirectoryState.UNREADABLE),
                )
            )

    def _sample(
        self, status: DirectoryStatus, sequence: int, replicas: Mapping[str, int], leaders: Mapping[str, int]
    ) -> Sample:
        probe, counters = status.last_probe, status.counters
        steps = {} if probe is None else dict(probe.steps)
        disk = f"{status.path} {status.directory_id}"
        probes, failures, histogram = self._before.get(disk, (0, 0, Counter()))
        if status.probes < probes:  # it was away and was added again: its probes are counted anew
            probes, failures, histogram = 0, 0, Counter()
        self._before[disk] = (status.probes, status.probe_failures, Counter(status.probe_histogram))
        since_wall_ms = self.clock.wall_ms() - (self.clock.monotonic_ms() - status.health.since_ms)
        smart = status.smart
        return Sample(
            ts=self.clock.wall_ms(),
            mono_ns=self.clock.monotonic_ns(),
            boot_id=self.sender.boot_id,
            seq=sequence,
            fleet=self.sender.fleet,
            rack=self.sender.rack,
            host=self.sender.host,
            broker_id=self.sender.broker_id,
            dir_id=status.directory_id,
            path=status.path,
            device=" ".join(status.device.names) or status.device.device,
            model=status.device.model or (None if smart is None else smart.model),
            serial=status.device.serial or (None if smart is None else smart.serial),
            state=str(status.health.health),
            state_since=since_wall_ms,
            bytes_total=None if probe is None else probe.total_bytes,
            bytes_used=None if probe is None else probe.total_bytes - probe.usable_bytes,
            partitions=replicas.get(status.directory_id),
            leaders=leaders.get(status.directory_id, 0),
            io_errors=None if counters is None else counters.errors,
            reads=None if counters is None else counters.reads,
            read_bytes=None if counters is None else counters.read_bytes,
            writes=None if counters is None else counters.writes,
            write_bytes=None if counters is None else counters.write_bytes,
            busy_ms=None if counters is None else counters.busy_ms,
            probe_write_us=steps.get("write"),
            probe_sync_us=steps.get("fsync"),
            probe_read_us=steps.get("read"),
            probe_us=None if probe is None else probe.duration_us,
            probes=status.probes - probes,
            probe_failures=status.probe_failures - failures,
            probe_histogram=dict(Counter(status.probe_histogram) - histogram),
            **columns(smart, raw=self._is_raw_due(disk, smart)),
        )

    def _is_raw_due(self, disk: str, smart: Smart | None) -> bool:
        now_ms = self.clock.monotonic_ms()
        if smart is None or not smart.raw or now_ms - self._raw_ms.get(disk, now_ms - RAW_EVERY_MS) < RAW_EVERY_MS:
            return False
        self._raw_ms[disk] = now_ms
        return True

    def _event(
        self,
        kind: EventKind,
        *,
        dir_id: str | None = None,
        path: str | None = None,
        partitions: int | None = None,
        leaders: int | None = None,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        evidence = None if dir_id is None else self._evidence.get(dir_id)
        self.reports.event(
            Event(
                ts=self.clock.wall_ms(),
                mono_ns=self.clock.monotonic_ns(),
                boot_id=self.sender.boot_id,
                kind=str(kind),
                fleet=self.sender.fleet,
                host=self.sender.host,
                broker_id=self.sender.broker_id,
                dir_id=dir_id,
                path=path,
                device=None if evidence is None else evidence.device,
                serial=None if evidence is None else evidence.serial,
                partitions=partitions,
                leaders=leaders,
                attrs=attrs or {},
            )
        )
