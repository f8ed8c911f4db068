"""A real controller of Kafka 4.4.0 is the judge: the same requests to it and to ours under Kafka's rules give the same
answers and the same records.

Every row of the acceptance table that reaches a controller, upgrades, sessions that expire, and a few random stories.
The deep form tells many more of them, also at other levels, and others in which brokers fall silent. Each failure names
its seed.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import RegisterBrokerRecord
from kjbod.wire.messages import BrokerRegistrationRequestFeature, CreateTopicsRequest, CreateTopicsRequestTopic
from kjbod_controller_stub.server import ControllerServer
from scripts.rig.kafka import KafkaKit, controller_properties
from scripts.rig.processes import Processes, free_port
from tests.controller.pair import Act, Difference, Drawn, MakeRequest, Pair, RealFailedError, Side, Silence, View
from tests.controller.random_requests import (
    Part,
    RandomRequests,
    Step,
    alter_isr,
    assign,
    beat,
    cleaning,
    configure,
    create,
    delete,
    delete_by_id,
    dirs_of,
    elect,
    grow,
    list_reassignments,
    producer_ids,
    quota,
    reassign,
    register,
    scram,
    unregister,
    unscram,
    update,
)
from tests.controller.sessions import LateError, Sessions
from tests.controller.world import FEATURES, directory
from tests.depth import at, only_deep, seeds

CLUSTER_ID = "kjbodDifferential0AAAA"
NODE_ID = 3000
STORIES = at(quick=1, ci=6, deep=200)
LONG = only_deep("long")
BROKERS_FENCED = 9
"""In each chapter in which sessions expire."""
FAILURES_MAX = 5
"""So often a real controller may fail in the chapters that are always the same."""
STEPS = 80
LEVELS = (33, 32, 30, 25, 17, 16, 7)
QUIET_MS = 3_600_000
"""A session so long that time plays no part."""
SESSION_MS = 1_000
SESSION_MS_MAX = 16_000
"""Where the machine is too slow, the session is doubled, up to here."""
STEPS_PER_ROUND = 6
"""After so many steps all brokers that are not silent are heard."""
HUSH_STEPS = 2
MV = versions.METADATA_VERSION
NOWHERE = str(UNASSIGNED)


@contextlib.asynccontextmanager
async def both(
    kit: KafkaKit,
    processes: Processes,
    directory: Path,
    *,
    level: int = 30,
    session_ms: int = QUIET_MS,
    extra: str = "",
) -> AsyncIterator[Pair]:
    """Both controllers, formatted alike, with nothing that happens by itself."""
    common = (
        f"broker.session.timeout.ms={session_ms}\n"
        "metadata.max.idle.interval.ms=0\n"
        "auto.leader.rebalance.enable=false\n"
        "controller.quorum.append.linger.ms=0\n"
    ) + extra
    configs = []
    await asyncio.to_thread(directory.mkdir, exist_ok=True)
    for name, own in (("real", ""), ("ours", "kjbod.controller.rules=kafka\n")):
        config = directory / f"{name}.properties"
        config.write_text(controller_properties(NODE_ID, free_port(), directory / name) + common + own)
        configs.append(config)
    how = (CLUSTER_ID, "--standalone", "--feature", f"{MV}={level}")
    await asyncio.gather(*(asyncio.to_thread(kit.format, config, *how) for config in configs))
    await asyncio.to_thread(kit.start_server, processes, configs[0], name=f"real-{directory.name}")
    server = await ControllerServer.start(load_config(configs[1]), clock=SystemClock(), rng=random.Random(5))
    running = asyncio.create_task(server.run())
    try:
        port = load_config(configs[0]).listeners[0].port
        session_s = session_ms / 1000
        pair = Pair(
            await Side.open("real", port, session_s),
            await Side.open("ours", server.port, session_s),
            timed=session_ms < QUIET_MS,
        )
        try:
            yield pair
        finally:
            for side in (pair.real, pair.ours):
                await side.connection.close()
    finally:
        await server.close()
        await running


async def tell(pair: Pair, parts: Sequence[Part]) -> list[Difference]:
    """All differences of a story that goes on after them. What begins just before a silence is still so in it."""
    found = []
    for number, (name, act) in enumerate(parts):
        hush = any(isinstance(later, Silence) for _, later in parts[number + 1 : number + 1 + HUSH_STEPS])
        if difference := await next_step(pair, number, name, act, hush=hush):
            found.append(difference)
    return found


async def next_step(pair: Pair, number: int, name: str, act: Act, *, hush: bool = False) -> Difference | None:
    """A step, and where sessions are short a round of heartbeats after some; not in a ``hush``."""
    difference = await pair.step(name, act)
    if difference is None and pair.timed and number % STEPS_PER_ROUND == 0 and not hush:
        return await pair.keep_alive(name)
    return difference


@dataclass(slots=True)
class Told:
    """How it went."""

    stories: int = 0
    asked: int = 0
    found: list[Difference] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Requests at which the real controller failed."""
    silences: int = 0
    fenced: int = 0
    late: int = 0
    """Begun anew with longer sessions, because the machine was too slow."""
    features: dict[str, int] = field(default_factory=dict)
    """As they are at the end."""

    def report(self) -> str:
        """The differences, for a person."""
        return "\n\n".join([self.summary(), *self.failures, *(difference.describe() for difference in self.found[:20])])

    def summary(self) -> str:
        return (
            f"{self.stories} stories, {self.asked} requests compared, {len(self.found)} differences, "
            f"{len(self.failures)} failures of the real controller, {self.silences} silences, {self.fenced} brokers "
            f"fenced by them, {self.late} too slow"
        )


