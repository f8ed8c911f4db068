"""The first page: what needs a hand, what changed, the map, failure rates, room, failures, kjbod's own work, data.

It is below 1.5 MB whatever the fleet's size: every list is cut to its worst, and says how many it leaves out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kjbod.fleet.insight.model import (
    AgentState,
    Forecast,
    Imbalance,
    Latency,
    Place,
    Rate,
    RateOf,
    Reliability,
    rate_text,
)
from kjbod.fleet.page import todo
from kjbod.fleet.page.changes import KINDS
from kjbod.fleet.page.charts import IntervalRow, Stage, fleet_map, intervals, quantiles
from kjbod.fleet.page.frame import (
    Code,
    Column,
    Link,
    Sorted,
    Value,
    chart,
    code,
    document,
    folded,
    more_than,
    section,
    table,
    tiles,
)
from kjbod.fleet.page.model import (
    ONLINE,
    SILENT,
    STATES_WORST_FIRST,
    STOPPED,
    Change,
    FleetReport,
    Incident,
    MapHost,
    host_file,
    model_file,
    severity,
)
from kjbod.fleet.page.words import evidence, sentences
from kjbod.fleet.svg import clean, date_time, duration, plural, size

URGENT_SHOWN, CALM_SHOWN, SHOWN_MAX = 12, 5, 60
"""Things of one kind that are shown at once, of a kind that can wait for a day, and those that can be unfolded."""
CHANGES_MAX = 40
MODELS_DRAWN_MAX = 16
ROWS_MAX = 60
MAP_ROWS_MAX = 100

Get = Callable[[Any], Value]


def index_page(report: FleetReport) -> str:
    """The whole page."""
    window = report.window
    period = f"{window.from_date} to {window.to_date} · newest line {date_time(window.now_ms)[:19]} UTC"
    summary = sentences(report)
    links = (
        *(("todo", "today"), ("changes", "changed"), ("map", "map"), ("afr", "failure rates")),
        *(("room", "room"), ("incidents", "failures"), ("own", "kjbod's work"), ("data", "data")),
    )
    nav = "".join(f'<a href="#{key}">{clean(name)}</a>' for key, name in links)
    amount = plural(report.samples, "sample")
    header = (
        "<h1>Fleet report</h1>"
        f'<p class="period">{clean(period)} · {clean(amount)}</p>'
        f'<p class="lead"><strong>{clean(summary[0])}</strong> {clean(" ".join(summary[1:]))}</p>'
        f"{_tiles(report)}<nav>{nav}</nav>"
    )
    body = (_todo(report), _changes(report), _map(report), _rates(report), _room(report))
    return document(
        "kjbod fleet report", header, (*body, _incidents(report), _own_work(report), _guards(report), _data(report))
    )


def _tiles(report: FleetReport) -> str:
    failed, silent = report.states.get("failed", 0), report.statuses.get(SILENT, 0)
    out = report.statuses.get(STOPPED, 0) + report.statuses.get("fenced", 0)
    whole = report.insights.reliability.whole
    soonest = [d.days for f in report.insights.capacity.forecasts for d in f.until if d.mark_pct == 100]
    days = min((d for d in soonest if d is not None), default=None)
    risk = report.insights.health.at_risk
    return tiles(
        (
            ("directories online", f"{report.states.get(ONLINE, 0):,} / {report.directories:,}", ""),
            ("directories failed", f"{failed:,}", "bad" if failed else "good"),
            ("agents silent", f"{silent:,} / {report.brokers:,}", "bad" if silent else "good"),
            ("agents stopped or fenced", f"{out:,}", "warn" if out else "good"),
            ("disks that may fail soon", f"{risk:,}", "warn" if risk else "good"),
            ("until the first directory is full", _in_days(days), "warn" if days is not None and days <= 30 else ""),
            ("failure rate a year", rate_text(whole), ""),
            ("slowest acknowledgement", duration(report.slowest_ms), ""),
            ("partitions led", f"{report.leaders:,}", ""),
            ("space used", f"{report.bytes_used / report.bytes_total:.0%}" if report.bytes_total else "–", ""),
        )
    )


def _in_days(days: float | None) -> str:
    return "–" if days is None else f"{days:,.1f} d"


def _host(fleet: str | None, host: str, broker_id: int | None) -> Link:
    return Link(host, f"hosts/{host_file(fleet, host, -1 if broker_id is None else broker_id)}")


def _of_place(place: Place) -> Link:
    return _host(place.fleet, place.host, place.broker_id)


# --- what needs a hand today


def _todo(report: FleetReport) -> str:
    found = todo.groups(report)
    if not found:
        text = "Nothing was reported yet."
        if report.directories:
            text = "Nothing: all agents run, all directories are online, no disk is about to fail, and none is full "
            text += f"within {todo.SOON_DAYS} days."
        return section("What needs a hand today", text, key="todo")
    note = "The most urgent first. Commands are for the host that is named; the configuration may be elsewhere there."
    return section("What needs a hand today", note, *map(_group, found), key="todo")


def _group(group: todo.Group) -> str:
    head = f'<h3>{clean(group.title)} <span class="count">{group.total:,}</span></h3>'
    at_once = CALM_SHOWN if group.tone == "warn" else URGENT_SHOWN
    first, rest = group.items[:at_once], group.items[at_once:SHOWN_MAX]
    shown = min(len(group.items), SHOWN_MAX)
    more = folded(f"{len(rest):,} more", _list(rest, group.tone))
    return head + _list(first, group.tone) + more + more_than(shown, group.total)


def _list(items: Sequence[todo.Todo], tone: str) -> str:
    if not items:
        return ""
    return f'<ol class="todo">{"".join(_item(item, tone) for item in items)}</ol>'


def _item(item: todo.Todo, tone: str) -> str:
    link = _host(item.fleet, item.host, item.broker_id)
    path = f" · {clean(item.place.path)}" if item.place else ""
    spots = [f"broker {item.broker_id}", f"rack {item.rack}" if item.rack else "", item.fleet or ""]
    disk = ""
    if item.place:
        told = (("device", item.place.device), ("serial", item.place.serial), ("model", item.place.model))
        disk = " · ".join(f"{name} {value}" for name, value in told if value)
    where = (
        f'<div class="where"><b><a href="{clean(link.to)}">{clean(link.text)}</a>{path}</b>'
        f"<span>{clean(' · '.join(spot for spot in spots if spot))}</span>"
        + (f'<span class="disk">{clean(disk)}</span>' if disk else "")
        + "</div>"
    )
    since = f'<span class="disk">since {clean(todo.when(item.since_ms))} UTC</span>' if item.since_ms else ""
    why = f"<div><b>{clean(item.what)}</b><br>{clean(item.reason)}{since}</div>"
    return f'<li class="{tone}">{where}{why}<div>{code(item.commands)}</div></li>'


# --- what changed


def _changes(report: FleetReport) -> str:
    changes = report.changes
    if changes.since_ms is None:
        return section("What changed", "There is no report before this one to compare with.", key="changes")
    since = f"Since the report of {date_time(changes.since_ms)[:19]} UTC: "
    counts = [f"{changes.counts[kind]:,} {name}" for kind, name in KINDS.items() if changes.counts.get(kind)]
    rows = [c for c in changes.listed if c.kind in KINDS]

    def name(change: Change) -> Value:
        return KINDS[change.kind]

    columns = (
        Column("what", name),
        Column("host", lambda c: c.host),
        Column("broker", lambda c: c.broker_id, number=True),
        Column("directory", lambda c: c.path or "–"),
        Column("", lambda c: c.detail, wide=True),
    )
    listed = table(rows, columns, total=sum(changes.counts.values()), most=CHANGES_MAX, label="What changed")
    return section("What changed", since + (", ".join(counts) or "nothing") + ".", listed, key="changes")


# --- the map


def _map(report: FleetReport) -> str:
    if not report.hosts:
        return section("Fleet map", "No directory has been reported yet.", key="map")
    shown = [state for state in STATES_WORST_FIRST if state in report.states and state != ONLINE]
    legend = [(f"s-{state}", f"{state}: {report.states[state]:,}") for state in shown]
    online = report.states.get(ONLINE, 0)
    legend += [("u0", f"online: {online:,}; darker is fuller"), *((f"u{n}", f"from {20 * n} %") for n in range(1, 5))]
    keys = "".join(f'<li><i class="{class_}"></i>{clean(name)}</li>' for class_, name in legend)
    note = (
        "A row for each host, a square for each of its directories, by rack. A click on a row leads to the host's page."
    )
    hidden = more_than(len(report.hosts), len(report.hosts) + report.hidden_hosts, "hosts/index.html has every host")
    sick = sorted(
        (h for h in report.hosts if any(c.state != ONLINE for c in h.cells) or h.agent.status in (SILENT, STOPPED)),
        key=lambda h: (-h.agent.failed, h.agent.status, h.agent.rack or "", h.agent.host),
    )

    def states(host: MapHost) -> Value:
        counts = {state: sum(c.state == state for c in host.cells) for state in {c.state for c in host.cells}}
        worst = sorted(counts, key=lambda state: (severity(state), state))
        return ", ".join(f"{counts[s]} {s}" for s in worst if s != ONLINE)

    columns = (
        Column("rack", lambda h: h.agent.rack),
        Column("host", lambda h: _host(h.agent.fleet, h.agent.host, h.agent.broker_id)),
        Column("broker", lambda h: h.agent.broker_id, number=True),
        Column("agent", lambda h: h.agent.status),
        Column("directories", lambda h: h.agent.directories, number=True),
        Column("not online", states),
    )
    under = table(sick, columns, most=MAP_ROWS_MAX, label="Hosts with something that is not online")
    every = '<p class="more"><a href="hosts/index.html">All hosts, with their pages</a></p>'
    return section(
        "Fleet map",
        note,
        f'<ul class="legend">{keys}</ul>',
        fleet_map(report.hosts),
        hidden,
        folded(f"{plural(len(sick), 'host')} with something that is not online", under),
        every,
        key="map",
    )


# --- failure rates


def _rates(report: FleetReport) -> str:
    parts = [_reliability(r) for r in (report.insights.reliability, *report.insights.imported)]
    tickets = report.insights.tickets
    if tickets:
        parts.append(
            '<p class="more">'
            f"Imported failure tickets: of {tickets.failures:,} failures "
            f"{tickets.same_host_pct or 0:.1f} % had another one in the same host "
            f"within {tickets.within_minutes} minutes, "
            f"{tickets.same_rack_pct or 0:.1f} % in the same rack.</p>"
        )
    if report.models:
        columns = (
            Column("model", lambda m: Link(m.model, f"models/{model_file(m.model)}")),
            Column("directories", lambda m: m.directories, number=True),
            Column("hosts", lambda m: m.hosts, number=True),
            Column("failed now", lambda m: m.failed, number=True),
            Column("used", lambda m: f"{m.bytes_used / m.bytes_total:.0%}" if m.bytes_total else None, number=True),
        )
        parts.append(folded("Every model, with its page", table(report.models, columns, label="Models")))
    note = (
        "Failures over drive-years, with exact 95 % Poisson limits. The order is that of the upper limit. Models with "
        f"fewer than {report.insights.reliability.drive_days_min:,} drive-days have counts and no rate."
    )
    return section("Failure rate a year, by model", note, *parts, key="afr")


def rate_columns(name: str) -> tuple[Column, ...]:
    """Columns of a table of rates."""
    return (
        Column(name, lambda r: r.name),
        Column("drive-days", lambda r: r.rate.drive_days, number=True),
        Column("failures", lambda r: r.rate.failures, number=True),
        Column("rate, % a year", lambda r: Sorted(_in_table(r.rate), r.rate.afr_pct), number=True),
        Column("from", lambda r: _pct(r.rate.low_pct), number=True),
        Column("to", lambda r: _pct(r.rate.high_pct), number=True),
        Column("with verdicts not borne out", _with_wrong),
        Column("MTBF, hours", lambda r: _whole(r.rate.mtbf_hours), number=True),
    )


def _with_wrong(of: RateOf) -> str:
    """Count and rate of all verdicts, where the disks did not bear out some."""
    if of.verdicts is None or of.verdicts.failures == of.rate.failures:
        return "–"
    return f"{of.verdicts.failures:,}: {rate_text(of.verdicts)}"


def _in_table(rate: Rate) -> str:
    """A rate beside the columns of its limits."""
    if rate.afr_pct is None or not rate.failures:
        return rate_text(rate).removesuffix(" %")
    return f"{rate.afr_pct:.2f}"


def _pct(value: float | None) -> Value:
    return Sorted("–" if value is None else f"{value:.2f}", value)


def _whole(value: float | None) -> Value:
    return Sorted("–" if value is None else f"{value:,.0f}", value)


def interval(rate: RateOf) -> IntervalRow:
    """A rate for the chart."""
    of = rate.rate
    value = of.afr_pct if of.failures else None
    high = of.high_pct or 0.0
    title = f"{rate.name}: {of.failures:,} failures in {of.drive_days:,} drive-days"
    return IntervalRow(rate.name, value, of.low_pct or 0.0, high, rate_text(of), title)


def _reliability(found: Reliability) -> str:
    whole = found.whole
    name = "" if found.source == "kjbod" else f"<h3>Imported: {clean(found.source)}</h3>"
    if not whole.drive_days:
        return f'{name}<p class="note">No drive-days in this time.</p>'
    said = f"The whole: {plural(whole.failures, 'failure')} in {plural(whole.drive_days, 'drive-day')} of "
    said += f"{plural(found.drives, 'drive')}, {rate_text(whole)}."
    if found.verdicts and found.verdicts.failures > whole.failures:
        wrong = found.verdicts.failures - whole.failures
        said += (
            f" With {plural(wrong, 'verdict')} that the disk did not bear out: {found.verdicts.failures:,} failures, "
        )
        said += f"{rate_text(found.verdicts)}."
    if found.bursts and found.bursts.failures:
        bursts = found.bursts
        said += f" Within {bursts.within_minutes} minutes of another one in the same host {bursts.same_host:,}, "
        said += f"in the same rack {bursts.same_rack:,}."
    if found.returned_drives:
        said += f" {plural(found.returned_drives, 'drive')} worked again after a failure."
    rows = [interval(rate) for rate in found.models[:MODELS_DRAWN_MAX]]
    drawn = (
        chart(lambda width: intervals(rows, width, "Failure rate a year of each model with 95 % limits"))
        if rows
        else ""
    )
    every = [*found.models, *found.hidden_models]
    tables = folded("Table: models", table(every, rate_columns("model"), most=ROWS_MAX, label="Failure rate by model"))
    for title, rates in (("firmware", found.firmwares), ("age", found.ages), ("site", found.sites)):
        tables += folded(
            f"By {title}", table(rates, rate_columns(title), most=ROWS_MAX, label=f"Failure rate by {title}")
        )
    hidden = ""
    if found.hidden_models and not rows:
        hidden = f'<p class="note">No model has {found.drive_days_min:,} drive-days yet, so none is ranked.</p>'
    return f'{name}<p class="note">{clean(said)}</p>{hidden}{drawn}{tables}'


# --- room


def _room(report: FleetReport) -> str:
    room = report.insights.capacity
    within = [f"{n:,} within {days} days" for days, n in room.full_within.items()]
    note = f"{size(room.bytes_used)} of {size(room.bytes_total)} used. "
    note += f"Forecast to be full: {', '.join(within) or 'none'}. "
    note += "A forecast is a straight line through the days since the last large drop, and reaches no further than "
    note += "twice what was seen."
    filling = [f for f in room.forecasts if any(until.days is not None for until in f.until)]
    # All that have a date are there, unless there are as many as the report has at most.
    total = room.directories if len(filling) == len(room.forecasts) else None
    full = (
        Column("host", lambda f: _of_place(f.place)),
        Column("directory", lambda f: f.place.path),
        Column("used, %", lambda f: Sorted(f"{100 * f.used_ratio:.1f}", f.used_ratio), number=True),
        Column("growth a day", lambda f: Sorted(size(f.growth_bytes_per_day), f.growth_bytes_per_day), number=True),
        *(Column(f"to {mark} %, days", _until(mark), number=True) for mark in (80, 90, 100)),
        Column("limits", _limits),
    )
    moves = (
        Column("host", lambda i: _host(i.fleet, i.host, i.broker_id)),
        Column("fullest", lambda i: f"{i.fullest}: {100 * i.used_max:.0f} %"),
        Column("after the move", lambda i: Sorted(f"{100 * i.used_max_after:.0f} %", i.used_max_after), number=True),
        Column("move", lambda i: Sorted(size(i.move_bytes), i.move_bytes), number=True),
        Column("commands", _commands, wide=True),
    )
    return section(
        "Room: what fills up, and what a move would gain",
        note,
        "<h3>Soonest to be full</h3>" if filling else "",
        table(filling, full, total=total, most=25, label="Forecast"),
        f"<h3>Uneven hosts <span class='count'>{room.uneven_hosts:,}</span></h3>" if room.imbalances else "",
        table(
            room.imbalances, moves, total=room.uneven_hosts, most=12, label="Uneven hosts, and what a move would gain"
        ),
        key="room",
    )


def _until(mark: int) -> Get:
    def get(forecast: Forecast) -> Value:
        found = next((d.days for d in forecast.until if d.mark_pct == mark), None)
        return Sorted("–" if found is None else f"{found:,.1f}", found)

    return get


def _limits(forecast: Forecast) -> Value:
    found = next((d for d in forecast.until if d.mark_pct == 100), None)
    if found is None or found.days is None or found.soonest is None:
        return None
    soonest, latest = f"{found.soonest:,.1f} d", "later" if found.latest is None else f"{found.latest:,.1f} d"
    return soonest if latest == soonest else f"{soonest} to {latest}"


def _commands(uneven: Imbalance) -> Value:
    return Code(tuple(uneven.commands))


# --- failures


def incident_columns(to_host: str = "hosts/") -> tuple[Column, ...]:
    """Columns of a table of failures; ``to_host`` leads to the pages of hosts, none where it is empty."""

    def host(incident: Incident) -> Value:
        place = incident.place
        link = _of_place(place)
        return Link(link.text, to_host + link.to.removeprefix("hosts/")) if to_host else link.text

    def stage(name: str) -> Get:
        def get(incident: Incident) -> Value:
            value = getattr(incident, name)
            return Sorted(duration(value), value)

        return get

    return (
        Column("time, UTC", lambda i: date_time(i.ts)[:19]),
        Column("cluster", lambda i: i.place.fleet),
        Column("broker", lambda i: i.place.broker_id, number=True),
        Column("host", host),
        Column("directory", lambda i: i.place.path),
        Column("outcome", lambda i: i.outcome),
        Column("evidence", evidence, wide=True),
        *(
            Column(name, stage(field), number=True)
            for name, field in (
                *(("detected", "detect_ms"), ("sent", "send_ms"), ("acknowledged", "acknowledge_ms")),
                *(("leaders moved", "move_ms"), ("total", "total_ms"), ("gave up", "give_up_ms")),
            )
        ),
        Column("partitions", lambda i: i.partitions, number=True),
        Column("led", lambda i: i.leaders, number=True),
    )


def _incidents(report: FleetReport) -> str:
    total = sum(report.incident_outcomes.values())
    if not total:
        return section("Failures, and how long each took", "No directory has failed in this time.", key="incidents")
    outcomes = ", ".join(f"{n:,} {outcome}" for outcome, n in report.incident_outcomes.items())
    note = f"{plural(total, 'failure')}: {outcomes}. The newest first; times are from the first sign or the verdict on."
    return section(
        "Failures, and how long each took",
        note,
        table(report.incidents, incident_columns(), total=total, most=ROWS_MAX, label="Failures"),
        key="incidents",
    )


# --- kjbod's own work

STAGES: Mapping[str, str] = {
    "detect": "first sign → verdict",
    "send": "verdict → report",
    "acknowledge": "report → recorded",
    "move": "verdict → leaders moved",
    "total": "first sign → recorded",
}


def _own_work(report: FleetReport) -> str:
    work = report.insights.own_work
    versions = ", ".join(
        f"{version}: {n:,}" for version, n in sorted(work.versions.items(), key=lambda v: (-v[1], v[0]))[:8]
    )
    note = (
        f"{plural(work.agents, 'agent')}, {work.silent:,} silent, {work.late:,} late, "
        f"{work.skewed:,} with a wrong clock. "
        f"Versions: {versions or 'unknown'}. {plural(work.false_verdicts, 'verdict')} that the disk did not bear out."
    )
    of_all = [latency for latency in work.latencies if latency.by == "all"]
    rows = [_stage(latency) for latency in of_all]
    drawn = ""
    if rows:
        drawn = chart(
            lambda width: quantiles(rows, width, "Time of each stage: median, 95 % and the longest", duration)
        )
    times = (
        Column("stage", lambda t: STAGES.get(t.stage, t.stage)),
        Column("of", lambda t: "all" if t.by == "all" else f"{t.by} {t.name}"),
        Column("failures", lambda t: t.incidents, number=True),
        Column("median", lambda t: Sorted(duration(t.median_ms), t.median_ms), number=True),
        Column("95 %", lambda t: Sorted(duration(t.p95_ms), t.p95_ms), number=True),
        Column("longest", lambda t: Sorted(duration(t.max_ms), t.max_ms), number=True),
    )
    false = (
        Column("time, UTC", lambda v: date_time(v.ts)[:19]),
        Column("host", lambda v: _of_place(v.place)),
        Column("directory", lambda v: v.place.path),
        Column("version", lambda v: v.version),
        Column("days well since", lambda v: v.well_days, number=True),
        Column("evidence", lambda v: v.evidence or v.cause, wide=True),
    )
    look = (
        Column("why", lambda a: a.why),
        Column("host", _agent_host),
        Column("broker", lambda a: a.broker_id, number=True),
        Column("rack", lambda a: a.rack),
        Column("version", lambda a: a.version),
        Column("heard, UTC", lambda a: date_time(a.last_ts)[:19]),
        Column("silent for", lambda a: Sorted(duration(a.silent_ms), a.silent_ms), number=True),
        Column("files late by", lambda a: Sorted(duration(a.lag_ms), a.lag_ms), number=True),
    )
    causes = table(work.latencies, times, most=ROWS_MAX, label="Time of each stage, by cause and version")
    verdicts = table(work.false_verdict_list, false, total=work.false_verdicts, most=ROWS_MAX, label="False verdicts")
    agents = table(work.agents_to_look_at, look, most=ROWS_MAX, label="Agents that deserve a look")
    return section(
        "kjbod's own work",
        note,
        drawn,
        folded("Table: by cause and by version", causes),
        folded("Verdicts that the disk did not bear out", verdicts, open_=bool(work.false_verdicts)),
        folded("Agents that are silent, late, have a wrong clock or another version", agents),
        key="own",
    )


def _stage(latency: Latency) -> Stage:
    text = f"{duration(latency.median_ms)}, 95 % {duration(latency.p95_ms)}"
    name = STAGES.get(latency.stage, latency.stage)
    return Stage(name, f"{latency.incidents} failures", latency.median_ms, latency.p95_ms, latency.max_ms, text)


def _agent_host(agent: AgentState) -> Value:
    return _host(agent.fleet, agent.host, agent.broker_id)


def _guards(report: FleetReport) -> str:
    """Section of the deeds of guards, by cluster; none where there are no guards."""
    if not report.guards:
        return ""
    note = (
        "Refused by the privileged helper, a controller or the guard's own rules. Only observed: "
        "what a guard that acts would have done."
    )
    names = (
        *(("guards", "guards"), ("of them act", "acting"), ("acts", "acts")),
        *(("in vain", "failed_acts"), ("refused", "refusals"), ("only observed", "would")),
    )

    def count(name: str) -> Get:
        return lambda row: getattr(row, name)

    columns = (
        Column("cluster", lambda g: g.fleet),
        *(Column(head, count(name), number=True) for head, name in names),
    )
    return section("What guards did", note, table(report.guards, columns, label="Guards by cluster"))


def _data(report: FleetReport) -> str:
    data = report.data
    status = ", ".join(f"{n:,} {name}" for name, n in data.by_status.items()) or "none"
    note = f"{plural(data.files, 'report file')}: {status}. {plural(data.lines, 'line')}, "
    note += f"of which {data.lines_set_aside:,} were set aside."
    columns = (
        Column("file", lambda f: f.file),
        Column("host", lambda f: f.host),
        Column("status", lambda f: f.status),
        Column("counts", lambda f: "yes" if f.kept else "no"),
        Column("lines", lambda f: f.lines, number=True),
        Column("set aside", lambda f: f.bad_lines if f.kept else f.lines, number=True),
    )
    listed = table(
        data.bad_file_list, columns, total=data.bad_files, most=ROWS_MAX, label="Files with something set aside"
    )
    serials = (
        Column("serial number", lambda s: s.serial),
        Column("cluster", lambda s: s.fleet),
        Column("hosts", lambda s: s.hosts, number=True),
        Column("directories", lambda s: s.directories, number=True),
        Column("days", lambda s: s.days, number=True),
        Column("such as", lambda s: ", ".join(s.examples), wide=True),
    )
    shared = ""
    if data.shared_serials:
        told = "Serial numbers that several hosts have on one day, as virtual disks and RAID volumes do. Each of these "
        told += "directories counts as a drive of its own."
        label = "Serial numbers on several hosts"
        shared = f'<p class="note">{clean(told)}</p>' + table(
            data.shared_serial_list, serials, total=data.shared_serials, most=ROWS_MAX, label=label
        )
    return section("Data", note, listed, shared, key="data")
