"""What a guard that acts knows of its broker's process, when that is another one by now."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kjbod.clock import SystemClock
from kjbod.security.channel import NO_SECURITY
from kjbod_agent.guard.acts import Acts
from kjbod_agent.guard.binding import Holder
from kjbod_agent.guard.means import Done, Outcome, Thread

PATH = "/mnt/d2"
OLD = Holder(pid=800, started=1, arguments=("java",), files={})
NEW = Holder(pid=900, started=2, arguments=("java",), files={})
SAME_PID = Holder(pid=800, started=3, arguments=("java",), files={})


class Link:
    """A hand that sees a fetcher of whatever process it holds wait for the disk that was cut."""

    problem = None
    apart: bool | None = False

    def __init__(self) -> None:
        self.held: tuple[int, int] | None = None
        self.meanwhile: Callable[[], Coroutine[Any, Any, None]] = lambda: asyncio.sleep(0)

    async def hold(self, pid: int, started: int) -> Done:
        self.held = pid, started
        return Done(outcome=Outcome.DONE)

    async def threads(self) -> list[Thread]:
        await self.meanwhile()
        return [Thread(tid=803, name="ReplicaFetcherT", directory=PATH, file=None, call="write", since_ms=0)]


def acts_with(link: Link) -> Acts:
    acts = Acts(
        cast(Any, SimpleNamespace(node_id=1)),
        SystemClock(),
        cast(Any, None),
        cast(Any, None),
        security=NO_SECURITY,
        asked="nobody",
        spawn=lambda coroutine: coroutine.close(),
        review=lambda: None,
        observed=cast(Any, None),
        failed=lambda: [PATH],
        well=list,
        bound=lambda: True,
        known=lambda: None,
    )
    acts._link = cast(Any, link)
    acts.acting = cast(Any, SimpleNamespace(dealt_ms={PATH: 0}, released=frozenset()))
    return acts


async def test_a_thread_that_was_stuck_in_a_process_that_has_gone_proves_nothing_of_the_next() -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    await acts._look_at_threads(cast(Any, link))
    reason, proven = acts.crippled(OLD)
    assert reason is not None and "803" in reason and proven
    # Found by its lock, and not yet told to the hand.
    assert acts.crippled(NEW) == acts.crippled(SAME_PID) == acts.crippled(None) == (None, False)
    await acts.hold(NEW)
    assert acts.crippled(NEW) == (None, False)


async def test_an_answer_about_a_process_that_went_meanwhile_is_not_used() -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    link.meanwhile = lambda: acts.hold(NEW)
    await acts._look_at_threads(cast(Any, link))
    assert acts.crippled(NEW) == acts.crippled(OLD) == (None, False)


async def test_a_thread_that_is_stuck_on_a_directory_which_was_released_proves_nothing() -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    acts.acting.released = frozenset({PATH})  # type: ignore[misc]
    await acts._look_at_threads(cast(Any, link))
    assert acts.crippled(OLD) == (None, False)


@pytest.mark.parametrize("apart", [True, None])
async def test_who_answers_at_the_port_of_a_broker_that_may_be_in_another_network_namespace_is_not_asked(
    apart: bool | None,
) -> None:
    link = Link()
    acts = acts_with(link)
    await acts.hold(OLD)
    assert acts._is_here
    acts._broker = (NEW.pid, NEW.started)
    assert not acts._is_here, "the hand does not know that one yet"
    await acts.hold(NEW)
    assert acts._is_here
    link.apart = apart
    assert not acts._is_here
