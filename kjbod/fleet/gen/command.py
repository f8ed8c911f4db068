"""``kjbod fleet gen``: write the reports of a generated fleet and its ledger.

Without Spark, in as many processes as there are processors, a host at a time: the bytes are the same for any number of
them. Files have the time of their hour's end, as those have that an agent finished then.
"""

import contextlib
import gzip
import json
import multiprocessing
import os
import shutil
import signal
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kjbod import __version__
from kjbod.fleet.command import EXIT_OK, Running
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.gen import ledger as books
from kjbod.fleet.gen.lines import HourWriter
from kjbod.fleet.gen.plan import HOUR_MS, MODELS, Host, Order, Run, host_plan, hours_of, stories
from kjbod.fleet.report_names import base_name, partition_path
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS, TRAILER_KIND
from kjbod.output import safe

LEVEL = 6
"""Of gzip: the agents' 9 takes four times as long for 2 % less."""
FIRST_DAY, LAST_DAY = date(2000, 1, 1), date(2098, 1, 1)
"""Days on which a fleet may begin: readers take no time before 1970 and none after 2099."""
COPIED_EVERY = 500
"""One of so many files of samples is there twice, as an upload that was tried again leaves it."""
TELL_EVERY_MS = 2_000

Work = tuple[Path, Order, int, str | None, tuple[int, int] | None]
"""Root, order, number of the host, its story, hours."""


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a host."""

    files: int
    rows: int
    copies: tuple[str, ...]
    host: Host


def gen(
    running: Running, out: str, order: Order, hours: tuple[int, int] | None = None, processes: int | None = None
) -> int:
    """Write the fleet below ``out``; ``hours``: only those from the first to before the second, counted from the start.

    Raises:
        FleetError: ``out`` is no empty directory of this machine, or cannot be written.
    """
    root = _empty_directory(out)
    try:
        # Closed before anything is removed: no process may still write.
        with contextlib.closing(_all_written(root, order, hours, processes)) as hosts:
            written = list(_told(running, order, hosts))
        truth = _ledger(order, written)
        (root / books.FILE_NAME).write_text(books.to_json(truth), encoding="utf-8")
    except BaseException as error:
        _emptied(root)  # reports without their truth are worth nothing, and the next run wants an empty directory
        if isinstance(error, OSError):
            raise _refused(root, error) from None
        raise
    rows, files = sum(w.rows for w in written), sum(w.files for w in written)
    running.print(
        f"reports: {safe(root)} ({files:,} files, {rows:,} rows)",
        f"truth:   {safe(root / books.FILE_NAME)} ({len(truth.failures)} failures, {len(truth.trends)} trends)",
    )
    return EXIT_OK


def start_of(text: str) -> int:
    """Wall ms of the beginning of a day.

    Raises:
        FleetError: it is none, or one that no report has.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise FleetError(f"--start {safe(text)}: not a date: write it as 2026-10-01") from None
    if not FIRST_DAY <= day <= LAST_DAY:
        raise FleetError(f"--start {text}: give a date from {FIRST_DAY} to {LAST_DAY}: others are in no report")
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000)


def _empty_directory(out: str) -> Path:
    parts = urlsplit(out)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise FleetError(f"--out {safe(out)}: reports are made on this machine: give a directory, and copy them there")
    root = Path(unquote(parts.path) if parts.scheme else out)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise FleetError(f"--out {safe(root)} is not empty: give another, so that two fleets do not become one")
    except OSError as error:
        raise _refused(root, error) from None
    return root


def _emptied(root: Path) -> None:
    """Remove what was written to a directory that was empty before."""
    for stream in STREAMS:
        shutil.rmtree(root / stream, ignore_errors=True)
    with contextlib.suppress(OSError):
        (root / books.FILE_NAME).unlink(missing_ok=True)


def _refused(root: Path, error: OSError) -> FleetError:
    return FleetError(f"cannot write to {safe(root)}: {error.strerror}: give --out another place")


def _all_written(root: Path, order: Order, hours: tuple[int, int] | None, processes: int | None) -> Generator[Written]:
    given = stories(order)
    work: list[Work] = [(root, order, number, given.get(number), hours) for number in range(order.hosts)]
    count = min(processes or os.cpu_count() or 1, order.hosts)
    yield from map(write_host, work) if count == 1 else _shared(work, count)


def _shared(work: list[Work], count: int) -> Generator[Written]:
    """The work in so many processes, every ``count``-th host each. What they wrote, host by host.

    Raises:
        OSError: as it was raised there.
        FleetError: a process was ended by somebody.
    """
    # Not forked: a process that has Java's threads beside it would not survive that.
    spawning = multiprocessing.get_context("spawn")
    pipes = [spawning.Pipe(duplex=False) for _ in range(count)]
    workers = [
        spawning.Process(target=_write_hosts, args=(sender, work[first::count]), daemon=True)
        for first, (_, sender) in enumerate(pipes)
    ]
    try:
        # A Ctrl-C goes to all processes of a terminal: it is this one's business, and the others inherit the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for worker, (_, sender) in zip(workers, pipes, strict=True):
                worker.start()
                sender.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in range(len(work)):
            result = pipes[number % count][0].recv()
            if isinstance(result, OSError):
                raise result
            yield result
    except EOFError:
        raise FleetError("a process that wrote reports was ended (out of memory?): try it again") from None
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()


