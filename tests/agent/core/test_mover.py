"""Moves of replicas, carried out: on disks in memory that fill up, fail and are slow, in virtual time."""

import asyncio
import errno
import itertools
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.moves.machine import State, source_name
from kjbod_agent.moves.mover import REASONS_MAX
from kjbod_host.health.state import Cause, DirectoryHealth, Health
from tests.agent.core.moving_world import D1, D2, D3, D4, SEGMENT, Disks, Run, World, key

BEFORE_SWAP = [State.MAKING, State.NONE, State.QUEUED, State.ACCEPTED]
IN_SWAP = [State.RENAMING, State.RENAMED, State.PROMOTING]
ALL = [*BEFORE_SWAP, *IN_SWAP]


def whole(disks: Disks, content: dict[str, bytes], partition: int = 0) -> Uuid:
    """The directory of the one current replica, which has this content."""
    ((directory, name),) = disks.copies(partition)
    assert disks.content(directory, name) == content
    return directory


# ------------------------------------------------------------------------------------------------------- the whole way


def test_mv_13_mv_14_a_replica_is_moved_to_another_directory_and_back_with_its_offsets(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        disks.disks[D1].checkpoints["replication-offset-checkpoint"] = b"0\n2\nt 0 17\nu 3 4\n"
        disks.disks[D1].checkpoints["log-start-offset-checkpoint"] = b"0\n1\nt 0 9\n"
        async with World(disks, clock) as world:
            assert world.alter(0, "/d2") == ErrorCode.NONE
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D2
            assert world.inventory.locate(key(0)) == D2
            assert disks.disks[D2].checkpoints["replication-offset-checkpoint"] == b"0\n1\nt 0 17\n"
            assert disks.disks[D1].checkpoints["replication-offset-checkpoint"] == b"0\n1\nu 3 4\n"
            assert disks.disks[D2].checkpoints["log-start-offset-checkpoint"] == b"0\n1\nt 0 9\n"
            (deleted,) = disks.names(D1)
            assert deleted.endswith("-delete")
            assert world.asked == [(key(0), D2)]
            assert world.alter(0, "/d1") == ErrorCode.NONE
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            await asyncio.sleep(61)
            assert (disks.names(D1), disks.names(D2)) == (["t-0"], [])
            assert [e["destination"] for e in world.log.of("replica.move.promoted")] == ["/d2", "/d1"]

    virtual(main)


def test_mv_1_without_a_controller_that_records_directories_the_swap_comes_at_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.records = False
            world.alter(0, "/d2")
            await world.until(lambda: not world.mover.moves)
            assert whole(disks, content) == D2

    virtual(main)


def test_mv_2_nothing_is_promoted_before_the_controller_has_answered(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.answers = False
            world.alter(0, "/d2")
            await world.reach(State.QUEUED)
            await asyncio.sleep(600)
            assert world.view.state is State.QUEUED
            assert disks.copies(0) == [(D1, "t-0")]
            world.answers = True
            world.assign(key(0), D2)  # the queue asks again
            await world.rest()
            assert disks.copies(0) == [(D2, "t-0")]

    virtual(main)


def test_mv_7_mv_12_a_source_that_changes_all_the_time_is_followed_until_it_rests(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        disk = disks.disks[D1]
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            for number in range(300):  # written, and segments deleted by retention
                disk.put("t-0", SEGMENT, disk.files["t-0"][SEGMENT] + b"more")
                disk.put("t-0", f"{number % 3 + 1:020d}.log", str(number).encode())
                disk.remove("t-0", f"{(number + 1) % 3 + 1:020d}.log")
                await asyncio.sleep(0.007)
            assert world.view.state in (State.NONE, State.ACCEPTED)
            content = disks.content(D1, "t-0")
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D2

    virtual(main)


@pytest.mark.parametrize("state", [State.QUEUED, State.ACCEPTED, State.RENAMED])
def test_what_is_written_late_is_not_lost(virtual: Run, state: State) -> None:
    """By a process that has the file open, so that it does not see that its directory was renamed."""

    async def main(clock: Any) -> None:
        disks = Disks()
        disk = disks.disks[D1]
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            ((name),) = disks.names(D1)
            disk.put(name, SEGMENT, disk.files[name][SEGMENT] + b"late")
            content = disks.content(D1, name)
            await world.rest()
            assert whole(disks, content) == D2

    virtual(main)


def test_progress_is_seen_and_told(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        disks.disks[D1].put("t-0", SEGMENT, bytes(range(256)) * 4 * 4096 * 16)  # 64 MiB
        async with World(disks, clock, bytes_per_second=1 << 20) as world:
            world.alter(0, "/d2")
            await world.reach(State.NONE)
            await asyncio.sleep(30)
            view = world.view
            assert view.total_bytes == (64 << 20) + 4
            assert 0 < view.copied_bytes < view.total_bytes
            assert abs(view.bytes_per_second - (1 << 20)) < 1 << 20
            assert view.topic == "t" and (view.source, view.destination) == (D1, D2)
            assert 1 <= len(world.log.of("replica.move.progress")) <= 3

    virtual(main)


# --------------------------------------------------------------------------------------------------- what comes between


@pytest.mark.parametrize("state", [*BEFORE_SWAP, State.RENAMING, State.RENAMED])
def test_mv_3_mv_4_a_cancelled_move_leaves_the_replica_where_it_was(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            assert world.mover.cancel("t", 0)
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            assert world.inventory.copies(key(0)) == (D1,)
            assert not disks.copies(0, "future")
            asked = [directory for directory, _ in itertools.groupby(d for _, d in world.asked)]
            assert asked == ([] if state in (State.MAKING, State.NONE) else [D2, D1])
            assert world.log.of("replica.move.cancelled")
            await asyncio.sleep(61)
            assert disks.names(D2) == []
            assert not world.mover.cancel("t", 0)
            assert world.alter(0, "/d2") == ErrorCode.NONE
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D2

    virtual(main)


def test_a_promotion_is_too_late_to_be_cancelled(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.PROMOTING)
            assert not world.mover.cancel("t", 0)
            await world.rest()
            assert disks.copies(0) == [(D2, "t-0")]

    virtual(main)


@pytest.mark.parametrize("state", ALL)
def test_a_new_target_wins_whenever_it_is_given(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            assert world.alter(0, "/d3") == ErrorCode.NONE
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D3
            assert not disks.copies(0, "future")
            assert world.inventory.copies(key(0)) == (D3,)

    virtual(main)


@pytest.mark.parametrize("state", ALL)
def test_back_to_where_it_is_ends_the_move(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            assert world.alter(0, "/d1") == ErrorCode.NONE
            await world.rest()
            lies = D2 if state is State.PROMOTING else D1
            assert whole(disks, content) == disks.assigned[0] == lies

    virtual(main)


@pytest.mark.parametrize("state", ALL)
def test_a_destination_that_fails_leaves_the_replica_where_it_was(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            world.fail(D2)
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            assert world.inventory.copies(key(0)) == (D1,)
            assert world.log.of("replica.move.failed")[0]["reason"] == "/d2 failed"
            assert {d for _, d in world.asked if d == D1} == (set() if state in (State.MAKING, State.NONE) else {D1})

    virtual(main)


@pytest.mark.parametrize("state", ALL)
def test_a_source_that_fails_is_replaced_only_by_its_equal(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            world.fail(D1)
            await world.rest()
            if state in (State.MAKING, State.NONE, State.QUEUED):
                assert disks.copies(0) == [(D1, "t-0")]
                assert len(disks.copies(0, "future")) <= 1
                assert disks.assigned[0] == D1
                assert world.inventory.copies(key(0)) == (D1,)
                return
            assert (D2, "t-0") in disks.copies(0)
            assert disks.content(D2, "t-0") == content
            assert disks.assigned[0] == D2
            assert world.inventory.copies(key(0)) == (D2,)

    virtual(main)


def test_a_source_that_fails_after_a_pass_was_broken_off_is_not_replaced_by_what_nobody_has_verified(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.QUEUED)
            disks.disks[D1].put("t-0", f"{1:020d}.log", b"late" * 1000)
            disks.disks[D2].fail(errno.EIO, ["finish_file"])
            await world.reach(State.ACCEPTED)
            await world.until(lambda: bool(world.errors))
            await asyncio.sleep(5)
            world.fail(D1)
            await world.rest()
            assert disks.copies(0) == [(D1, "t-0")]
            assert disks.assigned[0] == D1

    virtual(main)


def test_a_source_that_fails_within_the_last_difference_is_not_replaced_by_a_part_of_it(virtual: Run) -> None:
    """It was renamed, and something late was being copied from it: the controller is told where the whole replica
    lies, and when its disk is back it has its name again, with all that was in it."""

    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.RENAMED)
            ((name),) = disks.names(D1)
            disks.disks[D1].put(name, f"{1:020d}.log", bytes(range(256)) * 4096 * 24)  # 24 MiB
            content = disks.content(D1, name)
            future = f"{name.removesuffix('-delete')}-future"
            await world.until(lambda: bool(disks.content(D2, future).get(f"{1:020d}.log")))
            world.fail(D1)
            await world.rest()
            assert disks.copies(0) == [] and disks.assigned[0] == D1
            assert world.inventory.copies(key(0)) == (D1,)
        async with World(disks, clock) as world:
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            assert not disks.copies(0, "future")

    virtual(main)


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("first", [D1, D2])
def test_both_fail_and_the_next_start_finds_the_replica(virtual: Run, state: State, first: Uuid) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            world.fail(first)
            world.fail(D1 if first == D2 else D2)
            await world.until(lambda: not world.mover.moves)
            await asyncio.sleep(1)
        async with World(disks, clock) as world:
            await world.rest()
            assert whole(disks, content) == disks.assigned[0]
            assert world.refused == []

    virtual(main)


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("how", ["deleted", "reassigned away"])
def test_a_replica_that_is_no_longer_ours_leaves_nothing(virtual: Run, state: State, how: str) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            if how == "deleted":
                world.delete()
            else:
                world.reassign()
            await asyncio.sleep(1)
            assert world.mover.moves == ()
            assert not disks.copies(0) and not disks.copies(0, "future")
            await asyncio.sleep(61)
            assert disks.names(D1) == disks.names(D2) == []
            assert world.inventory.replica_count(D1) == world.inventory.replica_count(D2) == 0

    virtual(main)


@pytest.mark.parametrize("state", ALL)
def test_a_replica_that_is_missing_in_another_history_is_kept_wherever_its_move_is(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        whole = disks.content(D1, "t-0")[SEGMENT]
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            world.lose()
            await asyncio.sleep(3600)
            assert world.mover.moves == ()
            kept = disks.copies(0, "stray")
            assert whole in [disks.content(directory, name).get(SEGMENT) for directory, name in kept]
            assert {(s.directory_id, s.name) for s in world.placement.strays} == set(kept)
            assert len(disks.names(D1)) + len(disks.names(D2)) == len(kept)

    virtual(main)


def test_what_a_move_left_behind_is_kept_when_another_history_does_not_have_it(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.QUEUED)
            world.fail(D1)
            await world.rest()
            world.lose()
            await asyncio.sleep(3600)
            assert len(disks.copies(0, "stray")) == 1

    virtual(main)


def test_what_a_move_left_behind_goes_with_its_topic(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.QUEUED)
            world.fail(D1)
            await world.rest()
            assert len(disks.copies(0, "future")) == 1
            world.delete()
            await asyncio.sleep(62)
            assert disks.names(D2) == []
            assert disks.copies(0) == [(D1, "t-0")]  # out of reach; a stray when it is back

    virtual(main)


@pytest.mark.parametrize("state", ALL)
def test_mv_15_an_agent_that_was_stopped_or_killed_goes_on_at_its_next_start(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        for stops in (True, False):
            disks = Disks()
            content = disks.content(D1, "t-0")
            async with World(disks, clock) as world:
                world.alter(0, "/d2")
                await world.reach(state)
                if stops:
                    await world.mover.close()
                    assert world.mover.moves == ()
            assert len(disks.copies(0)) <= 1
            async with World(disks, clock) as world:
                await world.rest()
                # Where not even the future replica was made there is nothing to go on with.
                gone_on = world.log.of("replica.move.promoted") or state is State.PROMOTING
                assert gone_on or state is State.MAKING
                assert whole(disks, content) == disks.assigned[0] == (D2 if gone_on else D1)
                assert not disks.copies(0, "future")
                assert world.inventory.copies(key(0)) == (disks.assigned[0],)

    virtual(main)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("then", ["", "cancel", "new target"])
def test_a_kill_at_any_request_loses_nothing(virtual: Run, late: bool, then: str) -> None:
    """The process is killed after each number of requests to the disks; the one on its way is carried out late, or
    never. With ``then`` it was just undoing the move."""

    async def main(clock: Any) -> None:
        ends = set()
        for number in itertools.count(1):
            disks = Disks()
            content = disks.content(D1, "t-0")
            async with World(disks, clock) as world:
                world.alter(0, "/d2")
                if then:
                    await world.reach(State.RENAMED)
                    world.mover.cancel("t", 0) if then == "cancel" else world.alter(0, "/d3")
                ended = not await world.carries_out(number)
                await world.kill(late=late)
            assert len(disks.copies(0)) <= 1  # a real broker can start: no duplicate
            async with World(disks, clock) as world:
                await world.rest()
                lies = whole(disks, content)
                assert lies == disks.assigned[0] == world.inventory.locate(key(0))
                assert not disks.copies(0, "future") and world.inventory.future(key(0)) is None
                assert world.refused == []
                ends.add(lies)
            if ended:
                break
        assert number > (3 if then else 25)
        assert ends >= ({D2} if not then else set())

    virtual(main)


def test_mv_8_the_source_is_in_an_offline_directory_at_the_next_start(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        disks.disks[D1].rename("t-0", "t-0." + "a" * 32 + "-future")
        async with World(disks, clock) as world:
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            assert not disks.copies(0, "future")

    virtual(main)


def test_mv_9_the_source_is_in_an_online_directory_at_the_next_start(virtual: Run) -> None:
    """``KRaftClusterTest.testAbandonedFutureReplicaRecovered_mainReplicaInOnlineLogDir``: the metadata name the
    directory of the future replica, the current one lies in another. Kafka takes the future one as it is; here it is
    made equal to the current one first."""

    async def main(clock: Any) -> None:
        disks = Disks()
        disks.disks[D1].rename("t-0", "t-0." + "a" * 32 + "-future")
        disks.make(D2, "t-0", b"newer")
        content = disks.content(D2, "t-0")
        async with World(disks, clock) as world:
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            assert world.asked == []
            assert not disks.copies(0, "future")

    virtual(main)


# ------------------------------------------------------------------------------------------------------------ bad disks


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_destination_ends_the_move_with_one_line_and_nothing_else(virtual: Run, number: int) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.NONE)
            disks.disks[D2].fail(number, ["write_piece"])
            await world.rest()
            assert whole(disks, content) == D1
            assert not disks.copies(0, "future")
            (failed,) = world.log.of("replica.move.failed")
            assert failed["reason"].startswith("/d2 is full: ")
            assert world.errors == []

    virtual(main)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV, errno.ETXTBSY, errno.ENOTEMPTY, errno.EOPNOTSUPP])
def test_a_source_whose_name_is_in_use_ends_the_move_and_is_no_dead_disk(virtual: Run, number: int) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            disks.disks[D1].fail(number, ["rename_replica"])
            world.alter(0, "/d2")
            await world.until(lambda: bool(world.log.of("replica.move.failed")))
            disks.disks[D1].heal()
            await world.rest()
            assert whole(disks, content) == D1
            assert not disks.copies(0, "future")
            assert world.errors == []

    virtual(main)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM, errno.EXDEV])
def test_the_last_good_copy_of_a_replica_gets_its_name_when_the_error_is_over(virtual: Run, number: int) -> None:
    """The source has failed after both were equal: to give up would leave the partition without a replica."""

    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.RENAMED)
            await world.reach(State.PROMOTING)
            disks.disks[D2].fail(number, ["rename_replica"])
            world.fail(D1)
            await asyncio.sleep(100)
            assert [move.state for move in world.mover.moves] == [State.FINISHING]
            disks.disks[D2].heal()
            await world.rest()
            assert disks.content(D2, "t-0") == content

    virtual(main)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_source_that_nobody_may_rename_ends_the_move_and_is_told_once(virtual: Run, number: int) -> None:
    """An immutable flag: the disk is well, and trying again would only look like one that is not."""

    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            disks.disks[D1].fail(number, ["rename_replica"])
            world.alter(0, "/d2")
            await world.until(lambda: bool(world.errors))
            disks.disks[D1].heal()  # to look whether it was renamed all the same
            await world.rest()
            assert whole(disks, content) == D1
            assert not disks.copies(0, "future")
            assert world.errors == [(D1, number)]
            (failed,) = world.log.of("replica.move.failed")
            assert f"{errno.errorcode[number]} at rename" in failed["reason"]

    virtual(main)


def test_a_source_whose_new_name_is_taken_stays_and_the_move_ends(virtual: Run) -> None:
    """A swap of the same move had come as far as that before the replica was taken away, and given anew."""

    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.ACCEPTED)
            ((_, future),) = disks.copies(0, "future")
            before = source_name(future)
            disks.make(D1, before, b"of before")
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D1
            assert not disks.copies(0, "future")
            assert disks.content(D1, before)[SEGMENT] == b"of before"
            (failed,) = world.log.of("replica.move.failed")
            assert "EEXIST at rename" in failed["reason"]
            assert world.errors == []

    virtual(main)


@pytest.mark.parametrize("call", ["rename_replica", "read_piece"])
def test_a_replica_that_the_file_system_does_not_let_go_stays_and_the_move_says_why(virtual: Run, call: str) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            disks.disks[D1].fail(errno.EPERM, [call])
            world.alter(0, "/d2")
            await world.rest()
            assert whole(disks, content) == D1
            assert not disks.copies(0, "future")
            (failed,) = world.log.of("replica.move.failed")
            assert "EPERM" in failed["reason"]
            assert set(world.errors) == {(D1, errno.EPERM)}, "a probe says whether it is the directory"

    virtual(main)


def test_an_error_is_told_to_the_health_monitor_and_tried_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        disks.disks[D1].fail(errno.EIO, ["read_piece"])
        async with World(disks, clock) as world:
            disks.disks[D1].fail(errno.EIO, ["read_piece"])
            world.alter(0, "/d2")
            await asyncio.sleep(3)
            assert set(world.errors) == {(D1, errno.EIO)}
            disks.disks[D1].heal()
            await world.rest()
            assert whole(disks, content) == D2
            assert len(world.log.of("replica.move.interrupted")) == 1

    virtual(main)


def test_an_error_that_neither_goes_away_nor_fails_a_directory_ends_the_move(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            disks.disks[D2].fail(errno.EIO, ["finish_file"])
            world.alter(0, "/d2")
            await world.rest()
            assert disks.copies(0) == [(D1, "t-0")]
            assert len(world.log.of("replica.move.failed")) == 1

    virtual(main)


def test_a_name_that_is_taken_in_the_destination_gives_the_source_its_name_back(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.QUEUED)
            disks.disks[D2].directories["t-0"] = None  # what a foreign process made
            await world.rest()
            ((directory, name),) = disks.copies(0)
            assert (directory, name, disks.assigned[0]) == (D1, "t-0", D1)
            assert disks.content(D1, "t-0") == content
            assert "t-0" in disks.names(D2)

    virtual(main)


def test_a_slow_directory_delays_a_move_and_ends_nothing(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.RENAMING)
            disks.disks[D1].hang()
            await asyncio.sleep(200)
            disks.disks[D1].heal()
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D2

    virtual(main)


# ------------------------------------------------------------------------------------------------------- several moves


def test_moves_wait_for_each_other_on_a_directory_in_their_order(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks({0: D1, 1: D1, 2: D3})
        contents = [disks.content(d, f"t-{n}") for n, d in disks.assigned.items()]
        async with World(disks, clock) as world:
            for partition, path in ((0, "/d2"), (1, "/d2"), (2, "/d4")):
                assert world.alter(partition, path) == ErrorCode.NONE
            await world.reach(State.QUEUED, 0)
            assert [(m.partition.partition, m.waiting) for m in world.mover.moves] == [
                (0, False),
                (1, True),
                (2, False),
            ]
            assert len(disks.copies(1, "future")) == 1  # a restart would not forget it
            await world.rest()
            promoted = [e["partition"] for e in world.log.of("replica.move.promoted")]
            assert promoted.index(0) < promoted.index(1)
            assert [whole(disks, content, n) for n, content in enumerate(contents)] == [D2, D2, D4]

    virtual(main)


def test_as_many_at_a_time_as_configured(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks({0: D1, 1: D1, 2: D1})
        async with World(disks, clock, concurrency=2) as world:
            world.answers = False
            for partition in range(3):
                world.alter(partition, "/d2")
            await world.reach(State.QUEUED, 0)
            await world.reach(State.QUEUED, 1)
            assert [m.waiting for m in world.mover.moves] == [False, False, True]
            assert world.mover.cancel("t", 0)
            await world.reach(State.QUEUED, 2)

    virtual(main)


def test_a_long_copy_keeps_no_creation_in_the_same_directory_waiting(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks({0: D1, 1: D2})
        disks.disks[D1].put("t-0", SEGMENT, bytes(range(256)) * 4 * 4096 * 16)
        async with World(disks, clock, bytes_per_second=1 << 20) as world:
            world.alter(0, "/d2")
            await world.reach(State.NONE)
            await asyncio.sleep(5)
            began = clock.monotonic_ms()
            done = asyncio.Event()

            async def job() -> None:
                await world.placement.agents[D2].create_replica("u", 0, Uuid.of(3, 2), timeout_ms=10_000)
                done.set()

            world.placement.work(D2, job)
            await done.wait()
            assert clock.monotonic_ms() - began < 500
            assert world.view.state is State.NONE

    virtual(main)


def test_thousands_of_moves_are_asked_for_and_cancelled_at_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(dict.fromkeys(range(2_000), D1))
        async with World(disks, clock) as world:
            await world.until(lambda: not world.placement.busy)
            for partition in range(2_000):
                assert world.alter(partition, "/d2") == ErrorCode.NONE
            await world.until(lambda: len(world.log.of("replica.move.promoted")) == 3)
            assert sum(not move.waiting and move.state is not State.MAKING for move in world.mover.moves) <= 1
            left = len(world.mover.moves)
            assert sum(world.mover.cancel("t", partition) for partition in range(2_000)) in (left, left - 1)
            await world.rest()
            assert len(disks.names(D1)) >= 1_990

    virtual(main)


@pytest.mark.parametrize("which", ["bytes_per_second", "total_bytes_per_second"])
def test_throttles_are_kept(virtual: Run, which: str) -> None:
    async def main(clock: Any) -> None:
        disks = Disks({0: D1, 1: D3})
        for directory, name in ((D1, "t-0"), (D3, "t-1")):
            disks.disks[directory].put(name, SEGMENT, bytes(range(256)) * 4096 * 8)  # 8 MiB
        async with World(disks, clock, **{which: 1 << 20}) as world:
            began = clock.monotonic_ms()
            world.alter(0, "/d2")
            world.alter(1, "/d4")
            await world.rest()
            took_s = (clock.monotonic_ms() - began) / 1000
            megabytes = 8 if which == "bytes_per_second" else 16
            assert megabytes - 5 <= took_s <= megabytes + 5

    virtual(main)


def test_a_dynamic_throttle_counts_at_once_and_goes_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        disks.disks[D1].put("t-0", SEGMENT, bytes(range(256)) * 4 * 4096 * 16)
        async with World(disks, clock, total_bytes_per_second=1 << 20) as world:
            world.mover.set_rate(0)
            world.alter(0, "/d2")
            await asyncio.sleep(100)
            assert world.view.state is State.NONE
            assert disks.content(D2, world.view.future_name) == {}
            world.mover.set_rate(1 << 30)
            await world.rest()
            assert disks.copies(0) == [(D2, "t-0")]
            world.mover.set_rate(None)
            world.alter(0, "/d1")
            await asyncio.sleep(20)
            assert world.view.state is State.NONE

    virtual(main)


# ------------------------------------------------------------------------------------------------- AlterReplicaLogDirs


def test_mv_11_answers_of_a_broker_that_is_well(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            assert world.alter(0, "/elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
            assert world.alter(0, "/d1") == ErrorCode.NONE
            assert world.mover.moves == ()
            assert world.alter(1, "/d2") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            world.cordons = {D2}
            assert world.alter(0, "/d2") == ErrorCode.INVALID_REPLICA_ASSIGNMENT  # CO-4
            assert world.mover.alter("u" * 250, 0, "/d2") == ErrorCode.INVALID_TOPIC_EXCEPTION

    virtual(main)


def test_mv_11_answers_of_a_broker_with_an_offline_directory(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks({0: D1, 1: D4})
        async with World(disks, clock) as world:
            world.fail(D4)
            assert world.alter(0, "/d4") == ErrorCode.KAFKA_STORAGE_ERROR
            assert world.alter(0, "/d2") == ErrorCode.KAFKA_STORAGE_ERROR
            assert world.alter(1, "/d2") == ErrorCode.KAFKA_STORAGE_ERROR
            assert world.alter(0, "/d1") == ErrorCode.NONE
            assert world.mover.moves == ()

    virtual(main)


def test_mv_5_mv_10_a_wish_before_the_replica_exists_is_remembered_for_when_it_is_made(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        from kjbod.metadata.records import PartitionRecord, TopicRecord

        disks = Disks()
        async with World(disks, clock) as world:
            assert world.mover.alter("later", 0, "/d3") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            later = Uuid.of(3, 9)
            world.replay(TopicRecord(name="later", topic_id=later))
            world.replay(
                PartitionRecord(
                    partition_id=0,
                    topic_id=later,
                    replicas=(1,),
                    isr=(1,),
                    leader=1,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=(Uuid.of(0, 1),),
                )
            )
            await world.until(lambda: "later-0" in disks.names(D3))
            assert world.mover.moves == ()

    virtual(main)


# ------------------------------------------------------------------------------------------------- a source in doubt


@pytest.mark.parametrize("state", [State.NONE, State.ACCEPTED, State.RENAMED])
def test_nothing_is_promoted_while_the_source_is_suspect_of_an_error(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            world.doubts[D1] = DirectoryHealth(health=Health.SUSPECT, cause=Cause.ERROR)
            await asyncio.sleep(30)
            assert world.view.state is state
            assert world.log.of("replica.move.repeated")[0]["reason"] == "/d1 is suspect (error)"
            world.doubts.clear()
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == D2

    virtual(main)


@pytest.mark.parametrize("state", [State.ACCEPTED, State.RENAMED])
def test_after_an_error_of_the_source_all_of_it_is_read_once_more(virtual: Run, state: State) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        disk = disks.disks[D1]
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(state)
            ((name),) = disks.names(D1)
            right = disk.files[name][SEGMENT]
            # What was copied until now was another block, of which no trace is left but the error.
            ((future),) = [n for n in disks.names(D2) if n.endswith("-future")]
            disks.disks[D2].files[future][SEGMENT] = right[:-1] + b"?"
            world.doubts[D1] = DirectoryHealth(strikes=(clock.monotonic_ms(),))
            await world.rest()
            assert whole(disks, {**disks.content(D2, "t-0"), SEGMENT: right}) == D2
            assert world.log.of("replica.move.repeated")[0]["reason"] == "/d1 had an error meanwhile"

    virtual(main)


def test_an_error_before_the_copy_began_does_not_count(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.doubts[D1] = DirectoryHealth(strikes=(clock.monotonic_ms(),))
            await asyncio.sleep(0.1)
            world.alter(0, "/d2")
            await world.rest()
            assert disks.copies(0) == [(D2, "t-0")]
            assert not world.log.of("replica.move.repeated")

    virtual(main)


@pytest.mark.parametrize("recovery_point", [None, 0, 7])
def test_what_is_no_batch_is_copied_behind_the_recovery_point_and_stays_below_it(
    virtual: Run, recovery_point: int | None
) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        if recovery_point is not None:
            line = f"0\n1\nt 0 {recovery_point}\n".encode()
            disks.disks[D1].checkpoints["recovery-point-offset-checkpoint"] = line
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.rest()
            assert whole(disks, content) == disks.assigned[0] == (D1 if recovery_point else D2)
            if recovery_point:
                (failed,) = world.log.of("replica.move.failed")
                assert failed["reason"].startswith(f"/d1/t-0/{SEGMENT} is damaged at byte 0, offset 0")
                assert world.errors == []

    virtual(main)


# ---------------------------------------------------------------------------------------------------------------- room


def test_a_move_to_a_full_disk_leaves_nothing_there_at_once_and_its_reason_is_kept(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            disks.disks[D2].fail(errno.ENOSPC, ["write_piece"])
            world.alter(0, "/d2")
            await world.until(lambda: not world.mover.moves)
            await asyncio.sleep(0.1)
            assert disks.names(D2) == []
            assert whole(disks, content) == D1
            reason = world.mover.reason(key(0))
            assert reason is not None
            assert reason.startswith("/d2 is full: ")
            disks.disks[D2].heal()
            world.alter(0, "/d2")
            assert world.mover.reason(key(0)) is None
            await world.rest()
            assert (whole(disks, content), world.mover.reason(key(0))) == (D2, None)

    virtual(main)


@pytest.mark.parametrize("was_equal", [True, False])
def test_a_complete_copy_of_a_cancelled_move_is_not_removed_while_its_source_is_in_doubt(
    virtual: Run, was_equal: bool
) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        content = disks.content(D1, "t-0")
        async with World(disks, clock) as world:
            world.answers = False
            world.alter(0, "/d2")
            await world.reach(State.QUEUED if was_equal else State.NONE)
            world.doubts[D1] = DirectoryHealth(health=Health.SUSPECT, cause=Cause.ERROR)
            assert world.mover.cancel("t", 0)
            await asyncio.sleep(600)
            assert len(disks.names(D2)) == was_equal
            world.doubts.clear()
            await asyncio.sleep(120)
            assert disks.names(D2) == []
            assert whole(disks, content) == D1

    virtual(main)


def test_a_future_replica_that_cannot_be_removed_at_once_is_tried_again_as_deleted(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks()
        async with World(disks, clock) as world:
            world.alter(0, "/d2")
            await world.reach(State.QUEUED)
            disks.disks[D2].fail(errno.EBUSY, ["delete_replica"])
            assert world.mover.cancel("t", 0)
            await world.until(lambda: not world.mover.moves)
            await asyncio.sleep(0.1)
            (deleted,) = disks.names(D2)
            assert deleted.endswith("-delete")

    virtual(main)


def test_what_waits_for_its_turn_has_a_size_and_counts_at_its_destination(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks({0: D1, 1: D1, 2: D3})
        sizes = [len(disks.content(d, f"t-{n}")[SEGMENT]) for n, d in ((0, D1), (1, D1), (2, D3))]
        async with World(disks, clock) as world:
            world.mover.set_rate(0)
            world.alter(0, "/d2")
            world.alter(1, "/d2")
            world.mover.alter("t", 2, "/d4", size_bytes=7)
            await asyncio.sleep(1)
            views = {move.partition.partition: move for move in world.mover.moves}
            assert [views[number].waiting for number in range(3)] == [False, True, False]
            assert views[1].total_bytes == sizes[1]
            space = world.mover.space("/d2")
            assert space is not None
            assert space[1] == views[0].total_bytes - views[0].copied_bytes + sizes[1]
            assert world.mover.space("/nowhere") is None

    virtual(main)


def test_reasons_of_moves_are_not_kept_for_ever(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(dict.fromkeys(range(REASONS_MAX + 20), D1))
        async with World(disks, clock) as world:
            await world.until(lambda: not world.placement.busy)
            for partition in range(REASONS_MAX + 20):
                world.alter(partition, "/d2")
                world.mover.cancel("t", partition)
            known = [world.mover.reason(key(partition)) for partition in range(REASONS_MAX + 20)]
            assert known == [None] * 20 + ["cancelled"] * REASONS_MAX

    virtual(main)
