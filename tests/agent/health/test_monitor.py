"""The monitor on disks in memory, in virtual time."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from kjbod.ids import random_directory_id
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.core import RETRY_AFTER_MS, WITNESS_TIMEOUT_MS, WITNESSES, Signal
from kjbod_host.health.devices import IDLE_EVERY_MS
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.kernel import LINES_AT_ONCE, PROBES_AT_ONCE
from kjbod_host.health.monitor import HealthMonitor, NoSources
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.verdict import Cause, Health, HealthSettings
from kjbod_host.storage.api import DirectoryAgent, DirectoryTimeout, LoadedDirectory, StorageOptions, WorkerUnavailable
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from tests.depth import at, seeds

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
PATHS = ("/disk1", "/disk2", "/disk3")
TWELVE = tuple(f"/disk{number}" for number in range(1, 13))
RW = frozenset({"rw"})


class Sources(NoSources):
    """A host whose counters say what the disks in memory do, and whose mount table can be changed.

    Each disk is a device of its own, but for those in ``shared``, which all lie on the first of them.
    """

    def __init__(self, disks: dict[str, MemoryDisk], shared: tuple[str, ...] = ()) -> None:
        self.disks = disks
        self.device_of = {
            path: disks[shared[0]].number if path in shared else disk.number for path, disk in disks.items()
        }
        self.table = tuple(
            Mount(disk.number, 1000, f"8:{disk.number}", "/", path, "ext4", f"/dev/sd{self.device_of[path]}", RW)
            for path, disk in disks.items()
        )
        self.root = Mount(1000, 999, "8:0", "/", "/", "ext4", "/dev/sda", RW)
        self._read: tuple[Mount, ...] = ()
        self.counters = True
        self.frozen = False
        self.busy = False
        """Whether a device that hangs has swallowed somebody's request before we probe."""
        self.counting = True
        self.lower: BlockDevice | None = None

    def read_mounts(self) -> tuple[Mount, ...] | None:
        table = (self.root, *self.table)
        if table != self._read:
            self._read = table
        return self._read

    def block_device_of(self, mount: Mount) -> BlockDevice:
        name = mount.source.removeprefix("/dev/")
        return BlockDevice((name,), mount.device, serial="S1", disks=(name,))

    def below(self, device: BlockDevice) -> BlockDevice | None:
        return self.lower

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        if not self.counters or not device.names:
            return None
        number = int(device.names[0].removeprefix("sd").removeprefix("below"))
        disks = [disk for path, disk in self.disks.items() if self.device_of[path] == number]
        waiting = sum(disk.hangs and not self.frozen and (self.busy or bool(disk._moving)) for disk in disks)
        counting = self.counting or device.names[0].startswith("below")
        return BlockCounters(waiting, sum(disk.requests for disk in disks) if counting else 7, 0)


class Kernel:
    """A source of kernel events that says what a test wants."""

    name = "test"

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.polls = 0

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        if self.refuses:
            raise PermissionError(1, "Operation not permitted")
        self.subjects = subjects
        self.on_event = on_event
        return {subject.path: "no such file system" if subject.path == "/disk3" else None for subject in subjects}

    def poll(self) -> None:
        self.polls += 1
        if self.refuses:
            raise OSError(5, "Input/output error")

    def close(self) -> None:
        self.closed = True
        if self.refuses:
            raise OSError(9, "Bad file descriptor")

    def say(self, path: str, text: str = "I/O error, dev sd1", *, damage: bool = False) -> None:
        self.on_event(KernelEvent(source=self.name, paths=(path,), text=text, damage=damage))


