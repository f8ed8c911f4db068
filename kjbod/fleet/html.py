"""The fleet page: one HTML file, no script, nothing loaded from anywhere, equal bytes for equal data.

Every chart is there twice, for wide and narrow windows, and has a table with its figures. Long lists are cut to what a
person can look at, and the page says so; ``tables/`` and ``report.json`` have everything.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
    STATES_WORST_FIRST,
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
        _health(report),
        _failures(report),
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
    failed = report.states.get("failed", 0)
    total = len(report.directories)
    slowest = max((r["total_ms"] for r in report.incidents if r["total_ms"] is not None), default=None)
    used, space = report.space
    running = sum(row["status"] == "unfenced" for row in report.agents)
    # The last that a stopped agent said is no longer so: what it led is led by others, and would count twice.
    stopped = {(row["host"], row["broker_id"]) for row in report.agents if row["status"] == "stopped"}
    led = sum(row["leaders"] or 0 for row in report.directories if (row["host"], row["broker_id"]) not in stopped)
    tiles = [
        ("directories online", f"{report.states.get('online', 0):,} / {total:,}", ""),
        ("directories failed", f"{failed:,}", "bad" if failed else "good"),
        ("slowest acknowledgement", duration(slowest), ""),
        ("agents unfenced", f"{running:,} / {len(report.agents):,}", "" if running == len(report.agents) else "warn"),
        ("partitions led", f"{led:,}", ""),
        ("space used", f"{used / space:.0%}" if space else "–", ""),
    ]
    cells = "".join(
        f'<div class="tile {tone}"><b>{clean(value)}</b><span>{clean(name)}</span></div>' for name, value, tone in tiles
    )
    return f'<div class="tiles">{cells}</div>'


# --- the sections


def _health(report: Report) -> str:
    # Agents with something wrong first: in a large fleet only they are worth the room.
    worst = sorted(report.agents, key=lambda r: (-r["failed"], -r["impaired"], r["status"] == "unfenced"))[:AGENTS_MAX]
    shown = {(row["host"], row["broker_id"]) for row in worst}
    rows = [_grid_row(report, row) for row in report.agents if (row["host"], row["broker_id"]) in shown]
    healthy = len(report.agents) - len(rows)
    note = f" Agents with problems come first; {plural(healthy, 'more agent')} not drawn." if healthy else ""
    states = [state for state in STATES_WORST_FIRST if state in report.states]
    table = _table(
        sorted(report.directories, key=lambda d: _severity(d["state"])),
        *(*_AGENT, ("rack", "rack"), ("directory", "path"), ("state", "state"), ("directory id", "dir_id")),
        *(("device", "device"), ("serial", "serial"), ("failures#", "failures")),
        ("last seen, UTC", lambda r: date_time(r["last_seen"])),
    )
    return _section(
        "State of every log directory, by agent",
        "One box for each directory, as its agent last saw it." + note,
        (lambda width: grid(rows, width)) if rows else None,
        legend=[(f"s-{state}", f"{state}: {report.states[state]:,}") for state in states],
        table=table,
        empty="No agent has reported yet.",
    )


def _severity(state: str) -> int:
    return STATES_WORST_FIRST.index(state) if state in STATES_WORST_FIRST else len(STATES_WORST_FIRST)


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
    return GridRow(report.label(agent), note, cells)


def _details(directory: Row) -> str:
    used, total, leaders = directory["bytes_used"], directory["bytes_total"], directory["leaders"]
    parts = [f"{used / total:.0%} used"] if used is not None and total else []
    return ", ".join(parts + ([f"leads {leaders:,}"] if leaders is not None else []))


def _of(rows: Iterable[Row], agent: Row) -> list[Row]:
    return [r for r in rows if (r["host"], r["broker_id"]) == (agent["host"], agent["broker_id"])]


def _failures(report: Report) -> str:
    newest = report.incidents[-INCIDENTS_MAX:]
    rows = [_latency_row(report, row) for row in newest]
    cut = len(report.incidents) - len(newest)
    note = f" The newest {len(newest)} are drawn, {cut:,} are not." if cut else ""
    table = _table(
        report.incidents[::-1],
        ("time, UTC", lambda r: date_time(r["ts"])),
        *(("broker", "broker_id"), ("directory", "path"), ("outcome", "outcome")),
        ("detected#", lambda r: duration(r["detect_ms"])),
        ("sent#", lambda r: duration(r["send_ms"])),
        ("acknowledged#", lambda r: duration(r["acknowledge_ms"])),
        ("total#", lambda r: duration(r["total_ms"])),
        ("gave up#", lambda r: duration(r["give_up_ms"])),
        *(("partitions#", "partitions"), ("led#", "leaders")),
        below=_evidence,
        open_=True,
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


def _evidence(row: Row) -> str:
    evidence = row["evidence"] or row["cause"] or "none recorded"
    identity = [f"{what} {row[what]}" for what in ("device", "serial") if row[what] and row[what] not in evidence]
    return f"Evidence: {'; '.join([evidence, *identity])}"


def _latency_row(report: Report, row: Row) -> LatencyRow:
    name = report.names(row["host"], row["broker_id"]).get(row["path"], row["path"])
    # A stage that did not happen, or a first sign that nobody saw, is not drawn as missing data.
    stages = [(class_, short, row[column]) for column, class_, short, _ in STAGES if row[column] is not None]
    bars = tuple(stages) or (("l-send", "sent", None),)
    return LatencyRow(f"{name} · broker {row['broker_id']}", f"{moment(row)[:8]} · {row['outcome']}", bars)


def _capacity(report: Report) -> str:
    fullest = sorted(report.capacity, key=lambda r: -(r["used_ratio"] or 0))[:BARS_MAX]
    chosen = {id(row) for row in fullest}
    rows = [_capacity_row(report, row) for row in report.capacity if id(row) in chosen]
    cut = len(report.capacity) - len(rows)
    table = _table(
        report.capacity,
        *(*_AGENT, ("directory", "path")),
        ("used#", lambda r: size(r["bytes_used"])),
        ("size#", lambda r: size(r["bytes_total"])),
        ("used, %#", lambda r: f"{100 * (r['used_ratio'] or 0):.1f}"),
        ("growth a day#", lambda r: size(r["growth_bytes_per_day"])),
        ("days to full#", lambda r: None if r["days_to_full"] is None else f"{r['days_to_full']:.1f}"),
    )
    return _section(
        "How full each directory is",
        "Used part of the file system at the last sample."
        + (f" The fullest; {cut:,} more in the table." if cut else ""),
        (lambda w: bars(rows, w, 1, lambda t: f"{t:.0%}", "Used part of each directory's file system"))
        if rows
        else None,
        table=table,
        empty="No sample has reported a size yet.",
        half=True,
    )


def _capacity_row(report: Report, row: Row) -> BarRow:
    ratio = row["used_ratio"] or 0
    tone = "s-failed" if ratio >= 0.95 else "s-suspect" if ratio >= 0.85 else "bar"
    text = f"{ratio:.0%} of {size(row['bytes_total'])}"
    name = report.names(row["host"], row["broker_id"])[row["path"]]
    title = f"{row['path']}: {size(row['bytes_used'])} of {size(row['bytes_total'])} used"
    return BarRow(report.label(row), name, ratio, 1, text, tone, title)


def _leaders(report: Report) -> str:
    known = [row for row in report.directories if row["leaders_max"] is not None]
    most = sorted(known, key=lambda r: (r["state"] == "online", -r["leaders_max"]))[:BARS_MAX]
    chosen = {id(row) for row in most}
    rows = [_leader_row(report, row) for row in known if id(row) in chosen]
    cut = len(known) - len(rows)
    high = max((row["leaders_max"] for row in known), default=1)
    table = _table(
        known,
        *(*_AGENT, ("directory", "path")),
        *(("leaders#", "leaders"), ("at most#", "leaders_max"), ("partitions#", "partitions")),
    )
    return _section(
        "Partitions led from each directory",
        "Filled: at the end. Outline: the most in this time." + (f" {cut:,} more in the table." if cut else ""),
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
    events = report.timeline[-EVENTS_MAX:]
    lanes = _lanes(report, events)
    first, last = report.first_ts, report.last_ts
    kinds = [kind for kind in EventKind if any(row["kind"] == kind for row in events)]
    cut = len(report.timeline) - len(events)
    note = f" The newest {len(events):,} events are drawn." if cut else ""
    table = _table(
        events[::-1],
        ("time, UTC", lambda r: date_time(r["ts"])),
        *(("broker", "broker_id"), ("directory", "path")),
        ("event", lambda r: str(r["kind"]).replace("_", " ")),
        ("what happened", describe),
    )
    return _section(
        "What happened when, for each agent and directory",
        "Bands are states. Events at almost the same moment stand side by side; the table has the exact times." + note,
        (lambda w: timeline(lanes, first, last, w)) if lanes and first is not None and last is not None else None,
        marks=[str(kind) for kind in kinds],
        table=table,
        empty="No event has been reported yet.",
    )


def _lanes(report: Report, events: Sequence[Row]) -> list[Lane]:
    """A lane for each agent, then its directories. With more agents than fit, those with failures or stops."""
    notable = {(r["host"], r["broker_id"]) for r in events if r["kind"] in ("dir_failed", "agent_stopped", "fenced")}
    agents = list(report.agents)
    if sum(1 + row["directories"] for row in agents) > LANES_MAX:
        agents = [row for row in agents if (row["host"], row["broker_id"]) in notable] or agents
    lanes: list[Lane] = []
    for agent in agents:
        if len(lanes) >= LANES_MAX:
            break
        ours = _of(events, agent)
        alive = _alive(ours, report)
        own = tuple(Mark(r["ts"], r["kind"], _mark_title(r)) for r in ours if r["path"] is None)
        lanes.append(Lane(report.label(agent), True, tuple((a, b, "agent") for a, b in alive), own))
        names = report.names(agent["host"], agent["broker_id"])
        for directory in _of(report.directories, agent):
            there = [r for r in ours if r["path"] == directory["path"]]
            marks = tuple(Mark(r["ts"], r["kind"], _mark_title(r)) for r in there)
            lanes.append(Lane(names[directory["path"]], False, _bands(there, alive, directory), marks))
    return lanes


def _mark_title(row: Row) -> str:
    return f"{moment(row)} UTC: {describe(row)}"


def _alive(events: Sequence[Row], report: Report) -> list[tuple[int, int]]:
    """When the agent ran, as far as its events tell."""
    first, last = report.first_ts, report.last_ts
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
    state = before or ("online" if changes else directory["state"])
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
        return f'{head}<p class="note">{clean(empty)}</p></section>'
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
    rows: Sequence[Row], *columns: tuple[str, Value], below: Callable[[Row], str] | None = None, open_: bool = False
) -> str:
    """A table: each column has a head, ending in ``#`` for numbers, and the name of a field or a function of a row.
    ``below`` is a text that gets a line of its own under each row."""
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

    body = "".join(line(row) for row in rows[:TABLE_ROWS_MAX])
    title = "".join(tag("th", head, head.removesuffix("#")) for head, _ in columns)
    cut = f", the first {TABLE_ROWS_MAX}" if len(rows) > TABLE_ROWS_MAX else ""
    return (
        f"<details{' open' if open_ else ''}><summary>Table: {plural(len(rows), 'row')}{cut}</summary>"
        f'<div class="scroll"><table><thead><tr>{title}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )
