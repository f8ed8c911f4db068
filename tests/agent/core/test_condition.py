"""The condition of the agent in one line: what is OK, DEGRADED, CRITICAL, and in which words."""

from typing import Any

import pytest
from msgspec import structs

from kjbod.ids import Uuid
from kjbod_agent.condition import START_MS, UNFOLLOWED_MS, DirectoryStates, Unfollowed, condition, contact, fenced
from kjbod_agent.lifecycle import BrokerState, Identity, Lifecycle
from kjbod_host.condition import Condition, Level

WALL_MS = 1_700_000_000_000
RUNNING = Lifecycle(
    identity=Identity(broker_id=1, cluster_id="c", incarnation_id=Uuid(b"i" * 16), listeners=(), log_dirs=()),
    state=BrokerState.RUNNING,
    registered=True,
    fenced=False,
    answered_ms=100_000,
)


def at(now_ms: int, words: tuple[str, ...] = ("online",) * 12, *, ago: bool = True, **changes: Any) -> Condition:
    """The condition ``now_ms`` after the start; ``changes`` of the lifecycle, or what else is told."""
    told = {
        key: changes.pop(key)
        for key in ("unrecorded", "stuck", "unfollowed", "certificates", "lost", "unknown")
        if key in changes
    }
    metadata = changes.pop("metadata", "online")
    life = structs.replace(RUNNING, **changes)
    states = DirectoryStates({f"/d{number}": word for number, word in enumerate(words)}, metadata)
    heard = contact(life, now_ms, WALL_MS, 0, "host3:9093")
    return condition(life, heard, states, running_ms=now_ms, ago=ago, **told)


def test_all_is_well() -> None:
    assert at(101_000).line == "OK: running, unfenced, 12 directories online"
    assert at(101_000, ("online",)).line == "OK: running, unfenced, 1 directory online"


def test_a_certificate_that_ends_is_a_reason_to_look() -> None:
    assert at(101_000, certificates=["the certificate of k.pem ends soon"]).line == (
        "DEGRADED: the certificate of k.pem ends soon"
    )


def test_a_history_that_was_lost_is_in_the_first_line() -> None:
    told = at(101_000, lost=True).line
    assert told == "DEGRADED: the history of the metadata was lost or set back (see kjbod strays)"


def test_a_kafka_that_is_newer_is_in_the_first_line() -> None:
    told = at(101_000, unknown=["metadata.version 34 is newer than kjbod knows: upgrade kjbod"]).line
    assert told == "DEGRADED: metadata.version 34 is newer than kjbod knows: upgrade kjbod"


def test_the_line_names_every_reason() -> None:
    gone: dict[str, Any] = {"failures": 20, "trouble": "cannot connect to host3:9093: Connection refused"}
    told = at(142_000, ("failed", *("online",) * 11), **gone)
    assert told.level is Level.DEGRADED
    assert told.line == (
        "DEGRADED: no controller for 42 s (host3:9093, last answer 2023-11-14 22:12:38Z: "
        "cannot connect to host3:9093: Connection refused); 1 of 12 directories failed"
    )
    assert at(142_000, ago=False, **gone).line == at(150_000, ago=False, **gone).line.replace("22:12:30Z", "22:12:38Z")


def test_metadata_that_cannot_be_fetched_are_told_while_the_controller_answers_heartbeats() -> None:
    silence = Unfollowed(UNFOLLOWED_MS, "host3:9093 closed the connection")
    told = at(110_000, unfollowed=silence)
    assert told.line == "DEGRADED: the metadata cannot be fetched for 10 s (host3:9093 closed the connection)"
    assert at(110_000, unfollowed=silence, ago=False).line == (
        "DEGRADED: the metadata cannot be fetched (host3:9093 closed the connection)"
    ), "systemctl shows no line that is another one each second"
    assert at(110_000, unfollowed=structs.replace(silence, for_ms=UNFOLLOWED_MS - 1)).level is Level.OK
    alone = at(110_000, unfollowed=silence, failures=3, trouble="Connection refused")
    assert "metadata" not in alone.line, "no controller at all is one reason"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"words": ("slow", "failed", "full", "failed")}, "DEGRADED: 2 of 4 directories failed, 1 slow, 1 full"),
        ({"words": ("unreadable", "online")}, "DEGRADED: 1 of 2 directories unreadable"),
        (
            {"words": ("failed", "online"), "unrecorded": 1},
            "DEGRADED: 1 of 2 directories failed, not yet known to the controller",
        ),
        ({"words": ("loading", "online")}, "DEGRADED: 1 of 2 directories loading"),
        (
            {"words": ("failed", "unreadable")},
            "CRITICAL: no directory is online; 1 of 2 directories failed, 1 unreadable",
        ),
        ({"stuck": 1}, "DEGRADED: 1 assignment not recorded"),
        ({"stuck": 1200}, "DEGRADED: 1,200 assignments not recorded"),
        ({"metadata": "slow"}, "DEGRADED: the directory of the metadata (metadata.log.dir) is slow"),
        ({"fenced": True}, "CRITICAL: the controller has fenced it"),
        ({"state": BrokerState.RECOVERY, "fenced": True}, "DEGRADED: it starts, and is fenced"),
        ({"state": BrokerState.PENDING_CONTROLLED_SHUTDOWN}, "DEGRADED: it stops"),
        (
            {"failures": 1, "refused": True, "trouble": "heartbeat answered STALE_BROKER_EPOCH"},
            "DEGRADED: the controller accepts nothing for 1 s (host3:9093, last answer 2023-11-14 22:13:19Z: "
            "heartbeat answered STALE_BROKER_EPOCH)",
        ),
        (
            {"failures": 1, "answered_ms": None, "fenced": True, "state": BrokerState.STARTING, "trouble": "no"},
            "DEGRADED: no controller for 1 min 41 s (host3:9093, never answered: no); it starts, and is fenced",
        ),
    ],
)
def test_what_is_what(changes: dict[str, Any], line: str) -> None:
    told = at(101_000, **changes)
    assert told.line == line
    assert int(told.level) == {"OK": 0, "DEGRADED": 1, "CRITICAL": 2}[line.partition(":")[0]]


def test_a_start_that_does_not_end_is_critical() -> None:
    starting: dict[str, Any] = {"state": BrokerState.RECOVERY, "fenced": True}
    assert at(START_MS - 1, **starting).level is Level.DEGRADED
    assert at(START_MS, **starting).line == "CRITICAL: it starts, and is fenced"


def test_whether_it_is_fenced_is_known_as_long_as_the_session_lasts() -> None:
    session_ms = RUNNING.timing.session_timeout_ms
    gone = structs.replace(RUNNING, failures=1)
    assert fenced(gone, session_ms) is False
    assert fenced(gone, session_ms + 1) is None
    assert fenced(RUNNING, session_ms + 1) is False, "nothing has failed: this process had no turn"
    assert fenced(structs.replace(gone, fenced=True), session_ms + 1) is True
