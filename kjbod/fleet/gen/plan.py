"""The fate of a generated fleet, drawn from a seed: who stands where, on which disks, and what becomes of them.

Hosts are drawn one by one from generators of their own, so that a host is the same whichever process draws it. Before,
*stories* are given to hosts: each kind of trouble that a report has to show happens at least once where the fleet is
large enough for it, and in realistic numbers in a large one. What a story does not decide, chance does: disks fail at
the rate of their model, accelerated so that some do.

A failed directory stays so until the agent restarts: a disk is replaced, or found to be well, with a new run.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kjbod.fleet.gen.ledger import Agent, Failure, Lack, Spot, Trend

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TIB = 1 << 40
FAILURES_MIN = 8
"""So many disks are expected to fail by their rate alone, at least: that is what acceleration is for."""
RACK_HOSTS = 20
FLEETS = ("4L6g3nShT-eMCtK--X86sw", "kq7vXv2BRmSbWl0jmV9ZrA", "Z7cOXg1sQd2wVb-8WwmN0Q")
HOWS = ("io error", "hang", "read-only", "vanished")
OLD_VERSION = "0.8.2"
GUARDS_SHARE = 0.2
"""Part of the hosts that have a guard."""
LACKING_SHARE, LACKING_GUARDS = 0.05, 10
"""Guards that see partitions without a leader or below ``min.insync.replicas``: part of all, and so many at least."""
EVICTED_MS = 400
"""From the verdict on a disk to the eviction of its partitions."""
CAUGHT_UP_MS = 15 * MINUTE_MS
"""From the start beside a healthy disk until the broker is back in all replica lists."""


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of drive, with rates of no maker's in particular."""

    name: str
    capacity: int
    afr_pct: float
    firmwares: tuple[str, ...]
    write_us: int
    """Median of a probe's write, idle."""


MODELS = (
    Model("ST16000NM001G-2KK103", 16 * TIB, 0.7, ("SN03", "SN04"), 4_200),
    Model("TOSHIBA MG08ACA16TE", 16 * TIB, 1.1, ("0102", "0104"), 5_100),
    Model("WDC WUH721414ALE6L4", 14 * TIB, 0.4, ("LDGNW240",), 4_600),
    Model("HGST HUH721212ALN604", 12 * TIB, 1.9, ("LEGNW3D0", "LEGNW925"), 5_800),
    Model("SAMSUNG MZ7L33T8HBLT-00A07", 4 * TIB, 0.9, ("JXTC304Q", "JXTC404Q"), 240),
    Model("INTEL SSDPE2KX040T8", 4 * TIB, 0.6, ("VDV10131",), 95),
)
STORIES = (
    # what, share of the hosts, at least; in the order in which a small fleet gets them
    ("timeout", 0.002, 1),
    ("ramp", 0.004, 2),
    ("slow", 0.004, 1),
    ("silent", 0.002, 1),
    ("false", 0.002, 1),
    ("resurrected", 0.002, 1),
    ("flapping", 0.003, 1),
    ("filling", 0.006, 2),
    ("rack burst", 0.0, 4),
    ("host burst", 0.001, 1),
    ("growing", 0.006, 2),
    ("stopped", 0.002, 1),
    ("clock", 0.002, 2),
    ("rebooted", 0.01, 2),
    ("emptied", 0.003, 1),
    ("uneven", 0.01, 2),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an agent."""

    boot_id: str
    start_ms: int
    end_ms: int
    """It is silent from then on."""
    reason: str | None = None
    """Why it stopped; None where it did not say so."""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A disk at a place, from a moment on."""

    since_ms: int
    dir_id: str
    serial: str
    model: Model
    firmware: str
    poh: int
    """Power-on hours at the start of the fleet; of one that came later less than none."""


@dataclass(slots=True)
class Disk:
    """A place for a disk, and all that happens there."""

    path: str
    device: str
    tenants: list[Tenant]
    used: float
    """Part of the room that is used at the start."""
    growth: float
    """Of the room, a day."""
    writes_a_second: float
    leaders: int
    partitions: int
    noise: float
    failed: list[tuple[int, int]] = field(default_factory=list)
    """From the verdict to the end of that run."""
    ramp: tuple[int, int] | None = None
    """It gets worse from the first moment on, badly until the second."""
    slow: tuple[int, float] | None = None
    flaps: list[tuple[int, int]] = field(default_factory=list)
    """Suspect from, to."""
    emptied: tuple[int, float] | None = None

    def tenant(self, at_ms: int) -> Tenant:
        """The disk that is there at a moment."""
        return next(t for t in reversed(self.tenants) if t.since_ms <= at_ms or t is self.tenants[0])


@dataclass(slots=True)
class Host:
    """A host and all that happens on it."""

    name: str
    broker_id: int
    fleet: str
    rack: str
    version: str
    role: str | None
    mode: str | None
    booted_ms: list[int]
    """Starts of the machine: counters of its disks begin at zero."""
    disks: list[Disk]
    runs: list[Run]
    offset_ms: int = 0
    failures: list[Failure] = field(default_factory=list)
    trends: list[Trend] = field(default_factory=list)
    lacks: list[Lack] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)

    def run(self, at_ms: int) -> Run | None:
        """The run at a moment."""
        return next((run for run in self.runs if run.start_ms <= at_ms < run.end_ms), None)


