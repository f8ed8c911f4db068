"""The lines that the agent of a generated host writes in an hour.

Any hour can be written without those before it: counters are integrals of the load, and what is random in an hour is
drawn from a generator of that hour. Samples are put together as text, in the order of the columns of
:class:`kjbod.fleet.schema.Sample`: there are millions of them, and the dataclass would be most of the time.
"""

import math
import random
from typing import Any

from kjbod.fleet.gen.ledger import Lack
from kjbod.fleet.gen.plan import DAY_MS, HOUR_MS, MINUTE_MS, Disk, Host, Order, Run
from kjbod.fleet.schema import SCHEMA_VERSION, DirectoryState, Event, EventKind, Sample, latency_bucket
from kjbod.fleet.svg import plural
from kjbod.units import moment

SIGN_MS = 1_200
"""From the first sign of a failure to the verdict."""
FOLLOWED_MS = 1_000
"""From the start of a guard until it follows the metadata."""
SMART_EVERY_MS = 10 * MINUTE_MS
PROBES = 12
"""A sample, of which one is the longest."""
SWING = 0.5
"""Of the load, around its mean, over a day."""
BYTES_A_WRITE = 65_536
BUSY_MAX = 0.95
"""Of the time at the peak of the load: a disk that is slower than that does what it can."""


def load(disk: Disk, at_ms: int) -> float:
    """Load at a moment, relative to its mean."""
    return 1 + SWING * math.sin(2 * math.pi * (at_ms % DAY_MS) / DAY_MS - 2)


def _writes(disk: Disk, since_ms: int, at_ms: int) -> int:
    """Writes between two moments: the integral of the load."""

    def total(ms: int) -> float:
        return ms / 1_000 - SWING * DAY_MS / 1_000 / (2 * math.pi) * math.cos(2 * math.pi * (ms % DAY_MS) / DAY_MS - 2)

    return int(disk.writes_a_second * (total(at_ms) - total(since_ms)))


def _work(disk: Disk, since_ms: int, at_ms: int) -> int:
    """Writes between two moments. A dead disk does none: its counters stand where they were."""
    if not disk.failed:
        return _writes(disk, since_ms, at_ms)
    done, alive_ms = 0, since_ms
    for begin, end in (*disk.failed, (at_ms, at_ms)):
        if alive_ms < (until := min(begin, at_ms)):
            done += _writes(disk, alive_ms, until)
        alive_ms = max(alive_ms, end)
    return done


def _busy_ms(disk: Disk, since_ms: int, at_ms: int) -> int:
    """Time at work between two moments: an integral too, since a counter neither falls nor runs ahead of the clock."""
    ms_a_write = disk.tenant(at_ms).model.write_us / 4_000
    busy = _work(disk, since_ms, at_ms) * ms_a_write
    if disk.slow and disk.slow[0] < at_ms:
        usual = disk.writes_a_second * ms_a_write / 1_000 * (1 + SWING)
        factor = max(1.0, min(disk.slow[1], BUSY_MAX / usual))
        busy += _work(disk, max(since_ms, disk.slow[0]), at_ms) * ms_a_write * (factor - 1)
    if disk.ramp and since_ms < disk.ramp[1]:
        # 4 * worn ** 2 over time, at the mean load.
        begin, end = disk.ramp
        worse = [min(max(moment - begin, 0), end - begin) / (end - begin) for moment in (since_ms, at_ms)]
        area_ms = 4 / 3 * (worse[1] ** 3 - worse[0] ** 3) * (end - begin)
        busy += area_ms / 1_000 * disk.writes_a_second * ms_a_write
    return int(busy)


def used_ratio(disk: Disk, start_ms: int, at_ms: int) -> float:
    """Part of the room that is used at a moment."""
    used = disk.used + disk.growth * (at_ms - start_ms) / DAY_MS
    if disk.emptied and at_ms >= disk.emptied[0]:
        used *= disk.emptied[1]
    return min(max(used, 0.01), 0.999)


def worn(disk: Disk, at_ms: int) -> float:
    """Wear of a disk that gets worse, 0 to 1."""
    if not disk.ramp or at_ms < disk.ramp[0] or len(disk.tenants) > 1:
        return 0.0
    return min((at_ms - disk.ramp[0]) / (disk.ramp[1] - disk.ramp[0]), 1.0)


