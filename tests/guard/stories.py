"""Random stories for :mod:`tests.guard.universe`: what happens to whom and when, by a seed; and what must hold then.

An event has a time, or a *moment*: an act of a guard at one of its stages, a record that the controller writes, a
change of a broker. So two troubles meet within milliseconds, whatever the delays of a seed are: a disk of another
broker hangs right between a journal and an eviction, the controller dies between a report and its record.

A story is played with guards, and then without: what met a moment of a guard happens at the same time there. One in
which something must not be is shortened: events and settings are left out for as long as it stays so.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.guard.model_controller import InlineLoop
from tests.guard.universe import ACTS, CHANGES, RECORDS, STAGES, Universe

METADATA: Final = -1
"""The disk of the metadata log, of a node that is a controller too."""
LOST: Final = (("journal", "memory"), ("journal",), ("memory",))
"""What is lost of the state directory of a guard that was killed."""
BAD: Final = ("hang", "hang", "hang", "hang", "freeze", "fail")
"""What befalls a disk: mostly it hangs."""
PATH: Final = ("suspect", "report", "report", "cut", "reassign", "mask", "kill")
"""Acts about a disk, as they follow each other."""
STALLS_MS: Final = (1_000, 3_000, 7_000, 15_000, 60_000)
REST_S: Final = 20
"""How long a story goes on after its last event that has a time."""
LASTS_S: Final = 100
"""How long it goes on at least."""
SHORTER_MAX: Final = 120
"""Plays that a shorter story may cost."""
Story = Callable[[Universe], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment that comes when it comes.

    Attributes:
        who: whose: of the guard of a broker, or the broker itself; 0: the controller.
        name: "report", "cut asked", "evict written" (:data:`~tests.guard.universe.STAGES`), a record, a change.
        later_ms: how long after it.
    """

    who: int
    name: str
    later_ms: int = 0

    def __str__(self) -> str:
        later = f" + {self.later_ms} ms" if self.later_ms else ""
        return f"at {self.name!r} of {f'broker {self.who}' if self.who else 'the controller'}{later}"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens.

    Attributes:
        at: seconds from the begin of the story, or a moment.
        kind: of :func:`happen`.
        arguments: of that kind.
    """

    at: float | Moment
    kind: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        at = str(self.at) if isinstance(self.at, Moment) else f"{self.at:8.2f} s"
        return f"{at}: {self.kind} {', '.join(map(str, self.arguments))}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A story.

    Attributes:
        seed: of the delays.
        settings: of the universe.
        events: that happen.
    """

    seed: int
    settings: dict[str, Any]
    events: tuple[Event, ...]

    async def play(self, universe: Universe) -> None:
        """Have the events happen in a universe."""
        timed = [one for one in self.events if not isinstance(one.at, Moment)]
        for one in self.events:
            if isinstance(one.at, Moment):
                universe.at_moment(one.at.who, one.at.name, _later(universe, one.at.later_ms, one))
            else:
                universe.loop.call_later(max(0.0, one.at), happen, universe, one.kind, one.arguments)
        last_s = max((one.at for one in timed if not isinstance(one.at, Moment)), default=0.0)
        await asyncio.sleep(max(LASTS_S, REST_S + last_s))

    def lines(self) -> Iterator[str]:
        """The story in words."""
        yield ", ".join(f"{name} {value}" for name, value in self.settings.items())
        for one in sorted(self.events, key=lambda one: -1.0 if isinstance(one.at, Moment) else one.at):
            yield f"  {one}"


def _later(universe: Universe, later_ms: int, event: Event) -> Callable[[], None]:
    def come() -> None:
        if later_ms:
            universe.at(universe.now_ms + later_ms, lambda: happen(universe, event.kind, event.arguments))
        else:
            happen(universe, event.kind, event.arguments)

    return come


# -------------------------------------------------------------------------------------------------- what happens


