"""Lost redundancy in the health report: when the guard reports it, and what the fleet report, the log and the audit
get."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod.fleet.schema import Event, Sample
from kjbod_guard.account import Account, Audit
from kjbod_guard.change_reporter import ChangeReporter
from kjbod_guard.core import GuardCore
from kjbod_guard.finding import Finding
from kjbod_guard.journal import Evicted, Journal
from kjbod_guard.observing import Observed, Placed
from kjbod_guard.redundancy import NOTHING_REPORTED, REPORT_EVERY_MS, Needs, Reported, is_due
from kjbod_guard.situation import Site, Situation
from kjbod_guard.watching import Watching
from kjbod_host.reporter import Sender
from tests.guard.test_action_runner import SetClock
from tests.guard.test_copies import ALL, D1, SOLE, T, observed, placed

AT_MS = 1_700_000_000_000
LEADERLESS = replace(SOLE, leader=-1, leads=False)
EVICTED = "1 partition has 2 of 3 replicas since 2023-11-14 22:13:20Z: the guard evicted broker 1"


class Sink:
    """A log, a report and an audit that stay here."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.logged: list[tuple[str, str, dict[str, Any]]] = []
        self.audited: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.logged.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.logged.append(("warning", event, fields))

    error = warning

    def write(self, event: str, fields: dict[str, Any]) -> None:
        self.audited.append((event, fields))

    def event(self, event: Event) -> None:
        self.events.append(event)

    def sample(self, sample: Sample) -> None: ...

    @property
    def lacks(self) -> list[dict[str, str]]:
        return [dict(event.attrs) for event in self.events if event.kind == "guard_lacks"]


def account(mode: str = "act") -> tuple[Account, Sink]:
    sink = Sink()
    sender = Sender(host="h", broker_id=1, boot_id="b", fleet="c")
    return Account(sender, SetClock(), sink, sink, mode=mode, audit=cast(Audit, sink)), sink


class Run:
    """A run of a guard, of which only the metadata change."""

    def __init__(self, *, mode: str = "act", journal: Journal | None = None) -> None:
        of, self.sink = account(mode)
        core = GuardCore(Site(node_id=1, min_isr=2), journal or Journal(), "g")
        watching = cast(Watching, SimpleNamespace(owned={}))
        self._change_reporter = ChangeReporter(of, watching, core, SetClock())
        self._finding = cast(Finding, SimpleNamespace(looked=False))

    def look(self, at_ms: int, now: Observed, blind: str | None = None) -> list[dict[str, str]]:
        """Look at the metadata at a monotonic time; all that was reported up to then."""
        situation = Situation(now_ms=at_ms, disks={}, observed=now, blind=blind)
        self._change_reporter.tell(situation, self._finding, {})
        return self.sink.lacks


def counts(below_replication_factor: int = 0, below_min_isr: int = 0, without_leader: int = 0) -> dict[str, str]:
    return {
        "below_replication_factor": str(below_replication_factor),
        "below_min_isr": str(below_min_isr),
        "without_leader": str(without_leader),
    }


# ------------------------------------------------------------------------------------------------------- the account


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_lost_redundancy_is_in_the_fleet_report_the_log_and_the_audit(mode: str) -> None:
    of, sink = account(mode)
    of.lacks(Needs(12, 0, 3), "3 partitions have no leader; 12 partitions have 2 of 3 replicas")
    reason = {"reason": "3 partitions have no leader; 12 partitions have 2 of 3 replicas"}
    numbers = {"below_replication_factor": 12, "below_min_isr": 0, "without_leader": 3}
    (event,) = sink.events
    assert (event.kind, event.path, event.dir_id, event.broker_id) == ("guard_lacks", None, None, 1)
    assert event.attrs == counts(12, 0, 3) | reason
    assert sink.logged == [("warning", "guard.redundancy", numbers | reason)]
    assert sink.audited == [("redundancy", {"mode": mode, "node": 1} | numbers | reason)]


def test_that_nothing_lacks_any_more_is_reported_without_a_reason() -> None:
    of, sink = account()
    of.lacks(Needs(0, 0, 0), "")
    assert sink.lacks == [counts()]
    assert [level for level, _, _ in sink.logged] == ["info"]


