"""``kjbod cluster health``: one verdict for a whole cluster, as ``ceph -s`` gives it.

Exit codes are those of ``kjbod status --check``: 0 OK, 1 DEGRADED, 2 CRITICAL, 3 UNKNOWN (nobody could be asked).
"""

import asyncio
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

from kjbod.clock import SystemClock
from kjbod.cluster import asking, health
from kjbod.cluster.asking import Members
from kjbod.cluster.health import Level, Reading
from kjbod.cluster.log_dirs import BrokerDirs, Known, Node
from kjbod.error_lines import in_one_line
from kjbod.errors import KjbodError
from kjbod.metadata.fetching import Address
from kjbod.output import Printer, colours, safe, width
from kjbod.printable import printable
from kjbod.security.channel import Security
from kjbod.wire.client import Connection

EXIT_UNKNOWN: Final = 3
BROKER_TIMEOUT_S: Final = 5.0
"""For the log directories of all brokers; a broker that is later did not answer."""
GUARD_TIMEOUT_S: Final = 2.0
GUARDS_MAX: Final = 64
"""Guards that are asked at a time."""
METRICS_BYTES_MAX: Final = 8 * 1024 * 1024
_COLOURS: Final = {Level.OK: "\x1b[1;32m", Level.DEGRADED: "\x1b[1;33m", Level.CRITICAL: "\x1b[1;31m"}
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Guards are asked without the proxy that leads out of the site."""
_CLEAR: Final = "\x1b[H\x1b[2J"

Survey = Callable[[], tuple[str, Known, Sequence[BrokerDirs]]]


def show(survey: Survey, port: int | None, *, as_json: bool, interval_s: float | None) -> int:
    """Print the verdict, once or again and again; gives the exit code of the last one.

    Args:
        survey: asks the cluster: its id, its partitions, its brokers.
        port: of the guards' metrics on the brokers' hosts; None: guards are not asked.
        as_json: for machines.
        interval_s: between two verdicts; None: there is one.
    """
    out = Printer()
    while True:
        code, lines = _look(survey, port, out, as_json=as_json)
        if interval_s is None or as_json:
            out(*lines)
            if interval_s is None:
                return code
        else:
            out(f"{_CLEAR if colours() else ''}{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}", *lines)
        time.sleep(interval_s)


def _look(survey: Survey, port: int | None, out: Printer, *, as_json: bool) -> tuple[int, list[str]]:
    try:
        cluster_id, known, brokers = survey()
    except KjbodError as error:
        text = f"UNKNOWN: {safe(in_one_line(error))}"
        if as_json:
            out.json({"level": "UNKNOWN", "code": EXIT_UNKNOWN, "text": text, "problems": []})
            return EXIT_UNKNOWN, []
        return EXIT_UNKNOWN, [text]
    guards = None if port is None else ask_guards([one.node for one in brokers], port)
    found = health.health(known, brokers, guards)
    if as_json:
        out.json(health.as_document(cluster_id, found, guards))
        return int(found.level), []
    return int(found.level), health.lines(found, width(), _COLOURS if colours() else None)


def ask_guards(nodes: Sequence[Node], port: int) -> Mapping[int, Reading | str]:
    """Return the metrics of the guard on the host of each broker, or the reason why there are none."""
    with ThreadPoolExecutor(GUARDS_MAX) as pool:
        hosts = list(dict.fromkeys(node.host for node in nodes))
        told = dict(zip(hosts, pool.map(lambda host: ask_guard(host, port), hosts), strict=True))
    return {node.id: told[node.host] for node in nodes}


def ask_guard(host: str, port: int) -> Reading | str:
    """Return the metrics of a guard, or the reason why there are none."""
    where = f"[{host}]" if ":" in host else host
    try:
        with _DIRECT.open(f"http://{where}:{port}/metrics", timeout=GUARD_TIMEOUT_S) as answer:
            return health.reading(_content(answer).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return printable(getattr(error.reason, "strerror", None) or str(error.reason), 80)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return printable(str(error) or type(error).__name__, 80)


def _content(answer: http.client.HTTPResponse) -> bytes:
    """The body. One that comes in drops does not hold the command.

    Raises:
        ValueError: it takes too long, or is too large.
    """
    clock = SystemClock()
    ends_ms = clock.monotonic_ms() + round(GUARD_TIMEOUT_S * 1000)
    found = b""
    while piece := answer.read1(65_536):
        found += piece
        if len(found) > METRICS_BYTES_MAX or clock.monotonic_ms() > ends_ms:
            raise ValueError(f"no whole answer within {GUARD_TIMEOUT_S:.0f} s")
    return found


def survey_of(
    servers: Sequence[Address],
    security: Security,
    known: Callable[[Connection, Members], Awaitable[Known]],
) -> Survey:
    """Return the questions to a cluster by its brokers.

    Args:
        servers: of the cluster.
        security: of the connections.
        known: gets the partitions by a connection.
    """

    async def ask() -> tuple[str, Known, Sequence[BrokerDirs]]:
        async with asking.first(servers, security) as (connection, members):
            partitions = await known(connection, members)
        brokers = await asking.log_dirs(members.nodes, security, partitions, replicas=False, timeout_s=BROKER_TIMEOUT_S)
        return members.cluster_id, partitions, brokers

    return lambda: asyncio.run(ask())
