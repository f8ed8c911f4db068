"""What a scrape shows of the agent."""

import pytest
from msgspec import structs

from kjbod.fleet.schema import latency_bucket
from kjbod.metrics.listener import render
from kjbod_agent.metrics import UNREADABLE, AgentCollector, Move, Snapshot
from kjbod_host.health.state import Health
from kjbod_host.metrics import PROBE_BOUNDS_US, Disk
from kjbod_host.smart.readings import Smart
from tests.metrics.exposition import checked, not_on_the_page, values

SNAPSHOT = Snapshot(
    broker_state=3,
    broker_epoch=17,
    fenced=False,
    metadata_offset=4711,
    kept_offset=4700,
    queued_assignments=12,
    offline={"/d1": False, "/d2": True},
    health={"/d1": "online", "/d2": "failed"},
    replicas={"/d1": 3, "/d2": 4},
    leaders={"/d1": 1, "/d2": 0},
)


def scrape(snapshot: Snapshot) -> dict[str, float]:
    text = render(AgentCollector(lambda: snapshot).collect()).decode()
    checked(text)
    return values(text)


def test_the_page_names_every_metric_of_an_agent() -> None:
    assert not_on_the_page(render(AgentCollector(lambda: SNAPSHOT).collect()).decode()) == []


def test_queued_assignments_have_the_names_of_the_kip_and_of_kafka() -> None:
    queued = {series: value for series, value in scrape(SNAPSHOT).items() if "ueuedreplica" in series.lower()}
    assert set(queued.values()) == {12.0}
    assert set(queued) == {
        'kafka_server_KafkaServer_Value{name="QueuedReplicaToDirAssignments"}',
        'org_apache_kafka_server_AssignmentsManager_Value{name="QueuedReplicaToDirAssignments"}',
        'kafka_server_AssignmentsManager_Value{name="QueuedReplicaToDirAssignments"}',
        "kafka_server_kafkaserver_queuedreplicatodirassignments",
        "kafka_server_assignmentsmanager_queuedreplicatodirassignments",
    }


def test_metadata_that_are_not_followed_have_an_age() -> None:
    assert scrape(SNAPSHOT)["kjbod_metadata_fetch_failing_seconds"] == 0
    assert scrape(structs.replace(SNAPSHOT, unfollowed_ms=45_500))["kjbod_metadata_fetch_failing_seconds"] == 45.5


def test_offline_directories_are_counted_and_named_as_dashboards_look_for_them() -> None:
    found = scrape(SNAPSHOT)
    assert found["kafka_log_logmanager_offlinelogdirectorycount"] == 1
    assert found['kafka_log_LogManager_Value{name="OfflineLogDirectoryCount"}'] == 1
    assert found[r'kafka_log_logmanager_logdirectoryoffline{logDirectory="\"/d2\""}'] == 1
    assert found[r'kafka_log_LogManager_Value{logDirectory="\"/d1\"",name="LogDirectoryOffline"}'] == 0
    assert found["kafka_server_kafkaserver_brokerstate"] == 3
    assert found["kafka_server_replicamanager_partitioncount"] == 7
    assert found["kafka_server_brokermetadatametrics_last_applied_record_offset"] == 4711


def test_each_directory_has_a_series_for_each_state_and_one_of_them_is_1() -> None:
    found = scrape(SNAPSHOT)
    states = [*map(str, Health), UNREADABLE]
    assert len(states) == 7
    for path, current in SNAPSHOT.health.items():
        shown = {s: found[f'kjbod_log_directory_health{{log_directory="{path}",state="{s}"}}'] for s in states}
        assert shown == {state: float(state == current) for state in states}


def test_a_directory_that_could_not_be_read_is_offline_and_not_failed() -> None:
    missing = structs.replace(
        SNAPSHOT, offline={"/d3": True}, health={"/d3": UNREADABLE}, disks={"/d3": Disk(directory_id="remembered")}
    )
    found = scrape(missing)
    assert found["kafka_log_logmanager_offlinelogdirectorycount"] == 1
    assert found['kjbod_log_directory_health{log_directory="/d3",state="unreadable"}'] == 1
    assert found['kjbod_log_directory_health{log_directory="/d3",state="failed"}'] == 0
    info = 'device="",directory_id="remembered",file_system="",log_directory="/d3",model="",serial=""'
    assert found[f"kjbod_log_directory_info{{{info}}}"] == 1
    unknown = [series for series in found if "/d3" in series and ("bytes" in series or "probe" in series)]
    assert unknown == [], "what nobody looked at has no value"


def test_what_a_disk_tells_of_its_own_health_has_a_series_for_each_directory() -> None:
    smart = Smart(at_ms=5500, passed=False, temp_c=41, realloc=0, power_on_hours=9)
    disks = {"/d1": Disk(smart=smart), "/d2": Disk()}
    told = {k: v for k, v in scrape(structs.replace(SNAPSHOT, disks=disks)).items() if "_smart_" in k}
    names = {"passed": 0, "temperature_celsius": 41, "reallocated_sectors": 0, "power_on_seconds": 9 * 3600}
    expected = {**names, "read_timestamp_seconds": 5.5}
    assert told == {f'kjbod_disk_smart_{name}{{log_directory="/d1"}}': value for name, value in expected.items()}


