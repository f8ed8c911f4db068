"""The lines that an operator reads, and the condition that monitoring reads."""

from typing import Any

import pytest

from kjbod.problems import Code
from kjbod_guard.broker_steps import Standing as Broker
from kjbod_guard.broker_steps import State, lost
from kjbod_guard.condition import condition
from kjbod_guard.ladder import NOTICED, KafkaView, Step, Would
from kjbod_guard.observing import Held
from kjbod_guard.words import happened, held_there, line
from kjbod_host.condition import Level
from kjbod_host.health.evidence import Evidence, Verdict
from kjbod_host.health.state import Cause, Health

CUT = Would(Step.CUT, "its ext4 carries nothing but this broker's log directories")


def verdict(state: Health, cause: Cause, **evidence: object) -> Verdict:
    known = Evidence(path="/mnt/d3", directory_id="id", device="sdb 8:16", **evidence)  # type: ignore[arg-type]
    return Verdict(
        path="/mnt/d3", directory_id="id", state=state, previous=Health.ONLINE, cause=cause, evidence=known, at_ns=0
    )


def test_a_line_says_what_happened_what_kafka_knows_what_is_there_and_what_would_be_done() -> None:
    hung = verdict(Health.FAILED, Cause.HUNG, silent_ms=1934, age_ms=2100.0)
    assert line("/mnt/d3", happened(hung), KafkaView.ONLINE, Held(214, 420), CUT) == (
        "disk /mnt/d3 hung for 1.9 s, Kafka has not noticed, 214 partitions led, 420 followed; "
        "would cut (its ext4 carries nothing but this broker's log directories)"
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (verdict(Health.FAILED, Cause.SILENT, age_ms=10_020.0), "silent for 10.0 s"),
        (verdict(Health.FAILED, Cause.HELD), "held"),
        (verdict(Health.FAILED, Cause.ERROR, errno="EIO", call="fsync of x"), "failed: EIO at fsync of x"),
        (verdict(Health.FAILED, Cause.MOUNT, call="missing"), "failed: its mount is missing"),
        (verdict(Health.SLOW, Cause.SLOW), "slow"),
        (verdict(Health.FAILED, Cause.DAMAGE), "failed (damage)"),
        (verdict(Health.ONLINE, Cause.NONE), "well again"),
    ],
)
def test_every_cause_has_words(found: Verdict, words: str) -> None:
    assert happened(found) == words


def test_what_kafka_knows_or_nobody_does_is_said_once() -> None:
    decided = Would(Step.NOTHING, "whether Kafka has noticed is not known")
    text = line("/d", "failed", KafkaView.UNKNOWN, None, decided)
    assert text == "disk /d failed, what it holds is not known; nothing to do: whether Kafka has noticed is not known"
    text = line("/d", "failed", KafkaView.OFFLINE, Held(0, 1), Would(Step.NOTHING, NOTICED))
    assert text == "disk /d failed, 0 partitions led, 1 followed; nothing to do: Kafka has noticed"
    assert held_there(Held(1, 0)) == "1 partition led, 0 followed"


def test_a_line_says_what_a_step_waits_for() -> None:
    text = line("/d", "hung", KafkaView.ONLINE, Held(1, 0), Would(Step.WAIT, "it has stood still for 2 of 3 s"))
    assert text.endswith("1 partition led, 0 followed; would wait (it has stood still for 2 of 3 s)")


