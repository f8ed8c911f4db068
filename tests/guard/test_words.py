"""The lines that an operator reads, and the condition that monitoring reads."""

import pytest

from kjbod_agent.condition import Level
from kjbod_agent.guard.broker_steps import Standing as Broker
from kjbod_agent.guard.broker_steps import State, lost
from kjbod_agent.guard.condition import condition
from kjbod_agent.guard.ladder import KafkaView, Step, Would
from kjbod_agent.guard.observing import Held
from kjbod_agent.guard.words import happened, held_there, line
from kjbod_agent.health.evidence import Evidence, Verdict
from kjbod_agent.health.state import Cause, Health

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


def test_what_is_not_known_is_said_once() -> None:
    decided = Would(Step.NOTHING, "whether Kafka has noticed is not known")
    text = line("/d", "failed", KafkaView.UNKNOWN, None, decided)
    assert text == "disk /d failed, what it holds is not known; nothing to do: whether Kafka has noticed is not known"
    assert held_there(Held(1, 0)) == "1 partition led, 0 followed"


def test_the_condition_is_critical_only_where_kafka_goes_on_with_a_dead_disk_or_nothing_is_watched() -> None:
    well = condition({"/d1": "online"}, unnoticed=(), unbound=None, blind=None)
    assert (well.level, well.line) == (Level.OK, "OK: watching, 1 directory online")
    both = {"/d1": "failed", "/d2": "online"}
    noticed = condition(both, unnoticed=(), unbound=None, blind=None)
    assert (noticed.level, noticed.line) == (Level.DEGRADED, "DEGRADED: 1 of 2 directories failed")
    unnoticed = condition(both, unnoticed=["/d1"], unbound=None, blind="no controller answers")
    assert unnoticed.line == (
        "CRITICAL: /d1 has failed, and Kafka has not noticed; the metadata are not followed: no controller answers"
    )
    uncertain = condition(both, unnoticed=(), unbound=None, blind="TLS", uncertain=["/d1"])
    assert uncertain.line == (
        "CRITICAL: /d1 has failed, and nobody knows whether Kafka has noticed; the metadata are not followed: TLS"
    )
    ends = condition({"/d1": "online"}, unnoticed=(), unbound=None, blind=None, certificates=["k.pem ends soon"])
    assert ends.line == "DEGRADED: k.pem ends soon"
    left = condition({"/d1": "online"}, unnoticed=(), unbound=None, blind=None, left="2 partitions evicted")
    assert left.line == "DEGRADED: 2 partitions evicted"
    assert condition({"/d1": "unwatched"}, unnoticed=(), unbound="no broker runs", blind=None).level is Level.CRITICAL
    assert condition({"/d1": "online"}, unnoticed=(), unbound="no broker runs", blind=None).level is Level.DEGRADED
    back = condition({"/d1": "online"}, unnoticed=(), unbound=None, blind=None, offline=["/d1"])
    assert back.level is Level.DEGRADED and "/d1 is well and offline for Kafka" in back.line
    helpless = condition(
        {"/d1": "unwatched", "/d2": "online"}, unnoticed=(), unbound=None, blind=None, helpless=["/d1"]
    )
    assert helpless.level is Level.CRITICAL
    assert helpless.reasons[0] == "/d1 does not answer, and nothing can be done about it until it does"
    unkept = condition(
        {"/d1": "online"}, unnoticed=(), unbound=None, blind=None, unwritten="/s/f: Read-only file system"
    )
    assert unkept.line == (
        "DEGRADED: nothing can be evicted or demoted, replica lists are not kept: /s/f: Read-only file system"
    )
    gone = Broker(state=State.ENDED, reason="/d1: its file system is frozen")
    given_up = condition({"/d1": "failed"}, unnoticed=(), unbound="no broker runs", blind=None, lost=lost(gone))
    assert given_up.level is Level.CRITICAL and "the broker is lost (/d1: its file system is frozen)" in given_up.line
    assert lost(Broker(state=State.ENDED)) is lost(Broker(state=State.SERVING, reason="as before")) is None