async def random_stories(
    kit: KafkaKit,
    processes: Processes,
    directory: Path,
    seeds: Iterable[int],
    *,
    level: int = 30,
    chapters: Sequence[Callable[[], Sequence[Part]]] = (),
    session_ms: int = QUIET_MS,
) -> Told:
    """Many stories, then ``chapters``, which may raise the level; with new controllers after each failure of the real
    one, and where the machine was too slow for the sessions."""
    told = Told()
    left = deque(seeds)
    pages = deque(chapters)
    beginnings, failures_left = 0, FAILURES_MAX
    while left or pages:
        where = directory / f"stories-{level}-{beginnings}"
        beginnings += 1
        async with both(kit, processes, where, level=level, session_ms=session_ms) as pair:
            try:
                await _go_on(pair, told, left, pages)
            except RealFailedError as failure:
                told.failures.append(str(failure))
                if left:
                    told.stories += 1
                    left.popleft()
                elif failures_left == 0:
                    raise
                else:
                    failures_left -= 1
            except LateError:
                if session_ms >= SESSION_MS_MAX:
                    raise
                told.late += 1
                session_ms *= 2
            finally:
                told.asked += pair.asked
                told.silences += pair.silences
                told.fenced += pair.fenced
    return told


async def random_story(pair: Pair, seed: int, told: Told) -> None:
    """Tell a random story up to its first difference. What it leaves is taken away, so that the next one begins
    anew."""
    requests = RandomRequests(
        random.Random(seed), CLUSTER_ID, lambda: pair.real.view, first_broker=10 * seed + 101, silences=pair.timed
    )
    parts: Sequence[Part] = requests.opening()
    for number in range(STEPS):
        name, act = parts[number] if number < len(parts) else requests.next()
        difference = await next_step(pair, number, f"seed {seed}, step {number}, {name}", act)
        if difference is not None:
            told.found.append(difference)
            break
    await pair.clean(cleaning)


async def _go_on(pair: Pair, told: Told, left: deque[int], pages: deque[Callable[[], Sequence[Part]]]) -> None:
    """Tell the stories and chapters that are left, and strike off what was told to its end."""
    while left:
        await random_story(pair, left[0], told)
        told.stories += 1
        left.popleft()
    while pages:
        chapter = pages[0]
        told.found += await tell(pair, [(f"{chapter.__name__}: {name}", act) for name, act in chapter()])
        await pair.clean(cleaning)
        pages.popleft()
    told.features = dict(pair.real.view.image.features)


# ---------------------------------------------------------------- the acceptance table


def registrations() -> list[Step]:
    """CT-1, CT-4, CT-5, CT-7, CT-8; real-kafka.md 6.2, without what ends a real controller's term."""

    def join(name: str, broker_id: int, number: int = 0, **fields: object) -> Step:
        return (name, register(broker_id, **{"cluster": CLUSTER_ID, "number": number, **fields}))  # type: ignore[arg-type]

    old = BrokerRegistrationRequestFeature(name=MV, min_supported_version=7, max_supported_version=29)
    new = BrokerRegistrationRequestFeature(name=MV, min_supported_version=31, max_supported_version=40)
    wide = BrokerRegistrationRequestFeature(name=MV, min_supported_version=1, max_supported_version=99)
    odd = BrokerRegistrationRequestFeature(name="group.version", min_supported_version=2, max_supported_version=1)
    more = BrokerRegistrationRequestFeature(name="no.such.feature", min_supported_version=1, max_supported_version=3)
    rest = FEATURES[1:]
    without_group = tuple(feature for feature in rest if feature.name != "group.version")
    return [
        join("first", 1),
        join("same again", 1),
        join("another cluster", 2, cluster_id="another"),
        join("no directories", 2, log_dirs=()),
        *(join(f"reserved {least}", 2, log_dirs=(Uuid.of(0, least),)) for least in (0, 1, 2, 99)),
        join("the first that is not reserved", 2, log_dirs=(Uuid.of(0, 100),)),
        join("twice", 3, log_dirs=(directory(3, 0), directory(3, 0))),
        join("another broker's", 3, log_dirs=(directory(1, 0), directory(3, 0))),
        join("migrating", 3, is_migrating_zk_broker=True),
        join("no features", 3, features=()),
        join("no metadata.version", 3, features=rest),
        join("too old", 3, features=(old, *rest)),
        join("too new", 3, features=(new, *rest)),
        join("an odd range", 3, features=(FEATURES[0], odd, *without_group)),
        *(
            join(f"without {feature.name}", 3, features=tuple(each for each in FEATURES if each != feature))
            for feature in rest
        ),
        join("a wide range and more", 3, features=(wide, more, *rest)),
        join("no listeners", 4, listeners=()),
        join("id below zero", -1),
        join("incarnation zero", 5, incarnation_id=Uuid.of(0, 0)),
        join("unsorted", 5, number=1, log_dirs=tuple(reversed(dirs_of(5)))),
        join("fenced, another incarnation", 5, number=2),
        ("unfence 5", beat(5)),
        join("alive, another incarnation", 5, number=3),
        join("alive, the same again", 5, number=2),
        join("alive, other directories", 5, number=2, log_dirs=dirs_of(5)[:2]),
        ("unregister 5", unregister(5)),
        ("unregister 5 again", unregister(5)),
        ("heartbeat of nobody", beat(5)),
        join("the same incarnation after it", 5, number=2),
        join("its directory elsewhere", 4, number=1, log_dirs=(directory(5, 0),)),
    ]


def lifecycle() -> list[Step]:
    """CT-9, CT-12, CT-13, LC-4, LC-5; real-kafka.md 6.3."""
    d0, d1, d2 = dirs_of(1)
    steps: list[Step] = []
    for broker_id in (1, 2, 3):
        steps += [
            (f"register {broker_id}", register(broker_id, CLUSTER_ID)),
            (f"behind {broker_id}", beat(broker_id, behind=True)),
            (f"wants to stay fenced {broker_id}", beat(broker_id, want_fence=True)),
            (f"unfence {broker_id}", beat(broker_id, cordoned_log_dirs=())),
        ]
    steps += [
        ("topic", create("t", [(1, 2), (2, 1), (1,), (3, 1, 2)])),
        ("place 1", assign(1, (d0, "t", [0]), (d1, "t", [1]), (d2, "t", [2, 3]))),
        ("place 2", assign(2, (directory(2, 0), "t", [0, 1, 3]))),
        ("epoch before", beat(1, epoch=-1)),
        ("epoch after", beat(1, epoch=1)),
        ("fence", beat(1, want_fence=True)),
        ("unfence", beat(1)),
        ("in the ISR again", alter_isr("t", 0, (1, 2))),
        *(
            (f"offline {where}", beat(1, offline_log_dirs=(where,)))
            for where in (Uuid.of(4, 4), directory(2, 0), LOST, UNASSIGNED, MIGRATING)
        ),
        ("offline d0", beat(1, offline_log_dirs=(d0,))),
        ("offline d0 again", beat(1, offline_log_dirs=(d0,))),
        ("offline none", beat(1)),
        ("offline d0 and d1", beat(1, offline_log_dirs=(d0, d1, d1))),
        ("offline all", beat(1, offline_log_dirs=(d0, d1, d2))),
        ("offline all again", beat(1, offline_log_dirs=(d0, d1, d2))),
        ("fence with a report", beat(2, want_fence=True, offline_log_dirs=(directory(2, 0),))),
        ("unfence 2", beat(2)),
        ("registers again", register(1, CLUSTER_ID)),
        ("shut down, leads", beat(3, want_shut_down=True)),
        ("others have seen it, 1", beat(1)),
        ("others have seen it, 2", beat(2)),
        ("shut down, granted", beat(3, want_shut_down=True)),
        ("shut down, again", beat(3, want_shut_down=True)),
        ("taken back", beat(3)),
        ("fence and shut down", beat(3, want_fence=True, want_shut_down=True)),
    ]
    return steps


def assignments() -> list[Step]:
    """CT-11, RP and AM rows as the controller sees them; real-kafka.md 6.4."""
    d0, d1, d2 = dirs_of(1)
    return [
        *joined(1, 2, 4),
        ("topic", create("t", [(1, 2), (1, 2), (2, 1), (1, 4), (4,), (1,), (1, 2)])),
        ("unknown topic", assign(1, (d0, "none", [0]))),
        ("unknown partition", assign(1, (d0, "t", [77, -1]))),
        ("not a replica", assign(1, (d0, "t", [4]))),
        ("stale epoch", assign(1, (d0, "t", [0]), epoch=1)),
        ("not registered", assign(5, (d0, "t", [0]))),
        ("nothing", assign(1)),
        ("a directory without partitions", assign(1, (d0, "t", []))),
        ("good, two directories", assign(1, (d0, "t", [0, 1]), (d1, "t", [2, 3]))),
        ("the same again", assign(1, (d0, "t", [0, 1]), (d1, "t", [2, 3]))),
        ("one partition under two", assign(1, (d0, "t", [5]), (d1, "t", [5]))),
        ("unknown directory", assign(1, (Uuid.of(4, 4), "t", [0]))),
        ("back to a good one", assign(1, (d0, "t", [0]))),
        ("another broker's", assign(1, (directory(2, 0), "t", [1]))),
        ("lost", assign(1, (LOST, "t", [6]))),
        ("unassigned", assign(1, (UNASSIGNED, "t", [3]))),
        ("migrating", assign(1, (MIGRATING, "t", [3]))),
        ("reserved", assign(1, (Uuid.of(0, 50), "t", [0]))),
        ("single directory to another", assign(4, (Uuid.of(4, 5), "t", [4]))),
        ("d2 fails", beat(1, offline_log_dirs=(d2,))),
        ("a failed one", assign(1, (d2, "t", [2]))),
        ("fenced", beat(2, want_fence=True)),
        ("by a fenced broker", assign(2, (directory(2, 1), "t", [0]))),
        ("unfenced", beat(2)),
        ("into the ISR in an offline directory", alter_isr("t", 2, (2, 1))),
        ("leaderless to a good one", assign(4, (directory(4, 0), "t", [4]))),
        ("unregister", unregister(1)),
    ]


def reassignments() -> list[Step]:
    """CT-14, CT-18, CT-19, CT-20."""
    return [
        *joined(1, 2, 3, 4),
        ("topic", create("t", [(2, 1, 3), (1, 2), (1,)])),
        ("place", assign(1, (directory(1, 1), "t", [0, 1, 2]))),
        ("place", assign(2, (directory(2, 1), "t", [0, 1]))),
        ("place", assign(3, (directory(3, 1), "t", [0]))),
        ("list none", list_reassignments()),
        ("nothing to cancel", reassign("t", 0, None)),
        ("unknown topic", reassign("none", 0, (1,))),
        ("unknown partition", reassign("t", 9, (1,))),
        ("twice the same broker", reassign("t", 0, (1, 1))),
        ("no brokers", reassign("t", 0, ())),
        ("unknown broker", reassign("t", 0, (1, 88))),
        ("another factor", reassign("t", 0, (1,), factor=False)),
        ("another order", reassign("t", 0, (3, 2, 1))),
        ("to others", reassign("t", 0, (3, 1, 4))),
        ("list one", list_reassignments()),
        ("the newcomer is in sync", alter_isr("t", 0, (1, 2, 3, 4))),
        ("away", reassign("t", 1, (3, 4))),
        ("half", alter_isr("t", 1, (1, 2, 3))),
        ("changed", reassign("t", 1, (3, 1))),
        ("all", alter_isr("t", 1, (1, 2, 3))),
        ("cancelled", reassign("t", 2, (2, 3))),
        ("cancelled", reassign("t", 2, None)),
        ("fenced into the ISR", beat(4, want_fence=True)),
        ("fenced into the ISR", alter_isr("t", 0, (1, 3, 4))),
        ("prefer", elect(0, ("t", [0, 1, 2]))),
        ("prefer again", elect(0, ("t", [0]))),
        ("unclean", elect(1, ("t", [0, 9]), ("none", [0]))),
        ("all", elect(0)),
    ]


def topics() -> list[Step]:
    """Topics and their configurations, with the replicas given."""
    return [
        *joined(1, 2, 3),
        ("create", create("t", [(1, 2), (2, 3)], min_insync_replicas="2")),
        ("create again", create("t", [(1,)])),
        ("unequal", create("u", [(1, 2), (2,)])),
        ("twice", create("u", [(1, 1)])),
        ("unknown broker", create("u", [(88,)])),
        *((f"named {name!r}", create(name, [(1,)])) for name in ("", ".", "..", "x" * 250, "a b", "x" * 249)),
        ("with a dot", create("a.b", [(1,)])),
        ("which collides", create("a_b", [(1,)])),
        ("no such configuration", create("u", [(1,)], no_such="1")),
        ("a bad value", create("u", [(1,)], retention_ms="soon")),
        ("grow", grow("t", 4, [(3, 1), (1, 2)])),
        ("grow to less", grow("t", 1, [])),
        ("grow to the same", grow("t", 4, [])),
        ("grow by another factor", grow("t", 5, [(1,)])),
        ("grow by too many given", grow("t", 5, [(1, 2), (2, 1)])),
        ("grow what is not there", grow("none", 5, [(1, 2)])),
        ("set", configure(2, "t", ("retention.ms", 0, "60000"))),
        ("append", configure(2, "t", ("cleanup.policy", 2, "compact"))),
        ("subtract", configure(2, "t", ("cleanup.policy", 3, "delete"))),
        ("append to what is no list", configure(2, "t", ("retention.ms", 2, "1"))),
        ("delete", configure(2, "t", ("retention.ms", 1, None))),
        ("delete what is not there", configure(2, "t", ("retention.ms", 1, None))),
        ("unknown", configure(2, "t", ("no.such", 0, "1"))),
        ("of no topic", configure(2, "none", ("retention.ms", 0, "1"))),
        ("delete by id", delete_by_id("t")),
        ("delete", delete("u", "none")),
        ("delete unknown id", delete_by_id("none")),
    ]


def others() -> list[Step]:
    """Quotas, SCRAM, producer ids."""
    return [
        *joined(1, 2),
        ("producer ids", producer_ids(1)),
        ("producer ids", producer_ids(2)),
        ("producer ids, stale", producer_ids(1, 1)),
        ("producer ids, unknown", producer_ids(5)),
        ("quota", quota([("user", "alice")], "producer_byte_rate", 1024.0)),
        ("quota", quota([("user", None), ("client-id", "app")], "consumer_byte_rate", 1.0)),
        ("quota again", quota([("user", "alice")], "producer_byte_rate", 1024.0)),
        ("quota gone", quota([("user", "alice")], "producer_byte_rate", 0.0, remove=True)),
        ("quota gone twice", quota([("user", "alice")], "producer_byte_rate", 0.0, remove=True)),
        ("quota of what", quota([("what", "x")], "producer_byte_rate", 1.0)),
        ("quota, no such key", quota([("user", "alice")], "no.such", 1.0)),
        ("quota below zero", quota([("user", "alice")], "producer_byte_rate", -1.0)),
        ("scram", scram("alice", 2, 8192)),
        ("scram, few iterations", scram("alice", 2, 100)),
        ("scram, many iterations", scram("alice", 1, 20_000)),
        ("scram, unknown mechanism", scram("alice", 3, 8192)),
        ("scram, nobody", scram("", 1, 8192)),
        ("scram gone", unscram("alice", 2)),
        ("scram gone twice", unscram("alice", 2)),
    ]


def cordoned() -> list[Step]:
    """CO-2 to CO-4, real-kafka.md 6.3."""
    every = dirs_of(1)
    return [
        *joined(1),
        ("none", beat(1, cordoned_log_dirs=())),
        ("one", beat(1, cordoned_log_dirs=every[:1])),
        ("the same", beat(1, cordoned_log_dirs=every[:1])),
        ("no change", beat(1)),
        ("unknown and foreign", beat(1, cordoned_log_dirs=(Uuid.of(4, 4), directory(2, 0)))),
        ("by hand on a cordoned broker", create("t", [(1,)])),
        ("all", beat(1, cordoned_log_dirs=every)),
        ("by hand", create("u", [(1,)])),
        ("none again", beat(1, cordoned_log_dirs=())),
    ]


def features() -> list[Step]:
    return [
        *joined(1),
        *((f"{MV} {level} {kind}", update((MV, level, kind))) for level in (6, 7, 29, 30, 31) for kind in (1, 2, 3)),
        ("unknown type", update(("group.version", 1, 9))),
        ("below zero", update(("group.version", -1, 1))),
        ("too high", update(("group.version", 2, 1))),
        ("unknown", update(("no.such.feature", 1, 1))),
        ("unknown at 0", update(("no.such.feature", 0, 2))),
        ("not called a downgrade", update(("group.version", 0, 1))),
        ("dry", update(("group.version", 0, 2), validate_only=True)),
        ("down", update(("group.version", 0, 2))),
        ("up", update(("group.version", 1, 1))),
        ("up as a downgrade", update(("streams.version", 1, 3))),
        ("two", update(("share.version", 0, 2), ("streams.version", 0, 3))),
        ("one of two is refused", update(("share.version", 1, 1), ("streams.version", 7, 1))),
        ("both", update(("share.version", 1, 1), ("streams.version", 1, 1))),
        ("quorum, the same", update(("kraft.version", 1, 1))),
        ("quorum, down", update(("kraft.version", 0, 2))),
        ("eligible replicas, down", update(("eligible.leader.replicas.version", 0, 2))),
        ("eligible replicas, up", update(("eligible.leader.replicas.version", 1, 1))),
    ]


