"""What keeps one peer from taking what is everybody's."""

import asyncio
from typing import Any

import pytest

from kjbod.wire import pressure
from kjbod.wire.pressure import NO_LIMIT, Addresses, Outlet, Pace, Rate, Room, Unread
from tests.wire.conftest import Run


def test_a_rate_lets_a_seconds_worth_through_and_spreads_the_rest() -> None:
    rate = Rate(4)
    assert [rate.take(10_000) for _ in range(6)] == [0, 0, 0, 0, 250, 500]
    assert rate.take(10_600) == 150
    assert [rate.take(20_000) for _ in range(5)] == [0, 0, 0, 0, 250]


def test_who_only_tries_takes_nothing_where_nothing_is_left() -> None:
    rate = Rate(2)
    assert [rate.try_take(5_000) for _ in range(4)] == [True, True, False, False]
    assert rate.try_take(5_500)


def test_without_a_limit_nothing_waits() -> None:
    rate = Rate(NO_LIMIT)
    assert {rate.take(0) for _ in range(10_000)} == {0}
    assert rate.try_take(0)


def test_connections_take_turns_in_the_order_in_which_they_came(run: Run[Any]) -> None:
    async def story() -> None:
        pace, begun = Pace(2), []

        async def begin(number: int) -> None:
            await pace.begin()
            begun.append(number)

        tasks = [asyncio.ensure_future(begin(number)) for number in range(7)]
        await asyncio.sleep(0)
        assert begun == [0, 1]
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert begun == [0, 1, 3, 4, 5, 6]
        await asyncio.sleep(0)
        await asyncio.wait_for(pace.begin(), 5)  # there is room again

    run(story)


def test_room_is_given_in_order_and_the_largest_gets_in_alone(run: Run[Any]) -> None:
    async def story() -> None:
        room, inside = Room(10), []

        async def enter(size: int) -> None:
            await room.enter(size)
            inside.append(size)

        await enter(6)
        tasks = [asyncio.ensure_future(enter(size)) for size in (50, 3, 4)]
        await asyncio.sleep(0)
        assert inside == [6]  # not even what would fit passes one that waits
        tasks[1].cancel()
        room.leave(6)
        await asyncio.sleep(0)
        assert inside == [6, 50]
        room.leave(50)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (inside, room.used_bytes) == ([6, 50, 4], 4)

    run(story)


def test_who_is_cancelled_as_it_gets_in_gives_its_room_back(run: Run[Any]) -> None:
    async def story() -> None:
        room = Room(10)
        await room.enter(10)
        task = asyncio.ensure_future(room.enter(5))
        await asyncio.sleep(0)
        room.leave(10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert room.used_bytes == 0

    run(story)


def test_the_slowest_reader_is_the_one_without_progress_for_longest() -> None:
    unread: Unread[str] = Unread()
    unread.add("a", 10)
    unread.add("b", 5)
    unread.add("a", 10)
    assert (unread.bytes, unread.slowest()) == (25, "a")
    unread.taken("a", 10)
    assert (unread.bytes, unread.slowest()) == (15, "b")
    unread.forget("b")
    unread.taken("b", 5)
    unread.taken("a", 10)
    assert (unread.bytes, unread.slowest()) == (0, None)


def test_each_reader_counts_with_what_the_kernel_holds_for_it() -> None:
    unread: Unread[str] = Unread(per_reader_bytes=100)
    unread.add("a", 10)
    unread.add("a", 10)
    unread.add("b", 5)
    assert unread.bytes == 225
    unread.taken("a", 10)
    assert unread.bytes == 215
    unread.taken("a", 10)
    assert (unread.bytes, unread.slowest()) == (105, "b")
    unread.forget("b")
    assert (unread.bytes, unread.slowest()) == (0, None)


def test_each_address_has_its_own_connections() -> None:
    addresses = Addresses(2)
    assert [addresses.enter(host) for host in ("a", "a", "b", "a")] == [True, True, True, False]
    addresses.leave("a")
    assert addresses.enter("a")
    assert not Addresses(0).enter("a")


def test_large_answers_leave_one_in_a_turn_of_the_loop_while_half_of_what_may_be_unread_is_free(run: Run[Any]) -> None:
    async def story() -> None:
        unread: Unread[int] = Unread()
        outlet, turns, left = Outlet(unread, 100), [0], []
        going = True

        def look_at_sockets() -> None:
            turns.append(0)
            if going:
                asyncio.get_running_loop().call_soon(look_at_sockets)

        async def leave(number: int) -> None:
            await outlet.turn(10)
            unread.add(number, 10)
            left.append(number)
            turns[-1] += 1

        look_at_sockets()
        tasks = [asyncio.ensure_future(leave(number)) for number in range(8)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert left == [0, 1, 2, 3, 4]  # fifty bytes are unread: the others wait for these
        tasks[5].cancel()
        unread.taken(0, 10)
        unread.forget(1)
        await asyncio.gather(*tasks[6:])
        going = False
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert (left, max(turns)) == ([0, 1, 2, 3, 4, 6, 7], 1)

    run(story)


def test_readers_that_take_nothing_hold_the_others_back_for_a_time_only(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressure, "SLOW_READER_MS", 1)

    async def story() -> None:
        unread: Unread[int] = Unread()
        outlet = Outlet(unread, 100)
        unread.add(1, 90)
        await outlet.turn(90)

    run(story)


def test_what_is_larger_than_all_that_may_be_unread_leaves_alone(run: Run[Any]) -> None:
    async def story() -> None:
        await Outlet(Unread(), 100).turn(1_000)

    run(story)