def _write_hosts(results: Connection, work: list[Work]) -> None:
    """The life of a process that writes reports."""
    with contextlib.suppress(BrokenPipeError):  # nobody waits for them any more
        try:
            for one in work:
                results.send(write_host(one))
        except OSError as error:
            results.send(error)


def _told(running: Running, order: Order, written: Iterator[Written]) -> Iterator[Written]:
    told_ms = begun_ms = running.clock.monotonic_ms()
    for number, host in enumerate(written, 1):
        yield host
        now_ms = running.clock.monotonic_ms()
        if now_ms - told_ms >= TELL_EVERY_MS:
            told_ms = now_ms
            left_s = (now_ms - begun_ms) / number * (order.hosts - number) / 1_000
            running.progress(f"{number} of {order.hosts} hosts, {left_s:.0f} s left")


def write_host(work: Work) -> Written:
    """Write the files of one host. Runs in a process of its own."""
    root, order, number, story, wanted = work
    host = host_plan(order, number, story)
    writer = HourWriter(order, host)
    files = rows = 0
    copies = []
    begins = list(hours_of(order))
    for index, hour_ms in enumerate(begins):
        if wanted is not None and not wanted[0] <= index < wanted[1]:
            continue
        for run in writer.runs(hour_ms):
            for stream, lines in ((SAMPLES, writer.samples(hour_ms, run)), (EVENTS, writer.events(hour_ms, run))):
                if not lines:
                    continue
                name = _write(root, stream, lines, host, run, hour_ms)
                files, rows = files + 1, rows + len(lines)
                if stream == SAMPLES and (number * len(begins) + index) % COPIED_EVERY == COPIED_EVERY // 2:
                    _write(root, stream, lines, host, run, hour_ms, below="uploaded-again")
                    copies.append(name)
    return Written(files, rows, tuple(copies), host)


def _write(root: Path, stream: str, lines: list[str], host: Host, run: Run, hour_ms: int, below: str = "") -> str:
    at_ms = hour_ms + host.offset_ms
    folder = root / partition_path(stream, at_ms) / below
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{base_name(host.name, run.boot_id, at_ms, 0)}.jsonl.gz"
    hidden = folder / f".{name}"
    hidden.write_bytes(gzip.compress(_content(lines), LEVEL, mtime=0))
    ended_s = (hour_ms + HOUR_MS) / 1_000
    os.utime(hidden, (ended_s, ended_s))
    hidden.rename(folder / name)
    return name


def _content(lines: list[str]) -> bytes:
    """The lines, and the trailer that proves them whole."""
    plain = [line.encode() for line in lines]
    trailer = {
        "k": TRAILER_KIND,
        "rows": len(plain),
        "crc32": sum(map(zlib.crc32, plain)) % 2**32,
        "first": json.loads(lines[0])["ts"],
        "last": json.loads(lines[-1])["ts"],
        "partial": False,
    }
    return b"\n".join((*plain, json.dumps(trailer, separators=(",", ":")).encode(), b""))


def _ledger(order: Order, written: list[Written]) -> books.Ledger:
    hosts = [one.host for one in written]
    models = [disk.tenants[0].model.name for host in hosts for disk in host.disks]
    return books.Ledger(
        seed=order.seed,
        hosts=order.hosts,
        days=order.days,
        disks=order.disks,
        every_ms=order.every_ms,
        start_ts=order.start_ms,
        end_ts=order.end_ms,
        acceleration=order.acceleration,
        version=order.version,
        rates=tuple(books.Rate(model=m.name, afr_pct=m.afr_pct, drives=models.count(m.name)) for m in MODELS),
        failures=tuple(
            sorted((f for host in hosts for f in host.failures), key=lambda f: (f.ts, f.spot.host, f.spot.path))
        ),
        trends=tuple(
            sorted((t for host in hosts for t in host.trends), key=lambda t: (t.since_ts, t.spot.host, t.spot.path))
        ),
        lacks=tuple(sorted((lack for host in hosts for lack in host.lacks), key=lambda one: (one.since_ts, one.host))),
        agents=tuple(sorted((a for host in hosts for a in host.agents), key=lambda a: (a.what, a.host))),
        copies=tuple(sorted(name for one in written for name in one.copies)),
    )


def order_of(hosts: int, days: int, seed: int, disks: int, every_s: int, start: str) -> Order:
    """The order that a command line stands for.

    Raises:
        FleetError: a date that is none.
    """
    return Order(hosts, days, seed, disks, every_s * 1_000, start_of(start), __version__)
