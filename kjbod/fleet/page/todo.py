"""List of what needs a hand today, ranked, each with its reason and the command to run. Pure."""

import functools
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kjbod.fleet.insight.model import Forecast, Place, Risk
from kjbod.fleet.page.bursts import Burst, bursts
from kjbod.fleet.page.model import FAILED, SILENT, STOPPED, Agent, Directory, FleetReport, Lack
from kjbod.fleet.svg import date_time, duration, plural

SOON_DAYS = 30
"""A directory that is forecast to be full within this needs a hand."""
BEFORE_MS = 5 * 60_000
"""Before the first failure of several the kernel's log is worth reading."""
AT_ONCE_DAYS = 3
"""A directory that is forecast to be full within this is a matter of hours, as a dead disk is."""
CONFIG = "-c /etc/kafka/server.properties"
"""As in the manual; the place of the file is a host's own."""
GUARD_CONFIG = "--guard-config /etc/kafka/kjbod-guard.properties"
REASONS_MAX = 4
SLOW_FROM = 2.0
"""From so much slower than its peers on a disk is named, whatever its score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    """Task for a person."""

    place: Place | None
    host: str
    broker_id: int
    fleet: str | None
    rack: str | None
    what: str
    """In a few words."""
    reason: str
    commands: tuple[str, ...]
    since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Things of one kind."""

    key: str
    title: str
    tone: str
    """``bad | gone | warn``."""
    total: int
    """Of which ``items`` are the first."""
    items: tuple[Todo, ...]


def groups(report: FleetReport) -> list[Group]:
    """All that there is to do, the most urgent kind first, and the most urgent of each kind first."""
    return [group for group in (make(report) for make in _KINDS) if group.total and group.items]


def _failed(report: FleetReport) -> tuple[list[Directory], list[Directory]]:
    """Dead disks that lead, and those that do not."""
    return [d for d in report.failed if d.leaders], [d for d in report.failed if not d.leaders]


def _not_named(report: FleetReport) -> int:
    """Dead disks of which the report has the number alone."""
    return max(report.states.get(FAILED, 0) - len(report.failed), 0)


def _risks(report: FleetReport) -> list[Risk]:
    """Risks of disks that have not failed."""
    failed = {_key(d.place) for d in report.failed}
    return [r for r in report.insights.health.risks if _key(r.place) not in failed]


def _led_group(report: FleetReport) -> Group:
    """Dead disks whose leaders are still there."""
    led, done = _failed(report)
    return Group(
        key="led",
        title="Dead disks that still lead partitions",
        tone="bad",
        total=len(led) + _not_named(report) * (not done),
        items=tuple(_dead(d, led=True) for d in led),
    )


def _silent_group(report: FleetReport) -> Group:
    """Agents of which nothing is heard."""
    silent = [a for a in report.agents if a.status == SILENT]
    return Group(
        key="silent",
        title="Agents that are silent",
        tone="gone",
        total=report.statuses.get(SILENT, 0),
        items=tuple(_silent(a) for a in silent),
    )


def _ended_group(report: FleetReport) -> Group:
    """Agents that gave up, or may not lead."""
    gave_up, stopped = _ended_agents(report)
    return Group(
        key="ended",
        title="Agents that gave up or are fenced",
        tone="gone",
        total=report.statuses.get(STOPPED, 0) + report.statuses.get("fenced", 0) - len(stopped),
        items=tuple(_ended(a) for a in gave_up),
    )


def _stopped_group(report: FleetReport) -> Group:
    """Agents that somebody has stopped."""
    _, stopped = _ended_agents(report)
    return Group(
        key="stopped",
        title="Agents that were stopped",
        tone="gone",
        total=len(stopped),
        items=tuple(_ended(a) for a in stopped),
    )


def _ended_agents(report: FleetReport) -> tuple[list[Agent], list[Agent]]:
    """Agents that ended with a failure or are fenced, and agents that ended because they were asked to."""
    ended = [a for a in report.agents if a.status in (STOPPED, "fenced")]
    asked = [a for a in ended if a.status == STOPPED and a.exit_code == "0"]
    return [a for a in ended if a not in asked], asked


