"""The report as plain data, and in words. No Spark here: the job collects small tables and hands them over."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kjbod.fleet import deeds
from kjbod.fleet.schema import DirectoryState, EventKind
from kjbod.fleet.svg import clock_time, distinct_tails, duration, plural
from kjbod.quick_dataclass import dataclass

Row = Mapping[str, Any]

SILENT, STOPPED = "silent", "stopped"
"""States of an agent of which nothing was heard any more, and of one that said that it stops; and of their directories
(``transforms.directories_heard``)."""
STATES_WORST_FIRST = (
    *(SILENT, str(DirectoryState.FAILED), STOPPED),
    *(str(state) for state in DirectoryState if state not in (DirectoryState.FAILED, DirectoryState.ONLINE)),
    *("unknown", str(DirectoryState.ONLINE)),
)
REASON_MAX = 100
"""Length of a reason in a sentence; the timeline has it whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Findings of the jobs; each list has the columns and the order of the table of the same name."""

    agents: Sequence[Row]
    directories: Sequence[Row]
    incidents: Sequence[Row]
    capacity: Sequence[Row]
    timeline: Sequence[Row]
    files: Sequence[Row]
    """The audit."""
    samples: int
    events: int
    duplicates: int
    """Rows that were there more than once."""
    open_files: int
    """Files that agents are still writing, not read."""

    @property
    def first_ts(self) -> int | None:
        """Wall ms of the oldest line."""
        return min((row["first_seen"] for row in self.directories), default=self._event_span()[0])

    @property
    def last_ts(self) -> int | None:
        """Wall ms of the newest line: the "now" of the report."""
        seen = [row["last_seen"] for row in (*self.agents, *self.directories) if row["last_seen"] is not None]
        return max(seen, default=self._event_span()[1])

    def _event_span(self) -> tuple[int | None, int | None]:
        return (self.timeline[0]["ts"], self.timeline[-1]["ts"]) if self.timeline else (None, None)

    @property
    def states(self) -> dict[str, int]:
        """Directories by state, worst first; only states that occur."""
        found = [row["state"] for row in self.directories]
        known = [*STATES_WORST_FIRST, *sorted(set(found) - set(STATES_WORST_FIRST))]
        return {state: found.count(state) for state in known if state in found}

    @property
    def silent(self) -> list[Row]:
        """Agents that were not heard any more, the one silent longest first."""
        found = [row for row in self.agents if row["status"] == SILENT]
        return sorted(found, key=lambda row: (-(row["silent_ms"] or 0), row["host"], row["broker_id"]))

    @property
    def ended(self) -> set[tuple[str, int]]:
        """Agents whose last words are no longer so, because they have stopped or are silent."""
        return {(row["host"], row["broker_id"]) for row in self.agents if row["status"] in (SILENT, STOPPED)}

    @property
    def guards(self) -> list[dict[str, Any]]:
        """Deeds of guards, by cluster (:func:`kjbod.fleet.deeds.by_fleet`)."""
        return deeds.by_fleet(self.agents)

    @property
    def soonest_full(self) -> list[Row]:
        """Directories in the order in which they are forecast to be full; then the others, the fullest first."""

        def urgency(row: Row) -> tuple[Any, ...]:
            days = row["days_to_full"]
            return days is None, days or 0.0, -(row["used_ratio"] or 0), row["host"], row["broker_id"], row["path"]

        return sorted(self.capacity, key=urgency)

    @property
    def space(self) -> tuple[int, int]:
        """Bytes used, and bytes in all: directories of one host that share a device have one file system between them,
        which counts once, as seen last."""
        devices = {_directory(row): row["device"] for row in self.directories}
        file_systems: dict[tuple[Any, ...], Row] = {}
        for row in sorted(self.capacity, key=lambda r: r["last_seen"]):
            # "sda1 8:1" and "sda1" are the same: what reads the numbers may fail with the disk.
            device = (devices.get(_directory(row)) or "").partition(" ")[0]
            file_systems[(row["host"], device) if device else _directory(row)] = row
        counted = file_systems.values()
        return sum(row["bytes_used"] for row in counted), sum(row["bytes_total"] for row in counted)

    @property
    def bad_lines(self) -> int:
        """Lines that were set aside, whole files included."""
        return sum(row["bad_lines"] if row["kept"] else row["lines"] for row in self.files)

    @property
    def bad_files(self) -> list[Row]:
        """Files of which something had to be set aside."""
        return [row for row in self.files if not row["kept"] or row["bad_lines"]]

    def names(self, host: str, broker_id: int) -> dict[str, str]:
        """Short names of an agent's directories."""
        ours = [(r["host"], r["broker_id"], r["path"]) for r in self.directories]
        return distinct_tails([path for h, b, path in ours if (h, b) == (host, broker_id)])

    def labels(self) -> Callable[[Row], str]:
        """Names of the agents of rows: ``broker 1 · host-a``, without the domain where the first part tells enough."""
        hosts = {agent["host"] for agent in self.agents}
        short = {host.split(".")[0] for host in hosts}
        enough = len(short) == len(hosts) and not any(part.isdigit() for part in short)

        def label(row: Row) -> str:
            whole = row["host"] if not enough or row["host"] not in hosts else row["host"].split(".")[0]
            return f"broker {row['broker_id']} · {whole}"

        return label

    def label(self, row: Row) -> str:
        """Name of the agent of one row."""
        return self.labels()(row)

    def to_json(self) -> dict[str, Any]:
        """The content of ``report.json``."""
        return {
            "summary": sentences(self),
            "first_ts": self.first_ts,
            "last_ts": self.last_ts,
            "states": self.states,
            "samples": self.samples,
            "events": self.events,
            "agents": self.agents,
            "directories": self.directories,
            "incidents": self.incidents,
            "guards": self.guards,
            "capacity": self.capacity,
            "data": {
                "files": len(self.files),
                "open_files": self.open_files,
                "lines_set_aside": self.bad_lines,
                "duplicates_dropped": self.duplicates,
                "damaged_files": self.bad_files,
            },
        }