def slowness(disk: Disk, at_ms: int) -> float:
    """Factor on its latency."""
    factor = 1 + 4 * worn(disk, at_ms) ** 2
    return factor * disk.slow[1] if disk.slow and at_ms >= disk.slow[0] else factor


class HourWriter:
    """Lines of one host."""

    def __init__(self, order: Order, host: Host) -> None:
        self.order = order
        self.host = host

    def runs(self, hour_ms: int) -> list[Run]:
        """Runs that were there in an hour."""
        return [run for run in self.host.runs if run.start_ms < hour_ms + HOUR_MS and run.end_ms >= hour_ms]

    # --- samples

    def samples(self, hour_ms: int, run: Run) -> list[str]:
        """Lines of samples of a run in an hour."""
        host, every = self.host, self.order.every_ms
        rng = random.Random(f"{self.order.seed}/{host.name}/{hour_ms}/{run.boot_id}")
        first = max(0, -(-(hour_ms - run.start_ms) // every))
        end = min(run.end_ms, hour_ms + HOUR_MS)
        lines = []
        for seq in range(first, -(-(end - run.start_ms) // every)):
            at = run.start_ms + seq * every
            booted = max(moment for moment in host.booted_ms if moment <= at)
            lines += [self._sample(disk, at, seq, run, booted, rng) for disk in host.disks]
        return lines

    def _sample(self, disk: Disk, at: int, seq: int, run: Run, booted: int, rng: random.Random) -> str:
        host, tenant = self.host, disk.tenant(at)
        since = next((begin for begin, end in disk.failed if begin <= at < end), None)
        failed = since is not None
        if since is not None and since < run.start_ms:
            return self._unreadable(disk, at, seq, run, booted)
        suspect = next((begin for begin, end in disk.flaps if begin <= at < end), None)
        state = "failed" if failed else "suspect" if suspect is not None else "online"
        attached = max(booted, tenant.since_ms)
        writes = _work(disk, attached, at)
        errors = 3 * sum(attached <= begin <= at for begin, _ in disk.failed)
        state_since = since or suspect or run.start_ms
        total = int(tenant.model.capacity * 0.92)
        used = used_ratio(disk, max(self.order.start_ms, tenant.since_ms), at)
        ago = host.offset_ms
        known = (
            f'{{"ts":{at + ago},"mono_ns":{(at - booted) * 1_000_000},"boot_id":"{run.boot_id}","seq":{seq}'
            f',"fleet":"{host.fleet}","rack":"{host.rack}","host":"{host.name}","broker_id":{host.broker_id}'
            f',"dir_id":"{tenant.dir_id}","path":"{disk.path}","device":"{disk.device}","model":"{tenant.model.name}"'
            f',"serial":"{tenant.serial}","state":"{state}","state_since":{state_since + ago}'
            f',"bytes_total":{total},"bytes_used":{int(total * used)},"partitions":{disk.partitions}'
            f',"leaders":{0 if failed else disk.leaders}'
            f',"io_errors":{errors},"reads":{writes // 3},"read_bytes":{writes // 3 * 131_072}'
            f',"writes":{writes},"write_bytes":{writes * BYTES_A_WRITE}'
            f',"busy_ms":{_busy_ms(disk, attached, at)}'
            f',"counters_since":{attached + ago}'
        )
        probes, smart = self._probes(disk, at, rng, failed=failed), self._smart(disk, since or at)
        return f'{known}{probes}{smart},"v":{SCHEMA_VERSION}}}'

    def _unreadable(self, disk: Disk, at: int, seq: int, run: Run, booted: int) -> str:
        """Of a disk that was dead when the agent started, which then knows nothing but its place."""
        host = self.host
        sample = Sample(
            ts=at + host.offset_ms,
            mono_ns=(at - booted) * 1_000_000,
            boot_id=run.boot_id,
            seq=seq,
            fleet=host.fleet,
            rack=host.rack,
            host=host.name,
            broker_id=host.broker_id,
            path=disk.path,
            state=str(DirectoryState.UNREADABLE),
        )
        return sample.to_json_line()

    def _probes(self, disk: Disk, at: int, rng: random.Random, *, failed: bool) -> str:
        if failed:
            return f',"probes":{PROBES},"probe_failures":{PROBES}'
        # Busier is slower, and of a dozen probes the longest is told.
        idle = disk.tenant(at).model.write_us * disk.noise * slowness(disk, at)
        write = int(idle * (0.6 + 0.4 * load(disk, at)) * math.exp(0.25 * rng.gauss(0, 1)))
        sync, read = int(write * 1.6), int(write * 0.8)
        whole = write + sync + read
        usual, long = latency_bucket(whole), latency_bucket(int(whole * 1.7))
        return (
            f',"probe_write_us":{write},"probe_sync_us":{sync},"probe_read_us":{read},"probe_us":{whole}'
            f',"probes":{PROBES},"probe_failures":0,"probe_histogram":{{"{usual}":{PROBES - 1},"{long}":1}}'
        )

    def _smart(self, disk: Disk, at: int) -> str:
        tenant, bad = disk.tenant(at), worn(disk, at)
        asked = max(at // SMART_EVERY_MS * SMART_EVERY_MS, self.order.start_ms, tenant.since_ms)
        hours = tenant.poh + (asked - self.order.start_ms) // HOUR_MS
        is_flash = tenant.model.write_us < 1_000
        text = (
            f',"firmware":"{tenant.firmware}","capacity_bytes":{tenant.model.capacity}'
            f',"smart_ts":{asked + self.host.offset_ms},"smart_passed":1,"smart_poh":{hours}'
            f',"smart_temp_c":{31 + tenant.poh % 9}'
        )
        grown = int(160 * bad * bad)
        if is_flash:
            wear = min(99, hours // 700)
            return f'{text},"smart_wear_pct":{wear},"smart_spare_pct":{100 - grown // 4},"smart_media_errors":{grown}'
        return (
            f'{text},"smart_realloc":{grown},"smart_pending":{grown // 5},"smart_uncorrect":{grown // 9}'
            f',"smart_reported_uncorrect":{grown // 7},"smart_command_timeout":{grown // 20}'
        )

    # --- events

    def events(self, hour_ms: int, run: Run) -> list[str]:
        """Lines of events of a run in an hour, in the order of time."""
        found = [*self._of_run(run), *self._of_failures(run), *self._of_flaps(run), *self._of_lacks(run)]
        there = [event for event in found if hour_ms <= event[0] < min(hour_ms + HOUR_MS, run.end_ms + 1)]
        return [self._event(run, *event) for event in sorted(there, key=lambda event: event[0])]

    def _event(
        self, run: Run, at: int, kind: EventKind, disk: Disk | None, attrs: dict[str, str], counts: dict[str, int]
    ) -> str:
        host = self.host
        booted = max(moment for moment in host.booted_ms if moment <= at)
        more: dict[str, Any] = dict(counts)
        if disk is not None:
            # Of a disk that is being replaced: the one that failed.
            tenant = disk.tenant(at)
            more |= {"path": disk.path, "device": disk.device, "serial": tenant.serial}
            if kind not in (EventKind.GUARD_DOES, EventKind.GUARD_DONE):
                more["dir_id"] = tenant.dir_id
        event = Event(
            ts=at + host.offset_ms,
            mono_ns=(at - booted) * 1_000_000,
            boot_id=run.boot_id,
            kind=str(kind),
            fleet=host.fleet,
            host=host.name,
            broker_id=host.broker_id,
            attrs=attrs,
            **more,
        )
        return event.to_json_line()

    def _of_run(self, run: Run) -> list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]]:
        host = self.host
        told = {"version": host.version, "log_dirs": str(len(host.disks)), "unreadable": "0"}
        if host.role:
            told |= {"role": host.role, "mode": host.mode or "observe"}
        found: list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]] = [
            (run.start_ms, EventKind.AGENT_STARTED, None, told, {})
        ]
        if not host.role:
            found += [
                (run.start_ms + 300, EventKind.REGISTERED, None, {"broker_epoch": str(run.start_ms // 1_000)}, {}),
                (run.start_ms + 900, EventKind.UNFENCED, None, {}, {}),
            ]
        if run.reason is not None:
            attrs = {"reason": run.reason, "exit_code": str(run.exit_code)}
            found.append((run.end_ms, EventKind.AGENT_STOPPED, None, attrs, {}))
        return found

    def _of_failures(self, run: Run) -> list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]]:
        found: list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]] = []
        for failure in self.host.failures:
            if not run.start_ms <= failure.ts < run.end_ms:
                continue
            disk = next(disk for disk in self.host.disks if disk.path == failure.spot.path)
            at = failure.ts
            errno = {"hang": "", "vanished": "ENOENT", "read-only": "EROFS"}.get(failure.how, "EIO")
            said = errno or "no answer for 30 s"
            attrs = {
                "cause": failure.how.replace(" ", "_").replace("-", "_"),
                "evidence": f"{disk.path} failed: {said} at fsync of .kjbod_probe; device {disk.device}",
                "call": "fsync",
                "latency_ms": str(SIGN_MS),
            } | ({"errno": errno} if errno else {})
            counts = {"partitions": failure.partitions, "leaders": failure.leaders}
            suspect = {"previous": "online", "state": "suspect"}
            found += [
                (at - SIGN_MS, EventKind.STATE_CHANGED, disk, suspect, {}),
                (at, EventKind.DIR_FAILED, disk, attrs, counts),
            ]
            found += self._reported(disk, at, failure.acknowledged_ts, failure.moved_ts, failure.leaders)
            if failure.timeout_ts is not None:
                found.append((failure.timeout_ts, EventKind.TIMEOUT_SHUTDOWN, disk, {}, {}))
        return found

    def _reported(
        self, disk: Disk, at: int, acknowledged: int | None, moved: int | None, leaders: int
    ) -> list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]]:
        found: list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]] = []
        if self.host.role is None:
            found.append((at + 2, EventKind.OFFLINE_SENT, disk, {}, {}))
        elif self.host.mode == "act":
            done = {"means": "cut", "outcome": "done", "took_ms": "3"}
            found += [
                (at + 1, EventKind.GUARD_DOES, disk, {"means": "cut"}, {}),
                (at + 4, EventKind.GUARD_DONE, disk, done, {}),
            ]
        else:
            would = {"would": "cut", "mode": "observe", "reason": "it hangs"}
            found.append((at + 1, EventKind.GUARD_WOULD, disk, would, {}))
        if acknowledged is not None:
            kind = EventKind.KAFKA_NOTICED if self.host.role else EventKind.ACKNOWLEDGED
            attrs = {"after_ms": str(acknowledged - at)} if self.host.role else {}
            found.append((acknowledged, kind, disk, attrs, {}))
        if moved is not None:
            found.append((moved, EventKind.LEADERSHIP_MOVED, disk, {}, {"leaders": leaders}))
        return found

    def _of_flaps(self, run: Run) -> list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]]:
        return [
            (at, EventKind.STATE_CHANGED, disk, {"previous": previous, "state": state, "cause": "slow"}, {})
            for disk in self.host.disks
            for begin, end in disk.flaps
            if run.start_ms <= begin < run.end_ms
            for at, previous, state in ((begin, "online", "suspect"), (end, "suspect", "online"))
        ]

    def _of_lacks(self, run: Run) -> list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]]:
        """Changes of the counts of partitions that lack replicas; a run begins with none."""
        lacks, first = self.host.lacks, run.start_ms + FOLLOWED_MS
        changes = {at for lack in lacks for at in (lack.since_ts, lack.until_ts) if at is not None and at > first}
        found: list[tuple[int, EventKind, Disk | None, dict[str, str], dict[str, int]]] = []
        before: list[Lack] = []
        for at in sorted({first, *(change for change in changes if change < run.end_ms)}):
            now = [one for one in lacks if one.since_ts <= at and (one.until_ts is None or at < one.until_ts)]
            if now != before:
                found.append((at, EventKind.GUARD_LACKS, None, self._lacking(now), {}))
            before = now
        return found

    def _lacking(self, lacks: list[Lack]) -> dict[str, str]:
        """Attributes of an event, in the words of a guard."""
        host = self.host
        evicted = sum(one.below_replication_factor for one in lacks)
        short, leaderless = sum(one.below_min_isr for one in lacks), sum(one.without_leader for one in lacks)
        said = []
        if leaderless:
            said.append(f"{plural(leaderless, 'partition')} {'has' if leaderless == 1 else 'have'} no leader")
        if short:
            said.append(f"{plural(short, 'partition')} {'is' if short == 1 else 'are'} below min.insync.replicas")
        if evicted:
            since = min(one.since_ts for one in lacks if one.below_replication_factor) + host.offset_ms
            which = f"{plural(evicted, 'partition')} {'has' if evicted == 1 else 'have'} 2 of 3 replicas"
            said.append(f"{which} since {moment(since)}: the guard evicted broker {host.broker_id}")
        counts = {"below_replication_factor": evicted, "below_min_isr": short, "without_leader": leaderless}
        return {name: str(count) for name, count in counts.items()} | ({"reason": "; ".join(said)} if said else {})
