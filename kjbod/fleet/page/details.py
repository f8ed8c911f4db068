"""The pages of a host and of a model, and the list of all hosts."""

from collections.abc import Iterable, Iterator, Sequence

from kjbod.fleet.insight.model import Insights, RateOf, Survival, Window
from kjbod.fleet.page.charts import intervals, spark_line, steps
from kjbod.fleet.page.frame import Column, Link, Sorted, chart, document, folded, section, table, tiles
from kjbod.fleet.page.index import incident_columns, interval, rate_columns
from kjbod.fleet.page.model import (
    SILENT,
    STOPPED,
    Agent,
    DirectoryDetail,
    FleetReport,
    HostDetail,
    ModelDisks,
    host_file,
    model_file,
    severity,
)
from kjbod.fleet.page.timeline import Lane, Mark, timeline
from kjbod.fleet.page.words import describe
from kjbod.fleet.svg import Drawing, clean, date_time, distinct_tails, duration, plural, size

DRAWN_EVENTS_MAX = 80
"""Marks of a timeline; the table below it has what was collected."""
DIRECTORIES_MAX = 96
"""Directories of one host that are drawn."""
BULK = ("replica_created", "assignments_acknowledged", "registered")


def host_page(detail: HostDetail, window: Window, days: int) -> str:
    """Page of a broker: its directories with their days, what happened, its failures."""
    agent = detail.agent
    found = sorted(detail.directories, key=lambda d: (severity(d.directory.state), d.directory.place.path))
    about = [f"broker {agent.broker_id}", f"rack {agent.rack}" if agent.rack else "", agent.fleet or ""]
    about += [f"{agent.role or 'agent'} {agent.version or ''}".strip(), agent.status]
    period = f"{' · '.join(part for part in about if part)} · {window.from_date} to {window.to_date}"
    said = ""
    if agent.status == SILENT:
        said = f"Nothing heard for {duration(agent.silent_ms)}: what is shown is what it said last."
    elif agent.status == STOPPED:
        said = f"Its agent has stopped: {agent.reason or 'no reason given'}."
    lead = f'<p class="lead"><strong>{clean(said)}</strong></p>' if said else ""
    online = sum(d.directory.state == "online" for d in found)
    head = tiles(
        (
            ("directories online", f"{online:,} / {len(found):,}", ""),
            ("failed", f"{agent.failed:,}", "bad" if agent.failed else "good"),
            ("partitions led", f"{sum(d.directory.leaders or 0 for d in found):,}", ""),
            ("heard last, UTC", date_time(agent.last_ms)[:16] or "–", "bad" if agent.status == SILENT else ""),
        )
    )
    header = f'<h1>{clean(agent.host)}</h1><p class="period">{clean(period)}</p>{lead}{head}'
    body = (_directories(found), _trends(found, days), _timeline(detail), _failures(detail))
    return document(f"{agent.host} · kjbod fleet report", header, body, up="../index.html")


def _directories(found: Sequence[DirectoryDetail]) -> str:
    columns = (
        Column("directory", lambda d: d.directory.place.path),
        Column("state", lambda d: d.directory.state),
        Column("device", lambda d: d.directory.place.device),
        Column("serial", lambda d: d.directory.place.serial),
        Column("model", _model),
        Column(
            "used, %",
            lambda d: Sorted(_pct(d.directory.used_ratio), d.directory.used_ratio),
            number=True,
        ),
        Column("of", lambda d: Sorted(size(d.directory.total), d.directory.total), number=True),
        Column("leads", lambda d: d.directory.leaders, number=True),
        Column("partitions", lambda d: d.directory.partitions, number=True),
        Column("failures", lambda d: d.directory.failures, number=True),
        Column("seen, UTC", lambda d: date_time(d.directory.last_ms)[:19]),
        Column("directory id", lambda d: d.directory.place.dir_id),
    )
    return section("Directories", "", table(found, columns, label="Directories"))


def _model(detail: DirectoryDetail) -> Link | None:
    model = detail.directory.place.model
    return Link(model, f"../models/{model_file(model)}") if model else None


def _pct(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.1f}"