def _directory(row: Row) -> tuple[Any, ...]:
    return row["host"], row["broker_id"], row["path"]


def sentences(report: Report) -> list[str]:
    """The report in plain words, most important first."""
    return [text for sentence in _SENTENCES if (text := sentence(report))]


def _silence(report: Report) -> str:
    silent = report.silent
    if not silent:
        return ""
    told = [f"{report.label(row)} for {duration(row['silent_ms'])}" for row in silent[:3]]
    more = f" and {len(silent) - 3:,} more" if len(silent) > 3 else ""
    verb = "is" if len(silent) == 1 else "are"
    return f"{len(silent):,} of {plural(len(report.agents), 'agent')} {verb} silent: {', '.join(told)}{more}."


def _directories(report: Report) -> str:
    total = len(report.directories)
    if not total:
        return "No directory has been reported yet."
    failed = report.states.get(str(DirectoryState.FAILED), 0)
    of_all = f"of {plural(total, 'directory', 'directories')}"
    others = {state: n for state, n in report.states.items() if state not in ("failed", "online")}
    if not failed and not others:
        return "The only directory is online." if total == 1 else f"All {total:,} directories are online."
    parts = [f"{failed:,} {of_all} failed" if failed else f"None {of_all} failed"]
    parts += [f"{n:,} {'is' if n == 1 else 'are'} {state}" for state, n in others.items()]
    return f"{_enumerate(parts)}."


def _failures(report: Report) -> str:
    if not report.incidents:
        return ""
    by_outcome = {
        o: [r for r in report.incidents if r["outcome"] == o] for o in {r["outcome"] for r in report.incidents}
    }
    acknowledged = by_outcome.get("acknowledged", [])
    parts = []
    if acknowledged:
        slowest = max((r["total_ms"] for r in acknowledged if r["total_ms"] is not None), default=None)
        since = "first sign" if any(r["detect_ms"] is not None for r in acknowledged) else "verdict"
        within = f" within {duration(slowest)} of the {since}" if slowest is not None else ""
        were = "was" if len(acknowledged) == 1 else "were"
        parts.append(f"{plural(len(acknowledged), 'failure')} {were} acknowledged by the controller{within}")
    if timeouts := by_outcome.get("timeout shutdown"):
        parts.append(f"{plural(len(timeouts), 'failure')} could not be reported, so the agent gave up in time")
    if stopped := by_outcome.get("agent stopped"):
        parts.append(f"{plural(len(stopped), 'failure')} ended with the agent")
    if waiting := by_outcome.get("open"):
        parts.append(f"{plural(len(waiting), 'failure')} {'is' if len(waiting) == 1 else 'are'} not acknowledged yet")
    return f"{_enumerate(parts)}."


