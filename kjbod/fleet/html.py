"""The fleet page: one HTML file, no script, nothing loaded from anywhere, equal bytes for equal data.

What needs a look is first: agents that are silent, directories that are not online, and those that will soon be full.
Every chart is there twice, for wide and narrow windows, and has a table with its figures. Long lists are cut to what a
person can look at, the worst first, and the page says so and where the rest is: ``tables/`` and ``report.json``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kjbod.fleet import deeds
from kjbod.fleet.charts import (
    BarRow,
    Cell,
    GridRow,
    Lane,
    LatencyRow,
    Mark,
    bars,
    grid,
    latencies,
    shape,
    timeline,
)
from kjbod.fleet.schema import EventKind
from kjbod.fleet.style import CSS
from kjbod.fleet.summary import (
    SILENT,
    STATES_WORST_FIRST,
    STOPPED,
    Report,
    Row,
    describe,
    moment,
    sentences,
)
from kjbod.fleet.svg import Drawing, clean, date_time, duration, plural, size

WIDE_PX, HALF_PX, NARROW_PX = 1080, 516, 330
AGENTS_MAX = 40
INCIDENTS_MAX = 25
BARS_MAX = 36
EVENTS_MAX = 600
LANES_MAX = 40
TABLE_ROWS_MAX = 200
LISTED_ROWS_MAX = 40
"""Rows of a list of what needs a look."""
SOON_ROWS_MAX = 20
SOON_DAYS = 30
"""A directory that is forecast to be full within this needs a look."""
BULK_KINDS = (EventKind.REPLICA_CREATED, EventKind.ASSIGNMENTS_ACKNOWLEDGED)
"""Left out of a timeline with more events than can be drawn."""

STAGES = (
    ("detect_ms", "l-detect", "detected", "first sign → verdict"),
    ("send_ms", "l-send", "sent", "verdict → sent"),
    ("acknowledge_ms", "l-ack", "acknowledged", "sent → acknowledged"),
    ("move_ms", "l-move", "leaders moved", "verdict → leaders moved"),
    ("give_up_ms", "l-giveup", "gave up", "verdict → agent gave up"),
)
"""Columns of an incident, with CSS class, name at the bar and name in the legend."""

Render = Callable[[float], Drawing]
Value = str | Callable[[Row], Any]
_AGENT: tuple[tuple[str, Value], ...] = (("broker", "broker_id"), ("host", "host"))
_CLUSTER: tuple[str, Value] = ("cluster", lambda row: row.get("fleet"))


def page(report: Report) -> str:
    """The whole page."""
    summary = sentences(report)
    first, last = date_time(report.first_ts)[:19], date_time(report.last_ts)[:19]
    period = f"{first} to {last} UTC" if last else "no data"
    amount = f"{plural(report.samples, 'sample')} and {plural(report.events, 'event')}"
    body = [
        "<header>",
        "<h1>Fleet report</h1>",
        f'<p class="period">{clean(f"{period} · {amount}")}</p>',
        f'<p class="lead"><strong>{clean(summary[0])}</strong> {clean(" ".join(summary[1:]))}</p>',
        _tiles(report),
        "</header><main>",
        _attention(report),
        _health(report),
        _failures(report),
        _guards(report),
        '<div class="pair">',
        _capacity(report),
        _leaders(report),
        "</div>",
        _timeline(report),
        _data(report),
        "</main>",
        "<footer>kjbod fleet report. Everything shown here, and what was cut from it, is in tables/ (Parquet) and "
        "report.json beside this page.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>kjbod fleet report</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _tiles(report: Report) -> str:
    failed, silent = report.states.get("failed", 0), len(report.silent)
    out = sum(row["status"] in (STOPPED, "fenced") for row in report.agents)
    total = len(report.directories)
    slowest = max((r["total_ms"] for r in report.incidents if r["total_ms"] is not None), default=None)
    days = min((row["days_to_full"] for row in report.capacity if row["days_to_full"] is not None), default=None)
    used, space = report.space
    # The last that such an agent said is no longer so: what it led is led by others, and would count twice.
    ended = report.ended
    led = sum(row["leaders"] or 0 for row in report.directories if (row["host"], row["broker_id"]) not in ended)
    tiles = [
        ("directories online", f"{report.states.get('online', 0):,} / {total:,}", ""),
        ("directories failed", f"{failed:,}", "bad" if failed else "good"),
        ("agents silent", f"{silent:,} / {len(report.agents):,}", "bad" if silent else "good"),
        ("agents stopped or fenced", f"{out:,}", "warn" if out else "good"),
        ("until the first directory is full", _days(days), "warn" if days is not None and days <= SOON_DAYS else ""),
        ("slowest acknowledgement", duration(slowest), ""),
        ("partitions led", f"{led:,}", ""),
        ("space used", f"{used / space:.0%}" if space else "–", ""),
    ]
    cells = "".join(
        f'<div class="tile {tone}"><b>{clean(value)}</b><span>{clean(name)}</span></div>' for name, value, tone in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _days(days: float | None) -> str:
    return "–" if days is None else f"{days:,.1f} d"


# --- the sections


_PLACE: tuple[tuple[str, Value], ...] = (("rack", "rack"), _CLUSTER)
_DISK: tuple[tuple[str, Value], ...] = (
    *(*_AGENT, ("directory", "path")),
    *(("device", "device"), ("serial", "serial")),
)
_SEEN: tuple[str, Value] = ("last seen, UTC", lambda row: date_time(row["last_seen"])[:19])


def _attention(report: Report) -> str:
    """Section of what a person has to look at this morning; the worst first."""
    lists = (_silent_agents, _failed_directories, _ended_agents, _other_directories, _soon_full)
    found = "".join(make(report) for make in lists)
    if not found:
        text = "Nothing was reported yet."
        if report.directories:
            text = f"Nothing: all agents run, all directories are online, and none is full within {SOON_DAYS} days."
        found = f'<p class="note">{clean(text)}</p>'
    return f"<section><h2>What needs a look</h2>{found}</section>"


def _silent_agents(report: Report) -> str:
    silent_for: tuple[str, Value] = ("silent for#", lambda row: duration(row["silent_ms"]))
    counts = (("directories#", "directories"), ("of them failed#", "failed"))
    return _listed(
        "Agents that are silent", report.silent, *_AGENT, silent_for, _SEEN, *counts, *_PLACE, table="agents"
    )


def _failed_directories(report: Report) -> str:
    failures = {(row["host"], row["broker_id"], row["path"]): row for row in report.incidents}

    def failure(directory: Row) -> Row | None:
        return failures.get((directory["host"], directory["broker_id"], directory["path"]))

    def since(directory: Row) -> str:
        found = failure(directory)
        return "" if found is None else date_time(found["ts"])[:19]

    def evidence(directory: Row) -> str:
        found = failure(directory)
        return "Evidence: none recorded" if found is None else _evidence(found)

    failed = sorted((row for row in report.directories if row["state"] == "failed"), key=since, reverse=True)
    columns = (("since, UTC", since), *_DISK, *_PLACE)
    return _listed("Directories that failed", failed, *columns, table="directories", below=evidence)


def _ended_agents(report: Report) -> str:
    ended = sorted((row for row in report.agents if row["status"] in (STOPPED, "fenced")), key=_rank)
    columns = (*_AGENT, ("status", "status"), ("exit code#", "exit_code"), _SEEN, *_PLACE, ("reason", "reason"))
    return _listed("Agents that are stopped or fenced", ended, *columns, table="agents")


def _other_directories(report: Report) -> str:
    rows = [row for row in report.directories if row["state"] not in ("online", "failed", SILENT, STOPPED)]
    rows.sort(key=lambda row: _severity(row["state"]))
    columns = (("state", "state"), *_DISK, _SEEN, *_PLACE)
    return _listed("Directories in another state", rows, *columns, table="directories")


def _soon_full(report: Report) -> str:
    rows = [r for r in report.soonest_full if r["days_to_full"] is not None and r["days_to_full"] <= SOON_DAYS]
    columns: tuple[tuple[str, Value], ...] = (
        ("full in#", lambda row: _days(row["days_to_full"])),
        *(*_AGENT, ("directory", "path")),
        ("used, %#", lambda row: f"{100 * (row['used_ratio'] or 0):.1f}"),
        ("growth a day#", lambda row: size(row["growth_bytes_per_day"])),
    )
    title = f"Directories that will be full within {SOON_DAYS} days"
    return _listed(title, rows, *columns, table="capacity", most=SOON_ROWS_MAX)


def _listed(title: str, rows: Sequence[Row], *columns: tuple[str, Value], table: str, **more: Any) -> str:
    if not rows:
        return ""
    return _table(rows, *columns, table=table, open_=True, title=title, **{"most": LISTED_ROWS_MAX, **more})


def _rank(agent: Row) -> tuple[Any, ...]:
    """Order of agents: the worst first, then by host."""
    if agent["status"] == SILENT:
        kind = 0
    elif agent["failed"]:
        kind = 1
    elif agent["status"] == STOPPED:
        kind = 2
    elif agent["impaired"]:
        kind = 3
    else:  # unknown: it has said nothing of itself in this time, and its directories are well
        kind = 5 if agent["status"] in ("unfenced", "unknown") else 4
    return kind, -agent["failed"], -agent["impaired"], agent["host"], agent["broker_id"]


def _is_healthy(agent: Row) -> bool:
    return bool(_rank(agent)[0] == 5)


def _health(report: Report) -> str:
    agents = sorted(report.agents, key=_rank)
    sick = [row for row in agents if not _is_healthy(row)]
    drawn = agents if len(agents) <= AGENTS_MAX else sick[:AGENTS_MAX]
    rows = [_grid_row(report, row) for row in drawn]
    note = "One box for each directory, as its agent last saw it; agents with problems come first."
    if len(drawn) < len(sick):
        note += f" {plural(len(sick) - len(drawn), 'more agent')} with problems not drawn: all are in tables/agents."
    states = [state for state in STATES_WORST_FIRST if state in report.states]
    table = _table(
        sorted(report.directories, key=lambda d: _severity(d["state"])),
        *(*_AGENT, ("rack", "rack"), ("directory", "path"), ("state", "state"), ("directory id", "dir_id")),
        *(("device", "device"), ("serial", "serial"), ("failures#", "failures")),
        ("last seen, UTC", lambda r: date_time(r["last_seen"])),
        table="directories",
    )
    return _section(
        "State of every log directory, by agent",
        note,
        (lambda width: grid(rows, width)) if rows else None,
        legend=[(f"s-{state}", f"{state}: {report.states[state]:,}") for state in states] if rows else [],
        table=_healthy(report, agents if not drawn else [row for row in agents if _is_healthy(row)], drawn) + table,
        empty="No agent has a problem." if agents else "No directory has been reported yet.",
    )


def _healthy(report: Report, healthy: Sequence[Row], drawn: Sequence[Row]) -> str:
    """The agents that are not drawn because they are well, folded."""
    there = {(row["host"], row["broker_id"]) for row in drawn}
    folded = [row for row in healthy if (row["host"], row["broker_id"]) not in there]
    if not folded:
        return ""
    label = report.labels()
    names = "".join(f"<span>{clean(label(row))}</span>" for row in folded)
    count = plural(sum(row["directories"] for row in folded), "directory", "directories")
    title = f"{plural(len(folded), 'healthy agent')} with {count}, all online"
    return f'<details><summary>{clean(title)}</summary><div class="names">{names}</div></details>'


def _severity(state: str) -> int:
    return STATES_WORST_FIRST.index(state if state in STATES_WORST_FIRST else "unknown")


def _grid_row(report: Report, agent: Row) -> GridRow:
    names = report.names(agent["host"], agent["broker_id"])
    cells = tuple(
        Cell(
            names[d["path"]],
            d["state"],
            _details(d),
            f"{d['path']} is {d['state']}; directory id {d['dir_id'] or 'unknown'}, device {d['device'] or 'unknown'}, "
            f"last seen {date_time(d['last_seen'])} UTC",
        )
        for d in _of(report.directories, agent)
    )
    note = agent["status"] if agent["exit_code"] is None else f"{agent['status']}, exit code {agent['exit_code']}"
    if agent["status"] == SILENT:
        note = f"{SILENT} for {duration(agent['silent_ms'])}"
    return GridRow(report.label(agent), note, cells)


def _details(directory: Row) -> str:
    used, total, leaders = directory["bytes_used"], directory["bytes_total"], directory["leaders"]
    parts = [f"{used / total:.0%} used"] if used is not None and total else []
    return ", ".join(parts + ([f"leads {leaders:,}"] if leaders is not None else []))


def _of(rows: Iterable[Row], agent: Row) -> list[Row]:
    return [r for r in rows if (r["host"], r["broker_id"]) == (agent["host"], agent["broker_id"])]


def _failures(report: Report) -> str:
    newest = report.incidents[::-1]
    rows = [_latency_row(report, row) for row in newest[:INCIDENTS_MAX]]
    note = (
        f" The newest {len(rows)} are drawn; all {len(newest):,} are in tables/incidents."
        if newest[len(rows) :]
        else ""
    )
    table = _table(
        newest,
        ("time, UTC", lambda r: date_time(r["ts"])),
        *(_CLUSTER, *_AGENT, ("directory", "path"), ("outcome", "outcome")),
        ("detected#", lambda r: duration(r["detect_ms"])),
        ("sent#", lambda r: duration(r["send_ms"])),
        ("acknowledged#", lambda r: duration(r["acknowledge_ms"])),
        ("total#", lambda r: duration(r["total_ms"])),
        ("gave up#", lambda r: duration(r["give_up_ms"])),
        *(("partitions#", "partitions"), ("led#", "leaders")),
        below=_evidence,
        open_=True,
        table="incidents",
    )
    return _section(
        "How long each failure took from the first sign to the acknowledgement",
        "Logarithmic scale: every bar starts at 1 ms and has its value beside it. A failure that the controller never "
        "acknowledges ends with the agent giving up after log.dir.failure.timeout.ms." + note,
        (lambda width: latencies(rows, width)) if rows else None,
        legend=[(class_, name) for _, class_, _, name in STAGES],
        table=table if rows else "",
        empty="No directory has failed in this time.",
    )


def _guards(report: Report) -> str:
    """Section of the deeds of guards, by cluster; none where there are no guards."""
    rows = report.guards
    if not rows:
        return ""
    table = _table(
        rows,
        *(("cluster", "fleet"), ("guards#", "guards"), ("of them act#", "acting"), ("acts#", "acts")),
        *(("in vain#", "failed_acts"), ("refused#", "refusals"), ("only observed#", "would")),
        open_=True,
    )
    note = (
        "Refused by the hand, a controller or the guard's own rules. Only observed: what one that acts would have done."
    )
    return f'<section><h2>What guards did</h2><p class="note">{clean(note)}</p>{table}</section>'


def _evidence(row: Row) -> str:
    evidence = row["evidence"] or row["cause"] or "none recorded"
    identity = [f"{what} {row[what]}" for what in ("device", "serial") if row[what] and row[what] not in evidence]
    by_guard = deeds.told(row)
    return f"Evidence: {'; '.join([evidence, *identity])}{f'. Guard: {by_guard}' if by_guard else ''}"


def _latency_row(report: Report, row: Row) -> LatencyRow:
    name = report.names(row["host"], row["broker_id"]).get(row["path"], row["path"])
    # A stage that did not happen, or a first sign that nobody saw, is not drawn as missing data.
    stages = [(class_, short, row[column]) for column, class_, short, _ in STAGES if row[column] is not None]
    bars = tuple(stages) or (("l-send", "sent", None),)
    clusters = {agent.get("fleet") for agent in report.agents} | {row.get("fleet")}
    cluster = str(row.get("fleet") or "unknown") if len(clusters - {None}) > 1 else ""
    when = date_time(row["ts"])[:19]
    return LatencyRow(f"{name} · {report.label(row)}", f"{when} · {row['outcome']}", bars, cluster)


def _capacity(report: Report) -> str:
    soonest = report.soonest_full
    drawn = soonest[:BARS_MAX]
    cut = len(soonest) > len(drawn)
    rows = [_capacity_row(report, row) for row in (drawn if cut else report.capacity)]
    forecasts = sum(row["days_to_full"] is not None for row in soonest)
    table = _table(
        soonest,
        *(*_AGENT, ("directory", "path")),
        ("full in#", lambda r: _days(r["days_to_full"])),
        ("used#", lambda r: size(r["bytes_used"])),
        ("size#", lambda r: size(r["bytes_total"])),
        ("used, %#", lambda r: f"{100 * (r['used_ratio'] or 0):.1f}"),
        ("growth a day#", lambda r: size(r["growth_bytes_per_day"])),
        table="capacity",
    )
    note = "Used part of the file system at the last sample"
    note += f"; {plural(forecasts, 'forecast')} from its growth." if forecasts else "."
    if cut:
        note += (
            f" The {len(drawn)} that are full soonest, then the fullest; all {len(soonest):,} are in tables/capacity."
        )
    return _section(
        "How full each directory is",
        note,
        (lambda w: bars(rows, w, 1, lambda t: f"{t:.0%}", "Used part of each directory's file system"))
        if rows
        else None,
        table=table,
        empty="No sample has reported a size yet.",
        half=True,
    )


def _capacity_row(report: Report, row: Row) -> BarRow:
    ratio, days = row["used_ratio"] or 0, row["days_to_full"]
    soon = days is not None and days <= SOON_DAYS
    tone = "s-failed" if ratio >= 0.95 else "s-suspect" if ratio >= 0.85 or soon else "bar"
    text = f"{ratio:.0%} of {size(row['bytes_total'])}" + (f", full in {_days(days)}" if days is not None else "")
    name = report.names(row["host"], row["broker_id"]).get(row["path"], row["path"])
    title = f"{row['path']}: {size(row['bytes_used'])} of {size(row['bytes_total'])} used"
    return BarRow(report.label(row), str(name), ratio, 1, text, tone, title)


def _leaders(report: Report) -> str:
    ended = report.ended
    there = [row for row in report.directories if (row["host"], row["broker_id"]) not in ended]
    known = [row for row in there if row["leaders_max"] is not None]
    most = sorted(known, key=lambda r: (r["state"] == "online", -r["leaders_max"]))
    cut = len(most) > BARS_MAX
    rows = [_leader_row(report, row) for row in (most[:BARS_MAX] if cut else known)]
    high = max((row["leaders_max"] for row in known), default=1)
    table = _table(
        most,
        *(*_AGENT, ("directory", "path"), ("state", "state")),
        *(("leaders#", "leaders"), ("at most#", "leaders_max"), ("partitions#", "partitions")),
        table="directories",
    )
    note = "Filled: at the end. Outline: the most in this time."
    if ended:
        note += " Agents that are silent or have stopped are left out: what they led, others lead."
    if cut:
        note += f" The {len(rows)} that are not online or lead most; all are in tables/directories."
    return _section(
        "Partitions led from each directory",
        note,
        (lambda w: bars(rows, w, high, lambda t: f"{t:,.0f}", "Partitions led from each directory")) if rows else None,
        table=table,
        empty="No number of leaders has been reported yet.",
        half=True,
    )


def _leader_row(report: Report, row: Row) -> BarRow:
    now, most = row["leaders"] or 0, row["leaders_max"]
    text = f"{now:,}" if now == most else f"{now:,} (was {most:,})"
    tone = "bar" if row["state"] == "online" else f"s-{row['state']}"
    name = report.names(row["host"], row["broker_id"])[row["path"]]
    title = f"{row['path']}: leads {now:,} now, {most:,} at most"
    return BarRow(report.label(row), name, now, most, text, tone, title)


# --- timeline


def _timeline(report: Report) -> str:
    events: Sequence[Row] = report.timeline
    if len(events) > EVENTS_MAX:
        events = [row for row in events if row["kind"] not in BULK_KINDS][-EVENTS_MAX:]
    agents = _timeline_agents(report, events)
    lanes, drawn = _lanes(report, events, agents)
    first, last = report.first_ts, report.last_ts
    kinds = [kind for kind in EventKind if any(row["kind"] == kind for row in events)]
    note = ""
    if len(report.agents) > drawn:
        note += f" {drawn:,} of {plural(len(report.agents), 'agent')} drawn, those with problems first."
    if len(report.timeline) > len(events):
        note += f" The newest {len(events):,} events, without replicas created and assignments recorded; all "
        note += f"{len(report.timeline):,} are in tables/timeline."
    table = _table(
        events[::-1],
        ("time, UTC", lambda r: date_time(r["ts"])),
        *(*_AGENT, ("directory", "path")),
        ("event", lambda r: str(r["kind"]).replace("_", " ")),
        ("what happened", describe),
        table="timeline",
    )
    return _section(
        "What happened when, for each agent and directory",
        "Bands are states. Events at almost the same moment stand side by side; the table has the exact times." + note,
        (lambda w: timeline(lanes, first, last, w)) if lanes and first is not None and last is not None else None,
        marks=[str(kind) for kind in kinds],
        table=table,
        empty="No event has been reported yet.",
    )


def _timeline_agents(report: Report, events: Sequence[Row]) -> list[Row]:
    """The agents to draw, the worst first: all where their lanes fit, else those that have, or had, a problem."""
    agents = sorted(report.agents, key=_rank)
    if sum(1 + row["directories"] for row in agents) <= LANES_MAX:
        return agents
    notable = {(r["host"], r["broker_id"]) for r in events if r["kind"] in ("dir_failed", "agent_stopped", "fenced")}
    sick = [row for row in agents if not _is_healthy(row) or (row["host"], row["broker_id"]) in notable]
    return sick or agents


def _lanes(report: Report, events: Sequence[Row], agents: Sequence[Row]) -> tuple[list[Lane], int]:
    """A lane for each agent, then its directories (where there is no room for all, those to which something happened),
    and of how many agents there are lanes."""
    drawn, crowded = 0, sum(1 + row["directories"] for row in agents) > LANES_MAX
    lanes: list[Lane] = []
    for agent in agents:
        if len(lanes) >= LANES_MAX:
            break
        drawn += 1
        ours = _of(events, agent)
        alive = _alive(ours, report, agent)
        unheard = _unheard(report, agent)
        own = tuple(Mark(r["ts"], r["kind"], _mark_title(r)) for r in ours if r["path"] is None)
        lanes.append(Lane(report.label(agent), True, tuple((a, b, "agent") for a, b in alive) + unheard, own))
        names = report.names(agent["host"], agent["broker_id"])
        for directory in _of(report.directories, agent):
            there = [r for r in ours if r["path"] == directory["path"]]
            if crowded and not there and directory["state"] in ("online", SILENT, STOPPED):
                continue  # nothing happened that the lane of its agent does not show
            marks = tuple(Mark(r["ts"], r["kind"], _mark_title(r)) for r in there)
            lanes.append(Lane(names[directory["path"]], False, _bands(there, alive, directory) + unheard, marks))
    return lanes, drawn


def _mark_title(row: Row) -> str:
    return f"{moment(row)} UTC: {describe(row)}"


def _unheard(report: Report, agent: Row) -> tuple[tuple[int, int, str], ...]:
    """The time in which nothing was heard of an agent that is silent, as a band."""
    last = report.last_ts
    if agent["status"] != SILENT or last is None:
        return ()
    return ((agent["last_seen"], last, SILENT),)


def _alive(events: Sequence[Row], report: Report, agent: Row) -> list[tuple[int, int]]:
    """Times in which the agent ran, as far as its events, and what else was heard of it, tell."""
    first, last = report.first_ts, agent["last_seen"] if agent["status"] == SILENT else report.last_ts
    assert first is not None
    assert last is not None
    spans: list[tuple[int, int]] = []
    since: int | None = first
    for row in events:
        if row["kind"] == EventKind.AGENT_STARTED:
            since = row["ts"] if since is None or not spans else since
        elif row["kind"] == EventKind.AGENT_STOPPED and since is not None:
            spans.append((since, row["ts"]))
            since = None
    return spans if since is None else [*spans, (since, last)]


def _bands(events: Sequence[Row], alive: Sequence[tuple[int, int]], directory: Row) -> tuple[tuple[int, int, str], ...]:
    """States of a directory over the time in which its agent ran."""
    changes = [(row["ts"], new) for row in events if (new := _new_state(row))]
    before = next(
        (row["previous"] for row in events if row["kind"] == EventKind.STATE_CHANGED and row["previous"]), None
    )
    state = before or ("online" if changes else directory.get("last_state") or directory["state"])
    bands: list[tuple[int, int, str]] = []
    for start, end in alive:
        at = max(start, directory["first_seen"]) if not bands else start
        for ts, new in changes:
            if at <= ts <= end:
                if ts > at:
                    bands.append((at, ts, state))
                at, state = ts, new
        bands.append((at, end, state))
    return tuple(band for band in bands if band[1] > band[0])


def _new_state(row: Row) -> str | None:
    if row["kind"] == EventKind.DIR_FAILED:
        return "failed"
    return row["state"] if row["kind"] == EventKind.STATE_CHANGED else None


# --- data quality and building blocks


def _data(report: Report) -> str:
    bad = report.bad_files
    facts = [
        f"{plural(len(report.files), 'file')} read",
        f"{plural(report.bad_lines, 'line')} set aside",
        f"{plural(report.duplicates, 'repeated line')} dropped",
        f"{plural(report.open_files, 'file')} still being written and not read",
    ]
    table = _table(
        bad,
        ("file", lambda r: r["file"].rsplit("/", 1)[-1]),
        *(("status", "status"), ("lines#", "lines"), ("bad lines#", "bad_lines")),
        ("kept", lambda r: "the good lines" if r["kept"] else "nothing"),
        open_=True,
        table="files",
    )
    return (
        "<section><h2>What the report was made from</h2>"
        f'<p class="note">{clean("; ".join(facts))}.</p>{table if bad else ""}</section>'
    )


def _section(
    title: str,
    note: str,
    render: Render | None,
    *,
    legend: Sequence[tuple[str, str]] = (),
    marks: Sequence[str] = (),
    table: str = "",
    empty: str = "",
    half: bool = False,
) -> str:
    head = f"<section><h2>{clean(title)}</h2>"
    if render is None:
        return f'{head}<p class="note">{clean(empty)}</p>{table}</section>'
    chart = (
        f'<div class="wide">{render(HALF_PX if half else WIDE_PX)}</div><div class="narrow">{render(NARROW_PX)}</div>'
    )
    keys = [f'<li><i class="{clean(class_)}"></i>{clean(name)}</li>' for class_, name in legend]
    keys += [_mark_key(kind) for kind in marks]
    list_ = f'<ul class="legend">{"".join(keys)}</ul>' if keys else ""
    return f'{head}<p class="note">{clean(note)}</p><figure>{list_}{chart}</figure>{table}</section>'


def _mark_key(kind: str) -> str:
    class_, name, outline = shape(kind)
    drawn = f'<path class="mark {class_}" d="{outline}"/>'
    return f'<li><svg viewBox="-8 -8 16 16" width="16" height="16" aria-hidden="true">{drawn}</svg>{clean(name)}</li>'


def _table(
    rows: Sequence[Row],
    *columns: tuple[str, Value],
    table: str = "",
    below: Callable[[Row], str] | None = None,
    open_: bool = False,
    most: int = TABLE_ROWS_MAX,
    title: str = "",
) -> str:
    """A table: each column has a head, ending in ``#`` for numbers, and the name of a field or a function of a row.
    ``below`` is a text that gets a line of its own under each row; ``table`` names the folder that has all rows, of
    which ``most`` are shown. One with a ``title`` is shown whole, others scroll."""
    if not rows:
        return ""

    def tag(name: str, head: str, value: Any) -> str:
        class_ = ' class="n"' if head.endswith("#") else ""
        return f"<{name}{class_}>{clean('–' if value is None or value == '' else value)}</{name}>"

    def line(row: Row) -> str:
        cells = "".join(tag("td", head, get(row) if callable(get) else row[get]) for head, get in columns)
        if below is None:
            return f"<tr>{cells}</tr>"
        more = f'<td class="below" colspan="{len(columns)}">{clean(below(row))}</td>'
        return f'<tr class="first">{cells}</tr><tr>{more}</tr>'

    body = "".join(line(row) for row in rows[:most])
    heads = "".join(tag("th", head, head.removesuffix("#")) for head, _ in columns)
    count = f"{len(rows):,}" if title else plural(len(rows), "row")
    if len(rows) > most:
        count += f", the first {most:,} shown" + (f"; all are in tables/{table}" if table else "")
    class_ = ' class="title"' if title else ""
    return (
        f"<details{' open' if open_ else ''}><summary{class_}>{clean(title or 'Table')}: {clean(count)}</summary>"
        f'<div class="scroll{" whole" if title else ""}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )
