"""A process full of simulated brokers that send heartbeats: ``python -m scripts.bench.controller_load --help``.

Each has a connection of its own and waits the interval after each answer, as brokers do. It reads commands, one to a
line: ``offset N`` (the metadata offset that the heartbeats name), ``reset``, ``report`` (answered with a line of JSON),
``log-in N`` (so many connections more, which are closed when all have logged in; answered with a line of JSON); at the
end of its input it ends.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from kjbod.errors import KjbodError
from kjbod.runtime.loop import run
from kjbod.security.channel import Security
from kjbod.security.opening import client_security
from kjbod.wire.frames import decode_response, encode_request
from kjbod.wire.messages import API, ApiKey, BrokerHeartbeatResponse
from scripts.bench.controller_client import SimulatedBroker, Wire, directories_of
from scripts.rig.rig_error import RigError

_JOIN_AT_ONCE = 32


@dataclass(slots=True)
class Load:
    """The brokers, and what their heartbeats took since the last reset."""

    interval_s: float
    offset: int = 0
    seconds: list[float] = field(default_factory=list)
    waiting: dict[int, float] = field(default_factory=dict)
    """Since when a broker waits for its answer."""
    failures: int = 0

    async def beat(self, broker: SimulatedBroker, first_after_s: float) -> None:
        """Until cancelled."""
        await asyncio.sleep(first_after_s)
        version = API[ApiKey.BROKER_HEARTBEAT].max_version
        correlation_id = 0
        while True:
            correlation_id += 1
            data = encode_request(broker.heartbeat(self.offset), version, correlation_id, "kjbod-bench")
            self.waiting[broker.broker_id] = began_s = time.perf_counter()
            try:
                frame, at_s = await broker.wire.send(data)
            except RigError:
                self.failures += 1
                self.waiting.pop(broker.broker_id, None)
                return
            self.waiting.pop(broker.broker_id, None)
            answer = decode_response(frame, ApiKey.BROKER_HEARTBEAT, version).message
            assert isinstance(answer, BrokerHeartbeatResponse)
            self.failures += bool(answer.error_code or answer.is_fenced)
            self.seconds.append(at_s - began_s)
            await asyncio.sleep(self.interval_s)

    def reset(self) -> None:
        self.seconds.clear()
        self.failures = 0
        now_s = time.perf_counter()
        self.waiting = dict.fromkeys(self.waiting, now_s)

    def report(self) -> dict[str, object]:
        """Report the latencies; what still waits counts with what it has waited."""
        now_s = time.perf_counter()
        unanswered = [now_s - since_s for since_s in self.waiting.values()]
        return {"seconds": self.seconds, "unanswered": unanswered, "failures": self.failures}


async def _log_in(options: argparse.Namespace, security: Security, count: int) -> float:
    """Seconds until so many more had logged in."""
    turns = asyncio.Semaphore(_JOIN_AT_ONCE)

    async def log_in() -> Wire:
        async with turns:
            return await Wire.open(options.port, security)

    began_s = time.perf_counter()
    wires = await asyncio.gather(*(log_in() for _ in range(count)))
    lasted_s = time.perf_counter() - began_s
    for wire in wires:
        wire.close()
    return lasted_s


async def _join(load: Load, options: argparse.Namespace, security: Security) -> list[SimulatedBroker]:
    turns = asyncio.Semaphore(_JOIN_AT_ONCE)

    async def join(broker_id: int) -> SimulatedBroker:
        async with turns:
            wire = await Wire.open(options.port, security)
            broker = SimulatedBroker(broker_id, wire, directories_of(broker_id, options.directories))
            await broker.join(options.cluster_id)
            load.offset = max(load.offset, broker.epoch)
            return broker

    return await asyncio.gather(*(join(options.first + number) for number in range(options.brokers)))


async def _serve(options: argparse.Namespace) -> int:
    load = Load(options.interval_ms / 1000)
    security = client_security(options.command_config)
    brokers = await _join(load, options, security)
    rng = random.Random(options.first)
    gc.collect()
    gc.freeze()
    gc.disable()
    beating = [asyncio.ensure_future(load.beat(broker, rng.random() * load.interval_s)) for broker in brokers]
    print(json.dumps({"ready": len(brokers)}), flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        match line.decode().split():
            case ["offset", number]:
                load.offset = max(load.offset, int(number))
            case ["reset"]:
                load.reset()
            case ["report"]:
                print(json.dumps(load.report()), flush=True)
            case ["log-in", number]:
                print(json.dumps({"seconds": await _log_in(options, security, int(number))}), flush=True)
    for task in beating:
        task.cancel()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.controller_load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("cluster_id")
    parser.add_argument("--first", type=int, required=True, help="id of the first broker")
    parser.add_argument("--brokers", type=int, required=True)
    parser.add_argument("--directories", type=int, default=3)
    parser.add_argument("--interval-ms", type=float, default=2000.0)
    parser.add_argument("--command-config", type=Path, help="how to log in, as Kafka's tools take it")
    options = parser.parse_args()
    try:
        return run(lambda: _serve(options))
    except (KjbodError, OSError) as error:
        print(f"controller_load: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
