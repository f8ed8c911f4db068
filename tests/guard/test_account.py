"""The guard's account of what it does, in the health report that the fleet report is made from."""

from typing import Any

from kjbod.fleet.schema import Event, Sample
from kjbod.ids import Uuid
from kjbod_guard.account import Account
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.effects import Cut, Effect, Evict, Kill
from kjbod_host.reporter import Sender
from tests.guard.test_action_runner import SetClock

SENDER = Sender(host="h", broker_id=1, boot_id="b", fleet="c")
PATH, TOPIC = "/mnt/d3", Uuid.of(7, 1)


class Sink:
    """A log that nobody reads, and a report that stays here."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def info(self, event: str, **fields: Any) -> None: ...

    warning = error = info

    def event(self, event: Event) -> None:
        self.events.append(event)

    def sample(self, sample: Sample) -> None: ...

    @property
    def told(self) -> list[tuple[str, str | None, dict[str, str]]]:
        return [(event.kind, event.path, dict(event.attrs)) for event in self.events]


def account() -> tuple[Account, Sink]:
    sink = Sink()
    return Account(SENDER, SetClock(), sink, sink, mode="act"), sink


async def carry_out(of: Account, effect: Effect, path: str | None, done: Done) -> None:
    await of.does(effect.name, path, effect.facts())
    of.done(effect.name, path, done)


async def test_what_is_done_to_a_disk_and_what_came_of_it_is_reported_with_its_partitions_counted() -> None:
    of, sink = account()
    await carry_out(of, Cut(PATH), PATH, Done(outcome=Outcome.PENDING, reason="it did not return", took_ms=500))
    lists = {(TOPIC, number): (1, 2, 3) for number in range(7)}
    await carry_out(of, Evict(PATH, "x", lists), PATH, Done(outcome=Outcome.DONE, took_ms=9))
    assert sink.told == [
        ("guard_does", PATH, {"means": "cut"}),
        ("guard_done", PATH, {"means": "cut", "outcome": "pending", "took_ms": "500", "reason": "it did not return"}),
        ("guard_does", PATH, {"means": "evict", "count": "7"}),
        ("guard_done", PATH, {"means": "evict", "outcome": "done", "took_ms": "9", "count": "7"}),
    ]
    assert {event.incident for event in sink.events} == {event.dir_id for event in sink.events} == {None}


async def test_a_refusal_is_reported_with_its_reason_and_counted_and_so_is_where_the_broker_stands() -> None:
    of, sink = account()
    await carry_out(of, Kill(5), None, Done(outcome=Outcome.REFUSED, reason="no CAP_KILL"))
    of.stands(None, "crippled", "a fetcher is stuck")
    of.stands(PATH, "well", "")
    assert sink.told[1:] == [
        ("guard_done", None, {"means": "kill", "outcome": "refused", "took_ms": "0", "reason": "no CAP_KILL"}),
        ("guard_stands", None, {"state": "crippled", "reason": "a fetcher is stuck"}),
        ("guard_stands", PATH, {"state": "well"}),
    ]
    assert of.outcomes == {("kill", "refused"): 1}


async def test_events_of_the_same_moment_are_told_apart() -> None:
    of, sink = account()
    for state in ("cut", "offline", "evicted"):
        of.stands(PATH, state, "")
    assert len({event.event_id for event in sink.events}) == 3
