"""The verdict for a cluster: each problem with its code, the worst first, and OK only where nothing is wrong."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from kjbod.cluster import health
from kjbod.cluster.health import Code, Level, Reading, reading
from kjbod.cluster.log_dirs import BrokerDirs, Known, LogDir, Node
from kjbod.cluster.partitions import Partition, shares_of, trouble_of

GOOD = Partition(1, (1, 2, 3), (1, 2, 3))
FINE = Reading("0.2.0", True, True, {"/d1": "online", "/d2": "online"})


def broker(node_id: int, *, fenced: bool = False, error: str | None = None, **errors: int) -> BrokerDirs:
    dirs = [] if error else [LogDir(path=f"/{name}", error_code=errors.get(name, 0)) for name in ("d1", "d2")]
    return BrokerDirs(node=Node(id=node_id, host=f"h{node_id}", port=9092, fenced=fenced), log_dirs=dirs, error=error)


def known(*partitions: Partition, min_isr: int = 2, registered: tuple[int, ...] = (1, 2, 3), **more: Any) -> Known:
    numbered = {"orders": dict(enumerate(partitions or (GOOD,)))}
    shares = shares_of(numbered)
    return Known(
        partitions=numbered,
        min_isrs={"orders": min_isr},
        shares=shares,
        trouble=trouble_of(numbered, {"orders": min_isr}),
        strangers={one: share for one, share in shares.items() if one not in registered},
        **{"whole": True, **more},
    )


def verdict(
    of: Known | None = None,
    brokers: tuple[BrokerDirs, ...] | None = None,
    guards: Mapping[int, Reading | str] | None = None,
) -> health.Health:
    return health.health(of or known(), brokers or tuple(map(broker, (1, 2, 3))), guards)


def test_a_cluster_without_a_problem_is_ok() -> None:
    found = verdict(guards=dict.fromkeys((1, 2, 3), FINE))
    assert (found.level, found.problems) == (Level.OK, ())
    assert health.lines(found, 80) == ["OK: 3 brokers, 6 log directories, 1 partition, 3 guards (3 act)"]
    assert health.lines(verdict(), 80) == ["OK: 3 brokers, 6 log directories, 1 partition"]


@pytest.mark.parametrize(
    ("partition", "codes"),
    [
        (Partition(-1, (1, 2, 3), ()), {Code.NO_LEADER, Code.BELOW_REPLICATION_FACTOR}),
        (Partition(-1, (1, 2, 3), (), (2,)), {Code.NO_LEADER, Code.SOLE_COPY, Code.BELOW_REPLICATION_FACTOR}),
        (Partition(-1, (1,), (1,)), {Code.NO_LEADER}),
        (Partition(1, (1, 2, 3), (1,)), {Code.BELOW_MIN_ISR, Code.SOLE_COPY, Code.BELOW_REPLICATION_FACTOR}),
        (Partition(1, (1, 2, 3), (1, 2)), {Code.BELOW_REPLICATION_FACTOR}),
        (Partition(1, (1,), (1,)), set()),
        (Partition(7, (7,), (7,)), {Code.BROKER_GONE}),
    ],
)
def test_partitions_in_trouble_are_told_apart(partition: Partition, codes: set[Code]) -> None:
    found = verdict(known(GOOD, partition))
    assert {one.code for one in found.problems} == codes
    critical = bool(codes & {Code.NO_LEADER, Code.BELOW_MIN_ISR})
    assert found.level == (Level.CRITICAL if critical else Level.DEGRADED if codes else Level.OK)
    assert all(one.names == ("orders-1",) for one in found.problems if one.code is not Code.BROKER_GONE)


def test_a_topic_whose_min_isr_is_unknown_is_not_called_below_it() -> None:
    found = verdict(replace(known(Partition(1, (1, 2), (1,))), min_isrs={}))
    assert Code.BELOW_MIN_ISR not in {one.code for one in found.problems}


def test_brokers_and_directories_are_named() -> None:
    found = verdict(brokers=(broker(1, d2=56), broker(2, fenced=True, error="h2: refused"), broker(3, error="silent")))
    assert [(one.code, one.names) for one in found.problems] == [
        (Code.BROKER_FENCED, ("2",)),
        (Code.BROKER_SILENT, ("3 (silent)",)),
        (Code.DIRECTORY_OFFLINE, ("1:/d2",)),
    ]


def test_hidden_topics_are_no_ok() -> None:
    assert [one.code for one in verdict(known(whole=False)).problems] == [Code.TOPICS_HIDDEN]


@pytest.mark.parametrize(
    ("guard", "offline", "code", "name"),
    [
        (replace(FINE, states={"/d1": "failed"}), 0, Code.DISK_UNNOTICED, "1:/d1"),
        (replace(FINE, states={"/d1": "failed"}), 56, Code.DIRECTORY_OFFLINE, "1:/d1"),
        *((replace(FINE, states={"/d1": state}), 0, Code.DISK_TROUBLE, f"1:/d1 {state}")
          for state in ("suspect", "slow", "held", "full", "unreadable", "of a later release")),
        ("Connection refused", 0, Code.GUARD_MISSING, "1 (Connection refused)"),
        (replace(FINE, bound=False), 0, Code.GUARD_UNBOUND, "1"),
        (replace(FINE, version="0.1.0"), 0, Code.GUARD_VERSIONS, "0.2.0 (2)"),
        (replace(FINE, version=None), 0, Code.GUARD_VERSIONS, "0.2.0 (2)"),
    ],
)  # fmt: skip
def test_guards_tell_what_kafka_does_not_notice(guard: Reading | str, offline: int, code: Code, name: str) -> None:
    found = verdict(brokers=(broker(1, d1=offline), broker(2), broker(3)), guards={1: guard, 2: FINE, 3: FINE})
    assert [(one.code, one.names[0]) for one in found.problems] == [(code, name)]
    assert (found.level is Level.CRITICAL) is (code is Code.DISK_UNNOTICED)


def test_the_worst_comes_first_and_a_line_names_three() -> None:
    under = [Partition(1, (1, 2, 3), (1,)) for _ in range(5)]
    found = verdict(known(*under), brokers=(broker(1, d1=56), broker(2), broker(3)))
    shown = health.lines(found, 120)
    assert shown[1].split() == [
        *("BELOW_MIN_ISR", "5", "partitions", "below", "min.insync.replicas:", "orders-0,", "orders-1,", "orders-2"),
        *("and", "2", "more"),
    ]
    assert [line.split()[0] for line in shown[1:]] == [
        *("BELOW_MIN_ISR", "DIRECTORY_OFFLINE", "SOLE_COPY", "BELOW_REPLICATION_FACTOR"),
    ]
    narrow = health.lines(found, 60)[1:]
    assert all(len(line) <= 60 for line in narrow)
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(shown[1:]).split()), "nothing is cut"
    assert health.lines(found, None) == health.lines(found, 999)
    document = health.as_document("C", found, None)
    assert (document["level"], document["code"], len(document["problems"][0]["names"])) == ("CRITICAL", 2, 5)


METRICS = """# HELP kjbod_build_info x
# TYPE kjbod_build_info gauge
kjbod_build_info{python_version="3.11",version="0.2.0"} 1.0
kjbod_guard_acting 0.0
kjbod_guard_broker_bound 1.0
kjbod_log_directory_health{logDirectory="/mnt/d\\"1",log_directory="/mnt/d\\"1",state="failed"} 1.0
kjbod_log_directory_health{logDirectory="/mnt/d\\"1",log_directory="/mnt/d\\"1",state="online"} 0.0
kjbod_log_directory_health{logDirectory="/mnt/d2",state="online"} 1.0
kjbod_other{a="b"} nonsense
"""


def test_the_metrics_of_a_guard_of_this_release_and_of_the_one_before_are_read() -> None:
    assert reading(METRICS) == Reading("0.2.0", False, True, {'/mnt/d"1': "failed", "/mnt/d2": "online"})
    assert reading("kjbod_guard_acting 1\n") == Reading(None, True, True, {})


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", "kjbod_guard_acting", "kjbod_guard_acting x\n", "\0" * 9])
def test_what_is_no_metrics_of_a_guard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        reading(text)


def test_names_of_others_reach_the_terminal_in_printable_form() -> None:
    found = verdict(brokers=(broker(1, error="\x1b[2J\n"), broker(2), broker(3)))
    assert all(char.isprintable() for line in health.lines(found, 200) for char in line)