@dataclass(frozen=True, slots=True)
class Order:
    """A fleet as it was asked for."""

    hosts: int
    days: int
    seed: int
    disks: int
    every_ms: int
    start_ms: int
    version: str

    @property
    def end_ms(self) -> int:
        """End of the fleet's time."""
        return self.start_ms + self.days * DAY_MS

    @property
    def acceleration(self) -> float:
        """Factor on the failure rates: :class:`kjbod.fleet.gen.ledger.Ledger`."""
        mean = sum(model.afr_pct for model in MODELS) / len(MODELS) / 100
        natural = self.hosts * self.disks * self.days / 365 * mean
        return max(1.0, min(self.hosts * self.disks / 12, FAILURES_MIN) / natural)


def device_name(number: int) -> str:
    """Name of a SCSI disk as Linux gives it: ``sda``, ..., ``sdz``, ``sdaa``, ..."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(97 + letter) + name
    return f"sd{name}"


def stories(order: Order) -> dict[int, str]:
    """Number of a host to its story. A rack's burst is in one rack."""
    rng = random.Random(f"{order.seed}/stories")
    given: dict[int, str] = {}
    free = list(range(order.hosts))
    rng.shuffle(free)
    for what, share, least in STORIES:
        number = max(least, round(share * order.hosts))
        if what == "rack burst":
            racks = [
                list(range(first, min(first + RACK_HOSTS, order.hosts))) for first in range(0, order.hosts, RACK_HOSTS)
            ]
            there = [[host for host in rack if host in free] for rack in racks]
            chosen = max(there, key=len)[:number]
            if len(chosen) < 2:
                continue
        else:
            chosen = free[:number]
        # A fleet of few hosts keeps some of which nothing is to be told.
        if len(given) + len(chosen) > max(1, order.hosts * 3 // 4):
            continue
        given.update(dict.fromkeys(chosen, what))
        free = [host for host in free if host not in given]
    return given


def host_plan(order: Order, number: int, story: str | None) -> Host:
    """The fate of one host."""
    return _Fate(order, number, story).host


class _Fate:
    """Draws the fate of one host."""

    def __init__(self, order: Order, number: int, story: str | None) -> None:
        self.order = order
        self.rng = rng = random.Random(f"{order.seed}/host/{number}")
        self.span = order.end_ms - order.start_ms
        guard = rng.random() < GUARDS_SHARE
        booted = order.start_ms - rng.randrange(DAY_MS, 200 * DAY_MS)
        model = MODELS[(number // 3) % len(MODELS)]
        self.host = Host(
            name=f"kafka-{number + 1:04d}.{'abc'[number // RACK_HOSTS % 3]}.example.org",
            broker_id=number + 1,
            fleet=FLEETS[0 if number % 10 < 6 else 1 if number % 10 < 9 else 2],
            rack=f"r{number // RACK_HOSTS + 1:02d}",
            version=OLD_VERSION if rng.random() < 0.1 else order.version,
            role="guard" if guard else None,
            mode=("act" if rng.random() < 0.5 else "observe") if guard else None,
            booted_ms=[booted],
            disks=[self._disk(slot, model) for slot in range(order.disks)],
            runs=[Run(self._boot_id(), order.start_ms, order.end_ms)],
        )
        self._tell_kind()
        if story:
            self._tell(story)
        else:
            self._wear_out()
        if guard:
            self._lack(number)

    # --- who it is

    def _boot_id(self) -> str:
        return f"{self.rng.getrandbits(32):08x}-{self.rng.getrandbits(32):08x}"

    def _tenant(self, since_ms: int, model: Model, poh: int) -> Tenant:
        rng = self.rng
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
        dir_id = "".join(rng.choices(alphabet, k=22))
        serial = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", k=8))
        return Tenant(since_ms, dir_id, serial, model, rng.choice(model.firmwares), poh)

    def _disk(self, slot: int, model: Model) -> Disk:
        rng = self.rng
        leaders = rng.randrange(20, 120)
        return Disk(
            path=f"/var/lib/kafka/d{slot + 1:02d}",
            device=device_name(slot + 1),
            tenants=[self._tenant(0, model, rng.randrange(500, 45_000))],
            used=rng.uniform(0.35, 0.6),
            growth=rng.uniform(-0.001, 0.004),
            writes_a_second=rng.uniform(20, 60) * (8 if model.write_us < 1_000 else 1),
            leaders=leaders,
            partitions=3 * leaders,
            noise=rng.uniform(0.9, 1.1),
        )

    def _agent(self, what: str, ts: int | None = None, detail: str | None = None) -> None:
        host = self.host
        told = Agent(fleet=host.fleet, host=host.name, broker_id=host.broker_id, what=what, ts=ts, detail=detail)
        host.agents.append(told)

    def _tell_kind(self) -> None:
        if self.host.version != self.order.version:
            self._agent("version", detail=self.host.version)
        if self.host.role:
            self._agent("guard", detail=self.host.mode)

    def _spot(self, disk: Disk, at_ms: int) -> Spot:
        host, tenant = self.host, disk.tenant(at_ms)
        return Spot(
            fleet=host.fleet,
            rack=host.rack,
            host=host.name,
            broker_id=host.broker_id,
            path=disk.path,
            dir_id=tenant.dir_id,
            serial=tenant.serial,
            model=tenant.model.name,
        )

    def _moment(self, low: float = 0.1, high: float = 0.9) -> int:
        return self.order.start_ms + int(self.span * self.rng.uniform(low, high)) // 1_000 * 1_000

    # --- runs

    def _restart(self, at_ms: int, after_ms: int, reason: str, exit_code: int) -> None:
        """The agent stops at a moment and is back a while after it."""
        runs = self.host.runs
        last = runs.pop()
        runs.append(Run(last.boot_id, last.start_ms, at_ms, reason, exit_code))
        if at_ms + after_ms < last.end_ms:
            runs.append(Run(self._boot_id(), at_ms + after_ms, last.end_ms))

    def _end_of_run(self, at_ms: int) -> int:
        run = self.host.run(at_ms)
        assert run is not None
        return run.end_ms

    # --- failures

    def _wear_out(self) -> None:
        """Failures at the rate of the models; at most one a host by chance, for several at once is a story."""
        for disk in self.host.disks:
            rate = disk.tenants[0].model.afr_pct / 100 * self.order.acceleration * self.order.days / 365
            if not self.host.failures and self.rng.random() < rate:
                self._fail(disk, self._moment(), "worn", replaced_after=int(self.rng.uniform(0.1, 1.2) * DAY_MS))

    def _fail(
        self, disk: Disk, at_ms: int, story: str, *, replaced_after: int | None = None, timeout: bool = False
    ) -> None:
        rng, host = self.rng, self.host
        how = "hang" if story == "false" else rng.choices(HOWS, (6, 2, 2, 1))[0]
        spot = self._spot(disk, at_ms)
        moved = None if timeout else at_ms + 2 + rng.randrange(10, 90)
        replaced = at_ms + replaced_after if replaced_after and at_ms + replaced_after < self.order.end_ms else None
        well = None
        if timeout:
            self._restart(at_ms + 30_000, 10 * MINUTE_MS, f"log.dir.failure.timeout.ms passed for {disk.path}", 74)
        end = self._end_of_run(at_ms)
        if replaced is not None:
            # A disk that is out stays failed over restarts: those that come before the new one find it failed again.
            end = replaced
            self._restart(replaced, 2 * MINUTE_MS, f"SIGTERM: {disk.path} is replaced", 0)
            old_hours = (replaced - self.order.start_ms) // HOUR_MS
            disk.tenants.append(self._tenant(replaced, disk.tenants[-1].model, -old_hours))
        elif story in ("false", "resurrected") and at_ms + 4 * HOUR_MS < self.order.end_ms:
            end = at_ms + 4 * HOUR_MS
            self._restart(end, 2 * MINUTE_MS, "SIGTERM", 0)
            well = end + 2 * MINUTE_MS
        elif timeout:
            end = self.order.end_ms
        disk.failed.append((at_ms, end))
        host.failures.append(
            Failure(
                spot=spot,
                ts=at_ms,
                how=how,
                story=story,
                acknowledged_ts=None if timeout else at_ms + 2 + rng.randrange(5, 60),
                moved_ts=moved,
                timeout_ts=at_ms + 30_000 if timeout else None,
                replaced_ts=replaced,
                new_dir_id=disk.tenants[-1].dir_id if replaced is not None else None,
                new_serial=disk.tenants[-1].serial if replaced is not None else None,
                well_again_ts=well,
                leaders=disk.leaders,
                partitions=disk.partitions,
            )
        )

    def _trend(self, disk: Disk, what: str, since_ms: int, **more: float | int | None) -> None:
        self.host.trends.append(Trend(spot=self._spot(disk, since_ms), what=what, since_ts=since_ms, **more))  # type: ignore[arg-type]

    def _lack(self, number: int) -> None:
        """Partitions that lack replicas, as the guard of this host sees them: evicted by it, or by failures on other
        hosts."""
        host = self.host
        for failure in host.failures:
            if host.mode == "act" and failure.acknowledged_ts is not None:
                healthy_ms = failure.well_again_ts or failure.replaced_ts
                until = None if healthy_ms is None else healthy_ms + CAUGHT_UP_MS
                self._add_lack(failure.ts + EVICTED_MS, until, below_replication_factor=failure.partitions)
        # A generator of its own, so that all other draws are as they were.
        rng = random.Random(f"{self.order.seed}/lacks/{number}")
        if rng.random() < max(LACKING_SHARE, LACKING_GUARDS / (GUARDS_SHARE * self.order.hosts)):
            lasts, leaderless = rng.random() < 0.5, rng.choice((0, 1, 3))
            since = self.order.start_ms + int(self.span * rng.uniform(0.4, 0.6)) // 1_000 * 1_000
            until = None if lasts else since + rng.randrange(10, 90) * MINUTE_MS
            self._add_lack(since, until, below_min_isr=leaderless + rng.randrange(1, 9), without_leader=leaderless)

    def _add_lack(self, since_ms: int, until_ms: int | None, **counts: int) -> None:
        host = self.host
        until = until_ms if until_ms is not None and until_ms < self.order.end_ms else None
        host.lacks.append(
            Lack(
                fleet=host.fleet,
                host=host.name,
                broker_id=host.broker_id,
                since_ts=since_ms,
                until_ts=until,
                **counts,
            )
        )

    # --- stories

    def _whole_disks(self) -> list[Disk]:
        disks = [disk for disk in self.host.disks if not disk.failed]
        self.rng.shuffle(disks)
        return disks

    def _tell(self, story: str) -> None:
        if not (disks := self._whole_disks()):
            return
        disk, rng, order = disks[0], self.rng, self.order
        match story:
            case "timeout":
                self._fail(disk, self._moment(0.3, 0.8), "timeout", timeout=True)
            case "ramp":
                fails = self._moment(0.75, 0.95)
                since = max(order.start_ms + HOUR_MS, fails - 5 * DAY_MS)
                disk.ramp = (since, fails)
                self._trend(disk, "ramp", since, until_ts=fails)
                self._fail(disk, fails, "ramp")
            case "growing":
                since = order.start_ms + HOUR_MS
                disk.ramp = (since, order.end_ms + 20 * DAY_MS)
                self._trend(disk, "growing", since)
            case "slow":
                since, factor = self._moment(0.1, 0.3), rng.uniform(12, 25)
                disk.slow = (since, factor)
                self._trend(disk, "slow", since, factor=factor)
            case "false" | "resurrected":
                self._fail(disk, self._moment(0.2, 0.4), story)
                again = order.end_ms - rng.randrange(2, 6) * HOUR_MS
                if story == "resurrected" and (run := self.host.run(again)) and run.start_ms < again:
                    self._fail(disk, again, story)
            case "flapping":
                self._flap(disk)
            case "rack burst" | "host burst":
                # In one rack the moment is that of the rack, not of the host.
                of_all = random.Random(f"{order.seed}/burst")
                about = order.start_ms + int(self.span * of_all.uniform(0.4, 0.6))
                for one in disks[: 1 if story == "rack burst" else 2]:
                    self._fail(one, about + rng.randrange(20 * MINUTE_MS) // 1_000 * 1_000, story)
            case "silent" | "stopped":
                self._end(story)
            case "clock":
                self.host.offset_ms = rng.choice((-5, -3, 3, 7)) * HOUR_MS
                self._agent("clock", detail=str(self.host.offset_ms))
            case "rebooted":
                at = self._moment()
                if self.host.runs[-1].start_ms < at < self.host.runs[-1].end_ms - HOUR_MS:
                    self.host.booted_ms.append(at + 3 * MINUTE_MS)
                    self._restart(at, 4 * MINUTE_MS, "SIGTERM", 0)
                    self._agent("rebooted", at + 3 * MINUTE_MS)
            case "filling":
                self._fill(disk)
            case "emptied":
                at, left = self._moment(0.4, 0.7), 0.4
                disk.emptied = (at, left)
                self._trend(disk, "emptied", at, factor=left)
            case "uneven":
                for one, used in zip(disks, (0.86, 0.12), strict=False):
                    one.used, one.growth = used, 0.0
                self._agent("uneven")

    def _flap(self, disk: Disk) -> None:
        at, number = self._moment(0.3, 0.6), self.rng.randrange(5, 9)
        for turn in range(number):
            begin = at + turn * 40 * MINUTE_MS
            if (run := self.host.run(begin)) and begin + 4 * MINUTE_MS < min(run.end_ms, self.order.end_ms):
                disk.flaps.append((begin, begin + 3 * MINUTE_MS))
        self._trend(disk, "flapping", at, count=len(disk.flaps))

    def _end(self, story: str) -> None:
        last = self.host.runs[-1]
        at = max(last.start_ms + HOUR_MS, self._moment(0.4, 0.7))
        if at < last.end_ms:
            reason = None if story == "silent" else "SIGTERM"
            self.host.runs[-1] = Run(last.boot_id, last.start_ms, at, reason, 0)
            self._agent(story, at)

    def _fill(self, disk: Disk) -> None:
        days = self.order.days
        disk.growth = min(0.05, 0.25 / days)
        disk.used = 0.93 - disk.growth * days
        full = self.order.start_ms + int((1 - disk.used) / disk.growth * DAY_MS)
        self._trend(disk, "filling", self.order.start_ms, until_ts=full)


def hours_of(order: Order) -> Iterator[int]:
    """Begins of the hours of the fleet's time."""
    yield from range(order.start_ms, order.end_ms, HOUR_MS)
