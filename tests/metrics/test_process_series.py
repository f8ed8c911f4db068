"""Series of a daemon's processes, as dashboards for any process look for them."""

from pathlib import Path

from msgspec import structs
from prometheus_client import CollectorRegistry, ProcessCollector

from kjbod.metrics.listener import render
from kjbod.metrics.process_series import families
from kjbod.usage import Usage, Use
from tests.metrics.exposition import checked, not_on_the_page, values

MIB = 1 << 20
USAGE = Usage(
    own=Use(processes=1, rss_bytes=50 * MIB, pss_bytes=41 * MIB, uss_bytes=40 * MIB, cpu_s=12.5, descriptors=63),
    workers=Use(
        processes=5, rss_bytes=60 * MIB, pss_bytes=12 * MIB, uss_bytes=9 * MIB, unmeasured=1, cpu_s=3, descriptors=20
    ),
    helpers=Use(processes=4, rss_bytes=30 * MIB, cpu_s=1, descriptors=9),
    virtual_bytes=900 * MIB,
    descriptors_max=1024,
    started_ms=1_700_000_000_500,
)


def test_the_process_has_the_names_types_and_helps_of_prometheus_own_client() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    theirs = {family.name: family for family in registry.collect()}
    ours = {family.name: family for family in families(USAGE) if family.name.startswith("process_")}
    assert theirs.keys() == ours.keys()
    assert {n: (f.type, f.documentation) for n, f in theirs.items()} == {
        n: (f.type, f.documentation) for n, f in ours.items()
    }


def test_the_series_are_a_scrape_and_have_the_values() -> None:
    text = render(families(USAGE)).decode()
    checked(text)
    found = values(text)
    assert found["process_resident_memory_bytes"] == 50 * MIB
    assert found["process_cpu_seconds_total"] == 12.5
    assert (found["process_open_fds"], found["process_max_fds"]) == (63, 1024)
    assert found["process_start_time_seconds"] == 1_700_000_000.5
    assert found["kjbod_process_pss_bytes"] == 41 * MIB
    assert (found["kjbod_workers"], found["kjbod_workers_unmeasured"]) == (5, 1)
    assert (found["kjbod_workers_pss_bytes"], found["kjbod_workers_uss_bytes"]) == (12 * MIB, 9 * MIB)
    assert (found["kjbod_workers_cpu_seconds_total"], found["kjbod_workers_open_fds"]) == (3, 20)
    assert found["kjbod_helpers"] == 4
    assert "kjbod_helpers_pss_bytes" not in found, "what is not known is left out"


def test_no_series_is_of_a_single_worker() -> None:
    assert not [sample for family in families(USAGE) for sample in family.samples if sample.labels]


def test_any_number_of_descriptors_has_no_series() -> None:
    usage = Usage(own=Use(), workers=Use(), helpers=Use(), virtual_bytes=0, descriptors_max=None, started_ms=0)
    assert "process_max_fds" not in values(render(families(usage)).decode())


def test_the_page_of_metrics_has_each_of_them() -> None:
    known = structs.replace(USAGE, helpers=USAGE.workers)
    assert not_on_the_page(render(families(known)).decode()) == []
    page = (Path(__file__).parents[2] / "kjbod" / "metrics" / "README.md").read_text()
    assert [name for name in values(render(families(known)).decode()) if f"`{name}`" not in page] == []