def joined(*broker_ids: int) -> list[Step]:
    steps: list[Step] = []
    for broker_id in broker_ids:
        steps += [(f"register {broker_id}", register(broker_id, CLUSTER_ID)), (f"unfence {broker_id}", beat(broker_id))]
    return steps


def upgrades() -> list[Step]:
    """Brokers that register again when the metadata.version was raised: with directories from 17 on, and more of their
    features."""
    one, two, three, four, five = range(41, 46)  # brokers of its own, as each story has
    d0, d1, _ = dirs_of(one)
    steps: list[Step] = [
        *joined(one, two, four),
        ("register 3, fenced", register(three, CLUSTER_ID)),
        ("topic", create("t", [(one, two), (two, one), (four, one), (one, four)])),
        ("topic of one replica", create("s", [(four,), (one,)])),
        ("directories too early", assign(one, (d0, "t", [0]))),
        ("a failed directory too early", beat(one, offline_log_dirs=(d0,))),
        ("cordoned too early", beat(one, cordoned_log_dirs=(d0,))),
    ]
    for level in (8, 13, 15):
        steps += [
            *raised(level, one, two, three, four),
            (f"another registration at {level}", register(five, CLUSTER_ID, number=level)),
        ]
    steps += [
        ("to 17", update((MV, 17, 1))),
        ("a failed directory that is not registered", beat(one, offline_log_dirs=(d0,))),
        ("an assignment before the registration", assign(one, (d0, "t", [0, 3]))),
        ("a topic before it", create("u", [(one, two), (four, two)])),
        ("without directories", register(one, CLUSTER_ID, log_dirs=())),
        ("with another's", register(one, CLUSTER_ID, log_dirs=dirs_of(two))),
        ("another incarnation", register(one, CLUSTER_ID, number=1)),
        *again(one, two, three, four),
        ("a topic after it", create("v", [(one, two), (four, two)])),
        ("placed", assign(one, (d0, "t", [0]), (d1, "t", [1, 3]))),
        ("placed in the only one", assign(four, (directory(four, 0), "t", [2]))),
        ("one fails", beat(one, offline_log_dirs=(d0,))),
        ("and comes back with a registration", register(one, CLUSTER_ID)),
        ("with fewer", register(one, CLUSTER_ID, log_dirs=(d1,))),
        ("with all", register(one, CLUSTER_ID)),
        ("3 joins", beat(three)),
    ]
    for level in (22, 25):
        steps += raised(level, one, two, three, four)
    old = BrokerRegistrationRequestFeature(name=MV, min_supported_version=7, max_supported_version=25)
    return [
        *steps,
        ("4 knows 25 and no more", register(four, CLUSTER_ID, features=(old, *FEATURES[1:]))),
        ("so no more", update((MV, 29, 1))),
        ("nor with another feature", update((MV, 29, 1), ("group.version", 1, 1))),
        ("4 knows more", register(four, CLUSTER_ID)),
        *raised(29, one, two, three, four),
        ("cordoned too early", beat(one, cordoned_log_dirs=(d0,))),
        *raised(30, one, two, three, four),
        ("cordoned", beat(one, cordoned_log_dirs=(d0,))),
        ("cordoned, registers again", register(one, CLUSTER_ID)),
        ("cordoned, all", beat(one, cordoned_log_dirs=dirs_of(one))),
        ("not cordoned", beat(one, cordoned_log_dirs=())),
        *((f"{name} 1", update((name, 1, 1))) for name in ("group.version", "transaction.version", "share.version")),
        *again(one, two, three, four),
    ]


def raised(level: int, *broker_ids: int) -> list[Step]:
    return [(f"to {level}", update((MV, level, 1))), *again(*broker_ids)]


def again(*broker_ids: int) -> list[Step]:
    """The same incarnations register again, as brokers do when the level was raised. The third stays fenced."""
    steps: list[Step] = []
    for broker_id in broker_ids:
        steps.append((f"register {broker_id} again", register(broker_id, CLUSTER_ID)))
        steps.append((f"heartbeat of {broker_id}", beat(broker_id, want_fence=broker_id % 10 == 3)))
    return steps