def plan(seed: int) -> Plan:
    """A story, by a seed: of waves of trouble mostly, else of one bad disk, and what meets the acts about it."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        return _meeting(seed, rng)
    brokers = rng.choice((2, 3, 3, 4, 5))
    rf = min(brokers, rng.choice((2, 3, 3)))
    settings: dict[str, Any] = {
        "brokers": brokers,
        "rf": rf,
        "min_isr": rng.choice((1, 2)) if rf > 1 else 1,
        "partitions": rng.choice((3, 6, 8)),
        "cut_after_ms": rng.choice((1_000, 3_000, 3_000, 10_000)),
        "elr": rng.random() < 0.5,
        "brokers_max": rng.choice((1, 1, 1, 2)),
        "dirs": rng.choice((2, 2, 3)),
        "combined": brokers > 2 and rng.random() < 0.1,
    }
    disks = (*range(settings["dirs"]), *((METADATA,) if settings["combined"] else ()))
    events: list[Event] = []
    for wave in range(rng.choice((1, 1, 2, 3))):
        begun, same = wave * rng.uniform(5, 70), rng.choice(disks)
        for number in rng.sample(range(1, brokers + 1), rng.randint(1, brokers)):
            at = begun + rng.choice((0.0, rng.uniform(0, 2)))
            # Replicas of the same partitions lie in directories of the same number, mostly.
            which = same if rng.random() < 0.5 else rng.choice(disks)
            events.append(Event(at, rng.choice(BAD), (number, which, rng.choice((*STALLS_MS, None)))))
        if rng.random() < 0.5:
            events.append(Event(begun + rng.uniform(-1, 12), *_of_controller(rng)))
    events += [
        Event(rng.uniform(0, 60), *_trouble(rng, settings, rng.randint(1, brokers)))
        for _ in range(rng.choice((0, 0, 1, 2, 4)))
    ]
    hung = [one.arguments[0] for one in events if one.kind in BAD]
    if rng.random() < 0.3:
        events.append(Event(rng.uniform(0, 8), "rest", (60_000,)))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        moment = _moment(rng, rng.choice(hung))
        own = rng.random() < 0.5
        number = moment.who if own and moment.who else rng.randint(1, brokers)
        events.append(Event(moment, *_trouble(rng, settings, number, kills=own)))
        if rng.random() < 0.4:  # and something else within the same milliseconds
            events.append(Event(moment, *_trouble(rng, settings, rng.randint(1, brokers))))
    return Plan(seed, settings, tuple(events))


def _meeting(seed: int, rng: random.Random) -> Plan:
    """One bad disk, whose guard acts, and troubles right at its acts."""
    settings: dict[str, Any] = {
        "brokers": 3,
        "rf": rng.choice((2, 3, 3)),
        "min_isr": rng.choice((1, 2)),
        "partitions": 3,
        "cut_after_ms": rng.choice((1_000, 3_000)),
        "elr": rng.random() < 0.5,
        "dirs": 2,
    }
    bad = Event(0.0, rng.choice(BAD), (1, 0, rng.choice((None, None, 60_000))))
    events = [bad]
    for _ in range(rng.choice((1, 1, 2, 3))):
        moment = Moment(1, rng.choice(PATH) + rng.choice(STAGES), rng.choice((0, 0, rng.randint(0, 60))))
        number = rng.randint(1, 3)
        events.append(Event(moment, *_trouble(rng, settings, number, kills=number == 1 and rng.random() < 0.3)))
        if rng.random() < 0.3:  # and what was long enough ago for everybody to know it
            events.append(Event(rng.uniform(0, 2), *_trouble(rng, settings, rng.randint(2, 3))))
    return Plan(seed, settings, tuple(events))


def _moment(rng: random.Random, number: int) -> Moment:
    """A moment of the guard of a broker mostly, or of that broker, or of the controller."""
    later_ms = rng.choice((0, 0, rng.randint(0, 100)))
    match rng.choice(("act", "act", "act", "act", "record", "change")):
        case "act":
            name = rng.choice(ACTS)
            return Moment(number, (name + rng.choice(STAGES)), later_ms)
        case "record":
            return Moment(0, rng.choice(RECORDS), later_ms)
    return Moment(number, rng.choice(CHANGES), later_ms)


def _of_controller(rng: random.Random) -> tuple[str, tuple[Any, ...]]:
    kind = rng.choice(("stall", "slow", "fail_over", "power off"))
    ms = rng.choice((500, 1_500, 2_000, 3_000, 6_000, 20_000))
    return kind, (ms, rng.random() < 0.5) if kind == "power off" else (ms,)


def _trouble(
    rng: random.Random, settings: dict[str, Any], number: int, *, kills: bool = False
) -> tuple[str, tuple[Any, ...]]:
    """Any trouble, of a broker where it is of one. With ``kills`` its guard is killed or stands still mostly."""
    if kills and rng.random() < 0.5:
        return "guard killed", (number, rng.choice((*LOST, *LOST, ())), rng.choice((0.5, rng.uniform(0.5, 40))))
    if kills and rng.random() < 0.5:
        return "guard stands still", (number, round(rng.uniform(200, 6_000)))
    kind = rng.choice(tuple(_KINDS))
    return kind, _KINDS[kind](rng, settings, number)


Draw = Callable[[random.Random, dict[str, Any], int], tuple[Any, ...]]


def _some_ms(rng: random.Random, settings: dict[str, Any], number: int) -> tuple[Any, ...]:
    return number, round(rng.uniform(500, 20_000))


def _controller_ms(rng: random.Random, settings: dict[str, Any], number: int) -> tuple[Any, ...]:
    return (rng.choice((500, 1_500, 2_000, 3_000, 6_000, 20_000)),)


def _power_ms(rng: random.Random, settings: dict[str, Any], number: int) -> tuple[Any, ...]:
    return rng.choice((500, 2_000, 6_000)), rng.random() < 0.5


def _disk(rng: random.Random, settings: dict[str, Any], number: int) -> tuple[Any, ...]:
    return number, rng.randrange(settings["dirs"])


def _chance(rng: random.Random, settings: dict[str, Any], number: int) -> tuple[Any, ...]:
    return number, round(rng.random(), 3)


def _killed(rng: random.Random, settings: dict[str, Any], number: int) -> tuple[Any, ...]:
    return number, rng.choice((*LOST, ())), round(rng.uniform(0.5, 20), 1)


_KINDS: Final[dict[str, Draw]] = {
    "hang": lambda rng, settings, number: (*_disk(rng, settings, number), rng.choice((*STALLS_MS, None))),
    "freeze": lambda rng, settings, number: (*_disk(rng, settings, number), rng.choice((*STALLS_MS, None))),
    "fail": lambda rng, settings, number: (*_disk(rng, settings, number), rng.choice((*STALLS_MS, None))),
    "answer": lambda rng, settings, number: (number,),
    "crash": lambda rng, settings, number: (number,),
    "restart": lambda rng, settings, number: (number,),
    "stall": _controller_ms,
    "slow": _controller_ms,
    "fail_over": _controller_ms,
    "power off": _power_ms,
    "host cut off": _some_ms,
    "guard killed": _killed,
    "guard cut off": _some_ms,
    "state full": _some_ms,
    "guard stands still": _some_ms,
    "release": _disk,
    "replace": _disk,
    "cordon": _disk,
    "reassign": _chance,
    "delete": lambda rng, settings, number: (),
    "widen": lambda rng, settings, number: (),
}
"""Kinds of trouble, and how their arguments are drawn."""
OF_GUARDS: Final = ("guard killed", "guard cut off", "state full", "guard stands still", "release")
"""Kinds that mean nothing without guards."""


def happen(universe: Universe, kind: str, arguments: tuple[Any, ...]) -> None:
    """Have an event happen now."""
    if kind in OF_GUARDS and not universe.guarded:
        return
    universe.happened.append((universe.now_ms, kind, arguments))
    match kind, arguments:
        case "hang", (number, disk, ms):
            universe.hang(number, disk, ms)
        case "freeze", (number, disk, ms):
            universe.hang(number, disk, ms, frozen=True)
        case "fail", (number, disk, ms):
            universe.fail(number, disk, ms)
        case "answer", (number,):
            for one in universe.brokers[number].disks:
                universe.answer(one)
        case "stall", (ms,):
            universe.stall(ms)
        case "fail_over", (ms,):
            universe.fail_over(ms)
        case "slow", (ms,):
            universe.slow(ms)
        case "power off", (ms, in_sync):
            universe.power_off(ms, in_sync=in_sync)
        case "rest", (ms,):
            universe.rests_until_ms = universe.now_ms + ms
        case "crash", (number,):
            universe.crash(number)
        case "restart", (number,):
            universe.spawn(universe.brokers[number].restart())
        case "host cut off", (number, ms):
            universe.cut_off(number, ms)
        case "guard killed", (number, lost, after_s):
            kill(universe, number, lost, after_s)
        case "guard cut off", (number, ms):
            universe.guards[number].broken_until_ms = universe.now_ms + ms
        case "state full", (number, ms):
            universe.guards[number].state_broken_until_ms = universe.now_ms + ms
        case "guard stands still", (number, ms):
            universe.guards[number].stands_still_until_ms = universe.now_ms + ms
        case "release", (number, disk):
            universe.guards[number].release(universe.brokers[number].disks[disk].path)
        case "replace", (number, disk):
            universe.replace(number, disk)
        case "cordon", (number, disk):
            universe.brokers[number].cordon(disk)
        case "reassign", (number, chance):
            replaced = {number for number, one in universe.brokers.items() if one.is_replacing}
            found = universe.partitions()
            keys = sorted(key for key, one in found.items() if not replaced.intersection(one.replicas))
            if not keys:
                return
            key = keys[int(chance * len(keys))]
            others = [one for one in universe.brokers if one != number][: universe.rf]
            universe.spawn(_quietly(universe.reassign({key: others})))
        case "delete", _:
            universe.spawn(_again(universe))
        case "widen", _:
            universe.spawn(_quietly(universe.widen("t", universe.count + 2)))
        case _:
            raise AssertionError(f"no such event: {kind} {arguments}")


def kill(universe: Universe, number: int, lost: tuple[str, ...] = (), after_s: float = 1) -> None:
    """A guard is killed, and another one starts with what is left of its state."""
    guard = universe.guards[number]
    if not guard.is_dead:
        guard.kill()
        universe.loop.call_later(after_s, guard.restart)
    if "journal" in lost:
        guard.saved = b""
    if "memory" in lost:
        guard.memory = set()


async def _quietly(work: Awaitable[Any]) -> None:
    try:
        await work
    except (TimeoutError, ConnectionError):
        return


async def _again(universe: Universe) -> None:
    """A topic is deleted and made again."""
    name = f"u{universe.now_ms}"
    try:
        await universe.make_topic(name, 2)
        await asyncio.sleep(3)
        await universe.delete_topic(name)
        for key in [key for key in universe.acked if key[0] == name]:
            del universe.acked[key]
    except (TimeoutError, ConnectionError):
        return


# ---------------------------------------------------------------------------------------------- what must hold then


def run(seed: int, story: Story, **settings: Any) -> Universe:
    """Play a story, let everything answer again, and look whether everything is as it must be."""
    loop = InlineLoop()
    universe = Universe(loop, seed, **settings)

    async def main() -> None:
        try:
            await universe.begin()
            assert len(universe.available()) == settings.get("partitions", 6), universe.notes
            universe.begun_ms = universe.now_ms
            await story(universe)
            await universe.heal()
        finally:
            await universe.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    universe.check_data()
    universe.check_budget()
    return universe


@dataclass(frozen=True, slots=True)
class Played:
    """A story that was played with guards and without."""

    alone: Universe
    guarded: Universe

    @property
    def problems(self) -> list[str]:
        """What must not be: a rule that a guard broke, or partitions that Kafka alone serves, and guards do not."""
        alone, guarded = self.alone, self.guarded
        worse = {key for key in alone.available() - guarded.available() if key in guarded.partitions()}
        served = [f"availability: not served any more: {sorted(worse)}"] if worse else []
        model = [] if guarded.unclean else [f"model: without guards: {one}" for one in alone.violations]
        return [*guarded.violations, *served, *model]


def compare(seed: int, story: Story, **settings: Any) -> tuple[Universe, Universe]:
    """A story with guards and without: nothing is lost or unavailable that Kafka alone would have kept."""
    played = Played(run(seed, story, guarded=False, **settings), run(seed, story, guarded=True, **settings))
    told = "\n".join(played.guarded.notes)
    assert not played.problems, f"seed {seed} {settings}: {played.problems}\n{told}"
    return played.alone, played.guarded


def play(story: Plan) -> Played:
    """Play a story with guards; then without, where what met a moment of a guard happens at the same time."""
    return _beside_kafka(story, run(story.seed, story.play, guarded=True, **story.settings))


def problems_of(story: Plan) -> list[str]:
    """What must not be in a story. It is played without guards only where that makes a difference."""
    guarded = run(story.seed, story.play, guarded=True, **story.settings)
    if guarded.violations or guarded.available().issuperset(guarded.partitions()):
        return guarded.violations
    return _beside_kafka(story, guarded).problems


def _beside_kafka(story: Plan, guarded: Universe) -> Played:
    happened = tuple(Event((ms - guarded.begun_ms) / 1000, kind, rest) for ms, kind, rest in guarded.happened)
    alone = replace(story, events=happened)
    return Played(run(story.seed, alone.play, guarded=False, **story.settings), guarded)


def rule_of(problem: str) -> str:
    """Name of the rule that a problem is about, so that two problems can be told apart."""
    found = re.match(r"(?:[\d.]+ )?([^:]*):", problem)
    return problem if found is None else found[1]


def shorten(story: Plan, rule: str, plays_max: int = SHORTER_MAX) -> Plan:
    """The story with as few events as still break the rule, and everything at once where that does."""
    left = plays_max

    def breaks(shorter: Plan) -> bool:
        nonlocal left
        left -= 1
        try:
            problems = problems_of(shorter)
        except Exception as error:  # noqa: BLE001  a guard that fails in a shorter story fails
            problems = [repr(error)]
        return rule in map(rule_of, problems)

    shrunk = True
    while shrunk and left > 0:
        shrunk = False
        for one in reversed(story.events):
            shorter = replace(story, events=tuple(other for other in story.events if other is not one))
            if left > 0 and breaks(shorter):
                story, shrunk = shorter, True
    for at, one in enumerate(story.events):
        if isinstance(one.at, Moment) and one.at.later_ms and left > 0:
            plain = replace(one, at=replace(one.at, later_ms=0))
            shorter = replace(story, events=(*story.events[:at], plain, *story.events[at + 1 :]))
            story = shorter if breaks(shorter) else story
    return story
