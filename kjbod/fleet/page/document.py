"""``report.json``: the report for machines, bounded as the page is. Pure."""

from typing import Any

from kjbod.fleet.insight.model import plain
from kjbod.fleet.page import todo
from kjbod.fleet.page.changes import REPORT_VERSION, disk_of, remembered, spot
from kjbod.fleet.page.model import FAILED, LIST_MAX, ONLINE, SILENT, FleetReport
from kjbod.fleet.page.words import sentences


def report_json(report: FleetReport) -> dict[str, Any]:
    """Content of ``report.json``. ``directories`` and ``agents`` are the worst :data:`LIST_MAX`, counts are of all."""
    insights = plain(report.insights)
    reliability = report.insights.reliability
    listed = sorted(
        (
            (cell.state == ONLINE, host.agent.fleet or "", host.agent.host, host.agent.broker_id, cell)
            for host in report.hosts
            for cell in host.cells
        ),
        key=lambda row: (row[0], row[1], row[2], row[3], row[4].path),
    )
    directories = [
        {"fleet": fleet or None, "host": host, "broker_id": broker, **plain(cell)}
        for _, fleet, host, broker, cell in listed[:LIST_MAX]
    ]
    agents = sorted((h.agent for h in report.hosts), key=lambda a: (a.status in ("unfenced", "started"), a.host))
    return {
        "version": REPORT_VERSION,
        "summary": sentences(report),
        "window": plain(report.window),
        "is_stale": report.is_stale,
        "drive_days": reliability.whole.drive_days,
        "failures": reliability.whole.failures,
        "afr_pct": reliability.whole.afr_pct,
        "afr_low_pct": reliability.whole.low_pct,
        "afr_high_pct": reliability.whole.high_pct,
        "verdicts": plain(reliability.verdicts),
        "models": [
            {"model": r.name, **plain(r.rate), "verdicts": plain(r.verdicts)}
            for r in (*reliability.models, *reliability.hidden_models)
        ],
        "counts": {
            "directories": report.directories,
            "agents": report.brokers,
            "hidden_hosts": report.hidden_hosts,
            "states": plain(report.states),
            "statuses": plain(report.statuses),
            "samples": report.samples,
            "leaders": report.leaders,
            "bytes_used": report.bytes_used,
            "bytes_total": report.bytes_total,
            "incidents": plain(report.incident_outcomes),
        },
        "todo": [
            {**plain(group), "items": [plain(item) for item in group.items[:LIST_MAX]]} for group in todo.groups(report)
        ],
        "directories": directories,
        "agents": [plain(agent) for agent in agents[:LIST_MAX]],
        "incidents": [_flat(incident) for incident in plain(report.incidents)],
        "guards": plain(report.guards),
        "lacks": plain(report.lacks),
        "data": plain(report.data),
        "changes": plain(report.changes),
        "remembered": _remembered(report),
        **{name: value for name, value in insights.items() if name != "window"},
    }


def _flat(incident: dict[str, Any]) -> dict[str, Any]:
    """With the columns of its place beside the others."""
    return {**{name: value for name, value in incident.items() if name != "place"}, **incident["place"]}


def _remembered(report: FleetReport) -> dict[str, Any]:
    health = report.insights.health
    risks = [r.place for r in health.risks if r.score >= health.at_risk_from]
    silent = [a for a in report.agents if a.status == SILENT]
    return remembered(
        [(spot(d.place.fleet, d.place.host, d.place.broker_id, d.place.path), disk_of(d)) for d in report.failed],
        [spot(a.fleet, a.host, a.broker_id) for a in silent],
        [spot(p.fleet, p.host, p.broker_id, p.path) for p in risks],
        {
            "failed": report.states.get(FAILED, 0) <= len(report.failed),
            "silent": report.statuses.get(SILENT, 0) <= len(silent),
            "at_risk": health.at_risk <= len(risks),
        },
    )
