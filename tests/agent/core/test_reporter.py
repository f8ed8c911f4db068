"""What the health report says about a directory."""

from typing import Any

from kjbod.clock import SystemClock
from kjbod.fleet.schema import Event, Sample
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.monitor import DirectoryStatus
from kjbod_host.health.verdict import DirectoryHealth
from kjbod_host.reporter import Reporter, Sender
from kjbod_host.smart.readings import Smart


class Reports:
    """Remembers samples."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def event(self, event: Event) -> None:
        pass

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)


def status(**changes: Any) -> DirectoryStatus:
    fields: dict[str, Any] = {
        "path": "/d1",
        "directory_id": "D1",
        "health": DirectoryHealth(),
        "last_probe": None,
        "probes": 10,
        "probe_failures": 1,
        "probe_histogram": {"40": 9, "50": 1},
        "blocked_ms": None,
        "device": BlockDevice(("sdb",), "8:16"),
        "counters": BlockCounters(0, 7, busy_ms=5, reads=3, read_bytes=4096, writes=4, write_bytes=8192, errors=2),
    }
    return DirectoryStatus(**{**fields, **changes})


def sampled(*statuses: DirectoryStatus) -> list[Sample]:
    reports = Reports()
    reporter = Reporter(Sender(host="h", broker_id=1, boot_id="b", fleet="f"), SystemClock(), None, reports)  # type: ignore[arg-type]
    for each in statuses:
        reporter.sample([each], {}, {})
    return reports.samples


def test_a_sample_has_the_counters_of_the_device() -> None:
    (sample,) = sampled(status())
    assert (sample.io_errors, sample.busy_ms) == (2, 5)
    assert (sample.reads, sample.read_bytes, sample.writes, sample.write_bytes) == (3, 4096, 4, 8192)


def test_a_sample_without_counters_says_nothing_about_them() -> None:
    (sample,) = sampled(status(counters=None))
    assert (sample.io_errors, sample.reads, sample.write_bytes, sample.busy_ms) == (None,) * 4


def test_probes_are_counted_since_the_sample_before() -> None:
    later = status(probes=13, probe_failures=1, probe_histogram={"40": 10, "50": 1, "60": 2})
    first, second = sampled(status(), later)
    assert (first.probes, first.probe_failures, first.probe_histogram) == (10, 1, {"40": 9, "50": 1})
    assert (second.probes, second.probe_failures, second.probe_histogram) == (3, 0, {"40": 1, "60": 2})


def test_probes_of_another_disk_under_the_same_path_or_of_one_that_is_back_are_counted_anew() -> None:
    new = status(directory_id="D2", probes=12, probe_failures=0, probe_histogram={"40": 12})
    back = status(probes=2, probe_failures=0, probe_histogram={"40": 2})
    _, second, third = sampled(status(), new, back)
    assert (second.probes, second.probe_failures, second.probe_histogram) == (12, 0, {"40": 12})
    assert (third.probes, third.probe_failures, third.probe_histogram) == (2, 0, {"40": 2})


def test_a_directory_that_could_not_be_read_is_not_reported_as_failed() -> None:
    reports = Reports()
    reporter = Reporter(Sender(host="h", broker_id=1, boot_id="b", fleet="f"), SystemClock(), None, reports)  # type: ignore[arg-type]
    reporter.sample_unreadable({"/d9": None})
    (sample,) = reports.samples
    assert (sample.path, sample.state, sample.bytes_total) == ("/d9", "unreadable", None)


SMART = Smart(at_ms=1, serial="S1", passed=True, realloc=8, temp_c=31, raw={"sdb": {"5": [100, 100, 10, 8]}})


def test_a_sample_has_what_the_disk_tells_of_its_own_health() -> None:
    (sample,) = sampled(status(smart=SMART))
    assert (sample.serial, sample.smart_ts, sample.smart_temp_c) == ("S1", 1, 31)
    assert (sample.smart_passed, sample.smart_realloc, sample.smart_wear_pct) == (1, 8, None)
    assert sample.smart_raw == '{"sdb":{"5":[100,100,10,8]}}'


def test_a_sample_of_a_disk_that_tells_nothing_is_the_line_that_it_was() -> None:
    (sample,) = sampled(status())
    assert "smart" not in sample.to_json_line() and "firmware" not in sample.to_json_line()


def test_raw_attributes_are_in_one_sample_an_hour_of_each_directory() -> None:
    class Clock(SystemClock):
        def __init__(self) -> None:
            self.rounds = 0

        def monotonic_ms(self) -> int:
            return self.rounds * 600_000

    clock = Clock()
    statuses = [status(path=path, smart=SMART) for path in ("/d1", "/d2")]
    reports = Reports()
    reporter = Reporter(Sender(host="h", broker_id=1, boot_id="b", fleet="f"), clock, None, reports)  # type: ignore[arg-type]
    for _ in range(13):
        reporter.sample(statuses, {}, {})
        clock.rounds += 1
    with_raw = [(sample.path, sample.seq) for sample in reports.samples if sample.smart_raw is not None]
    assert with_raw == [(path, seq) for seq in (0, 6, 12) for path in ("/d1", "/d2")]
