"""The report in plain words."""

from collections.abc import Sequence

from kjbod.fleet.page.model import (
    FAILED,
    ONLINE,
    SILENT,
    STOPPED,
    Agent,
    Deed,
    FleetReport,
    Happening,
    Incident,
)
from kjbod.fleet.schema import EventKind
from kjbod.fleet.svg import date_time, duration, plural

REASON_MAX = 100
"""Length of a reason in a sentence; the list of what to do has it whole."""
DEEDS_MAX = 12


def sentences(report: FleetReport) -> list[str]:
    """The report in sentences, most important first."""
    return [text for sentence in _SENTENCES if (text := sentence(report))]


def label(agent: Agent) -> str:
    """``broker 1 · host-a``."""
    return f"broker {agent.broker_id} · {agent.host}"


def _staleness(report: FleetReport) -> str:
    if not report.is_stale:
        return ""
    newest = date_time(report.window.now_ms)[:16]
    return f"Nothing newer than {newest} UTC has come in: reports are not copied, or not taken in, any more."


def _silence(report: FleetReport) -> str:
    count = report.statuses.get(SILENT, 0)
    if not count:
        return ""
    silent = [agent for agent in report.agents if agent.status == SILENT]
    told = ", ".join(f"{label(agent)} for {duration(agent.silent_ms)}" for agent in silent[:3])
    more = f" and {count - 3:,} more" if count > 3 else ""
    return f"{count:,} of {plural(report.brokers, 'agent')} {'is' if count == 1 else 'are'} silent: {told}{more}."


def _directories(report: FleetReport) -> str:
    total = report.directories
    if not total:
        return "No directory has been reported yet."
    failed = report.states.get(FAILED, 0)
    of_all = f"of {plural(total, 'directory', 'directories')}"
    others = {state: n for state, n in report.states.items() if state not in (FAILED, ONLINE)}
    if not failed and not others:
        return "The only directory is online." if total == 1 else f"All {total:,} directories are online."
    parts = [f"{failed:,} {of_all} failed" if failed else f"None {of_all} failed"]
    parts += [f"{n:,} {'is' if n == 1 else 'are'} {state}" for state, n in others.items()]
    return f"{_enumerate(parts)}."


def _risks(report: FleetReport) -> str:
    count = report.insights.health.at_risk
    return f"{plural(count, 'disk')} may fail soon." if count else ""


def _failures(report: FleetReport) -> str:
    by = report.incident_outcomes
    parts = []
    if count := by.get("acknowledged", 0):
        within = "" if report.slowest_ms is None else f" within {duration(report.slowest_ms)}"
        parts.append(
            f"{plural(count, 'failure')} {'was' if count == 1 else 'were'} acknowledged by the controller{within}"
        )
    if count := by.get("timeout shutdown", 0):
        parts.append(f"{plural(count, 'failure')} could not be reported, so the agent gave up in time")
    if count := by.get("agent stopped", 0):
        parts.append(f"{plural(count, 'failure')} ended with the agent")
    if count := by.get("open", 0):
        parts.append(f"{plural(count, 'failure')} {'is' if count == 1 else 'are'} not acknowledged yet")
    return f"{_enumerate(parts)}." if parts else ""


def _guards(report: FleetReport) -> str:
    rows = report.guards
    if not rows:
        return ""
    guards, acting, acts = (sum(getattr(row, name) for row in rows) for name in ("guards", "acting", "acts"))
    text = f"{plural(guards, 'guard')}, of which {acting:,} act: {plural(acts, 'act')}"
    parts = [("failed_acts", "in vain"), ("refusals", "refused"), ("would", "only observed")]
    counts = [(sum(getattr(row, name) for row in rows), what) for name, what in parts]
    return ", ".join([text, *(f"{count:,} {what}" for count, what in counts if count)]) + "."


def _agents(report: FleetReport) -> str:
    if not report.brokers:
        return ""
    count = report.statuses.get(STOPPED, 0)
    if not count:
        heard = "" if report.statuses.get(SILENT) else " or fallen silent"
        return f"{plural(report.brokers, 'agent')} reported; none has stopped{heard}."
    stopped = [agent for agent in report.agents if agent.status == STOPPED]
    causes = [f"broker {a.broker_id} ({_why_stopped(report, a)}{_exit(a.exit_code)})" for a in stopped[:3]]
    more = f" and {count - 3:,} more" if count > 3 else ""
    return f"{count:,} of {plural(report.brokers, 'agent')} stopped: {', '.join(causes)}{more}."


