"""What a scrape shows of the agent."""

import dataclasses

from prometheus_client import CollectorRegistry, generate_latest

from kjbod_agent.metrics import QUEUED_ASSIGNMENTS, AgentCollector, Move, Snapshot

SNAPSHOT = Snapshot(
    broker_state=3,
    broker_epoch=17,
    fenced=False,
    metadata_offset=4711,
    queued_assignments=12,
    offline={"/d1": False, "/d2": True},
    health={"/d1": "online", "/d2": "failed"},
    replicas={"/d1": 3, "/d2": 4},
    leaders={"/d1": 1, "/d2": 0},
)


def scrape(snapshot: Snapshot) -> set[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentCollector(lambda: snapshot))
    return set(generate_latest(registry).decode().splitlines())


def test_queued_assignments_have_the_name_of_the_kip_and_both_of_kafka_s() -> None:
    lines = scrape(SNAPSHOT)
    assert len(QUEUED_ASSIGNMENTS) == 3
    assert {f"{name} 12.0" for name in QUEUED_ASSIGNMENTS} <= lines


def test_offline_directories_are_counted_and_named_as_in_kafka() -> None:
    assert {
        "kafka_log_LogManager_OfflineLogDirectoryCount 1.0",
        'kafka_log_LogManager_LogDirectoryOffline{logDirectory="/d2"} 1.0',
        'kafka_log_LogManager_LogDirectoryOffline{logDirectory="/d1"} 0.0',
        'kjbod_log_directory_health{logDirectory="/d2",state="failed"} 1.0',
    } <= scrape(SNAPSHOT)


def test_what_is_done_with_replicas_can_be_watched() -> None:
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
    queued = dataclasses.replace(move, partition=4, state="queued")
    lines = scrape(
        dataclasses.replace(
            SNAPSHOT,
            stuck_assignments=2,
            loading={"/d1": 0, "/d2": 900},
            creating=5,
            moves=(move, queued),
            strays=7,
        )
    )
    labels = '{destination="/d2",partition="3",source="/d1",topic="events"}'
    assert {
        "kjbod_assignments_stuck 2.0",
        'kafka_log_LogManager_remainingLogsToRecover{dir="/d2"} 900.0',
        "kjbod_replicas_creating 5.0",
        "kjbod_strays 7.0",
        'kjbod_moves{state="copying"} 1.0',
        'kjbod_moves{state="queued"} 1.0',
        f"kjbod_move_bytes{labels} 1000.0",
        f"kjbod_move_copied_bytes{labels} 250.0",
        f"kjbod_move_bytes_per_second{labels} 50.0",
    } <= lines