# ------------------------------------------------------------------------------------------------------- when it is due

ONE, TWO = Needs(1, 0, 0), Needs(2, 0, 0)


@pytest.mark.parametrize(
    ("reported", "found", "now_ms", "due"),
    [
        (NOTHING_REPORTED, Needs(0, 0, 0), 0, False),
        (NOTHING_REPORTED, ONE, 0, True),
        (Reported(ONE, 5_000), ONE, 5_000 + REPORT_EVERY_MS, False),
        (Reported(ONE, 5_000), TWO, 5_000 + REPORT_EVERY_MS - 1, False),
        (Reported(ONE, 5_000), TWO, 5_000 + REPORT_EVERY_MS, True),
        (Reported(ONE, 5_000), Needs(0, 0, 0), 5_000 + REPORT_EVERY_MS, True),
    ],
)
def test_changed_counts_are_due_when_the_last_report_is_ten_seconds_old(
    reported: Reported, found: Needs, now_ms: int, due: bool
) -> None:
    assert REPORT_EVERY_MS == 10_000
    assert is_due(reported, found, now_ms) is due


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_partition_without_a_leader_is_reported_once_until_it_has_one(mode: str) -> None:
    run = Run(mode=mode)
    assert run.look(0, observed(ALL)) == [], "a new run begins with nothing reported"
    lacking = counts(0, 1, 1) | {"reason": "1 partition has no leader; 1 partition is below min.insync.replicas"}
    assert run.look(1_000, observed(ALL, LEADERLESS)) == [lacking]
    for at_ms in (2_000, 30_000, 90_000):
        assert run.look(at_ms, observed(ALL, LEADERLESS)) == [lacking]
    assert run.look(91_000, observed(ALL, ALL)) == [lacking, counts()]


def test_an_evicted_partition_is_reported_by_the_run_that_evicted_it_and_by_the_next_one() -> None:
    journal = Journal(evicted={(T, 5): Evicted(str(D1), "t", (1, 2, 3), AT_MS)})
    now = observed(ALL)
    now.others = {(T, 5): placed(2, 3)}
    for _ in range(2):
        assert Run(journal=journal).look(0, now) == [counts(1) | {"reason": EVICTED}]


def test_a_change_within_ten_seconds_is_reported_when_they_have_passed() -> None:
    run = Run()
    one, two = observed(LEADERLESS), observed(LEADERLESS, LEADERLESS)

    def leaderless(at_ms: int, now: Observed) -> list[str]:
        return [told["without_leader"] for told in run.look(at_ms, now)]

    assert leaderless(1_000, one) == ["1"]
    assert leaderless(4_000, observed(ALL)) == ["1"]
    assert leaderless(8_000, two) == ["1"]
    assert leaderless(10_999, two) == ["1"]
    assert leaderless(12_000, two) == ["1", "2"]
    assert leaderless(15_000, one) == leaderless(21_999, one) == ["1", "2"]
    assert leaderless(23_000, two) == ["1", "2"], "a change that was undone within ten seconds is no news"


def test_metadata_that_are_not_followed_say_nothing_about_redundancy() -> None:
    run = Run()
    assert run.look(1_000, observed(LEADERLESS), blind="no answer yet") == []
    (lacking,) = run.look(2_000, observed(LEADERLESS))
    assert run.look(60_000, observed(), blind="no controller answers") == [lacking]


def test_the_broker_s_partitions_are_counted_once_a_second_however_often_the_metadata_change() -> None:
    """A disk fails: each change of the metadata is looked at before the guard acts, and counting 4,000 partitions takes
    14 ms."""
    run, counted = Run(), 0

    class Counting(dict[Any, Placed]):
        def items(self) -> Any:
            nonlocal counted
            counted += 1
            return super().items()

    now = observed(ALL)
    now.partitions = Counting(now.partitions)
    for at_ms in range(0, 3_000, 100):
        now.revision += 1
        run.look(at_ms, now)
    assert counted == 3
    for at_ms in range(3_000, 6_000, 100):
        run.look(at_ms, now)
    assert counted == 4, "nothing has changed since"