def _trends(found: Sequence[DirectoryDetail], days: int) -> str:
    """Small lines of each directory: used, latency, temperature, errors and defects."""
    if days < 2:
        return ""
    rows = []
    for detail in found[:DIRECTORIES_MAX]:
        series, total, path = detail.series, detail.directory.total, detail.directory.place.path
        lines = (
            ("used", series.used, float(total) if total else None),
            ("probe", series.probe_us, None),
            ("temperature", series.temp_c, 70.0),
            ("I/O errors", series.errors, None),
            ("defects", series.defects, None),
        )
        cells = "".join(
            f"<td>{_trend(name, path, series.days, values, days, high)}</td>" for name, values, high in lines
        )
        rows.append(f'<tr><th scope="row">{clean(path)}</th>{cells}</tr>')
    heads = ("directory", "used", "probe", "temperature", "I/O errors a day", "defects")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    scroll = f'<div class="scroll" role="region" tabindex="0" aria-label="Trends">{body}</div>'
    return section("Day by day", "Each line covers the days of the report; the figure is that of its last day.", scroll)


def _trend(name: str, path: str, at: Sequence[int], values: Sequence[int | None], days: int, high: float | None) -> str:
    known = [(day, float(value)) for day, value in zip(at, values, strict=True) if value is not None]
    if not known:
        return "–"
    drawn = spark_line(known, days, f"{name} of {path} day by day", high)
    return f"{drawn}<small>{clean(_last(name, known))}</small>"


def _last(name: str, known: Sequence[tuple[int, float]]) -> str:
    value = known[-1][1]
    texts = {"used": size(value), "probe": duration(value / 1000), "temperature": f"{value:.0f} °C"}
    return texts.get(name, f"{value:,.0f}")


def _timeline(detail: HostDetail) -> str:
    if not detail.happenings:
        return section("What happened", "No event in this time.")
    important = [h for h in detail.happenings if h.kind not in BULK]
    drawn = (important or list(detail.happenings))[-DRAWN_EVENTS_MAX:]
    names = distinct_tails(sorted({h.path for h in drawn if h.path}))
    lanes = []
    for path in (None, *names):
        marks = tuple(
            Mark(h.ts, h.kind, f"{date_time(h.ts)} {h.path or 'agent'}: {describe(h)}") for h in drawn if h.path == path
        )
        if marks:
            lanes.append(Lane(names[path] if path else f"broker {detail.agent.broker_id}", path is None, (), marks))
    first, last = drawn[0].ts, drawn[-1].ts

    def render(width: float) -> Drawing:
        return timeline(lanes, first, last, width)

    columns = (
        Column("time, UTC", lambda h: date_time(h.ts)),
        Column("directory", lambda h: h.path),
        Column("what", describe, wide=True),
    )
    newest = list(reversed(detail.happenings))
    rows = table(newest, columns, total=len(newest) + detail.hidden_happenings, label="What happened, newest first")
    return section("What happened", "Marks have their text; the newest first in the table.", chart(render), rows)


def _failures(detail: HostDetail) -> str:
    if not detail.incidents:
        return ""
    return section("Failures", "", table(detail.incidents, incident_columns(""), label="Failures"))


def hosts_page(agents: Iterable[Agent], window: Window) -> Iterator[str]:
    """List of all hosts, in pieces: it is the one page that grows with the fleet."""
    mark = "<!-- rows -->"
    header = f'<h1>Hosts</h1><p class="period">{clean(f"{window.from_date} to {window.to_date}")}</p>'
    heads = (
        *(("rack", ""), ("host", ""), ("broker", "n"), ("agent", ""), ("version", "")),
        *(("directories", "n"), ("failed", "n"), ("in another state", "n"), ("heard, UTC", "")),
    )
    head = "".join(f'<th scope="col"{f" class={chr(34)}{c}{chr(34)}" if c else ""}>{name}</th>' for name, c in heads)
    listed = f'<table class="sort"><thead><tr>{head}</tr></thead><tbody>{mark}</tbody></table>'
    scroll = f'<div class="scroll whole" role="region" tabindex="0" aria-label="Hosts">{listed}</div>'
    before, after = document(
        "Hosts · kjbod fleet report", header, (section("All hosts", "", scroll),), up="../index.html"
    ).split(mark)
    yield before
    for agent in agents:
        texts = (agent.status, agent.version or "–")
        counts = (agent.directories, agent.failed, agent.impaired)
        to = host_file(agent.fleet, agent.host, agent.broker_id)
        yield (
            f'<tr><td>{clean(agent.rack or "–")}</td><td><a href="{to}">{clean(agent.host)}</a></td>'
            f'<td class="n" data-v="{agent.broker_id}">{agent.broker_id}</td>'
            + "".join(f"<td>{clean(text)}</td>" for text in texts)
            + "".join(f'<td class="n" data-v="{n}">{n:,}</td>' for n in counts)
            + f"<td>{clean(date_time(agent.last_ms)[:19] or '–')}</td></tr>"
        )
    yield after