def _dead_group(report: FleetReport) -> Group:
    """Dead disks to replace."""
    _, done = _failed(report)
    return Group(
        key="dead",
        title="Dead disks to replace",
        tone="bad",
        total=len(done) + _not_named(report) * bool(done),
        items=tuple(_dead(d, led=False) for d in done),
    )


def _burst_group(report: FleetReport) -> Group:
    """Racks and hosts in which several disks failed within minutes."""
    found = bursts(report.incidents, report.window.now_ms)
    return Group(
        key="burst",
        title="Racks and hosts to look at first",
        tone="bad",
        total=len(found),
        items=tuple(
            Todo(
                place=None,
                host=burst.incidents[0].place.host,
                broker_id=burst.incidents[0].place.broker_id or 0,
                fleet=burst.fleet,
                rack=burst.incidents[0].place.rack,
                what=f"{_shared(burst)}: {plural(burst.disks, 'disk')} failed in {duration(burst.span_ms)}",
                reason=_suspects(burst),
                commands=(f"journalctl -k -p warning --since '{when(burst.first_ms - BEFORE_MS)} UTC'",),
                since_ms=burst.first_ms,
            )
            for burst in found
        ),
    )


def _shared(burst: Burst) -> str:
    return f"rack {burst.rack}" if burst.rack else f"host {burst.hosts[0]}"


def _suspects(burst: Burst) -> str:
    if burst.rack is None:
        return "a controller, a cable or a backplane before each disk for itself"
    return f"on {', '.join(burst.hosts)}: power, a controller or a backplane before each disk for itself"


def _flapping_group(report: FleetReport) -> Group:
    """Directories that come and go."""
    return Group(
        key="flapping",
        title="Directories that come and go",
        tone="warn",
        total=len(report.flapping),
        items=tuple(
            _of(
                d.place,
                f"left online {d.transitions:,} times in two days",
                f"now {d.state}; a cable, a slot, or the disk",
                (f"kjbod status {CONFIG}", *_disk_tells(d.place)),
            )
            for d in report.flapping
        ),
    )


def _left_group(report: FleetReport) -> Group:
    """Guards that could not do what should be done."""
    return Group(
        key="left",
        title="Guards that could not do what should be done",
        tone="bad",
        total=len(report.stands),
        items=tuple(
            Todo(
                place=None,
                host=s.host,
                broker_id=s.broker_id,
                fleet=s.fleet,
                rack=s.rack,
                what=f"{s.state}: {s.path}" if s.path else f"{s.state}: the broker as a whole",
                reason=s.reason or "no reason given",
                commands=(f"kjbod guard history {CONFIG}", f"kjbod status {CONFIG}"),
                since_ms=s.ts,
            )
            for s in report.stands
        ),
    )


def _lacks_group(report: FleetReport, tone: str) -> Group:
    """Brokers with partitions that lack replicas; empty where the group has another tone."""
    found = report.lacks
    actual = "bad" if any(lack.is_critical for lack in found) else "warn"
    items = tuple(_lacking(lack) for lack in found) if tone == actual else ()
    return Group(key="lacks", title="Partitions that lack replicas", tone=tone, total=len(items), items=items)


def _lacking(lack: Lack) -> Todo:
    """Task for the partitions of a broker."""
    what = "fewer replicas than the replication factor"
    if lack.below_min_isr:
        what = "below min.insync.replicas"
    if lack.without_leader:
        what = "no leader"
    lists = ("kafka-topics.sh --bootstrap-server BROKER:9092 --describe --unavailable-partitions",)
    return Todo(
        place=None,
        host=lack.host,
        broker_id=lack.broker_id,
        fleet=lack.fleet,
        rack=lack.rack,
        what=what,
        reason=lack.reason or "no reason given",
        commands=(f"kjbod status {CONFIG} {GUARD_CONFIG}", *(lists if lack.without_leader else ())),
        # The reason of an eviction has its own time, which is older than a guard that was started since.
        since_ms=lack.since_ms if lack.is_critical else None,
    )


