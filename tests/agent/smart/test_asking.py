"""Asking disks, in virtual time: when, what becomes of what they say, and what is said of it."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kjbod_host.health.block import BlockDevice
from kjbod_host.health.monitor import DirectoryStatus
from kjbod_host.health.state import DirectoryHealth, Health
from kjbod_host.smart.asking import SmartAsking, ask_once
from kjbod_host.smart.processes import Answer
from kjbod_host.smart.readings import Smart
from kjbod_host.smart.schedule import ASK_TIMEOUT_MS
from tests.agent.core.recording import Log
from tests.agent.core.test_reporter import status
from tests.agent.smart.test_smartctl import DATA

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
INTERVAL_MS = 600_000
FACTS = {"model": "M", "serial": "S", "firmware": "F", "capacity_bytes": 1000, "temp_c": 30}
PROBED: Any = object()


def directory(path: str, *disks: str, health: Health = Health.ONLINE) -> DirectoryStatus:
    device = BlockDevice(("dm-0",), "253:0", disks=disks)
    return status(path=path, device=device, health=DirectoryHealth(health), last_probe=PROBED)


class Disks:
    """Answers as disks do: with a document of tests/data/smart, by kernel name; ``hung``: with nothing."""

    def __init__(self, clock: Any, documents: dict[str, str], source: str = "smartctl") -> None:
        self.clock = clock
        self.documents = documents
        self.source = source
        self.hung: set[str] = set()
        self.errors: dict[str, OSError] = {}
        self.asked: list[tuple[int, str]] = []

    async def ask(self, name: str) -> Answer:
        self.asked.append((self.clock.monotonic_ms(), name))
        if name in self.hung:
            await asyncio.sleep(ASK_TIMEOUT_MS / 1000)
            raise TimeoutError
        if name in self.errors:
            raise self.errors[name]
        facts = json.dumps({**FACTS, "smartctl": name in self.documents}).encode()
        document = (DATA / f"{self.documents[name]}.json").read_bytes() if name in self.documents else b""
        return Answer(facts + b"\n" + document, self.source)

    def reap(self) -> None:
        pass

    def names(self) -> list[str]:
        return [name for _, name in self.asked]


class Host:
    """A host whose disks are asked."""

    def __init__(self, clock: Any, disks: Disks, *statuses: DirectoryStatus, sys: Path = Path("/nowhere")) -> None:
        self.log = Log()
        self.statuses = list(statuses)
        self.asking = SmartAsking(INTERVAL_MS, disks, clock, self.log, lambda: self.statuses, sys=sys)

    async def goes_on_for(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.asking.run()

    def told(self, number: int = 0) -> Smart | None:
        return self.asking.of(self.statuses[number].device)


def test_each_disk_is_asked_once_in_the_interval_whatever_lies_on_it(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "ata-hdd-packed", "nvme0n1": "nvme"})
        host = Host(
            clock, disks, directory("/d1", "sda"), directory("/d2", "sda", "nvme0n1"), directory("/d3", "loop1")
        )
        await host.goes_on_for(599)
        assert sorted(disks.names()) == ["nvme0n1", "sda"]
        first, second, third = host.told(0), host.told(1), host.told(2)
        assert first is not None and (first.realloc, first.serial, first.at_ms) == (8, "ZTEST001", first.at_ms)
        assert second is not None and (second.realloc, second.wear_pct, second.serial) == (8, 7, "ZTEST001 NTEST007")
        assert third is None
        assert host.log.events == [("smart.source", {"source": "smartctl"})], "nothing is said of the loop device"

    virtual(main)


def test_a_disk_that_is_in_trouble_is_asked_when_it_is_well_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "nvme"})
        host = Host(clock, disks, directory("/d1", "sda", health=Health.SUSPECT))
        for health in (Health.SUSPECT, Health.SLOW, Health.HELD, Health.FAILED):
            host.statuses = [directory("/d1", "sda", health=health)]
            await host.goes_on_for(3600)
        assert disks.asked == []
        host.statuses = [directory("/d1", "sda")]
        await host.goes_on_for(1)
        assert disks.names() == ["sda"]

    virtual(main)


def test_a_disk_that_hangs_is_left_alone_for_a_day_and_the_others_go_on(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "nvme", "sdb": "nvme"})
        disks.hung.add("sda")
        host = Host(clock, disks, directory("/d1", "sda"), directory("/d2", "sdb"))
        await host.goes_on_for(86_399)
        assert disks.names().count("sda") == 1
        assert disks.names().count("sdb") == 144
        assert host.told(0) is None and host.told(1) is not None
        (said,) = host.log.of("smart.unanswered")
        assert (said["disk"], said["paths"]) == ("sda", ["/d1"])
        disks.hung.clear()
        await host.goes_on_for(600)
        assert disks.names().count("sda") == 2 and host.told(0) is not None

    virtual(main)


def test_another_disk_under_the_same_name_has_nothing_of_the_one_before(virtual: Run, tmp_path: Path) -> None:
    sequence = tmp_path / "block" / "sda" / "diskseq"
    sequence.parent.mkdir(parents=True)
    sequence.write_text("17\n")

    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "ata-hdd-failing"})
        disks.hung.add("sda")
        host = Host(clock, disks, directory("/d1", "sda"), sys=tmp_path)
        await host.goes_on_for(40)
        sequence.write_text("18\n")
        disks.hung.clear()
        await host.goes_on_for(10)
        assert disks.names() == ["sda", "sda"], "it is not the one that hung"
        sequence.write_text("19\n")
        disks.documents = {"sda": "nvme"}
        host.statuses = [directory("/d1", "sda", health=Health.SUSPECT)]
        await host.goes_on_for(10)
        assert host.told() is None

    virtual(main)


def test_a_disk_that_says_that_it_fails_is_named_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "ata-hdd-failing", "sdb": "ata-hdd-packed"})
        host = Host(clock, disks, directory("/d1", "sda"), directory("/d2", "sdb"))
        await host.goes_on_for(3600)
        (said,) = host.log.of("smart.failing")
        assert (said["disk"], said["serial"], said["paths"]) == ("sda", "VTEST002", ["/d1"])
        assert said["reason"].startswith("the disk says that it is failing; attributes are below their thresholds")

    virtual(main)


def test_what_smartctl_cannot_read_is_said_once_and_what_was_read_before_is_kept(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "ata-hdd-packed", "sdb": "behind-raid"})
        host = Host(clock, disks, directory("/d1", "sda"), directory("/d2", "sdb"))
        await host.goes_on_for(1)
        before = host.told()
        disks.documents["sda"] = "standby"
        await host.goes_on_for(3600)
        assert host.told() == before
        assert [one["disk"] for one in host.log.of("smart.unread")] == ["sdb", "sda"]
        facts = host.told(1)
        assert facts is not None and (facts.model, facts.temp_c, facts.passed) == ("M", 30, None), "of sysfs"

    virtual(main)


def test_without_smartctl_sysfs_is_what_there_is_and_why_is_said_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        host = Host(clock, Disks(clock, {}), directory("/d1", "sda"), directory("/d2", "sdb"))
        await host.goes_on_for(3600)
        found = host.told()
        assert found is not None and found.at_ms is not None
        assert (found.serial, found.firmware, found.capacity_bytes, found.temp_c) == ("S", "F", 1000, 30)
        reason = "smartctl is not installed (smartmontools)"
        assert host.log.events == [("smart.source", {"source": "sysfs", "reason": reason})]

    virtual(main)


def test_a_smartctl_without_json_is_named_once_and_sysfs_is_what_there_is(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {})

        async def ask(name: str) -> Answer:
            facts = json.dumps({**FACTS, "smartctl": True}).encode()
            return Answer(
                facts + b"\nsmartctl 6.4 2014-10-07 r4002\n=======> UNRECOGNIZED OPTION: json=c\n", "smartctl"
            )

        disks.ask = ask  # type: ignore[method-assign]
        host = Host(clock, disks, directory("/d1", "sda"))
        await host.goes_on_for(3600)
        reason = "smartctl 6.4 knows no JSON: smartmontools 7.0 or later is needed"
        assert [one["reason"] for one in host.log.of("smart.unread")] == [reason]
        found = host.told()
        assert found is not None and (found.serial, found.capacity_bytes) == ("S", 1000)
        assert await ask_once(disks, "sda") == (None, reason)
        disks.documents["sdb"] = "nvme"
        del disks.ask
        smart, reason_of_it = await ask_once(disks, "sdb")
        assert smart is not None and smart.wear_pct == 7 and reason_of_it is None

    virtual(main)


def test_two_paths_to_a_disk_are_one_capacity_and_a_disk_for_journals_none(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "scsi-hdd", "sdb": "scsi-hdd", "nvme0n1": "nvme"})
        device = BlockDevice(("dm-0", "nvme0n1"), "253:0", disks=("nvme0n1", "sda", "sdb"), journal=("nvme0n1",))
        host = Host(clock, disks, replace(directory("/d1"), device=device))
        await host.goes_on_for(1)
        found = host.told()
        assert found is not None
        assert (found.capacity_bytes, found.wear_pct, found.media_errors) == (12_000_138_625_024, 7, 3)

    virtual(main)


def test_errors_and_garbage_are_no_more_than_a_line(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "nvme"})
        disks.errors["sda"] = OSError(11, "Resource temporarily unavailable")
        host = Host(clock, disks, directory("/d1", "sda"))
        await host.goes_on_for(1201)
        assert len(disks.asked) == 3
        assert [one["reason"] for one in host.log.of("smart.unread")] == ["Resource temporarily unavailable"]

        contents = [b"", b"{", b"[]", b"{}\n" + b"[" * 100_000, b"{}\n{}", b"\xff\n\xfe", b'{"smartctl": true}\n7']

        async def ask(name: str) -> Answer:
            return Answer(contents.pop(), "helper")

        disks.ask = ask  # type: ignore[method-assign]
        while contents:
            host = Host(clock, disks, directory("/d1", "sda"))
            await host.goes_on_for(1)
            told = host.told()
            assert told is None or told == Smart(at_ms=told.at_ms)

    virtual(main)


def test_with_an_interval_of_0_no_disk_is_asked(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, {"sda": "nvme"})
        await SmartAsking(0, disks, clock, Log(), lambda: [directory("/d1", "sda")]).run()
        assert disks.asked == []

    virtual(main)