def model_page(disks: ModelDisks, report: FleetReport) -> str:
    """Page of a model: its rate, by firmware, its survival, its disks that failed or may fail."""
    insights, model = report.insights, disks.model
    rates = [r for r in (*insights.reliability.models, *insights.reliability.hidden_models) if r.name == model]
    firmwares = [r for r in insights.reliability.firmwares if r.name.startswith(f"{model} · ")]
    survival = next((s for s in insights.reliability.survival if s.model == model), None)
    header = (
        f'<h1>{clean(model)}</h1><p class="period">{clean(f"{report.window.from_date} to {report.window.to_date}")}</p>'
        + tiles(
            (
                ("directories", f"{disks.directories:,}", ""),
                ("hosts", f"{disks.hosts:,}", ""),
                ("failed now", f"{disks.failed:,}", "bad" if disks.failed else "good"),
                ("space used", f"{disks.bytes_used / disks.bytes_total:.0%}" if disks.bytes_total else "–", ""),
            )
        )
    )
    body = (
        _model_rates(rates, firmwares),
        _survival(survival),
        _model_risks(insights, model),
        _model_failures(report, model),
    )
    return document(f"{model} · kjbod fleet report", header, body, up="../index.html")


def _model_rates(rates: Sequence[RateOf], firmwares: Sequence[RateOf]) -> str:
    found = [*rates, *firmwares]
    if not found:
        return section("Failure rate a year", "No drive-days in this time.")
    rows = [interval(each) for each in found if each.rate.afr_pct is not None][:20]
    drawn = chart(lambda width: intervals(rows, width, "Failure rate a year with 95 % limits")) if rows else ""
    note = "Failures over drive-years, with exact 95 % Poisson limits; by firmware below the whole."
    return section("Failure rate a year", note, drawn, table(found, rate_columns("disks"), label="Failure rate"))


def _survival(found: Survival | None) -> str:
    if found is None or not found.steps:
        return ""
    points = [(s.age_years, s.survival, s.low, s.high) for s in found.steps]
    columns = (
        Column("age, years", lambda s: Sorted(f"{s.age_years:.2f}", s.age_years), number=True),
        Column("at risk", lambda s: s.at_risk, number=True),
        Column("failures", lambda s: s.failures, number=True),
        Column("live on, %", lambda s: Sorted(f"{100 * s.survival:.2f}", s.survival), number=True),
        Column("from", lambda s: Sorted(f"{100 * s.low:.2f}", s.low), number=True),
        Column("to", lambda s: Sorted(f"{100 * s.high:.2f}", s.high), number=True),
    )
    note = (
        f"Chance to live on from the age of {found.from_years or 0:.1f} years (Kaplan-Meier with left truncation; "
        f"{found.drives:,} drives, {found.failures:,} failures, {found.left_out:,} more at ages with too few drives)."
    )
    drawn = chart(lambda width: steps(points, width, "Share of drives that live to an age, with 95 % limits"))
    return section("How long they live", note, drawn, folded("Table", table(found.steps, columns, label="Survival")))


def _model_risks(insights: Insights, model: str) -> str:
    risks = [r for r in insights.health.risks if r.place.model == model]
    columns = (
        Column(
            "host",
            lambda r: Link(r.place.host, f"../hosts/{host_file(r.place.fleet, r.place.host, r.place.broker_id or 0)}"),
        ),
        Column("directory", lambda r: r.place.path),
        Column("serial", lambda r: r.place.serial),
        Column("score", lambda r: Sorted(f"{r.score:.2f}", r.score), number=True),
        Column("reasons", lambda r: "; ".join(r.reasons), wide=True),
    )
    note = (
        f"{plural(len(risks), 'disk')} of this model among the {len(insights.health.risks):,} worst of all."
        if risks
        else "None of them is among the worst."
    )
    return section("Disks that may fail", note, table(risks, columns, label="Disks that may fail"))


def _model_failures(report: FleetReport, model: str) -> str:
    found = [i for i in report.incidents if i.place.model == model]
    if not found:
        return ""
    return section(
        "Failures", "Of the newest of the fleet.", table(found, incident_columns("../hosts/"), label="Failures")
    )
