"""Metrics of the log directories and their disks, for an agent and a guard. Pure.

A scrape touches no watched disk. Each series has a directory as label, and ends with that directory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kjbod_host.smart.readings import Smart

if TYPE_CHECKING:
    from kjbod_host.health.watched import DirectoryStatus

PROBE_BOUNDS_US: Final = tuple(2**power for power in range(7, 25))
"""Upper bounds of the buckets of probe durations, 128 us to 16.8 s: each a bound of
:func:`kjbod.fleet.schema.latency_bucket` as well, so that no count has to be guessed."""
_BUCKETS_PER_DOUBLING = 4


class Disk(Struct, frozen=True, kw_only=True):
    """A log directory and its disks; None: not known."""

    directory_id: str = ""
    device: str = ""
    """Kernel names."""
    model: str = ""
    serial: str = ""
    file_system: str = ""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    """Bytes that an unprivileged writer can still allocate."""
    probes: int | None = None
    probe_failures: int = 0
    probe_us: int = 0
    """Duration of all probes."""
    probe_histogram: Mapping[str, int] = field(default_factory=dict)
    """Number of probes by :func:`kjbod.fleet.schema.latency_bucket`."""
    reads: int | None = None
    """Counter of the device since it was added, like the next five."""
    read_bytes: int | None = None
    writes: int | None = None
    write_bytes: int | None = None
    io_errors: int | None = None
    busy_ms: int | None = None
    smart: Smart | None = None
    """Health data of its disks."""


def disk_of(status: "DirectoryStatus") -> Disk:
    """Return a directory and its device from the monitor's status."""
    probe, device, counters = status.last_probe, status.device, status.counters
    return Disk(
        directory_id=status.directory_id,
        device=" ".join(device.names) or device.device,
        model=device.model or "",
        serial=device.serial or "",
        file_system=status.file_system or "",
        total_bytes=None if probe is None else probe.total_bytes,
        usable_bytes=None if probe is None else probe.usable_bytes,
        probes=status.probes,
        probe_failures=status.probe_failures,
        probe_us=status.probe_us,
        probe_histogram=dict(status.probe_histogram),
        reads=None if counters is None else counters.reads,
        read_bytes=None if counters is None else counters.read_bytes,
        writes=None if counters is None else counters.writes,
        write_bytes=None if counters is None else counters.write_bytes,
        io_errors=None if counters is None else counters.errors,
        busy_ms=None if counters is None else counters.busy_ms,
        smart=status.smart,
    )