def _why_stopped(report: FleetReport, agent: Agent) -> str:
    """Path and cause of the failures that an agent could not report; of any other stop the reason it gave."""
    unreported = [
        i
        for i in report.incidents
        if (i.place.fleet, i.place.host, i.place.broker_id) == (agent.fleet, agent.host, agent.broker_id)
        and i.outcome == "timeout shutdown"
    ]
    if not unreported:
        return _shortened(agent.reason or "no reason given")
    newest = unreported[0]
    more = f" and {len(unreported) - 1:,} more" if len(unreported) > 1 else ""
    return _shortened(f"could not report {newest.place.path}: {newest.errno or newest.cause or 'failed'}{more}")


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_MAX else f"{text[: REASON_MAX - 1].rstrip()}…"


def _exit(code: str | None) -> str:
    return f", exit code {code}" if code is not None else ""


def _data(report: FleetReport) -> str:
    data = report.data
    parts = []
    if data.bad_files:
        parts.append(f"{plural(data.lines_set_aside, 'line')} of {plural(data.bad_files, 'report file')} set aside")
    if count := data.shared_serials:
        parts.append(f"{plural(count, 'serial number')} on several hosts at once")
    return f"Data problems: {_enumerate(parts)}." if parts else ""


def _enumerate(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


_SENTENCES = (_staleness, _silence, _directories, _risks, _failures, _guards, _agents, _data)


def evidence(incident: Incident) -> str:
    """Evidence of a failure, the disk, and what a guard did about it."""
    parts = [incident.evidence or incident.errno or incident.cause or "no evidence recorded"]
    device, serial = incident.place.device, incident.place.serial
    if device and f"device {device}" not in parts[0]:
        parts.append(f"device {device}")
    if serial and serial not in parts[0]:
        parts.append(f"serial {serial}")
    done = deeds(incident.deeds)
    return "; ".join(parts) + (f". Guard: {done}" if done else "")


def deeds(done: Sequence[Deed]) -> str:
    """Deeds of a guard about a failure, each with the time since the verdict; empty where there was none.

    For example ``cut after 3 ms, recorded after 104 ms``."""
    more = f", and {len(done) - DEEDS_MAX:,} more" if len(done) > DEEDS_MAX else ""
    return ", ".join(_deed(deed) for deed in done[:DEEDS_MAX]) + more


def _deed(deed: Deed) -> str:
    after, why = duration(deed.after_ms), f" ({deed.reason})" if deed.reason else ""
    if deed.outcome is None:  # no means: Kafka has recorded it, or no more is done
        return f"{deed.means} after {after}{why}"
    count = "" if deed.count is None else f" of {plural(deed.count, 'partition')}"
    how = "" if deed.outcome == "done" else f" {deed.outcome}"
    return f"{deed.means}{count}{how} after {after}{why}"


def describe(row: Happening) -> str:
    """A row of the timeline."""
    attrs = row.attrs
    cause = attrs.get("evidence") or attrs.get("cause") or attrs.get("errno")
    reason = attrs.get("reason")
    because = f": {reason}" if reason else ""
    took = f" in {attrs['took_ms']} ms" if attrs.get("took_ms") else ""
    moved = f": {plural(row.leaders, 'partition')}" if row.leaders is not None else ""
    texts = {
        EventKind.STATE_CHANGED: f"{attrs.get('previous') or '?'} → {attrs.get('state') or '?'}"
        + (f": {cause}" if cause else ""),
        EventKind.DIR_FAILED: "failed" + (f": {cause}" if cause else ""),
        EventKind.OFFLINE_SENT: "reported to the controller as offline",
        EventKind.ACKNOWLEDGED: "the controller has recorded it",
        EventKind.KAFKA_NOTICED: "Kafka has noticed by itself",
        EventKind.GUARD_WOULD: f"guard: {reason or 'no reason given'}",
        EventKind.GUARD_DOES: f"guard: {attrs.get('means')} begins",
        EventKind.GUARD_DONE: f"guard: {attrs.get('means')} {attrs.get('outcome')}{took}{because}",
        EventKind.GUARD_STANDS: f"guard: {attrs.get('state')}{because}",
        EventKind.GUARD_LACKS: f"guard: {reason or 'no partition lacks a replica any more'}",
        EventKind.LEADERSHIP_MOVED: f"leadership has moved{moved}",
        EventKind.TIMEOUT_SHUTDOWN: "not acknowledged in time: the agent gives up",
        EventKind.AGENT_STOPPED: f"stopped: {reason or 'no reason given'}{_exit(attrs.get('exit_code'))}",
        EventKind.AGENT_STARTED: "started",
        EventKind.REPLICA_CREATED: f"{plural(row.count, 'replica')} created",
        EventKind.ASSIGNMENTS_ACKNOWLEDGED: f"{plural(row.count, 'assignment')} recorded by the controller",
    }
    return texts.get(row.kind, str(row.kind).replace("_", " "))  # type: ignore[call-overload,no-any-return]