class Host:
    """Formatted disks under watch."""

    def __init__(
        self,
        clock: Any,
        paths: tuple[str, ...] = PATHS,
        settings: HealthSettings | None = None,
        shared: tuple[str, ...] = (),
        kernel: tuple[Kernel, ...] = (),
    ) -> None:
        self.clock = clock
        rng = random.Random(858)
        self.disks = {
            path: MemoryDisk(meta_properties=f"directory.id={random_directory_id(rng)}\n".encode(), number=number)
            for number, path in enumerate(paths, start=1)
        }
        self.sources = Sources(self.disks, shared)
        self.kernel = kernel
        self.settings = settings or HealthSettings()
        self.verdicts: list[Verdict] = []
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.changed = asyncio.Event()
        self.storage = MemoryStorageAgent(StorageOptions(clock=clock), self.disks)

    def _told(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self.changed.set()

    async def __aenter__(self) -> "Host":
        directories: list[tuple[DirectoryAgent, LoadedDirectory, str]] = []
        for path in self.disks:
            agent = self.storage.directory(path)
            loaded = await agent.load(timeout_ms=1000)
            directories.append((agent, loaded, str(loaded.directory_id)))
        self.monitor = HealthMonitor(
            directories,
            settings=self.settings,
            clock=self.clock,
            on_verdict=self._told,
            sources=self.sources,
            kernel_sources=self.kernel,
            log=lambda event, fields: self.lines.append((event, fields)),
        )
        self.task = asyncio.ensure_future(self.monitor.run())
        await asyncio.sleep(2.5)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def until(self, path: str, state: Health, within_ms: int) -> Verdict:
        async with asyncio.timeout(within_ms / 1000):
            while True:
                found = [v for v in self.verdicts if v.path == path and v.state is state]
                if found:
                    return found[-1]
                self.changed.clear()
                await self.changed.wait()

    def said(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.lines if name == event]

    def requests(self) -> int:
        return sum(disk.requests for disk in self.disks.values())

    def states(self) -> list[Health]:
        return [self.monitor.health(path).health for path in self.disks]


def test_a_healthy_idle_disk_pays_one_probe_per_interval_and_nothing_is_said(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            before = {path: disk.requests for path, disk in host.disks.items()}
            await asyncio.sleep(3600)
            assert {disk.requests - before[path] for path, disk in host.disks.items()} == {3600}
            assert host.verdicts == []

    virtual(main)


def test_a_dead_idle_disk_is_failed_within_one_interval_and_the_others_go_on(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk2"].fail(errno.EIO)
            verdict = await host.until("/disk2", Health.FAILED, within_ms=1050)
            assert (verdict.previous, verdict.cause) == (Health.SUSPECT, Cause.ERROR)
            assert (verdict.evidence.errno, verdict.evidence.device) == ("EIO", "sd2 8:2")
            assert verdict.evidence.text == "/disk2 failed: EIO at probe of memory; device sd2 8:2, serial S1"
            await asyncio.sleep(5)
            assert host.states() == [Health.ONLINE, Health.FAILED, Health.ONLINE]

    virtual(main)


def test_an_error_of_our_own_work_is_confirmed_at_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk2"].fail(errno.EIO)
            host.monitor.report_error("/disk2", errno.EIO, "create of t-0")
            await host.until("/disk2", Health.FAILED, within_ms=20)

    virtual(main)


def test_an_error_that_does_not_come_back_ends_as_well_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.monitor.report_error("/disk2", errno.EIO, "create of t-0")
            verdict = await host.until("/disk2", Health.ONLINE, within_ms=20)
            assert verdict.evidence.text.startswith("/disk2 is well again")

    virtual(main)


def test_a_probe_without_a_worker_is_tried_again_soon_and_not_in_its_turn(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        tries: list[int] = []

        async def unavailable(**_: object) -> Any:
            tries.append(clock.monotonic_ms())
            raise WorkerUnavailable("/disk1", "its worker died")

        async with Host(clock, settings=HealthSettings(probe_interval_ms=60_000)) as host:
            host.storage.directory("/disk1").probe = unavailable  # type: ignore[method-assign]
            host.monitor.report_error("/disk1", errno.EINVAL, "rename of t-0")  # says nothing, and asks for a probe
            await asyncio.sleep(1.05)
            assert [after - before for before, after in pairwise(tries)] == [RETRY_AFTER_MS] * 10

    virtual(main)


def test_failed_is_left_alone_until_restart(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk2"].fail(errno.EIO)
            await host.until("/disk2", Health.FAILED, within_ms=1050)
            host.disks["/disk2"].heal()
            before = host.disks["/disk2"].requests
            host.monitor.report_error("/disk2", errno.EIO, "create of t-0")
            await asyncio.sleep(60)
            assert host.disks["/disk2"].requests == before
            assert [v.state for v in host.verdicts] == [Health.SUSPECT, Health.FAILED]

    virtual(main)


@pytest.mark.parametrize("with_an_error", [False, True])
def test_of_a_disk_that_hung_and_has_failed_it_is_told_that_it_answers_again(virtual: Run, with_an_error: bool) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            disk = host.disks["/disk1"]
            disk.hang()
            await host.until("/disk1", Health.FAILED, within_ms=2910)
            assert host.monitor.status()[0].freed_ms is None
            disk.wiped = with_an_error
            disk.heal()
            await asyncio.sleep(0.1)
            status = host.monitor.status()[0]
            assert status.blocked_ms is None and (status.freed_ms is None) is with_an_error
            assert status.health.health is Health.FAILED

    virtual(main)


def test_an_idle_disk_that_hangs_is_failed_at_the_timeout_after_the_probe_it_swallowed(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk1"].hang()
            verdict = await host.until("/disk1", Health.FAILED, within_ms=2910)
            assert verdict.cause is Cause.HUNG
            assert verdict.evidence.age_ms == 1900
            assert "1900 ms" in verdict.evidence.text
            assert host.states() == [Health.FAILED, Health.ONLINE, Health.ONLINE]

    virtual(main)


def test_a_frozen_disk_is_held_and_well_again_after_the_thaw(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.frozen = True
            host.disks["/disk1"].hang()
            await host.until("/disk1", Health.HELD, within_ms=3010)
            await asyncio.sleep(25)
            host.disks["/disk1"].heal()
            await host.until("/disk1", Health.ONLINE, within_ms=10)
            host.disks["/disk1"].hang()
            verdict = await host.until("/disk1", Health.FAILED, within_ms=31_010)
            assert verdict.cause is Cause.HELD

    virtual(main)


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("seed", seeds(deep=1))
def test_an_event_loop_that_stands_still_again_and_again_fails_nothing(virtual: Run, seed: int, counters: bool) -> None:
    async def main(clock: Any) -> None:
        rng = random.Random(seed)
        async with Host(clock, paths=TWELVE) as host:
            host.sources.counters = counters
            for _ in range(at(quick=60, ci=150, deep=3_000)):
                for disk in host.disks.values():
                    disk.delay_ms = rng.uniform(0, 300)
                await asyncio.sleep(rng.uniform(0, 4))
                clock.pause(10 ** rng.uniform(-2, 2))
            await asyncio.sleep(20)
            assert Health.FAILED not in {verdict.state for verdict in host.verdicts}

    virtual(main)


def test_a_disk_without_counters_has_the_longer_deadline(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.counters = False
            host.disks["/disk1"].hang()
            await asyncio.sleep(10)
            assert host.states()[0] is Health.SUSPECT
            verdict = await host.until("/disk1", Health.FAILED, within_ms=1010)
            assert verdict.cause is Cause.SILENT

    virtual(main)


def test_a_slow_disk_is_slow_and_recovers(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk1"].delay_ms = 1500
            slow = await host.until("/disk1", Health.SLOW, within_ms=6000)
            assert "/disk1 is slow: probe took 1500 ms (slow from 1000 ms on)" in slow.evidence.text
            host.disks["/disk1"].delay_ms = 3
            await host.until("/disk1", Health.ONLINE, within_ms=6000)

    virtual(main)


def test_a_quick_probe_that_waited_for_this_process_is_not_a_slow_disk(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            serve = host.storage.directory("/disk1")._answered  # the answer comes late, and says how quick it was
            delayed = lambda answer: clock.call_later(1.5, serve, {**answer, "us": 9500})  # noqa: E731
            host.storage.directory("/disk1")._answered = delayed  # type: ignore[method-assign]
            await asyncio.sleep(20)
            assert host.verdicts == []

    virtual(main)


def test_a_full_disk_is_full_and_well_again_when_there_is_room(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk1"].fill()
            verdict = await host.until("/disk1", Health.FULL, within_ms=11_000)
            assert "is full: ENOSPC, nothing new can be allocated, overwriting works;" in verdict.evidence.text
            host.disks["/disk1"].usable_bytes = 1 << 20
            await host.until("/disk1", Health.ONLINE, within_ms=1050)

    virtual(main)


def test_a_full_disk_that_cannot_even_overwrite_is_full_and_says_so(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk1"].copies_on_write = True
            host.disks["/disk1"].fill()
            verdict = await host.until("/disk1", Health.FULL, within_ms=1050)
            assert "is full: ENOSPC, nothing can be written, reading works;" in verdict.evidence.text
            assert verdict.evidence.as_dict()["written"] is False

    virtual(main)


def test_all_disks_at_once_are_confirmed_on_their_own_after_the_settling_time(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            for disk in host.disks.values():
                disk.fail(errno.EIO)
            await asyncio.sleep(0.5)
            for disk in host.disks.values():
                disk.heal()
            await asyncio.sleep(10)
            assert host.states() == [Health.ONLINE] * 3, "a host adapter that was away for a moment"

    virtual(main)


def test_all_disks_really_dead_are_all_failed(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            for disk in host.disks.values():
                disk.fail(errno.EIO)
            await asyncio.sleep(1.6)
            assert host.states() == [Health.FAILED] * 3

    virtual(main)


def test_a_mount_that_goes_is_seen_with_the_next_reading_of_the_table(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.table = host.sources.table[1:]
            host.disks["/disk1"].number = 77
            await host.until("/disk1", Health.FAILED, within_ms=1050)
            assert host.states() == [Health.FAILED, Health.ONLINE, Health.ONLINE]

    virtual(main)


def test_a_mount_that_goes_from_a_disk_that_hangs_is_confirmed_by_reading_the_table_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.counters = False  # else the silence of the device says so sooner
            host.disks["/disk1"].hang()
            await asyncio.sleep(1.5)
            host.sources.table = host.sources.table[1:]
            verdict = await host.until("/disk1", Health.FAILED, within_ms=2100)
            assert verdict.cause is Cause.MOUNT

    virtual(main)


def test_a_mount_table_that_cannot_be_read_once_is_read_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            read = host.sources.read_mounts
            host.sources.read_mounts = lambda: None  # type: ignore[method-assign]
            await asyncio.sleep(3)
            host.sources.read_mounts = read  # type: ignore[method-assign]
            host.sources.table = host.sources.table[1:]
            await host.until("/disk1", Health.SUSPECT, within_ms=1100)

    virtual(main)


def test_a_mount_table_that_changes_all_the_time_is_read_at_a_bounded_rate(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            read, readings = host.sources.read_mounts, 0

            def changing() -> tuple[Mount, ...] | None:
                nonlocal readings
                readings += 1
                host.monitor._step(Signal.MOUNTS_CHANGED)
                return read()

            host.sources.read_mounts = changing  # type: ignore[method-assign]
            await asyncio.sleep(10)
            assert 10 <= readings <= 600

    virtual(main)


def test_a_large_mount_table_that_changes_all_the_time_costs_a_tenth_of_the_time(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            read, readings = host.sources.read_mounts, 0

            def large() -> tuple[Mount, ...] | None:
                nonlocal readings
                readings += 1
                clock._virtual.now += 0.03
                host.monitor._step(Signal.MOUNTS_CHANGED)
                return read()

            host.sources.read_mounts = large  # type: ignore[method-assign]
            await asyncio.sleep(10)
            assert 20 <= readings <= 34

    virtual(main)


def test_a_mount_table_that_contradicts_the_probe_decides_nothing(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.table = host.sources.table[1:]
            await asyncio.sleep(600)
            assert host.states() == [Health.ONLINE] * 3

    virtual(main)


def test_room_is_known_before_the_first_probe_and_is_that_of_the_last_one_after_it(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            disk = host.disks["/disk2"]
            disk.usable_bytes = 77
            await asyncio.sleep(1.1)
            seen = host.monitor.last_seen("/disk2")
            assert seen is not None
            assert seen.usable_bytes == 77
            agent = host.storage.directory("/disk2")
            loaded = await agent.load(timeout_ms=1000)
            host.monitor.remove("/disk2")
            assert host.monitor.last_seen("/disk2") is None
            host.monitor.add(agent, loaded, str(loaded.directory_id))
            assert host.monitor.last_seen("/disk2") == loaded

    virtual(main)


def test_status_tells_what_reports_need(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            status = host.monitor.status()
            assert [s.path for s in status] == list(PATHS)
            assert all(s.last_probe is not None and s.last_probe.total_bytes == 1 << 30 for s in status)
            assert {s.health.health for s in status} == {Health.ONLINE}
            assert {s.probe_failures for s in status} == {0}
            assert all(sum(s.probe_histogram.values()) == s.probes > 0 for s in status)
            assert status[0].directory_id.encode() in (host.disks["/disk1"].meta_properties or b"")

    virtual(main)


# devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe_interval_ms", [1_000, 60_000])
def test_a_busy_disk_that_hangs_is_failed_at_the_timeout_after_the_first_request_it_swallowed(
    virtual: Run, probe_interval_ms: int
) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, settings=HealthSettings(probe_interval_ms=probe_interval_ms)) as host:
            host.sources.busy = True
            await asyncio.sleep(0.7)  # the counters are sampled before the next probe begins
            host.disks["/disk1"].hang()
            verdict = await host.until("/disk1", Health.FAILED, within_ms=1900 + IDLE_EVERY_MS)
            assert (verdict.cause, verdict.evidence.silent_ms) == (Cause.HUNG, 1900)
            assert (verdict.evidence.age_ms or 0) < 1900, "the probe came later than the fault"
            assert "none completed for 1900 ms" in verdict.evidence.text

    virtual(main)


def test_a_second_directory_on_a_hung_device_needs_no_timeout_of_its_own(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, shared=("/disk1", "/disk2")) as host:
            host.disks["/disk1"].hang()
            host.disks["/disk2"].hang()
            first = await host.until("/disk1", Health.FAILED, within_ms=2910)
            second = await host.until("/disk2", Health.FAILED, within_ms=100)
            assert {first.cause, second.cause} == {Cause.HUNG}
            assert host.states()[2] is Health.ONLINE

    virtual(main)


def test_trouble_of_one_directory_has_the_other_on_its_device_probed_at_once_and_condemns_it_not(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, shared=("/disk1", "/disk2")) as host:
            before = host.disks["/disk2"].requests
            host.disks["/disk1"].fail(errno.EIO)
            host.monitor.report_error("/disk1", errno.EIO, "create of t-0")
            await host.until("/disk1", Health.FAILED, within_ms=20)
            assert host.disks["/disk2"].requests > before
            await asyncio.sleep(10)
            assert host.states() == [Health.FAILED, Health.ONLINE, Health.ONLINE]

    virtual(main)


def test_a_host_with_a_single_device_has_no_host_fault_to_wait_for(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=("/disk1", "/disk2"), shared=("/disk1", "/disk2")) as host:
            for disk in host.disks.values():
                disk.fail(errno.EIO)
            host.monitor.report_error("/disk1", errno.EIO, "create of t-0")
            await host.until("/disk1", Health.FAILED, within_ms=20)
            await host.until("/disk2", Health.FAILED, within_ms=20)
            assert host.said("host.fault") == []

    virtual(main)


def test_a_fault_of_the_whole_host_is_said_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            for disk in host.disks.values():
                disk.fail(errno.EIO)
            await asyncio.sleep(5)
            assert host.states() == [Health.FAILED] * 3
            assert host.said("host.fault") == [{"paths": list(PATHS), "settle_ms": 500}]

    virtual(main)


def test_trouble_of_one_disk_of_twelve_wakes_no_more_than_a_few_witnesses(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=TWELVE) as host:
            await asyncio.sleep(0.04)  # between two turns
            before = host.requests()
            host.disks["/disk5"].fail(errno.EIO)
            host.monitor.report_error("/disk5", errno.EIO, "create of t-0")
            await host.until("/disk5", Health.FAILED, within_ms=5)
            others = host.requests() - before - 1
            assert 1 <= others <= WITNESSES

    virtual(main)


def test_all_others_are_probed_when_the_first_witnesses_do_not_answer(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=TWELVE[:4]) as host:
            await asyncio.sleep(0.1)  # the turn of the third one comes much later
            host.disks["/disk1"].hang()
            host.disks["/disk2"].hang()
            host.disks["/disk4"].fail(errno.EIO)
            host.monitor.report_error("/disk4", errno.EIO, "create of t-0")
            await host.until("/disk4", Health.FAILED, within_ms=WITNESS_TIMEOUT_MS + 5)

    virtual(main)


def test_probes_out_of_turn_do_not_make_the_turns_of_all_disks_meet(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=TWELVE) as host:
            for path in TWELVE:
                host.monitor.report_error(path, errno.EINVAL, "rename of t-0")  # says nothing, and asks for a probe
            await asyncio.sleep(2)
            most = 0
            for _ in range(100):
                before = host.requests()
                await asyncio.sleep(0.01)
                most = max(most, host.requests() - before)
            assert most == 1

    virtual(main)


def test_counters_that_stand_still_while_probes_pass_are_given_up_and_that_is_said(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=("/disk1",)) as host:
            host.sources.counting = False
            await asyncio.sleep(5)
            assert [
                (line["useless"], "stand still" in str(line["instead"])) for line in host.said("health.counters")
            ] == [("sd1 8:1", True)]
            host.disks["/disk1"].hang()
            verdict = await host.until("/disk1", Health.FAILED, within_ms=11_100)
            assert verdict.cause is Cause.SILENT
            assert "no counters: the counters of sd1 stand still while probes pass" in verdict.evidence.text

    virtual(main)


def test_counters_that_stand_still_are_replaced_by_those_of_the_devices_below(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=("/disk1",)) as host:
            host.sources.counting = False
            host.sources.lower = BlockDevice(("below1",), "8:1", serial="S1", disks=("sd1",))
            await asyncio.sleep(5)
            assert [line["instead"] for line in host.said("health.counters")] == ["below1 8:1"]
            host.disks["/disk1"].hang()
            assert (await host.until("/disk1", Health.FAILED, within_ms=2910)).cause is Cause.HUNG

    virtual(main)


# own work -------------------------------------------------------------------------------------------------------------


def test_own_work_that_is_blocked_is_judged_as_a_probe_is(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk1"].hang()
            agent = host.storage.directory("/disk1")
            work = asyncio.ensure_future(
                agent.create_replica("t", 0, random_directory_id(random.Random(1)), timeout_ms=60_000)
            )
            verdict = await host.until("/disk1", Health.FAILED, within_ms=2910)
            assert verdict.cause is Cause.HUNG
            assert verdict.evidence.call == "create_replica of memory"
            work.cancel()

    virtual(main)


def test_an_error_that_own_work_gets_when_nobody_waits_for_it_any_more_is_an_error_all_the_same(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            disk, agent = host.disks["/disk1"], host.storage.directory("/disk1")
            disk.hang()
            with suppress(DirectoryTimeout):
                await agent.create_replica("t", 0, random_directory_id(random.Random(1)), timeout_ms=50)
            disk.heal()
            disk.fail(errno.EIO, ["create_replica"])
            verdict = await host.until("/disk1", Health.SUSPECT, within_ms=20)
            assert (verdict.evidence.errno, verdict.evidence.call) == ("EIO", "create_replica of memory")
            await host.until("/disk1", Health.ONLINE, within_ms=20)

    virtual(main)


def test_a_queue_of_own_work_does_not_keep_a_directory_from_being_probed_after_a_thaw(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.frozen = True
            disk, agent = host.disks["/disk1"], host.storage.directory("/disk1")
            disk.hang()
            topic_id = random_directory_id(random.Random(1))
            works = [
                asyncio.ensure_future(agent.create_replica("t", number, topic_id, timeout_ms=60_000))
                for number in range(20)
            ]
            await host.until("/disk1", Health.HELD, within_ms=3010)
            await asyncio.sleep(3)
            disk.heal()
            disk.delay_ms = 500
            await host.until("/disk1", Health.ONLINE, within_ms=2500)
            assert not all(work.done() for work in works)
            await asyncio.gather(*works)

    virtual(main)


# what the kernel says -------------------------------------------------------------------------------------------------


def test_a_kernel_event_is_answered_by_a_full_probe_at_once_and_explains_the_verdict(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            host.disks["/disk1"].fail(errno.EIO)
            kernel.say("/disk1", "I/O error, dev sd1, sector 8")
            verdict = await host.until("/disk1", Health.FAILED, within_ms=20)
            assert verdict.evidence.kernel == ("I/O error, dev sd1, sector 8",)
            assert verdict.evidence.text.endswith("; kernel: I/O error, dev sd1, sector 8")
            assert host.said("directory.kernel.event") == [
                {"path": "/disk1", "source": "test", "text": "I/O error, dev sd1, sector 8"}
            ]

    virtual(main)


def test_a_kernel_event_about_a_healthy_disk_costs_one_probe_and_a_line(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            host.disks["/disk2"].fill()  # which only a full probe can see
            kernel.say("/disk2")
            await host.until("/disk2", Health.FULL, within_ms=20)
            host.disks["/disk2"].usable_bytes = 1 << 20
            await host.until("/disk2", Health.ONLINE, within_ms=1010)
            before = host.disks["/disk1"].requests
            kernel.say("/disk1")
            kernel.say("/elsewhere")
            await asyncio.sleep(0.01)
            assert host.disks["/disk1"].requests == before + 1
            assert host.states() == [Health.ONLINE] * 3

    virtual(main)


def test_a_kernel_event_during_a_probe_is_answered_by_one_that_begins_after_it(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            host.disks["/disk1"].delay_ms = 50
            kernel.say("/disk1", "the first")
            await asyncio.sleep(0.01)  # its probe is on its way
            probes = host.monitor.status()[0].probes
            host.disks["/disk1"].fill()  # which only a full probe can see
            kernel.say("/disk1", "the second")
            kernel.say("/disk1", "the third")
            await asyncio.sleep(0.2)
            assert host.monitor.status()[0].probes == probes + 2, "the one under way, and one more for both"
            assert host.states()[0] is Health.FULL

    virtual(main)


def test_a_flood_of_kernel_events_costs_a_healthy_disk_a_bounded_number_of_probes_and_lines(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            before = host.disks["/disk1"].requests
            for moment in range(10_000):
                kernel.say("/disk1", f"sector {moment}")
                await asyncio.sleep(0.001)
            probes = host.disks["/disk1"].requests - before
            assert probes <= PROBES_AT_ONCE + 2 * 10 + 1, "one in turn and one out of turn each second"
            lines = host.said("directory.kernel.event")
            assert len(lines) <= (LINES_AT_ONCE + 1) * 11
            assert any(str(line["text"]).startswith("and 9") for line in lines), "the rest is counted"
            assert host.verdicts == []

    virtual(main)


def test_damage_is_suspect_while_probes_pass_and_well_again_a_minute_after_the_last_report(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            kernel.say("/disk1", "ext4 recorded an error (errors_count 1, was 0)", damage=True)
            verdict = await host.until("/disk1", Health.SUSPECT, within_ms=20)
            assert verdict.cause is Cause.DAMAGE
            assert verdict.evidence.text == (
                "/disk1 is suspect: its file system reports damage, although probes pass; device sd1 8:1, serial S1; "
                "kernel: ext4 recorded an error (errors_count 1, was 0)"
            )
            await asyncio.sleep(59)
            assert host.states()[0] is Health.SUSPECT
            await host.until("/disk1", Health.ONLINE, within_ms=2000)

    virtual(main)


def test_damage_is_told_also_of_a_directory_that_was_suspect_of_an_error(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            host.monitor.report_error("/disk1", errno.EIO, "create of t-0")
            kernel.say("/disk1", "ext4 recorded an error (errors_count 1, was 0)", damage=True)
            await asyncio.sleep(1)
            told = [(verdict.state, verdict.cause) for verdict in host.verdicts]
            assert told == [(Health.SUSPECT, Cause.ERROR), (Health.SUSPECT, Cause.DAMAGE)]

    virtual(main)


def test_each_source_says_at_start_whether_it_is_active_and_why_not(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        willing, refusing = Kernel(), Kernel(refuses=True)
        async with Host(clock, kernel=(willing, refusing)) as host:
            (line,) = host.said("health.sources")
            kernel = line["kernel_events"]
            assert kernel == {"test": "PermissionError: [Errno 1] Operation not permitted"}

        async with Host(clock, kernel=(willing,)) as host:
            (line,) = host.said("health.sources")
            assert line["kernel_events"] == {
                "test": {"/disk1": "active", "/disk2": "active", "/disk3": "no such file system"}
            }
            assert [subject.path for subject in willing.subjects] == list(PATHS)
            await asyncio.sleep(10)
            assert willing.polls >= 10
        assert willing.closed

    virtual(main)


def test_a_source_that_breaks_costs_a_line_and_nothing_else(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        willing = Kernel()
        async with Host(clock, kernel=(Kernel(refuses=True), willing)) as host:
            host.disks["/disk1"].fail(errno.EIO)
            await host.until("/disk1", Health.FAILED, within_ms=1050)
            assert {line["source"] for line in host.said("health.source.trouble")} == {"test"}
        assert willing.closed

    virtual(main)


@pytest.mark.parametrize("moment", ["a sample", "a late answer", "a kernel event"])
def test_a_bug_in_a_callback_ends_the_monitor_and_leaves_no_disk_unwatched(virtual: Run, moment: str) -> None:
    async def main(clock: Any) -> None:
        def broken(verdict: Verdict) -> None:
            raise ZeroDivisionError

        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            disk = host.disks["/disk1"]
            if moment == "a kernel event":
                host.monitor._core.step = broken  # type: ignore[assignment]
                kernel.say("/disk1")
            elif moment == "a late answer":
                host.sources.frozen = True
                disk.hang()
                await host.until("/disk1", Health.HELD, within_ms=3010)
                host.monitor._on_verdict = broken
                disk.heal()
                disk.fail(errno.EIO)
            else:
                host.monitor._on_verdict = broken
                disk.hang()
            await asyncio.wait([host.task], timeout=3)
            assert host.task.done()
            assert host.task.exception() is not None

    with pytest.raises(ExceptionGroup) as group:
        virtual(main)
    assert group.group_contains((ZeroDivisionError, TypeError))


# ------------------------------------------------------------------------------------------ disks that are added later


async def replace(host: Host, path: str, number: int, healthy: bool = True) -> None:
    """Another disk under a path, and the monitor told."""
    content = f"directory.id={random_directory_id(random.Random(number))}\n".encode()
    disk = host.disks[path] = MemoryDisk(meta_properties=content, number=number)
    host.sources.device_of[path] = number
    mount = Mount(number, 1000, f"8:{number}", "/", path, "ext4", f"/dev/sd{number}", RW)
    host.sources.table = (*(m for m in host.sources.table if m.mount_point != path), mount)
    agent = host.storage.renew(path)
    loaded = await agent.load(timeout_ms=1000)
    if not healthy:
        disk.fail(errno.EIO)
    host.monitor.add(agent, loaded, str(loaded.directory_id))


def test_a_disk_in_the_place_of_a_dead_one_is_watched_as_a_healthy_one(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            old = host.disks["/disk2"]
            old.hang()
            await host.until("/disk2", Health.FAILED, within_ms=3000)
            await replace(host, "/disk2", 22)
            assert host.states() == [Health.ONLINE] * 3
            assert {s.path: s.device.device for s in kernel.subjects}["/disk2"] == "8:22"
            host.verdicts.clear()
            before = host.disks["/disk2"].requests
            await asyncio.sleep(60)
            assert 60 <= host.disks["/disk2"].requests - before <= 61
            old.heal()  # its last answer, to a worker that nobody asks any more
            await asyncio.sleep(5)
            assert host.states() == [Health.ONLINE] * 3
            host.disks["/disk2"].fail(errno.EIO)
            verdict = await host.until("/disk2", Health.FAILED, within_ms=1050)
            assert verdict.evidence.device == "sd22 8:22"

    virtual(main)


def test_what_the_kernel_says_of_a_dead_disk_is_no_longer_asked_for_when_another_one_is_added(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            for path in ("/disk1", "/disk2"):
                host.disks[path].fail(errno.EIO)
                await host.until(path, Health.FAILED, within_ms=1050)
                await asyncio.sleep(30)
            await replace(host, "/disk2", 22)
            assert {s.path for s in kernel.subjects} == {"/disk2", "/disk3"}
            kernel.say("/disk1")
            kernel.say("/disk2", damage=True)
            await asyncio.sleep(1)
            assert host.states()[1] is not Health.FAILED

    virtual(main)


def test_a_new_disk_is_a_witness_for_the_only_other_one(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock, paths=("/disk1",)) as host:
            await replace(host, "/disk2", 22)
            assert host.monitor.standing_still(clock.monotonic_ms()) is None
            await asyncio.sleep(3)
            host.disks["/disk1"].fail(errno.EIO)
            await host.until("/disk1", Health.FAILED, within_ms=1050)
            assert host.monitor.health("/disk2").health is Health.ONLINE
            assert not host.said("host.fault")

    virtual(main)


def test_a_disk_that_is_dead_when_it_is_added_is_found_like_any_other(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            await replace(host, "/disk9", 99, healthy=False)
            await host.until("/disk9", Health.FAILED, within_ms=100)

    virtual(main)


def test_a_directory_that_is_removed_is_probed_no_more(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        kernel = Kernel()
        async with Host(clock, kernel=(kernel,)) as host:
            host.monitor.remove("/disk2")
            host.monitor.remove("/disk2")
            before = host.disks["/disk2"].requests
            kernel.say("/disk2")
            host.monitor.report_error("/disk2", errno.EIO, "create of t-0")
            await asyncio.sleep(10)
            assert host.disks["/disk2"].requests == before
            assert [status.path for status in host.monitor.status()] == ["/disk1", "/disk3"]

    virtual(main)


def test_a_directory_on_the_file_system_below_a_mount_point_is_not_taken_for_the_disk(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            loaded = await host.storage.directory("/disk2").load(timeout_ms=1000)
            assert host.monitor.not_mounted("/disk2", loaded, None) is None
            below = structs.replace(loaded, identity=structs.replace(loaded.identity, mount_id=1000))
            said = host.monitor.not_mounted("/disk2", below, None)
            assert said == "lies on the file system of / now: mount its disk on /disk2 first"
            other = structs.replace(loaded, identity=structs.replace(loaded.identity, mount_id=3))
            assert host.monitor.not_mounted("/disk2", other, None) is None
            assert host.monitor.not_mounted("/new", below, None) is None
            assert host.monitor.not_mounted("/new", below, "/new") == said.replace("/disk2", "/new"), (
                "of an earlier agent"
            )

    virtual(main)


@pytest.mark.parametrize("moment", [Health.SUSPECT, Health.FAILED])
def test_whoever_hears_a_verdict_may_remove_the_directory_at_once(virtual: Run, moment: Health) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            told = host.monitor._on_verdict

            def remove(verdict: Verdict) -> None:
                told(verdict)
                if verdict.state is moment:
                    host.monitor.remove(verdict.path)

            host.monitor._on_verdict = remove
            for path in PATHS[:2]:
                host.disks[path].fail(errno.EIO)
            host.disks["/disk3"].hang()
            await asyncio.sleep(5)
            assert not host.task.done()
            assert {verdict.path for verdict in host.verdicts if verdict.state is moment} == set(PATHS)
            assert host.monitor.status() == ()

    virtual(main)


# the watchdog ---------------------------------------------------------------------------------------------------------


async def never(**_: object) -> Any:
    await asyncio.Event().wait()


def freeze(host: Host) -> None:
    host.sources.frozen = True
    host.disks["/disk2"].hang()


LOST: dict[str, tuple[Callable[[Host], None], str | None]] = {
    "a probe that is never answered": (
        lambda host: setattr(host.storage.directory("/disk2"), "probe", never),
        "/disk2 has not been probed for",
    ),
    "a timer that is lost": (lambda host: setattr(host.monitor, "_wake_in_time", lambda: None), "/disk"),
    "a mount table that is never read again": (
        lambda host: setattr(host.monitor._core, "_mounts_ms", 1 << 62),
        "the mount table has not been read for",
    ),
    "a disk that hangs": (lambda host: host.disks["/disk2"].hang(), None),
    "a directory that is held for ever": (freeze, None),
}


@pytest.mark.parametrize("lost", LOST)
def test_the_watchdog_hears_of_a_part_that_is_lost_and_not_of_a_disk_that_stands_still(virtual: Run, lost: str) -> None:
    async def main(clock: Any) -> None:
        lose, said = LOST[lost]
        async with Host(clock, settings=HealthSettings(held_timeout_ms=0)) as host:
            lose(host)
            await asyncio.sleep(30)
            heard = host.monitor.standing_still(clock.monotonic_ms())
            assert heard is None if said is None else heard is not None and heard.startswith(said)

    virtual(main)
