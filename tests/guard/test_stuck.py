"""Which threads of a broker are stuck, since when, and whether it can go on."""

import pytest
from msgspec.structs import replace

from kjbod_guard.actions import Thread
from kjbod_guard.stuck import (
    NONE_WAITING,
    STUCK_MS,
    Sample,
    ThreadClass,
    class_of,
    crippled,
    follow,
    threads,
    waits,
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


@pytest.mark.parametrize("name", ["", "..", "L..andler", "LogDirF..r", "LogDirF.andler", "ReplicaFetch", "data"])
def test_a_name_that_is_neither_cut_off_nor_shortened_is_no_thread_of_kafka(name: str) -> None:
    assert class_of(name) is ThreadClass.OTHER


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
        (sample(wchan="folio_wait_bit"), sample(wchan="balance_dirty_pages", ran=90), False),
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


FETCHER, SCHEDULER = "ReplicaFetcherT", "kafka-scheduler"
HANDLER_OR_NETWORK, NETWORK = "data-plane-kafk", "data-plane-kafka-network-thread-1-PLAINTEXT-PLAINTEXT-0"


@pytest.mark.parametrize(
    ("name", "limit_ms"),
    [
        (FETCHER, STUCK_MS),
        (HANDLER_OR_NETWORK, STUCK_MS),
        ("group-coordinat", STUCK_MS),
        ("LogDirFailureHa", STUCK_MS),
        ("kafka-1-metadat", STUCK_MS),
        (NETWORK, STUCK_MS),
        (SCHEDULER, None),
        ("kafka-log-clean", None),
        ("java", None),
    ],
)
@pytest.mark.parametrize(("acted_ms", "since_ms"), [(5_000, 0), (0, 5_000), (5_000, 5_000)])
def test_a_broker_is_crippled_by_what_waits_for_long_enough_after_an_act(
    name: str, limit_ms: int | None, acted_ms: int, since_ms: int
) -> None:
    waiting, acted = [thread(name, since_ms=since_ms)], {D1: acted_ms}
    for waited_ms in (STUCK_MS - 1, STUCK_MS, 3_600_000):
        found = crippled(waiting, acted, {D1}, 5_000 + waited_ms)
        assert (found is not None) is (limit_ms is not None and waited_ms >= limit_ms)
        assert waits(waiting, acted, {D1}, 5_000 + waited_ms) is (waited_ms >= STUCK_MS), "whoever it is"


def test_the_reason_names_the_thread_that_has_waited_longest_and_where() -> None:
    waiting = [thread(FETCHER, since_ms=9_500), thread("LogDirFailureHa", since_ms=9_000), thread(SCHEDULER)]
    found = crippled(waiting, {D1: 5_000}, {D1}, 10_500)
    assert found is not None and (found.thread, found.kind) == (waiting[1], ThreadClass.FAILURE_HANDLER)
    assert found.reason == (
        "the failure handler LogDirFailureHa (thread 7) is stuck in /mnt/d1/load-7/0.log "
        "1.5 s after the guard acted on /mnt/d1"
    )
    for call, where in (("page fault", "page fault"), (None, "a place that is not known")):
        found = crippled([replace(thread(FETCHER), file=None, call=call)], {D1: 0}, {D1}, 1_000)
        assert found is not None and f"is stuck in {where} 1.0 s after" in found.reason


@pytest.mark.parametrize("name", [FETCHER, HANDLER_OR_NETWORK, NETWORK])
@pytest.mark.parametrize(
    ("directory", "file", "acted", "failed", "proves"),
    [
        (D1, True, [D1], [D1], True),
        (D1, True, [D1, D2], [D1, D2], True),
        (D2, True, [D1], [D1], False),  # another disk
        (D2, True, [D1], [D1, D2], False),
        (D1, True, [], [D1], False),  # nothing was done yet, or the directory was released
        (None, False, [D1], [D1], True),  # where it waits is not known, and one disk has failed
        (None, False, [D1], [D1, D2], False),
        (None, False, [D1], [D2], False),
        (None, False, [], [D1], False),
        (None, True, [D1], [D1], False),  # a file that is in no log directory
    ],
)
def test_only_a_thread_that_waits_for_a_disk_that_was_acted_on_proves_anything(
    name: str, directory: str | None, file: bool, acted: list[str], failed: list[str], proves: bool
) -> None:
    one = replace(thread(name, directory, file=file), file="/var/log/x") if file and directory is None else None
    waiting = [one or thread(name, directory, file=file)]
    acted_ms = dict.fromkeys(acted, 0)
    assert (crippled(waiting, acted_ms, failed, 60_000) is not None) is proves
    assert waits(waiting, acted_ms, failed, 60_000) is proves
