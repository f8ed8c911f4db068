"""Which threads of a broker are stuck, since when, and whether it can go on."""

import pytest

from kjbod_agent.guard.means import Thread
from kjbod_agent.guard.stuck import (
    NETWORK_STUCK_MS,
    NONE_WAITING,
    STUCK_MS,
    Sample,
    ThreadClass,
    class_of,
    crippled,
    follow,
    threads,
)

# Names in a jstack of Kafka 4.3.1 on Java 17 and what Linux has of them: two brokers, replicated topics.
REAL_NAMES = [
    ("data-plane-kafka-request-handler-0", "data-plane-kafk", ThreadClass.DATA_PLANE),
    ("data-plane-kafka-network-thread-1-PLAINTEXT-PLAINTEXT-0", "data-plane-kafk", ThreadClass.DATA_PLANE),
    ("data-plane-kafka-socket-acceptor-PLAINTEXT-PLAINTEXT-19995", "data-plane-kafk", ThreadClass.DATA_PLANE),
    ("ReplicaFetcherThread-0-2", "ReplicaFetcherT", ThreadClass.FETCHER),
    ("ReplicaAlterLogDirsThread-0", "ReplicaAlterLog", ThreadClass.OTHER),
    ("kafka-scheduler-0", "kafka-scheduler", ThreadClass.SCHEDULER),
    ("kafka-log-cleaner-thread-0", "kafka-log-clean", ThreadClass.CLEANER),
    ("LogDirFailureHandler", "LogDirFailureHa", ThreadClass.FAILURE_HANDLER),
    ("group-coordinator-event-processor-0", "group-coordinat", ThreadClass.COORDINATOR),
    ("share-coordinator-event-processor-0", "share-coordinat", ThreadClass.COORDINATOR),
    ("transaction-log-manager-0", "transaction-log", ThreadClass.COORDINATOR),
    ("kafka-1-metadata-loader-event-handler", "kafka-1-metadat", ThreadClass.METADATA),
    ("kafka-1001-metadata-loader-event-handler", "kafka-1001-meta", ThreadClass.METADATA),
    ("kafka-1-raft-io-thread", "kafka-1-raft-io", ThreadClass.METADATA),
    ("kafka-1-raft-scheduler0", "kafka-1-raft-sc", ThreadClass.OTHER),
    ("kafka-1-snapshot-generator-event-handler", "kafka-1-snapsho", ThreadClass.OTHER),
    ("broker-1-lifecycle-manager-event-handler", "broker-1-lifecy", ThreadClass.OTHER),
    ("broker-1-to-controller-heartbeat-channel-manager", "broker-1-to-con", ThreadClass.OTHER),
    ("ExpirationReaper-1-Fetch", "ExpirationReape", ThreadClass.OTHER),
    ("executor-Fetch", "executor-Fetch", ThreadClass.OTHER),
    ("java", "java", ThreadClass.OTHER),
    ("C1 CompilerThread0", "C1 CompilerThre", ThreadClass.OTHER),
]


@pytest.mark.parametrize(("full", "comm", "kind"), REAL_NAMES)
def test_a_thread_is_known_by_what_linux_keeps_of_its_name(full: str, comm: str, kind: ThreadClass) -> None:
    assert full[:15] == comm
    assert class_of(comm) is kind


@pytest.mark.parametrize(
    ("full", "kind"),
    [
        ("data-plane-kafka-request-handler-0", ThreadClass.REQUEST_HANDLER),
        ("data-plane-kafka-request-handler-12", ThreadClass.REQUEST_HANDLER),
        ("data-plane-kafka-network-thread-1-PLAINTEXT-PLAINTEXT-0", ThreadClass.DATA_PLANE),
        ("ReplicaFetcherThread-0-2", ThreadClass.FETCHER),
        ("ReplicaFetcherThread-0-1002", ThreadClass.FETCHER),
        ("ReplicaAlterLogDirsThread-0", ThreadClass.OTHER),
        ("kafka-scheduler-0", ThreadClass.SCHEDULER),
        ("kafka-log-cleaner-thread-0", ThreadClass.CLEANER),
        ("LogDirFailureHandler", ThreadClass.FAILURE_HANDLER),
        ("group-coordinator-event-processor-0", ThreadClass.COORDINATOR),
        ("transaction-log-manager-0", ThreadClass.COORDINATOR),
        ("broker-1-lifecycle-manager-event-handler", ThreadClass.OTHER),
    ],
)
def test_names_are_known_as_newer_java_shortens_them(full: str, kind: ThreadClass) -> None:
    assert class_of(f"{full[:7]}..{full[-6:]}") is kind


# -------------------------------------------------------------------------------------------------------------- waiting