def placements() -> list[Part]:
    """Replicas that the controllers place: lots decide which broker has which, not how many each has."""
    return [
        ("nobody is there", place("t", 1, 1)),
        ("register 1", register(1, CLUSTER_ID)),
        ("only a fenced one", place("t", 1, 1)),
        ("unfence 1", beat(1)),
        ("one broker", place("one", 4, 1)),
        ("by default", place("default", -1, -1)),
        ("no partitions", place("none", 0, 1)),
        ("no replicas", place("none", 1, 0)),
        ("below zero", place("none", -2, -2)),
        ("too many replicas", place("none", 1, 2)),
        ("more of one", grow("one", 6, None)),
        *joined(2, 3, 4),
        *drawn("balanced", 8, 2),
        *drawn("all of them", 4, 4, more=8),
        *drawn("three", 4, 3),
        ("too many replicas", place("none", 1, 5)),
        ("4 is fenced", beat(4, want_fence=True)),
        *drawn("all with a fenced one", 3, 4),
        ("3 leads", create("last", [(3,)])),
        ("3 shuts down", beat(3, want_shut_down=True)),
        ("without who shuts down", place("none", 1, 4)),
        *drawn("the others", 2, 3),
        ("all directories of 2 are cordoned", beat(2, cordoned_log_dirs=dirs_of(2))),
        *drawn("without who is cordoned", 1, 3),
        *drawn("one and a fenced one", 2, 2),
        ("all directories of 1 are cordoned", beat(1, cordoned_log_dirs=dirs_of(1))),
        *drawn("all are cordoned or fenced", 1, 1),
    ]


def drawn(what: str, partitions: int, replicas: int, more: int = 0) -> list[Part]:
    """A topic that is placed, grows to ``more`` and goes before its brokers, which differ, play a part."""
    parts: list[Part] = [(what, Drawn(place("drawn", partitions, replicas), spread))]
    if more:
        parts.append((f"{what}, more", Drawn(grow("drawn", more, None), spread)))
    return [*parts, (f"{what}, deleted", delete("drawn"))]


def place(name: str, partitions: int, replicas: int) -> MakeRequest:
    wanted = CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    return lambda view: CreateTopicsRequest(topics=(wanted,))


def spread(view: View, records: list[Any]) -> list[Any]:
    """The records, and instead of the brokers of each partition what is true of them whatever lots say."""
    brokers = view.image.brokers

    def only_directory(broker_id: int) -> str:
        found = brokers[broker_id].log_dirs
        return str(found[0]) if len(found) == 1 else NOWHERE

    leaders: Counter[str | None] = Counter()
    replicas: Counter[int] = Counter()
    told = []
    for record in records:
        if "replicas" not in record:
            told.append(record)
            continue
        ids = record["replicas"]
        leaders[brokers[record["leader"]].rack] += 1
        replicas.update(ids)
        unfenced = [broker_id for broker_id in ids if not brokers[broker_id].fenced]
        told.append(
            record
            | {
                "replicas": len(set(ids)),
                "racks": sorted(Counter(brokers[broker_id].rack for broker_id in ids).values()),
                "leader": record["leader"] == ids[0],
                "isr": sorted(record["isr"]) == sorted(unfenced),
                "fenced": len(ids) - len(unfenced),
                "directories": record["directories"] and record["directories"] == [*map(only_directory, ids)],
            }
        )
    share = sorted((broker.fenced, replicas[broker.id]) for broker in brokers.values())
    return [*told, share, sorted(leaders.values())]


def expired_sessions() -> list[Part]:
    return expired(0)


def expired_sessions_with_eligible_replicas() -> list[Part]:
    return [("eligible replicas", update(("eligible.leader.replicas.version", 1, 1))), *expired(20)]