def _risk_group(report: FleetReport) -> Group:
    """Disks that may fail soon."""
    health = report.insights.health
    at_risk = [r for r in _risks(report) if r.score >= health.at_risk_from]
    gone = health.at_risk - (len(health.risks) - len(_risks(report)))
    return Group(
        key="risk",
        title="Disks that may fail soon",
        tone="warn",
        total=max(len(at_risk), gone),
        items=tuple(
            _of(
                r.place,
                f"score {r.score:.2f}",
                "; ".join(r.reasons[:REASONS_MAX]) or "no reason given",
                (f"kjbod status {CONFIG}", *_empty_it(r.place), *_disk_tells(r.place)),
            )
            for r in at_risk
        ),
    )


def _full_at_once_group(report: FleetReport) -> Group:
    """Directories that will be full before anybody has had time to buy a disk."""
    soon = _full_by(report, AT_ONCE_DAYS)
    return Group(
        key="full-at-once",
        title=f"Directories that will be full within {AT_ONCE_DAYS} days",
        tone="bad",
        total=len(soon),
        items=_full(report, soon),
    )


def _full_group(report: FleetReport) -> Group:
    """Directories that will be full."""
    at_once = _full_by(report, AT_ONCE_DAYS)
    later = [f for f in _full_by(report, SOON_DAYS) if f not in at_once]
    of_all = report.insights.capacity.full_within.get(str(SOON_DAYS), 0)
    return Group(
        key="full",
        title=f"Directories that will be full within {SOON_DAYS} days",
        tone="warn",
        total=max(of_all - len(at_once), len(later)),
        items=_full(report, later),
    )


def _full_by(report: FleetReport, days: int) -> list[Forecast]:
    forecasts = report.insights.capacity.forecasts
    return [f for f in forecasts if (left := _days(f.until)) is not None and left <= days]


def _full(report: FleetReport, forecasts: Iterable[Forecast]) -> tuple[Todo, ...]:
    return tuple(
        _of(
            f.place,
            f"full in {days:,.1f} d" if (days := _days(f.until)) else "full",
            f"{100 * f.used_ratio:.1f} % used, and it grows" + _limits(f.until),
            _moves(report, f.place),
        )
        for f in forecasts
    )


def _slow_group(report: FleetReport) -> Group:
    """Disks that are slow and not at risk."""
    below = report.insights.health.at_risk_from
    slow = [r for r in _risks(report) if r.score < below and (r.slow_ratio or 0) >= SLOW_FROM]
    return Group(
        key="slow",
        title="Disks that are slower than their peers",
        tone="warn",
        total=len(slow),
        items=tuple(
            _of(
                r.place,
                f"{r.slow_ratio:.1f} × slower",
                "; ".join(r.reasons[:REASONS_MAX]) or "slower than the others under the same load",
                (f"kjbod status {CONFIG}", *_disk_tells(r.place)),
            )
            for r in slow
        ),
    )


def _other_group(report: FleetReport) -> Group:
    """Directories in another state."""
    return Group(
        key="other",
        title="Directories in another state",
        tone="warn",
        total=sum(n for s, n in report.states.items() if s not in ("online", FAILED, SILENT, STOPPED)),
        items=tuple(
            _of(d.place, d.state, f"since {when(d.since_ms)}", (f"kjbod status {CONFIG}",), d.since_ms)
            for d in report.other
        ),
    )


_KINDS = (
    _led_group,
    functools.partial(_lacks_group, tone="bad"),
    _full_at_once_group,
    _burst_group,
    _silent_group,
    _ended_group,
    _dead_group,
    _stopped_group,
    _left_group,
    functools.partial(_lacks_group, tone="warn"),
    _risk_group,
    _flapping_group,
    _full_group,
    _slow_group,
    _other_group,
)
"""The most urgent first."""


def _key(place: Place) -> tuple[object, ...]:
    return place.fleet, place.host, place.broker_id, place.path


def _days(until: Iterable[object]) -> float | None:
    return next((d.days for d in until if getattr(d, "mark_pct", None) == 100), None)  # type: ignore[attr-defined]