WELL = {"/d1": "online"}
FAILED = {"/d1": "failed", "/d2": "online"}
GONE = Broker(state=State.ENDED, reason="/d1: its file system is frozen")
STUCK = Broker(state=State.CRIPPLED, reason="/d1: a thread waits for it")
CONDITIONS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "all is well": (WELL, {}, "OK: watching, 1 directory online"),
    "Kafka has noticed": (FAILED, {}, "DEGRADED: 1 of 2 directories failed"),
    "Kafka has not noticed, and nobody can tell it": (
        FAILED,
        {"unnoticed": ["/d1"], "blind": "no controller answers"},
        "CRITICAL: /d1 has failed, and Kafka has not noticed; the metadata are not followed: no controller answers",
    ),
    "nobody knows whether Kafka has noticed": (
        FAILED,
        {"uncertain": ["/d1"], "blind": "TLS"},
        "CRITICAL: /d1 has failed, and nobody knows whether Kafka has noticed; the metadata are not followed: TLS",
    ),
    "a disk that has failed answers again": (
        FAILED,
        {"answering": ["/d1"]},
        "DEGRADED: /d1 answers again, and has not passed three probes yet",
    ),
    "no directory can be watched": (
        {"/d1": "unwatched"},
        {"unbound": "no broker runs"},
        "CRITICAL: no log directory can be watched; 1 of 1 directories unwatched; no broker runs",
    ),
    "no broker runs": (WELL, {"unbound": "no broker runs"}, "DEGRADED: no broker runs"),
    "a healthy disk is offline for Kafka": (
        WELL,
        {"offline": ["/d1"]},
        "DEGRADED: /d1 is healthy and offline for Kafka: the broker uses it again when it starts",
    ),
    "one that has failed is offline for Kafka": (FAILED, {"offline": ["/d1"]}, "DEGRADED: 1 of 2 directories failed"),
    "one did not answer when the guard came": (
        {"/d1": "unwatched", "/d2": "online"},
        {"helpless": ["/d1"]},
        "CRITICAL: /d1 does not answer, and nothing can be done about it until it does; 1 of 2 directories unwatched",
    ),
    "the broker is lost": (
        FAILED,
        {"unbound": "no broker runs", "lost": lost(GONE)},
        "CRITICAL: the broker is lost (/d1: its file system is frozen): start it, without a disk that has failed; "
        "1 of 2 directories failed; no broker runs",
    ),
    "the broker must be fenced and may not be": (
        FAILED,
        {"lost": lost(STUCK)},
        "CRITICAL: the broker is stuck: /d1: a thread waits for it; 1 of 2 directories failed",
    ),
    "partitions have no leader, and others lack a replica": (
        WELL,
        {
            "redundancy": [
                (Code.REPLICAS_EVICTED, "2 partitions have 2 of 3 replicas"),
                (Code.NO_LEADER, "1 partition has no leader"),
            ]
        },
        "CRITICAL: 1 partition has no leader; 2 partitions have 2 of 3 replicas",
    ),
    "partitions lack a replica that the guard evicted": (
        WELL,
        {"redundancy": [(Code.REPLICAS_EVICTED, "2 partitions have 2 of 3 replicas")]},
        "DEGRADED: 2 partitions have 2 of 3 replicas",
    ),
    "the guard cannot do all that it decides": (
        WELL,
        {"unable": ["the guard lacks ALTER on the cluster", "the guard cannot act: CAP_SYS_ADMIN is missing"]},
        "DEGRADED: the guard lacks ALTER on the cluster; the guard cannot act: CAP_SYS_ADMIN is missing",
    ),
    "the journal cannot be written": (
        WELL,
        {"unwritten": "/s/f: Read-only file system"},
        "DEGRADED: nothing can be evicted or demoted, replica lists are not kept: /s/f: Read-only file system",
    ),
    "a guard before it left something": (WELL, {"left": "2 partitions evicted"}, "DEGRADED: 2 partitions evicted"),
    "Kafka is newer": (
        WELL,
        {"unknown": ["metadata.version 34 is newer than kjbod knows: upgrade kjbod"]},
        "DEGRADED: metadata.version 34 is newer than kjbod knows: upgrade kjbod",
    ),
    "a certificate ends": (WELL, {"certificates": ["k.pem ends soon"]}, "DEGRADED: k.pem ends soon"),
    "what is critical comes first, whoever told it": (
        FAILED,
        {
            "certificates": ["k.pem ends soon"],
            "redundancy": [(Code.BELOW_MIN_ISR, "1 partition is below min.insync.replicas")],
        },
        "CRITICAL: 1 partition is below min.insync.replicas; 1 of 2 directories failed; k.pem ends soon",
    ),
}


@pytest.mark.parametrize("situation", CONDITIONS)
def test_the_condition_has_every_reason_and_is_critical_only_where_clients_or_the_watch_suffer(situation: str) -> None:
    states, told, line = CONDITIONS[situation]
    found = condition(states, **{"unnoticed": (), "unbound": None, "blind": None, **told})
    assert (found.line, found.level) == (line, Level[line.partition(":")[0]])


@pytest.mark.parametrize("state", State)
def test_a_broker_is_lost_only_where_there_is_a_reason_for_it_and_it_is_fenced_or_must_be(state: State) -> None:
    assert lost(Broker(state=state)) is None
    found = lost(Broker(state=state, reason="/d1: it hangs"))
    words = {State.CRIPPLED: "is stuck"} | dict.fromkeys((State.FENCING, State.FENCED, State.ENDED), "is lost")
    assert found is None if state not in words else found is not None and words[state] in found and "/d1" in found
