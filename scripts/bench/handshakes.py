"""``scripts/bench/handshakes``: what brokers that have logged in feel of strangers whose handshakes never end well."""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from scripts.bench.command_line import positive
from scripts.bench.controller import machine, raise_files_limit
from scripts.bench.controller_cases import cluster_of, percentile
from scripts.bench.controller_client import Wire
from scripts.bench.controller_rig import ControllerRig, LoadProcess, System
from scripts.bench.handshakes_flood import NICE
from scripts.rig.kafka import KafkaKit
from scripts.rig.rig_error import RigError
from scripts.terminal import INTERRUPTED, interrupt, say

P99_MS_MAX: Final = 20.0
GROWTH_MIB_MAX: Final = 32.0
"""Of the memory, from the tenth part of the flood to its end."""
BROKERS: Final = 50
BEAT_INTERVAL_MS: Final = 200.0
"""Ten times as often as brokers do, for the p99 to be one of many."""
IDLE_S: Final = 5.0
VISIT_INTERVAL_S: Final = 0.5
VISIT_TIMEOUT_S: Final = 5.0
_CLOSING_S: Final = 0.1
_FIRST_BROKER: Final = 10_000
_ROOT: Final = Path(__file__).parents[2]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/handshakes",
        description=f"{BROKERS} brokers send heartbeats over TLS after a login, and strangers from many addresses "
        "begin handshakes that end in nothing. Exit code 1 when the brokers' heartbeats have a p99 above "
        f"{P99_MS_MAX:g} ms at kjbod's controller, or its memory grows by more than {GROWTH_MIB_MAX:g} MiB.",
    )
    parser.add_argument("--count", type=positive, default=50_000, metavar="N", help="of handshakes (50000)")
    parser.add_argument("--rate", type=positive, default=5_000, metavar="N", help="a second, at most (5000)")
    parser.add_argument("--at-once", type=positive, default=4_000, metavar="N", help="open ones, at most (4000)")
    parser.add_argument("--kafka-count", type=positive, metavar="N", help="of handshakes at Kafka's (as many)")
    parser.add_argument("--no-kafka", action="store_true", help="kjbod's alone")
    parser.add_argument("--no-kjbod", action="store_true", help="Kafka's alone")
    parser.add_argument("--heap-mib", type=positive, default=1024, metavar="N", help="Kafka's heap (1024, its default)")
    parser.add_argument("--out", type=Path, default=Path("kjbod-bench/handshakes"), help="results and logs")
    return parser.parse_args(argv)


@dataclass(slots=True)
class Result:
    """Figures of one controller."""

    system: System
    count: int
    seconds: float
    idle_p99_ms: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    refused: int
    """Heartbeats that were."""
    memory_before_mib: float
    memory_tenth_mib: float
    memory_end_mib: float
    memory_after_mib: float
    """Some seconds behind the last."""
    cpu_each_us: float
    visits_ms: list[float]
    """Logins of somebody who knows the password meanwhile."""
    visits_failed: int
    ends: dict[str, int]

    @property
    def reached(self) -> bool:
        """Whether brokers have not felt it, nor memory."""
        grown_mib = self.memory_end_mib - self.memory_tenth_mib
        return self.p99_ms <= P99_MS_MAX and not self.refused and grown_mib <= GROWTH_MIB_MAX


async def measure(rig: ControllerRig, options: argparse.Namespace, count: int) -> Result:
    """Start the controller and its brokers, and flood it."""
    async with cluster_of(rig, directories=1):
        load = await LoadProcess.start(rig, _FIRST_BROKER, BROKERS, BEAT_INTERVAL_MS)
        try:
            await asyncio.sleep(1.0)
            load.reset()
            await asyncio.sleep(IDLE_S)
            idle, _ = await load.report()
            load.reset()
            before_mib, cpu_s = rig.memory().rss_mib, rig.cpu_s
            visits: list[float | None] = []
            visiting = asyncio.ensure_future(_visit(rig, visits))
            try:
                found, tenth_mib = await _flood(rig, options, count)
            finally:
                visiting.cancel()
                await asyncio.wait([visiting])
            cpu_s, end_mib = rig.cpu_s - cpu_s, rig.memory().rss_mib
            waits, refused = await load.report()
            await asyncio.sleep(IDLE_S)
            return Result(
                system=rig.system,
                count=count,
                seconds=found["seconds"],
                idle_p99_ms=1000 * percentile(idle, 99),
                p50_ms=1000 * percentile(waits, 50),
                p99_ms=1000 * percentile(waits, 99),
                longest_ms=1000 * max(waits),
                refused=refused,
                memory_before_mib=before_mib,
                memory_tenth_mib=tenth_mib,
                memory_end_mib=end_mib,
                memory_after_mib=rig.memory().rss_mib,
                cpu_each_us=1e6 * cpu_s / count,
                visits_ms=[1000 * took_s for took_s in visits if took_s is not None],
                visits_failed=visits.count(None),
                ends=found["ends"],
            )
        finally:
            await load.close()