def directory_gauge(name: str, text: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    """Return a gauge with a sample for each directory whose value is known."""
    family = GaugeMetricFamily(name, text, labels=["log_directory"])
    for path, value in values:
        if value is not None:
            family.add_metric([path], value)
    return family


def health_series(health: Mapping[str, str], states: Iterable[str]) -> Metric:
    """Return a series for each directory and state, so that no series disappears when the state changes; ``health`` is
    by path."""
    family = GaugeMetricFamily(
        "kjbod_log_directory_health",
        "1 for the state that a directory is in, 0 for the others; unreadable: it could not be read at the start.",
        labels=["log_directory", "state"],
    )
    known = tuple(states)
    for path, current in health.items():
        for state in known:
            family.add_metric([path, state], state == current)
    return family


def disk_series(disks: Mapping[str, Disk]) -> Iterator[Metric]:
    """Yield the series about the disks of directories, by path."""
    names = ["directory_id", "device", "model", "serial", "file_system"]
    info = GaugeMetricFamily(
        "kjbod_log_directory_info", "1; what a directory lies on.", labels=["log_directory", *names]
    )
    for path, disk in disks.items():
        info.add_metric([path, *(str(getattr(disk, name)) for name in names)], 1)
    yield info
    sizes = ((path, disk.total_bytes) for path, disk in disks.items())
    yield directory_gauge("kjbod_log_directory_size_bytes", "Size of the file system.", sizes)
    usable = ((path, disk.usable_bytes) for path, disk in disks.items())
    yield directory_gauge("kjbod_log_directory_available_bytes", "What may still be written.", usable)
    yield _probes(disks)
    counters: tuple[tuple[str, str, Callable[[Disk], float | None]], ...] = (
        ("probe_failures", "Probes that were answered with an error.", _probe_failures),
        ("device_reads", "Reads that the device completed.", lambda disk: disk.reads),
        ("device_read_bytes", "Bytes of these.", lambda disk: disk.read_bytes),
        ("device_writes", "Writes that the device completed.", lambda disk: disk.writes),
        ("device_written_bytes", "Bytes of these.", lambda disk: disk.write_bytes),
        ("device_errors", "Requests that failed; only SCSI drivers count them.", lambda disk: disk.io_errors),
        ("device_busy_seconds", "Time with a request in flight.", _busy_s),
    )
    for name, text, read in counters:
        family = CounterMetricFamily(f"kjbod_log_directory_{name}", text, labels=["log_directory"])
        for path, disk in disks.items():
            value = read(disk)
            if value is not None:
                family.add_metric([path], value)
        yield family
    yield from smart_series(disks)


_SMART: Final[tuple[tuple[str, str, Callable[[Smart], float | None]], ...]] = (
    ("passed", "Whether the disk's own overall assessment is good.", lambda smart: smart.passed),
    ("critical_warning", "Bits of NVMe's critical warning.", lambda smart: smart.critical_warning),
    ("temperature_celsius", "Temperature.", lambda smart: smart.temp_c),
    ("power_on_seconds", "Time of its life.", lambda smart: smart.power_on_hours and smart.power_on_hours * 3600.0),
    ("wear_percent", "Of its rated writes, used up.", lambda smart: smart.wear_pct),
    ("spare_percent", "Of its spare blocks, left.", lambda smart: smart.spare_pct),
    ("media_errors", "NVMe media errors, SCSI uncorrected errors.", lambda smart: smart.media_errors),
    ("reallocated_sectors", "Attribute 5, SCSI grown defects.", lambda smart: smart.realloc),
    ("pending_sectors", "Attribute 197, SCSI pending defects.", lambda smart: smart.pending),
    ("offline_uncorrectable", "Attribute 198.", lambda smart: smart.uncorrect),
    ("reported_uncorrectable", "Attribute 187.", lambda smart: smart.reported_uncorrect),
    ("command_timeouts", "Attribute 188.", lambda smart: smart.command_timeout),
    ("read_timestamp_seconds", "When the disk told it.", lambda smart: smart.at_ms and smart.at_ms / 1000),
)


def smart_series(disks: Mapping[str, Disk]) -> Iterator[Metric]:
    """Yield the SMART series of disks, by path; for a directory on several disks the worst value."""
    told = {path: disk.smart for path, disk in disks.items() if disk.smart is not None}
    for name, text, read in _SMART:
        yield directory_gauge(f"kjbod_disk_smart_{name}", text, ((path, read(smart)) for path, smart in told.items()))


def _probe_failures(disk: Disk) -> float | None:
    return None if disk.probes is None else disk.probe_failures


def _busy_s(disk: Disk) -> float | None:
    return None if disk.busy_ms is None else disk.busy_ms / 1000


def _probes(disks: Mapping[str, Disk]) -> Metric:
    family = HistogramMetricFamily(
        "kjbod_log_directory_probe_seconds", "Duration of probes, answered well or not.", labels=["log_directory"]
    )
    for path, disk in disks.items():
        if disk.probes is not None:
            family.add_metric([path], _cumulative(disk.probe_histogram), disk.probe_us / 1e6)
    return family


def _cumulative(histogram: Mapping[str, int]) -> list[tuple[str, float]]:
    """Return Prometheus buckets: upper bound in s, and the number of probes up to that bound."""
    counted = sorted((int(bucket), count) for bucket, count in histogram.items())
    made = []
    for bound in PROBE_BOUNDS_US:
        end = _BUCKETS_PER_DOUBLING * (bound.bit_length() - 1)
        made.append((str(bound / 1e6), float(sum(count for bucket, count in counted if bucket < end))))
    return [*made, ("+Inf", float(sum(histogram.values())))]
