"""Differences from the report before, by that report's ``report.json``. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kjbod.fleet.page.model import LIST_MAX, Change, Changes, Directory

KINDS: Mapping[str, str] = {
    "failed": "newly failed",
    "replaced": "replaced",
    "recovered": "well again, the same disk",
    "silent": "newly silent",
    "heard": "heard again",
    "at_risk": "newly at risk",
}
"""Kinds of change, in the order in which they are told, and what they are called."""
REPORT_VERSION = 2
"""``version`` of a ``report.json`` that can be compared with."""

Spot = tuple[str, str, int, str]
"""Cluster, host, broker, path; the path is empty for an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Content of a report before."""

    now_ms: int
    failed: Mapping[Spot, str]
    """To the serial number, or the id, that the directory had."""
    silent: frozenset[Spot]
    at_risk: frozenset[Spot]
    whole: Mapping[str, bool]
    """Of each of the three, whether it is all of them: what was cut off is not new when it comes up."""
    changes: Changes


def spot(fleet: str | None, host: str, broker_id: int | None, path: str = "") -> Spot:
    """Key of a place."""
    return fleet or "", host, -1 if broker_id is None else broker_id, path


def remembered(
    failed: Iterable[tuple[Spot, str]], silent: Iterable[Spot], at_risk: Iterable[Spot], whole: Mapping[str, bool]
) -> dict[str, Any]:
    """Facts that the next report compares with, for ``report.json``."""
    return {
        "failed": [[*place, disk] for place, disk in failed],
        "silent": [list(place) for place in silent],
        "at_risk": [list(place) for place in at_risk],
        "whole": dict(whole),
    }


def before(text: str | None) -> Before | None:
    """Content of a ``report.json``; None where it is none, or one of another version."""
    try:
        found = json.loads(text or "")
        if found["version"] != REPORT_VERSION:
            return None
        kept = found["remembered"]
        failed = {_spot(row[:4]): str(row[4]) for row in kept["failed"]}
        listed = [Change(**_change(row)) for row in found["changes"]["listed"]]
        counts = {str(kind): int(n) for kind, n in found["changes"]["counts"].items() if kind in KINDS}
        since = found["changes"]["since_ms"]
        return Before(
            now_ms=int(found["window"]["now_ms"]),
            failed=failed,
            silent=frozenset(map(_spot, kept["silent"])),
            at_risk=frozenset(map(_spot, kept["at_risk"])),
            whole={str(name): bool(is_) for name, is_ in kept["whole"].items()},
            changes=Changes(since_ms=None if since is None else int(since), counts=counts, listed=tuple(listed)),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def _spot(row: Sequence[Any]) -> Spot:
    fleet, host, broker_id, path = row
    return str(fleet), str(host), int(broker_id), str(path)


def _change(row: Mapping[str, Any]) -> dict[str, Any]:
    path = row["path"]
    return {
        "kind": str(row["kind"]) if row["kind"] in KINDS else "failed",
        "host": str(row["host"]),
        "broker_id": int(row["broker_id"]),
        "path": None if path is None else str(path),
        "detail": str(row["detail"]),
    }


def changes(
    old: Before | None,
    now_ms: int,
    failed: Mapping[Spot, str],
    silent: Iterable[Spot],
    at_risk: Iterable[Spot],
    seen: Mapping[Spot, Directory],
) -> Changes:
    """Differences from ``old``; ``failed``, ``silent`` and ``at_risk`` are now's, ``seen`` are the directories that
    had failed then, as they are now. A report of the same moment is no other one: what it said is said again."""
    if old is None:
        return Changes(counts={})
    if old.now_ms == now_ms:
        return old.changes
    found: list[Change] = []

    def add(kind: str, where: Spot, detail: str = "") -> None:
        found.append(Change(kind=kind, host=where[1], broker_id=where[2], path=where[3] or None, detail=detail))

    silent_now, risks_now = set(silent), set(at_risk)
    if old.whole.get("failed"):
        for where in sorted(set(failed) - set(old.failed)):
            add("failed", where, f"disk {failed[where]}" if failed[where] else "")
    for where, disk in sorted(old.failed.items()):
        now = seen.get(where)
        if now is None or now.state in ("failed", "silent", "stopped"):
            continue
        new_disk = disk_of(now)
        if disk and new_disk and new_disk != disk:
            add("replaced", where, f"{disk} → {new_disk}")
        elif now.state == "online":
            add("recovered", where, f"disk {new_disk}" if new_disk else "")
    if old.whole.get("silent"):
        for where in sorted(silent_now - old.silent):
            add("silent", where)
    for where in sorted(old.silent - silent_now):
        add("heard", where)
    if old.whole.get("at_risk"):
        for where in sorted(risks_now - old.at_risk):
            add("at_risk", where)
    counts = {kind: n for kind in KINDS if (n := sum(change.kind == kind for change in found))}
    order = list(KINDS)
    listed = sorted(found, key=lambda change: order.index(change.kind))[:LIST_MAX]
    return Changes(since_ms=old.now_ms, counts=counts, listed=tuple(listed))


def disk_of(directory: Directory) -> str:
    """Identity of the disk of a directory: its serial number, or the directory's id."""
    return directory.place.serial or directory.place.dir_id or ""