async def _flood(rig: ControllerRig, options: argparse.Namespace, count: int) -> tuple[dict[str, Any], float]:
    """Result of the flood, and the memory at a tenth of its time."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scripts.bench.handshakes_flood", str(rig.port), "--count", str(count)),
        *("--rate", str(options.rate), "--at-once", str(options.at_once)),
        cwd=_ROOT,
        stdout=subprocess.PIPE,
    )
    try:
        telling = asyncio.ensure_future(process.communicate())
        await asyncio.wait([telling], timeout=count / options.rate / 10)
        tenth_mib = rig.memory().rss_mib
        told, _ = await telling
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    rig.require_running()
    if process.returncode:
        raise RigError(f"the flood ended with {process.returncode}")
    return json.loads(told), tenth_mib


async def _visit(rig: ControllerRig, visits: list[float | None]) -> None:
    """Log in again and again, until cancelled; seconds of each, None: it did not get in."""
    while True:
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(VISIT_TIMEOUT_S):
                (await Wire.open(rig.port, rig.security)).close()
            visits.append(time.perf_counter() - began_s)
        except (KjbodError, OSError, TimeoutError):
            visits.append(None)
        await asyncio.sleep(VISIT_INTERVAL_S)


def tell(results: Sequence[Result]) -> bool:
    """A table for people; whether all is within reach."""
    for one in results:
        visits = f"{statistics.median(one.visits_ms):.0f} / {max(one.visits_ms):.0f} ms" if one.visits_ms else "-"
        print(
            f"\n{one.system}: {one.count:,} handshakes in {one.seconds:.0f} s, "
            f"{one.count / one.seconds:,.0f} a second\n"
            f"  heartbeats: p50 {one.p50_ms:.1f} ms, p99 {one.p99_ms:.1f} ms, longest {one.longest_ms:.0f} ms, "
            f"refused {one.refused}; without a flood p99 {one.idle_p99_ms:.1f} ms\n"
            f"  RSS: {one.memory_before_mib:.0f} MiB before, {one.memory_tenth_mib:.0f} at a tenth, "
            f"{one.memory_end_mib:.0f} at the end, {one.memory_after_mib:.0f} behind it\n"
            f"  CPU of each: {one.cpu_each_us:.0f} µs\n"
            f"  logins of others meanwhile: {len(one.visits_ms)}, median / longest {visits}; "
            f"{one.visits_failed} did not get in"
        )
        for end, number in sorted(one.ends.items()):
            print(f"    {end:<26}{number:>10,}")
    ours = [one for one in results if one.system == "kjbod"]
    print(f"\nreach: p99 up to {P99_MS_MAX:g} ms, memory within {GROWTH_MIB_MAX:g} MiB; the flood is at nice {NICE}")
    return all(one.reached for one in ours)


def main() -> int:
    """The exit code: 1 when something is out of reach, or could not be measured."""
    options = arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        kit = None if options.no_kafka else KafkaKit.find()
        signal.signal(signal.SIGTERM, interrupt)
        raise_files_limit()
        options.out.mkdir(parents=True, exist_ok=True)
        left_out = {"Kafka": kit is None, "kjbod": options.no_kjbod}
        results = [_of(system, options, kit) for system in get_args(System)[::-1] if not left_out[system]]
        (options.out / "handshakes.json").write_text(
            json.dumps([dataclasses.asdict(one) for one in results], indent=1), encoding="utf-8"
        )
        print(machine(kit))
        reached = tell(results)
    except KeyboardInterrupt:
        say("interrupted; everything was taken away")
        return INTERRUPTED
    except (KjbodError, OSError) as error:
        print(f"scripts/bench/handshakes: {str(error).splitlines()[0]}", file=sys.stderr)
        return EXIT_FAILURE
    return 0 if reached else EXIT_FAILURE


def _of(system: System, options: argparse.Namespace, kit: KafkaKit | None) -> Result:
    count = options.kafka_count or options.count if system == "Kafka" else options.count
    say(f"{system}: {count:,} handshakes")
    with (
        tempfile.TemporaryDirectory(prefix="kjbod-handshakes-") as work,
        ControllerRig(
            Path(work),
            options.out / "logs" / system.lower(),
            system,
            kit=kit,
            rules="kip-858",
            heap_mib=options.heap_mib,
            protocol="SASL_SSL",
        ) as rig,
    ):
        return asyncio.run(_whole(rig, options, count))


async def _whole(rig: ControllerRig, options: argparse.Namespace, count: int) -> Result:
    """Measure, and let the event loop close what was left."""
    result = await measure(rig, options, count)
    await asyncio.sleep(_CLOSING_S)
    return result


if __name__ == "__main__":
    sys.exit(main())