def test_a_disk_has_its_name_its_size_and_counters() -> None:
    disk = Disk(
        directory_id="abc",
        device="sdb",
        model="ST4000",
        serial="Z1",
        file_system="xfs",
        total_bytes=4000,
        usable_bytes=1000,
        probes=3,
        probe_failures=1,
        probe_us=2_000_300,
        probe_histogram={latency_bucket(100): 1, latency_bucket(200): 1, latency_bucket(2_000_000): 1},
        reads=5,
        read_bytes=6,
        writes=7,
        write_bytes=8,
        busy_ms=1500,
    )
    found = scrape(structs.replace(SNAPSHOT, disks={"/d1": disk}))
    here = '{log_directory="/d1"}'
    info = 'device="sdb",directory_id="abc",file_system="xfs",log_directory="/d1",model="ST4000",serial="Z1"'
    assert found[f"kjbod_log_directory_info{{{info}}}"] == 1
    assert found[f"kjbod_log_directory_size_bytes{here}"] == 4000
    assert found[f"kjbod_log_directory_available_bytes{here}"] == 1000
    assert found[f"kjbod_log_directory_probe_failures_total{here}"] == 1
    assert found[f"kjbod_log_directory_device_written_bytes_total{here}"] == 8
    assert found[f"kjbod_log_directory_device_busy_seconds_total{here}"] == 1.5
    assert f"kjbod_log_directory_device_errors_total{here}" not in found, "its driver does not count them"
    assert found['kjbod_log_directory_probe_seconds_bucket{le="0.000128",log_directory="/d1"}'] == 1
    assert found['kjbod_log_directory_probe_seconds_bucket{le="0.000256",log_directory="/d1"}'] == 2
    assert found['kjbod_log_directory_probe_seconds_bucket{le="1.048576",log_directory="/d1"}'] == 2
    assert found['kjbod_log_directory_probe_seconds_bucket{le="2.097152",log_directory="/d1"}'] == 3
    assert found[f"kjbod_log_directory_probe_seconds_count{here}"] == 3
    assert found[f"kjbod_log_directory_probe_seconds_sum{here}"] == 2.0003


@pytest.mark.parametrize("power", [0, 7, 13, 24])
def test_the_bounds_of_probe_durations_are_bounds_of_the_report_s_buckets(power: int) -> None:
    assert int(latency_bucket(2**power)) == 4 * power
    assert int(latency_bucket(2**power - 1)) < 4 * power or power == 0
    assert all(bound & (bound - 1) == 0 for bound in PROBE_BOUNDS_US)


def test_what_is_done_with_replicas_can_be_watched_without_a_series_for_each() -> None:
    move = Move(
        topic="events",
        partition=3,
        source="/d1",
        destination="/d2",
        state="copying",
        total_bytes=1000,
        copied_bytes=250,
        bytes_per_second=50.0,
    )
    queued = structs.replace(move, partition=4, state="queued", copied_bytes=0, bytes_per_second=0.0)
    work = structs.replace(
        SNAPSHOT, stuck_assignments=2, loading={"/d1": 0, "/d2": 900}, creating=5, moves=(move, queued), strays=7
    )
    found = scrape(work)
    assert found["kjbod_assignments_stuck"] == 2
    assert found[r'kafka_log_logmanager_remaininglogstorecover{dir="\"/d2\""}'] == 900
    assert found["kjbod_replicas_creating"] == 5
    assert found["kjbod_strays"] == 7
    assert found['kjbod_moves{state="copying"}'] == found['kjbod_moves{state="queued"}'] == 1
    assert found['kjbod_moves{state="renaming"}'] == 0, "a state that no move is in has a series as well"
    assert found["kjbod_move_bytes"] == 2000
    assert found["kjbod_move_copied_bytes"] == 250
    assert found["kjbod_move_bytes_per_second"] == 50
    many = [structs.replace(move, partition=number) for number in range(500)]
    assert scrape(structs.replace(work, moves=many)).keys() == found.keys()


def test_the_series_of_a_directory_go_with_it() -> None:
    disks = {"/d1": Disk(probes=1), "/d2": Disk(probes=1)}
    before = scrape(structs.replace(SNAPSHOT, disks=disks))
    gone = structs.replace(
        SNAPSHOT,
        offline={"/d1": False},
        health={"/d1": "online"},
        replicas={"/d1": 3},
        leaders={"/d1": 1},
        disks={"/d1": Disk(probes=1)},
    )
    assert any("/d2" in series for series in before)
    assert not any("/d2" in series for series in scrape(gone))
