"""What a guard that acts knows of its broker's process, when that is another one by now, and what it cannot do."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kjbod.clock import SystemClock
from kjbod.ids import Uuid
from kjbod.security.channel import NO_SECURITY
from kjbod_guard.act_mode import ActMode, Found
from kjbod_guard.actions import Done, Outcome, Thread
from kjbod_guard.binding import Holder
from kjbod_guard.core import GuardCore
from kjbod_guard.directory_steps import RELEASED, Standing, State
from kjbod_guard.journal import Evicted, Journal
from kjbod_guard.ladder import Step
from kjbod_guard.observing import Observed
from kjbod_guard.situation import Site

PATH = "/mnt/d2"
T = Uuid.of(7, 1)
OLD = Holder(pid=800, started=1, arguments=("java",), files={})
NEW = Holder(pid=900, started=2, arguments=("java",), files={})
SAME_PID = Holder(pid=800, started=3, arguments=("java",), files={})
NOTHING = Found()


class Link:
    """A helper that sees a fetcher of whatever process it holds wait for the disk that was cut."""

    problem: str | None = None
    apart: bool | None = False
    lacks: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.held: tuple[int, int] | None = None
        self.answer = Done(outcome=Outcome.DONE)
        self.thread = "ReplicaFetcherT"
        self.meanwhile: Callable[[], Coroutine[Any, Any, None]] = lambda: asyncio.sleep(0)

    async def hold(self, pid: int, started: int) -> Done:
        self.held = pid, started
        return self.answer

    async def threads(self) -> list[Thread]:
        await self.meanwhile()
        return [Thread(tid=803, name=self.thread, directory=PATH, file=None, call="write", since_ms=0)]


def acts_with(link: Link | None, standing: Standing | None = None, observed: Observed | None = None) -> ActMode:
    """Parts of a guard that has cut a disk long before the thread was seen."""
    cut = standing or Standing(state=State.CUT, means=Step.CUT, acted_ms=0)
    evicted = {(T, 0): Evicted("x", "t", (2, 1), 500)}
    core = GuardCore(Site(node_id=1), Journal(directories={PATH: (cut, None, 0)}, evicted=evicted), "g1")
    nobody = cast(Any, SimpleNamespace(warning=lambda *_, **__: None, outcomes={}))
    acts = ActMode(
        cast(Any, SimpleNamespace(node_id=1)),
        SystemClock(),
        nobody,
        nobody,
        core,
        security=NO_SECURITY,
        asked="nobody",
        spawn=lambda coroutine: coroutine.close(),
        review=lambda: None,
        observed=lambda: observed or Observed(1),
        failed=lambda: [PATH],
        well=list,
        bound=lambda: True,
        situation=lambda: None,
    )
    acts._link = cast(Any, link)
    return acts


async def look(link: Link, standing: Standing | None = None) -> Found:
    acts = acts_with(link, standing)
    await acts.hold(OLD)
    await acts._look_at_threads(cast(Any, link))
    return acts.found(OLD)


async def test_a_thread_that_was_stuck_in_a_process_that_has_gone_proves_nothing_of_the_next() -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    await acts._look_at_threads(cast(Any, link))
    found = acts.found(OLD)
    assert found.stuck is not None and "803" in found.stuck and found.waits and acts.counters(OLD).crippled
    # Found by its lock, and not yet told to the helper.
    assert acts.found(NEW) == acts.found(SAME_PID) == acts.found(None) == NOTHING
    await acts.hold(NEW)
    assert acts.found(NEW) == NOTHING and not acts.counters(NEW).crippled


async def test_a_process_that_the_helper_refused_is_spoken_of_while_it_runs() -> None:
    link = Link()
    acts = acts_with(link)
    link.answer = Done(outcome=Outcome.REFUSED, reason="process 7 does not hold .lock of a log directory")
    await acts.hold(OLD)
    assert acts.unable[-1] == f"the broker's process cannot be acted on: {link.answer.reason}"
    await acts.hold(None)
    assert not any(".lock" in line for line in acts.unable)


async def test_an_answer_about_a_process_that_went_meanwhile_is_not_used() -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    link.meanwhile = lambda: acts.hold(NEW)
    await acts._look_at_threads(cast(Any, link))
    assert acts.found(NEW) == acts.found(OLD) == NOTHING


@pytest.mark.parametrize(
    "standing",
    [
        Standing(state=State.LEFT, reason=RELEASED, means=Step.CUT, acted_ms=0),
        Standing(state=State.LEFT, reason="the controllers do not show it", acted_ms=0),
        Standing(state=State.OFFLINE, means=Step.CUT, acted_ms=-100_000),
        Standing(),
    ],
    ids=["released", "left", "offline since long", "nothing was done"],
)
async def test_a_thread_that_is_stuck_on_a_directory_that_gives_no_ground_for_doubt_proves_nothing(
    standing: Standing,
) -> None:
    assert await look(Link(), standing) == NOTHING


async def test_a_thread_without_which_the_broker_goes_on_is_no_proof_and_yet_waits() -> None:
    link = Link()
    link.thread = "kafka-scheduler"
    found = await look(link)
    assert (found.stuck, found.waits) == (None, True)


@pytest.mark.parametrize("apart", [True, None])
async def test_who_answers_at_the_port_of_a_broker_that_may_be_in_another_network_namespace_is_not_asked(
    apart: bool | None,
) -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    assert acts._is_here
    acts._broker = (NEW.pid, NEW.started)
    assert not acts._is_here, "the helper does not know that one yet"
    await acts.hold(NEW)
    assert acts._is_here
    link.apart = apart
    assert not acts._is_here


async def test_a_process_that_the_helper_does_not_take_was_told_and_is_said_to_be_out_of_reach() -> None:
    link = Link()
    link.answer = Done(outcome=Outcome.REFUSED, reason="it holds none of the directories")
    acts = acts_with(link)
    assert not acts.was_told(OLD) and not acts.unable
    await acts.hold(OLD)
    assert acts.was_told(OLD) and not acts.was_told(NEW)
    assert list(acts.unable) == ["the broker's process cannot be acted on: it holds none of the directories"]
    assert acts.counters(OLD).hand_missing == 1
    link.answer = Done(outcome=Outcome.DONE)
    await acts.hold(NEW)
    assert not acts.unable and acts.counters(NEW).hand_missing == 0


def test_a_helper_that_lacks_a_right_or_has_died_is_named_and_holds_up_nothing() -> None:
    link = Link()
    acts = acts_with(link)
    link.lacks = ("no CAP_KILL: no broker is killed",)
    assert list(acts.unable) == ["the guard cannot act: no CAP_KILL: no broker is killed"] and acts.no_helper is None
    link.problem = "the helper has died"
    assert list(acts.unable) == ["the guard cannot act: the helper has died"] and acts.no_helper == link.problem
    assert acts.was_told(OLD) and acts.counters(OLD).hand_missing == 1


def test_a_helper_that_can_act_and_lacks_something_else_is_no_reason_to_alarm() -> None:
    link = Link()
    link.missing = ("not protected from the OOM killer: Permission denied (CAP_SYS_RESOURCE)",)
    assert acts_with(link).counters(OLD).hand_missing == 0


@pytest.mark.parametrize(("exists", "evicted", "since_ms"), [(True, 1, 500), (False, 0, None)])
def test_partitions_of_a_topic_that_is_gone_are_not_counted_as_evicted(
    exists: bool, evicted: int, since_ms: int | None
) -> None:
    observed = Observed(1, complete=True, topics={T: "t"} if exists else {})
    counters = acts_with(Link(), observed=observed).counters(None)
    assert (counters.evicted, counters.evicted_since_ms) == (evicted, since_ms)
