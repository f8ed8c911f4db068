"""The monitor on disks in memory, in virtual time."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from kjbod.ids import random_directory_id
from kjbod_agent.health.block import BlockCounters, BlockDevice
from kjbod_agent.health.evidence import Verdict
from kjbod_agent.health.monitor import HealthMonitor, NoSources
from kjbod_agent.health.mounts import Mount
from kjbod_agent.health.verdict import Cause, Health, HealthSettings
from kjbod_agent.storage.api import DirectoryAgent, LoadedDirectory, StorageOptions
from kjbod_agent.storage.memory import MemoryDisk, MemoryStorageAgent

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
PATHS = ("/disk1", "/disk2", "/disk3")


class Sources(NoSources):
    """A host whose counters say what the disks in memory do, and whose mount table can be changed."""

    def __init__(self, disks: dict[str, MemoryDisk]) -> None:
        self.disks = disks
        self.table = tuple(
            Mount(disk.number, 1000, f"8:{disk.number}", "/", path, "ext4", f"/dev/sd{disk.number}", frozenset({"rw"}))
            for path, disk in disks.items()
        )
        self.root = Mount(1000, 999, "8:0", "/", "/", "ext4", "/dev/sda", frozenset({"rw"}))
        self.counters = True
        self.frozen = False

    def read_mounts(self) -> tuple[Mount, ...] | None:
        return (self.root, *self.table)

    def block_device_of(self, mount: Mount) -> BlockDevice:
        return BlockDevice((mount.source.removeprefix("/dev/"),), mount.device, serial="S1")

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        if not self.counters:
            return None
        disk = self.disks[f"/disk{device.names[0].removeprefix('sd')}"]
        return BlockCounters(int(disk.hangs and not self.frozen), disk.requests, 0)


class Host:
    """Three formatted disks under watch."""

    def __init__(self, clock: Any, paths: tuple[str, ...] = PATHS, settings: HealthSettings | None = None) -> None:
        self.clock = clock
        rng = random.Random(858)
        self.disks = {
            path: MemoryDisk(meta_properties=f"directory.id={random_directory_id(rng)}\n".encode(), number=number)
            for number, path in enumerate(paths, start=1)
        }
        self.sources = Sources(self.disks)
        self.settings = settings or HealthSettings()
        self.verdicts: list[Verdict] = []
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
            directories, settings=self.settings, clock=self.clock, on_verdict=self._told, sources=self.sources
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


def test_a_hung_disk_is_failed_two_seconds_after_the_probe_it_swallowed(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.disks["/disk1"].hang()
            verdict = await host.until("/disk1", Health.FAILED, within_ms=3010)
            assert verdict.cause is Cause.HUNG
            assert verdict.evidence.age_ms == 2000
            assert "2000 ms" in verdict.evidence.text
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


def test_freezing_again_and_again_for_less_than_the_held_timeout_fails_nothing(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.frozen = True
            for _ in range(200):
                host.disks["/disk1"].hang()
                await asyncio.sleep(29.5)
                host.disks["/disk1"].heal()
                await asyncio.sleep(1)
            assert Health.FAILED not in host.states()

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
            await host.until("/disk1", Health.FULL, within_ms=11_000)
            host.disks["/disk1"].usable_bytes = 1 << 20
            await host.until("/disk1", Health.ONLINE, within_ms=1050)

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
                host.monitor._mounts_changed.set()
                return read()

            host.sources.read_mounts = changing  # type: ignore[method-assign]
            await asyncio.sleep(10)
            assert 10 <= readings <= 600

    virtual(main)


def test_a_mount_table_that_contradicts_the_probe_decides_nothing(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as host:
            host.sources.table = host.sources.table[1:]
            await asyncio.sleep(600)
            assert host.states() == [Health.ONLINE] * 3

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
