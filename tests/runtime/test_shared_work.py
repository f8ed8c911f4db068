"""Work beside the event loop: once for all who ask the same, and never older than the question."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from kjbod.runtime.shared_work import SharedWork


class Desk:
    """Questions about a number that changes; the work is held until the gate opens."""

    def __init__(self, shared: SharedWork[int]) -> None:
        self.shared = shared
        self.number = 0
        self.made: list[tuple[str, int]] = []
        self.threads: set[threading.Thread] = set()
        self.gate = threading.Event()
        self.reached = threading.Event()

    def ask(self, question: str) -> asyncio.Task[int]:
        async def begin() -> Callable[[], int]:
            number = self.number

            def work() -> int:
                self.reached.set()
                self.threads.add(threading.current_thread())
                assert self.gate.wait(60)
                if question == "bad":
                    raise ValueError(question)
                self.made.append((question, number))
                return number

            return work

        return asyncio.ensure_future(self.shared.get(question, begin))

    async def begun(self) -> None:
        while not self.reached.is_set():  # noqa: ASYNC110  it is set in a thread
            await asyncio.sleep(0.001)


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    shared = SharedWork[int]("test")
    made = Desk(shared)
    yield made
    made.gate.set()
    shared.close()


async def test_all_who_ask_before_the_work_begins_share_it_and_others_get_a_newer_one(desk: Desk) -> None:
    first = [desk.ask("all") for _ in range(5)]
    await desk.begun()
    desk.number = 1
    later = [desk.ask("all") for _ in range(7)]
    other = desk.ask("some")
    await asyncio.sleep(0)
    assert desk.shared.asked == 13
    desk.gate.set()
    assert await asyncio.gather(*first) == [0] * 5
    assert await asyncio.gather(*later) == [1] * 7  # it changed before they asked: they must see it
    assert await other == 1
    assert desk.made == [("all", 0), ("all", 1), ("some", 1)]
    assert threading.main_thread() not in desk.threads
    assert desk.shared.asked == 0


async def test_nothing_is_made_for_those_who_have_gone_and_who_asks_again_is_answered(desk: Desk) -> None:
    held = desk.ask("first")
    await desk.begun()
    gone = [desk.ask("all") for _ in range(3)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    desk.gate.set()
    assert await held == 0
    assert await desk.ask("all") == 0
    assert desk.made == [("first", 0), ("all", 0)]


async def test_who_asks_behind_those_who_have_gone_is_not_taken_for_one_of_them(desk: Desk) -> None:
    held = desk.ask("first")
    await desk.begun()
    gone = desk.ask("all")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    again = desk.ask("all")
    await asyncio.sleep(0)
    desk.gate.set()
    assert await again == await held == 0
    assert desk.made == [("first", 0), ("all", 0)]


async def test_all_who_share_work_that_fails_are_told_and_the_next_question_is_answered(desk: Desk) -> None:
    asked = [desk.ask("bad") for _ in range(3)]
    desk.gate.set()
    for task in asked:
        with pytest.raises(ValueError, match="bad"):
            await task
    assert await desk.ask("good") == 0
