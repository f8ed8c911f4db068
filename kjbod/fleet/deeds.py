"""Deeds of guards, in words and in figures, for the page and ``report.json``. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from kjbod.fleet.svg import duration, plural

Row = Mapping[str, Any]

COUNTS = ("would", "acts", "failed_acts", "refusals")
"""Columns of the table of agents (``transforms.agent_health``) that add up."""
SHOWN_MAX = 12
"""Deeds of one failure that are told; ``tables/incidents`` has all."""


def told(incident: Row) -> str:
    """Deeds of a guard about a failure, each with the time since the verdict; empty where there was none.

    For example ``cut after 3 ms, recorded after 104 ms``."""
    deeds = [_one(deed) for deed in incident["deeds"]]
    more = f", and {len(deeds) - SHOWN_MAX:,} more" if len(deeds) > SHOWN_MAX else ""
    return ", ".join(deeds[:SHOWN_MAX]) + more


def _one(deed: Row) -> str:
    after, means, reason = duration(deed["after_ms"]), deed["means"], deed["reason"]
    why = f" ({reason})" if reason else ""
    if deed["outcome"] is None:  # no means: Kafka has recorded it, or no more is done
        return f"{means} after {after}{why}"
    count = "" if deed["count"] is None else f" of {plural(deed['count'], 'partition')}"
    how = "" if deed["outcome"] == "done" else f" {deed['outcome']}"
    return f"{means}{count}{how} after {after}{why}"


def happened(row: Row) -> str:
    """Outcome of a means, of a row of the timeline: ``guard: cut done in 3 ms``."""
    took = "" if row["took_ms"] is None else f" in {row['took_ms']} ms"
    return f"guard: {row['means']} {row['outcome']}{took}{_because(row)}"


def stands(row: Row) -> str:
    """State of a directory or the broker from now on, of a row of the timeline."""
    return f"guard: {row['state']}{_because(row)}"


def _because(row: Row) -> str:
    return f": {row['reason']}" if row["reason"] else ""


def by_fleet(agents: Iterable[Row]) -> list[dict[str, Any]]:
    """Guards of each cluster, of which some act, and what they did, by the name of the cluster."""
    found: dict[str, dict[str, Any]] = {}
    for agent in agents:
        if agent["role"] != "guard":
            continue
        fleet = agent.get("fleet") or "unknown"
        row = found.setdefault(fleet, {"fleet": fleet, "guards": 0, "acting": 0, **dict.fromkeys(COUNTS, 0)})
        row["guards"] += 1
        row["acting"] += agent["mode"] == "act"
        for name in COUNTS:
            row[name] += agent[name]
    return [found[fleet] for fleet in sorted(found)]


def sentence(fleets: Iterable[Row]) -> str:
    """The guards of all clusters in a sentence; empty where there are none."""
    rows = list(fleets)
    total = {name: sum(row[name] for row in rows) for name in ("guards", "acting", *COUNTS)}
    if not total["guards"]:
        return ""
    text = f"{plural(total['guards'], 'guard')}, of which {total['acting']:,} act: {plural(total['acts'], 'act')}"
    parts = [(total["failed_acts"], "in vain"), (total["refusals"], "refused"), (total["would"], "only observed")]
    return ", ".join([text, *(f"{count:,} {what}" for count, what in parts if count)]) + "."