def sample(tid: int = 7, **changed: object) -> Sample:
    fields: dict[str, object] = {"name": "ReplicaFetcherT", "mark": "1 0x5 0x7f", "ran": 12, "call": "write"}
    return Sample(tid=tid, **{**fields, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "now", "goes_on"),
    [
        (sample(), sample(), True),
        (sample(), sample(ran=13), False),  # it came back, and waits again in the same call
        (sample(), sample(mark="1 0x6 0x7f"), False),
        (sample(), sample(name="java"), False),  # another thread with the same id
        (sample(), sample(file="/mnt/d1/0.log"), False),
        (sample(ran=None), sample(ran=None), True),
        (sample(wchan="balance_dirty_pages"), sample(wchan="balance_dirty_pages", ran=90), True),
        (sample(wchan="balance_dirty_pages"), sample(wchan="folio_wait_bit", ran=90), False),
    ],
)
def test_a_thread_waits_since_it_was_first_seen_in_this_very_wait(before: Sample, now: Sample, goes_on: bool) -> None:
    first = follow(NONE_WAITING, [before], 1_000)
    second = follow(first, [now], 1_500)
    assert second[7].since_ms == (1_000 if goes_on else 1_500)


def test_a_thread_that_was_not_seen_once_waits_anew() -> None:
    first = follow(NONE_WAITING, [sample()], 1_000)
    gone = follow(first, [], 1_500)
    assert gone == {}
    assert follow(gone, [sample()], 2_000)[7].since_ms == 2_000


def test_the_longest_wait_comes_first() -> None:
    first = follow(NONE_WAITING, [sample(9)], 1_000)
    second = follow(first, [sample(8), sample(9)], 2_000)
    assert [(one.tid, one.since_ms) for one in threads(second)] == [(9, 1_000), (8, 2_000)]


# ------------------------------------------------------------------------------------------------------------- verdicts

D1, D2 = "/mnt/d1", "/mnt/d2"


def thread(name: str, directory: str | None = D1, since_ms: int = 0, *, file: bool = True) -> Thread:
    path = f"{directory}/load-7/0.log" if file and directory else None
    return Thread(tid=7, name=name, directory=directory, file=path, call="write", since_ms=since_ms)


@pytest.mark.parametrize(
    ("name", "is_crippled"),
    [
        ("ReplicaFetcherT", True),
        ("data-plane-kafk", True),
        ("group-coordinat", True),
        ("LogDirFailureHa", True),
        ("kafka-1-metadat", True),
        ("kafka-scheduler", False),
        ("kafka-log-clean", False),
        ("java", False),
    ],
)
def test_a_broker_is_crippled_by_what_is_stuck_a_second_after_the_cut(name: str, is_crippled: bool) -> None:
    cut_ms = 5_000
    for now_ms, expected in ((cut_ms + STUCK_MS - 1, False), (cut_ms + STUCK_MS, is_crippled)):
        found = crippled([thread(name)], {D1: cut_ms}, {D1}, now_ms)
        waited = now_ms >= NETWORK_STUCK_MS and name == "data-plane-kafk"
        assert (found is not None) == (expected or waited)


def test_what_waits_since_after_the_cut_has_its_second_from_then_on() -> None:
    late = thread("ReplicaFetcherT", since_ms=9_000)
    assert crippled([late], {D1: 5_000}, {D1}, 9_999) is None
    found = crippled([late], {D1: 5_000}, {D1}, 10_000)
    assert found is not None
    assert found.reason == (
        "the fetcher ReplicaFetcherT (thread 7) is stuck in /mnt/d1/load-7/0.log 1.0 s after /mnt/d1 was cut or masked"
    )


def test_a_thread_of_another_disk_cripples_nobody() -> None:
    assert crippled([thread("ReplicaFetcherT", D2)], {D1: 0}, {D1}, 60_000) is None
    assert crippled([thread("ReplicaFetcherT", D1)], {}, {D1}, 60_000) is None, "the cut is still to come"


def test_what_waits_in_a_place_that_is_not_known_is_on_the_one_disk_that_failed() -> None:
    unknown = thread("ReplicaFetcherT", None)
    assert crippled([unknown], {D1: 0}, {D1}, 60_000) is not None
    assert crippled([unknown], {D1: 0}, {D1, D2}, 60_000) is None
    elsewhere = Thread(tid=7, name="ReplicaFetcherT", directory=None, file="/var/log/x", call="write", since_ms=0)
    assert crippled([elsewhere], {D1: 0}, {D1}, 60_000) is None


def test_a_network_thread_needs_no_cut_to_cripple() -> None:
    waiting = [thread("data-plane-kafk", since_ms=1_000)]
    assert crippled(waiting, {}, {D1}, 1_000 + NETWORK_STUCK_MS - 1) is None
    found = crippled(waiting, {}, {D1}, 1_000 + NETWORK_STUCK_MS)
    assert found is not None and "its connections with it" in found.reason
    assert crippled(waiting, {}, {D2}, 60_000) is None


def test_what_is_stuck_on_a_directory_that_was_released_cripples_nobody_and_is_no_other_disks() -> None:
    for name in ("ReplicaFetcherT", "data-plane-kafk"):
        assert crippled([thread(name)], {D1: 0}, {D1}, 60_000, {D1}) is None
        assert crippled([thread(name, None)], {D1: 0, D2: 0}, {D1, D2}, 60_000, {D1}) is None
        assert crippled([thread(name, D2)], {D1: 0, D2: 0}, {D1, D2}, 60_000, {D1}) is not None
