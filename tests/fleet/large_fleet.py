"""Report files of a large fleet, drawn from a seed, with the troubles that one finds in it.

``python -m tests.fleet.large_fleet DIRECTORY [BROKERS] [DISKS]`` writes them, to look at the page that is made of them.
"""

import gzip
import random
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from kjbod.fleet.report_names import base_name, partition_path
from kjbod.fleet.schema import EVENTS, SAMPLES, DirectoryState, Event, EventKind, Sample
from kjbod_host.files.report_files import finished_content

T0_MS = 1_793_534_400_000  # 2026-11-01 12:00 UTC
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DAYS = 9
EVERY_MS = 6 * HOUR_MS
TIB = 1 << 40
CLUSTERS = ("4L6g3nShT-eMCtK--X86sw", "kq7vXv2BRmSbWl0jmV9ZrA")


@dataclass(frozen=True)
class Truth:
    """What is wrong in the fleet, by (host, broker) and path."""

    silent: tuple[tuple[str, int], ...]
    """Agents that were last heard on the first day."""
    stopped: tuple[tuple[str, int], ...]
    dead: tuple[tuple[str, int, str], ...]
    """Directories that failed."""
    odd: tuple[tuple[str, int, str, str], ...]
    """Directories in another state, and that state."""


def write_fleet(root: Path, brokers: int, disks: int, *, dead: int = 11, seed: int = 858, days: int = DAYS) -> Truth:
    """Write the reports; ``dead`` disks fail, one agent falls silent and one stops."""
    rng = random.Random(seed)
    agents = [(f"kafka-{number:03d}.{rng.choice('abc')}.example.org", number) for number in range(1, brokers + 1)]
    silent, stopped, *others = rng.sample(agents, brokers)
    paths = [f"/disks/d{number:02d}" for number in range(1, disks + 1)]
    places = rng.sample([(*agent, path) for agent in others for path in paths], dead + 4)
    states = (DirectoryState.SLOW, DirectoryState.SUSPECT, DirectoryState.HELD, DirectoryState.FULL)
    truth = Truth(
        silent=(silent,),
        stopped=(stopped,),
        dead=tuple(sorted(places[:dead])),
        odd=tuple((*place, str(state)) for place, state in zip(places[dead:], states, strict=True)),
    )
    for agent in agents:
        _write_agent(root, agent, paths, truth, random.Random(f"{seed}/{agent}"), days)
    return truth


def _write_agent(
    root: Path, agent: tuple[str, int], paths: list[str], truth: Truth, rng: random.Random, days: int
) -> None:
    host, broker = agent
    boot = f"run{broker:05d}-{rng.randrange(1 << 32):08x}"
    fleet = CLUSTERS[broker % 5 == 0]
    known = {"host": host, "broker_id": broker, "boot_id": boot, "fleet": fleet}
    end_ms = DAY_MS if agent in truth.silent else days * DAY_MS
    lines: dict[str, list[str]] = {SAMPLES: [], EVENTS: []}

    def happened(at_ms: float, kind: EventKind, **more: object) -> None:
        event = Event(ts=int(T0_MS + at_ms), mono_ns=int(at_ms * 1e6), kind=str(kind), **known, **more)  # type: ignore[arg-type]
        lines[EVENTS].append(event.to_json_line())

    for number, kind in enumerate((EventKind.AGENT_STARTED, EventKind.REGISTERED, EventKind.UNFENCED)):
        happened(200 * number, kind)
    failing = {path: rng.uniform(1, days - 0.5) * DAY_MS for path in paths if (*agent, path) in truth.dead}
    for path, at_ms in sorted(failing.items(), key=lambda item: item[1]):
        identity = _identity(agent, path)
        text = f"{path} failed: EIO at fsync of .kjbod_probe after 4.2 ms; device {identity['device']}"
        attrs = {"cause": "error", "evidence": text, "errno": "EIO", "call": "fsync", "latency_ms": "1200"}
        for after_ms, kind in (
            *((0, EventKind.DIR_FAILED), (2, EventKind.OFFLINE_SENT), (rng.uniform(8, 60), EventKind.ACKNOWLEDGED)),
        ):
            happened(at_ms + after_ms, kind, path=path, **identity, attrs=attrs if not after_ms else {})
    if agent in truth.stopped:
        happened(days * DAY_MS - HOUR_MS, EventKind.AGENT_STOPPED, attrs={"reason": "SIGTERM", "exit_code": "0"})
        end_ms -= HOUR_MS
    odd = {path: state for host_, broker_, path, state in truth.odd if (host_, broker_) == agent}
    for path in paths:
        total, used = rng.choice((4, 8, 16)) * TIB, rng.uniform(0.6, 0.8)
        growth = rng.uniform(0.015, 0.035) if rng.random() < 0.1 else rng.uniform(-0.001, 0.004)
        leaders = rng.randrange(20, 200)
        for seq, at_ms in enumerate(range(1_000, end_ms, EVERY_MS)):
            failed = at_ms >= failing.get(path, days * DAY_MS)
            state = DirectoryState.FAILED if failed else odd.get(path, DirectoryState.ONLINE)
            sample = Sample(
                ts=T0_MS + at_ms,
                mono_ns=at_ms * 1_000_000,
                seq=seq,
                rack=f"r{broker % 20:02d}",
                path=path,
                model="ST16000NM001G",
                state=str(state),
                bytes_total=total,
                bytes_used=int(total * (used + growth * (at_ms / DAY_MS - days))),
                partitions=3 * leaders,
                leaders=0 if failed else leaders,
                **known,  # type: ignore[arg-type]
                **_identity(agent, path),  # type: ignore[arg-type]
            )
            lines[SAMPLES].append(sample.to_json_line())
    for stream, written in lines.items():
        _write_file(root, stream, written, host, boot)


def _identity(agent: tuple[str, int], path: str) -> dict[str, str]:
    number = int(path[-2:])
    serial = uuid.uuid5(uuid.NAMESPACE_OID, f"{agent}{path}").hex
    return {"dir_id": serial[:22], "device": f"sd{chr(97 + number)}", "serial": f"ZL2{serial[:5].upper()}"}


def _write_file(root: Path, stream: str, lines: list[str], host: str, boot: str) -> None:
    path = root / partition_path(stream, T0_MS) / f"{base_name(host, boot, T0_MS, 0)}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = b"".join(line.encode() + b"\n" for line in lines)
    path.write_bytes(gzip.compress(finished_content(plain, recovered=False), compresslevel=1, mtime=0))


if __name__ == "__main__":
    sizes = [int(text) for text in sys.argv[2:]] or [500, 12]
    sys.stdout.write(f"{write_fleet(Path(sys.argv[1]), *sizes)}\n")