def _limits(until: Iterable[object]) -> str:
    found = next((d for d in until if getattr(d, "mark_pct", None) == 100), None)
    soonest, latest = getattr(found, "soonest", None), getattr(found, "latest", None)
    if soonest is None:
        return ""
    last = f"{latest:,.1f} d" if latest is not None else "later than can be said"
    return "" if last == f"{soonest:,.1f} d" else f"; between {soonest:,.1f} d and {last}, with 95 % confidence"


def when(at_ms: int | None) -> str:
    """A moment in UTC, by the second."""
    return date_time(at_ms)[:19] if at_ms is not None else "unknown"


def _of(place: Place, what: str, reason: str, commands: Sequence[str], since_ms: int | None = None) -> Todo:
    return Todo(
        place=place,
        host=place.host,
        broker_id=place.broker_id if place.broker_id is not None else -1,
        fleet=place.fleet,
        rack=place.rack,
        what=what,
        reason=reason,
        commands=tuple(commands),
        since_ms=since_ms,
    )


def _dead(directory: Directory, *, led: bool) -> Todo:
    place = directory.place
    what = f"leads {plural(directory.leaders or 0, 'partition')}" if led else "failed"
    reason = directory.evidence or "no evidence recorded"
    is_guard = directory.role == "guard"
    stop = f"systemctl stop --no-block {'kafka' if is_guard else 'kjbod-agent'}"
    steps = (stop,) if led else _replace(place, is_guard=is_guard)
    return _of(place, what, reason, (f"kjbod status {CONFIG}", *steps), directory.since_ms)


def _replace(place: Place, *, is_guard: bool) -> tuple[str, ...]:
    """Lines of the manuals of guards and of agents for a disk that is replaced."""
    if is_guard:
        return (f"kjbod guard release {CONFIG} {GUARD_CONFIG} {_quoted(place.path)}",)
    return (
        "# the new disk is mounted where the dead one was:",
        f"kjbod format -g -t {_quoted(place.fleet or 'CLUSTER_ID')} {CONFIG}",
        f"kjbod dirs add {CONFIG} {_quoted(place.path)}",
    )


def _silent(agent: Agent) -> Todo:
    failed = f", {agent.failed:,} of them failed" if agent.failed else ""
    count = plural(agent.directories, "directory", "directories")
    return Todo(
        place=None,
        host=agent.host,
        broker_id=agent.broker_id,
        fleet=agent.fleet,
        rack=agent.rack,
        what=f"silent for {duration(agent.silent_ms)}",
        reason=f"nothing heard since {when(agent.last_ms)}; {count}{failed}, of which nothing is known now",
        commands=(f"ssh {_quoted(agent.host)}", "systemctl status 'kjbod*'", f"kjbod status {CONFIG}"),
        since_ms=agent.last_ms,
    )


def _ended(agent: Agent) -> Todo:
    code = f", exit code {agent.exit_code}" if agent.exit_code is not None else ""
    return Todo(
        place=None,
        host=agent.host,
        broker_id=agent.broker_id,
        fleet=agent.fleet,
        rack=agent.rack,
        what=f"{agent.status}{code}",
        reason=agent.reason or "no reason given",
        commands=("journalctl -u 'kjbod*' -n 50", f"kjbod status {CONFIG}"),
        since_ms=agent.last_ms,
    )


def _quoted(text: str) -> str:
    return shlex.quote(text)


def _disk_tells(place: Place) -> tuple[str, ...]:
    device = (place.device or "").partition(" ")[0]
    return (f"smartctl -x {_quoted('/dev/' + device)}",) if device else ()


def _empty_it(place: Place) -> tuple[str, ...]:
    return (f"kjbod move {CONFIG} --from {_quoted(place.path)} --to OTHER_DIRECTORY",)


def _moves(report: FleetReport, place: Place) -> tuple[str, ...]:
    for uneven in report.insights.capacity.imbalances:
        if (uneven.fleet, uneven.host, uneven.broker_id) == (place.fleet, place.host, place.broker_id):
            return uneven.commands
    return (f"kjbod log-dirs {CONFIG}",)