def _agents(report: Report) -> str:
    stopped = [row for row in report.agents if row["status"] == STOPPED]
    if not report.agents:
        return ""
    if not stopped:
        heard = "" if report.silent else " or fallen silent"
        return f"{plural(len(report.agents), 'agent')} reported; none has stopped{heard}."
    causes = [f"broker {row['broker_id']} ({_why_stopped(report, row)}{_exit(row)})" for row in stopped[:3]]
    more = f" and {len(stopped) - 3:,} more" if len(stopped) > 3 else ""
    return f"{len(stopped):,} of {plural(len(report.agents), 'agent')} stopped: {', '.join(causes)}{more}."


def _why_stopped(report: Report, agent: Row) -> str:
    """Path and cause of the failures that an agent could not report; of any other stop the reason it gave."""
    ours = [r for r in report.incidents if (r["host"], r["broker_id"]) == (agent["host"], agent["broker_id"])]
    unreported = [r for r in ours if r["outcome"] == "timeout shutdown"]
    if not unreported:
        return _shortened(agent["reason"] or "no reason given")
    last = unreported[-1]
    call = (last["call"] or "").removesuffix(f" of {last['path']}")
    at = f" at {call}" if last["errno"] and call else ""
    cause = (last["errno"] or last["cause"] or "failed") + at
    more = f" and {len(unreported) - 1:,} more" if len(unreported) > 1 else ""
    return _shortened(f"could not report {last['path']}: {cause}{more}")


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_MAX else f"{text[: REASON_MAX - 1].rstrip()}…"


def _exit(row: Row) -> str:
    return f", exit code {row['exit_code']}" if row["exit_code"] is not None else ""


def _guards(report: Report) -> str:
    return deeds.sentence(report.guards)


def _data(report: Report) -> str:
    if not report.bad_files:
        return ""
    files = plural(len(report.bad_files), "report file")
    return f"Data problems: {plural(report.bad_lines, 'line')} of {files} set aside."


def _enumerate(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


_SENTENCES = (_silence, _directories, _failures, _guards, _agents, _data)


def describe(row: Row) -> str:
    """A row of the timeline in words."""
    kind, count = row["kind"], row["count"]
    cause = row["evidence"] or row["cause"] or row["errno"]
    reason = f"{row['reason'] or 'no reason given'}{_exit(row)}"
    texts = {
        EventKind.STATE_CHANGED: f"{row['previous'] or '?'} → {row['state'] or '?'}" + (f": {cause}" if cause else ""),
        EventKind.DIR_FAILED: "failed" + (f": {cause}" if cause else ""),
        EventKind.OFFLINE_SENT: "reported to the controller as offline",
        EventKind.ACKNOWLEDGED: "the controller has recorded it",
        EventKind.KAFKA_NOTICED: "Kafka has noticed by itself",
        EventKind.GUARD_WOULD: f"guard: {row['reason'] or 'no reason given'}",
        EventKind.GUARD_DOES: f"guard: {row['means']} begins",
        EventKind.GUARD_DONE: deeds.happened(row),
        EventKind.GUARD_STANDS: deeds.stands(row),
        EventKind.LEADERSHIP_MOVED: "leadership has moved"
        + (f": {plural(row['leaders'], 'partition')}" if row["leaders"] is not None else ""),
        EventKind.TIMEOUT_SHUTDOWN: "not acknowledged in time: the agent gives up",
        EventKind.AGENT_STOPPED: f"stopped: {reason}",
        EventKind.AGENT_STARTED: "started",
        EventKind.REPLICA_CREATED: f"{plural(count, 'replica')} created",
        EventKind.ASSIGNMENTS_ACKNOWLEDGED: f"{plural(count, 'assignment')} recorded by the controller",
    }
    return texts.get(kind, str(kind).replace("_", " "))


def moment(row: Row) -> str:
    """Time of day of a row, with ms."""
    return clock_time(row["ts"])