def expired(first: int) -> list[Part]:
    """Brokers that are fenced since they were not heard, and come back, in pairs that share no partition: a leader with
    a failed directory; the last one in sync; one in controlled shutdown that still leads; one that was never unfenced;
    one whose shutdown was granted."""
    one, two, three, four, five, six, seven, eight, nine = range(first + 1, first + 10)
    ones, twos, fives = dirs_of(one), dirs_of(two), dirs_of(five)

    def join(name: str, broker_id: int, number: int, **fields: Any) -> Part:
        return f"{name}: {broker_id}", register(broker_id, CLUSTER_ID, number, **fields)

    return [
        *joined(one, two, three, four, five, six, eight),
        join("never unfenced", seven, 0),
        ("stays fenced", beat(seven, want_fence=True)),
        join("never heard", nine, 0),
        ("topic a", create("a", [(one, two), (two, one), (one, two), (one, two)], min_insync_replicas="2")),
        ("topic b", create("b", [(three, four), (four, three)])),
        ("topic c", create("c", [(five, six), (six, five)])),
        ("topic d", create("d", [(five,), (one,), (two,)])),
        ("place", assign(one, (ones[0], "a", [0, 1]), (ones[1], "a", [2, 3]), (ones[0], "d", [1]))),
        ("place", assign(two, (twos[0], "a", [0, 1, 2]))),
        ("place", assign(five, (fives[2], "c", [0, 1]), (fives[1], "d", [0]))),
        ("leaves three as the last in sync", beat(four, want_fence=True)),
        ("a directory fails", beat(one, offline_log_dirs=ones[1:2])),
        ("shuts down, granted", beat(eight, want_shut_down=True)),
        *(join("has a session", each, 1, previous_broker_epoch=None) for each in (one, three, seven, eight)),
        join("has none", nine, 1),
        ("shuts down, and leads", beat(five, want_shut_down=True)),
        join("has a session, in its shutdown", five, 1, previous_broker_epoch=None),
        ("silence", Silence((one, three, five, seven, eight))),
        ("comes back, behind", beat(one, behind=True)),
        ("comes back, wants to stay fenced", beat(one, want_fence=True)),
        ("comes back, with its failed directory", beat(one, offline_log_dirs=ones[1:2])),
        ("in the ISR again", alter_isr("a", 0, (two, one))),
        ("the last in sync comes back", beat(three)),
        join("back from its shutdown, in order", five, 1, previous_broker_epoch=None),
        ("unfenced", beat(five)),
        join("the same again", seven, 0),
        ("unfenced", beat(seven)),
        ("takes its shutdown back", beat(eight)),
        ("unfenced", beat(nine)),
        ("who came back is in sync", alter_isr("c", 0, (six, five))),
        ("comes back", beat(four)),
        ("both in sync", alter_isr("b", 0, (three, four))),
        ("moves to a newcomer", reassign("c", 1, (six, nine))),
        ("unclean", configure(2, "a", ("unclean.leader.election.enable", 0, "true"))),
        ("preferred", elect(0)),
        ("silence again", Silence((two, four, six, eight))),
        join("another after its session, not in order", two, 1, previous_broker_epoch=-1),
        join("another, of an older one", four, 1, previous_broker_epoch=5),
        join("another, that was in order", eight, 1, previous_broker_epoch=None),
        *((f"unfenced {each}", beat(each)) for each in (two, four, six, eight)),
        ("unclean elections", elect(1)),
        ("given up", reassign("c", 1, None)),
        ("unregistered", unregister(two)),
    ]


SCRIPTED = (registrations, lifecycle, assignments, reassignments, topics, others, cordoned, placements, features)
IN_TIME = (expired_sessions, upgrades, expired_sessions_with_eligible_replicas)


def test_what_a_slow_machine_may_have_ended_is_not_judged() -> None:
    image = MetadataImage()
    for broker_id in (1, 2):
        record = RegisterBrokerRecord(
            broker_id=broker_id, incarnation_id=Uuid.of(1, broker_id), broker_epoch=7, end_points=(), features=()
        )
        image.replay(record, broker_id)
    sessions = Sessions(timeout_s=1.0)
    sessions.renew(1, 7, sent_s=10.0)
    sessions.renew(2, 6, sent_s=10.0)  # of an incarnation before
    sessions.require(image, now_s=10.9)
    sessions.require(image, now_s=99.0, silent=(1,))
    with pytest.raises(LateError):
        sessions.require(image, now_s=11.0)
    sessions.end(image.brokers[1])
    sessions.require(image, now_s=99.0)


@pytest.mark.usefixtures("newest_kit")
@pytest.mark.parametrize("first", seeds(deep=1))
def test_a_real_controller_and_ours_answer_and_write_the_same(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit, first: int
) -> None:
    stories = range(first, first + min(STORIES, 6))
    told = asyncio.run(random_stories(newest_kit, processes, tmp_path, stories, chapters=SCRIPTED))
    assert not told.found, told.report()


@pytest.mark.usefixtures("newest_kit")
def test_sessions_expire_and_brokers_register_again_after_upgrades_as_with_a_real_controller(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    stories = random_stories(newest_kit, processes, tmp_path, (), level=7, chapters=IN_TIME[1:], session_ms=SESSION_MS)
    told = asyncio.run(stories)
    assert not told.found, told.report()
    assert told.fenced >= BROKERS_FENCED, told.report()


@pytest.mark.usefixtures("newest_kit")
@LONG
@pytest.mark.parametrize("first", seeds(deep=1))
@pytest.mark.parametrize("level", LEVELS)
def test_long_stories_at_each_level(
    level: int, first: int, tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    stories = range(first, first + STORIES)
    told = asyncio.run(random_stories(newest_kit, processes, tmp_path, stories, level=level, chapters=SCRIPTED))
    print(f"metadata.version {level}: {told.summary()}")
    assert not told.found, told.report()


@pytest.mark.usefixtures("newest_kit")
@LONG
@pytest.mark.parametrize("first", seeds(deep=1))
@pytest.mark.parametrize("level", LEVELS)
def test_long_stories_in_which_brokers_fall_silent(
    level: int, first: int, tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    stories = range(first, first + STORIES)
    telling = random_stories(
        newest_kit, processes, tmp_path, stories, level=level, chapters=IN_TIME, session_ms=SESSION_MS
    )
    told = asyncio.run(telling)
    print(f"metadata.version {level}, in time: {told.summary()}")
    assert not told.found, told.report()
