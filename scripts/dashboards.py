"""Write the Grafana dashboards of ``systemd/monitoring/dashboards``: ``python -m scripts.dashboards``.

A dashboard is a list of rows, and a row is a list of panels, from the question that is asked first to the last one. A
test holds the files to what this writes, and asks each query of a real Prometheus.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).parents[1] / "systemd" / "monitoring" / "dashboards"
SCHEMA_VERSION: Final = 36
"""Of Grafana 9.1; later ones migrate it when they load it."""
COLUMNS: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
Steps = Sequence[tuple[float, str]]
"""Values from which on a colour is shown; below the first one it is green."""
ANY_IS_BAD: Final[Steps] = ((1, RED),)
ANY_IS_ODD: Final[Steps] = ((1, ORANGE),)
NONE_IS_BAD: Final[Steps] = ((0, RED), (1, GREEN))
LITTLE_SPACE: Final[Steps] = ((0, RED), (0.2, GREEN))
"""Bounds of KjbodDiskFillsUp, as the next one."""
SOON: Final[Steps] = ((0, RED), (86_400, GREEN))
SLOW: Final[Steps] = ((1, RED),)
"""``kjbod.slow.ms``."""
FULL_IN: Final = "Time until the directory is full, at the rate of the last six hours; a month at most."
PROBE: Final = "A probe writes, syncs and reads a small file. The line is kjbod.slow.ms."

STATES: Final = (
    *((state, GREEN) for state in ("online",)),
    *((state, ORANGE) for state in ("suspect", "slow", "held", "full", "unknown")),
    *((state, RED) for state in ("failed", "unreadable", "offline")),
)
"""Of a directory: as the guard or agent judges it, and for Kafka."""
ALL: Final = 'job=~"$job"'
HOST: Final = 'job=~"$job", instance=~"$instance"'
DIRS: Final = f'{HOST}, log_directory=~"$log_directory"'
OF_DISK: Final = "ignoring (state, reason, directory_id, device, model, serial, file_system)"


@dataclass(frozen=True)
class Query:
    """A query, and what its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        kind: of Grafana: ``stat``, ``table`` or ``timeseries``.
        about: what the reader sees, and what to do about it.
        unit: of Grafana: ``short``, ``s``, ``bytes``, ``percentunit``, ...
        steps: colours.
        hidden: columns of a table that are left out.
        names: titles of its columns, by label.
    """

    title: str
    kind: str
    queries: tuple[Query, ...]
    about: str
    unit: str = "short"
    steps: Steps = ()
    width: int = 12
    height: int = 8
    maximum: float | None = None
    hidden: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Dashboard:
    """A dashboard: rows by their titles, and its variables: labels, and series that have them."""

    uid: str
    title: str
    about: str
    rows: dict[str, tuple[Panel, ...]]
    variables: tuple[tuple[str, str], ...]


def stat(title: str, expr: str, about: str, steps: Steps = (), unit: str = "short", width: int = 4) -> Panel:
    return Panel(title, "stat", (Query(expr),), about, unit, steps, width, 4)


def lines(
    title: str, unit: str, about: str, *queries: tuple[str, str], steps: Steps = (), maximum: float | None = None
) -> Panel:
    """Values over time; ``steps`` are lines across the panel."""
    return Panel(title, "timeseries", tuple(Query(*one) for one in queries), about, unit, steps, maximum=maximum)


NAMES: Final = (
    *(("instance", "Host"), ("log_directory", "Directory"), ("state", "State"), ("view", "For Kafka")),
    *(("step", "Action"), ("reason", "Waits for"), ("serial", "Serial number"), ("device", "Device")),
    *(("model", "Model"), ("version", "kjbod"), ("python_version", "Python")),
)


def table(title: str, expr: str, about: str, width: int = 24) -> Panel:
    """A table with a row for each series, of labels alone."""
    hidden = ("Time", "__name__", "job", "logDirectory", "Value")
    return Panel(title, "table", (Query(expr),), about, width=width, hidden=hidden, names=NAMES)


def joined(expr: str, among: str = ALL) -> str:
    """Series of directories with the disk of each."""
    return f"({expr}) * {OF_DISK} group_left (device, model, serial) kjbod_log_directory_info{{{among}}}"


def total(metric: str, among: str = ALL) -> str:
    """The sum over all targets; 0 where none has the series."""
    return f"sum({metric}{{{among}}}) or vector(0)"


def number_of(states: str) -> str:
    return total("kjbod_log_directory_health", f'{ALL}, state=~"{states}"')


def number_without(metric: str) -> str:
    """Targets of which a series of 0 and 1 is 0."""
    return f"sum(1 - {metric}{{{ALL}}}) or vector(0)"


WITHOUT_LEADER: Final = "kjbod_guard_partitions_without_leader"
BELOW_MIN_ISR: Final = "kjbod_guard_partitions_below_min_isr"
LACK_A_REPLICA: Final = "kjbod_guard_partitions_below_replication_factor"
IN_SYNC_OFFLINE: Final = "kjbod_guard_partitions_in_sync_offline"
FREE: Final = "kjbod_log_directory_available_bytes"
MONTH_S: Final = 30 * 86_400
DIRECTORY: Final = "{{instance}} {{log_directory}}"


def full_in(among: str) -> str:
    """Seconds until the free space ends, at the rate of six hours; a month at most."""
    return f"clamp_max({FREE}{{{among}}} / clamp_min(-deriv({FREE}{{{among}}}[6h]), 1), {MONTH_S})"


def fleet_now() -> tuple[Panel, ...]:
    return (
        stat("Failed", number_of("failed|unreadable"), "Directories that failed or cannot be read.", ANY_IS_BAD),
        stat("Slow, held or full", number_of("slow|held|full"), "Kafka still uses these directories.", ANY_IS_ODD),
        stat(
            "Guards that do not answer",
            'sum(1 - up{job="kjbod-guard"}) or vector(0)',
            "Nobody watches the disks of these hosts.",
            ANY_IS_BAD,
        ),
        stat("Partitions without leader", total(WITHOUT_LEADER), "Nobody can read or write them.", ANY_IS_BAD),
        stat("Partitions below min ISR", total(BELOW_MIN_ISR), "Producers with acks=all get errors.", ANY_IS_BAD),
        stat(
            "Partitions that lack a replica",
            total(LACK_A_REPLICA),
            "A guard evicted a broker that is not back.",
            ANY_IS_ODD,
        ),
        table(
            "Directories that are not online",
            joined(f'kjbod_log_directory_health{{{ALL}, state!="online"}} == 1'),
            "Empty: all are online. Compare the serial number with the label on the disk before you pull a disk.",
        ),
        table(
            "Actions that wait, and why",
            joined(f"kjbod_guard_waiting{{{ALL}}} == 1"),
            "Empty: no guard waits. kjbod status on the host says more.",
            width=12,
        ),
        table(
            "Actions that a guard in mode act would do now",
            f'kjbod_guard_would{{{ALL}, step!="nothing"}} == 1',
            "Empty: nothing is to be done. A guard that observes leaves the action to you.",
            width=12,
        ),
    )


def fleet_guards() -> tuple[Panel, ...]:
    acts = f"sum by (means, outcome) (increase(kjbod_guard_acts_total{{{ALL}}}[10m]))"
    versions = f"count(count by (version) (kjbod_build_info{{{ALL}}})) or vector(0)"
    return (
        stat("Guards", f"count(kjbod_guard_acting{{{ALL}}}) or vector(0)", "Guards that answer.", NONE_IS_BAD),
        stat("Guards in mode act", total("kjbod_guard_acting"), "The others observe."),
        stat(
            "Guards without a broker",
            number_without("kjbod_guard_broker_bound"),
            "No Kafka broker runs on these hosts.",
            ANY_IS_ODD,
        ),
        stat(
            "Guards without metadata",
            number_without("kjbod_guard_metadata_followed"),
            "They do not know what Kafka has noticed, and do not act.",
            ANY_IS_ODD,
        ),
        stat(
            "Guards without rights",
            f"sum(kjbod_guard_hand_missing{{{ALL}}} > bool 0) or vector(0)",
            "Mode act, and the privileged helper lacks rights.",
            ANY_IS_ODD,
        ),
        stat("Versions of kjbod", versions, "More than one: an upgrade is not finished.", ((2, ORANGE),)),
        table("Hosts", f"kjbod_build_info{{{ALL}}}", "The version on each host.", width=12),
        lines("Actions of guards", "short", "In the last ten minutes, by outcome.", (acts, "{{means}} {{outcome}}")),
    )


def fleet_disks() -> tuple[Panel, ...]:
    free, full = f"bottomk(10, directory:kjbod_free_space:ratio{{{ALL}}})", f"bottomk(10, {full_in(ALL)})"
    slow = f"topk(10, directory:kjbod_probe_seconds:p99_5m{{{ALL}}})"
    busy = f"topk(10, directory:kjbod_device_busy:ratio_rate5m{{{ALL}}})"
    states = f"sum by (state) (job_state:kjbod_log_directories:count{{{ALL}}})"
    return (
        lines(
            "Least free space",
            "percentunit",
            "The ten fullest directories.",
            (free, DIRECTORY),
            steps=LITTLE_SPACE,
            maximum=1,
        ),
        lines("Full in", "s", FULL_IN, (full, DIRECTORY), steps=SOON),
        lines("Slowest probes (p99)", "s", PROBE, (slow, DIRECTORY), steps=SLOW),
        lines(
            "Busiest disks",
            "percentunit",
            "Share of time with a request in flight. Slow probes on a disk that is not busy: a bad disk.",
            (busy, DIRECTORY),
            maximum=1,
        ),
        lines("Directories by state", "short", "All directories of the fleet.", (states, "{{state}}")),
        lines(
            "Partitions at risk",
            "short",
            "Sums over the brokers of this fleet: a partition counts once for each broker.",
            (total(WITHOUT_LEADER), "without leader"),
            (total(BELOW_MIN_ISR), "below min ISR"),
            (total(IN_SYNC_OFFLINE), "in sync, directory offline"),
            (total(LACK_A_REPLICA), "lack a replica"),
        ),
    )


def host_now() -> tuple[Panel, ...]:
    return (
        stat(
            "Failed",
            total("kjbod_log_directory_health", f'{HOST}, state=~"failed|unreadable"'),
            "Directories that failed or cannot be read.",
            ANY_IS_BAD,
        ),
        stat("Mode act", total("kjbod_guard_acting", HOST), "No: the guard observes.", unit="bool_yes_no"),
        stat(
            "Broker runs",
            total("kjbod_guard_broker_bound", HOST),
            "A Kafka broker that this guard is for.",
            NONE_IS_BAD,
            unit="bool_yes_no",
        ),
        stat("Partitions without leader", total(WITHOUT_LEADER, HOST), "Nobody can read or write them.", ANY_IS_BAD),
        stat("Partitions below min ISR", total(BELOW_MIN_ISR, HOST), "Producers with acks=all get errors.", ANY_IS_BAD),
        stat(
            "Partitions that lack a replica",
            total(LACK_A_REPLICA, HOST),
            "The guard evicted the broker, and it is not back.",
            ANY_IS_ODD,
        ),
        table(
            "Log directories",
            joined(f"kjbod_log_directory_health{{{DIRS}}} == 1", DIRS),
            "Compare the serial number with the label on the disk before you pull a disk.",
        ),
        table("State for Kafka", f"kjbod_guard_kafka_view{{{DIRS}}} == 1", "From the metadata.", width=8),
        table(
            "Action that a guard in mode act would do",
            f"kjbod_guard_would{{{DIRS}}} == 1",
            "A guard that observes leaves the action to you.",
            width=8,
        ),
        table("Stage of the guard", f"kjbod_guard_step{{{DIRS}}} == 1", "Mode act only.", width=8),
    )


def host_disks() -> tuple[Panel, ...]:
    def rate(counter: str) -> str:
        return f"rate(kjbod_log_directory_{counter}_total{{{DIRS}}}[$__rate_interval])"

    name = "{{log_directory}}"
    p50, p99 = (f"directory:kjbod_probe_seconds:{one}_5m{{{DIRS}}}" for one in ("p50", "p99"))
    busy, free = f"directory:kjbod_device_busy:ratio_rate5m{{{DIRS}}}", f"directory:kjbod_free_space:ratio{{{DIRS}}}"
    return (
        lines("Probes", "s", PROBE, (p50, f"p50 {name}"), (p99, f"p99 {name}"), steps=SLOW),
        lines("Busy", "percentunit", "Share of time with a request in flight.", (busy, name), maximum=1),
        lines(
            "Bytes",
            "Bps",
            "Of the device, by all processes of the host.",
            (rate("device_read_bytes"), f"read {name}"),
            (rate("device_written_bytes"), f"written {name}"),
        ),
        lines(
            "Requests",
            "iops",
            "Of the device, by all processes of the host.",
            (rate("device_reads"), f"reads {name}"),
            (rate("device_writes"), f"writes {name}"),
        ),
        lines("Failed probes", "ops", "Probes that were answered with an error.", (rate("probe_failures"), name)),
        lines("Free space", "percentunit", "Of the file system.", (free, name), steps=LITTLE_SPACE, maximum=1),
        lines("Full in", "s", FULL_IN, (full_in(DIRS), name), steps=SOON),
        lines(
            "Replicas",
            "short",
            "On each directory, as the metadata have them.",
            (f"kjbod_log_directory_replicas{{{DIRS}}}", f"replicas {name}"),
            (f"kjbod_log_directory_leaders{{{DIRS}}}", f"leaders {name}"),
        ),
    )


def host_health() -> tuple[Panel, ...]:
    def told(name: str) -> str:
        return f"kjbod_disk_smart_{name}{{{DIRS}}}"

    name = "{{log_directory}}"
    return (
        lines("Disk passes its own test", "bool_yes_no", "No: it predicts its failure.", (told("passed"), name)),
        lines("Temperature", "celsius", "Of the disk.", (told("temperature_celsius"), name)),
        lines(
            "Bad sectors",
            "short",
            "Sectors that the disk replaced, or wants to replace. A number that grows: replace the disk.",
            (told("reallocated_sectors"), f"reallocated {name}"),
            (told("pending_sectors"), f"pending {name}"),
        ),
        lines("Age", "s", "Time that the disk was powered on.", (told("power_on_seconds"), name)),
    )


def host_kjbod() -> tuple[Panel, ...]:
    acts = f"sum by (means, outcome) (increase(kjbod_guard_acts_total{{{HOST}}}[10m]))"
    cpu = " + ".join(
        f"rate({one}_cpu_seconds_total{{{HOST}}}[$__rate_interval])"
        for one in ("process", "kjbod_workers", "kjbod_helpers")
    )
    return (
        lines("Actions of the guard", "short", "In the last ten minutes, by outcome.", (acts, "{{means}} {{outcome}}")),
        lines(
            "Reasons to wait",
            "short",
            "Directories for which the guard waits with an action.",
            (f"sum by (reason) (kjbod_guard_waiting{{{HOST}}})", "{{reason}}"),
        ),
        lines("CPU of kjbod", "percentunit", "Of one processor, with all its processes.", (cpu, "{{job}}")),
        lines(
            "Memory of kjbod",
            "bytes",
            "Resident memory of the daemon.",
            (f"process_resident_memory_bytes{{{HOST}}}", "{{job}}"),
        ),
    )


DASHBOARDS: Final = (
    Dashboard(
        "kjbod-fleet",
        "kjbod fleet",
        "Which hosts and log directories are bad. Click a host to see its directories.",
        {"What is wrong": fleet_now(), "Guards": fleet_guards(), "Space and speed": fleet_disks()},
        (("job", "kjbod_log_directory_health"),),
    ),
    Dashboard(
        "kjbod-host",
        "kjbod host",
        "The log directories and disks of one broker.",
        {
            "What is wrong": host_now(),
            "Disks": host_disks(),
            "Health that disks report (SMART, NVMe)": host_health(),
            "kjbod": host_kjbod(),
        },
        (
            ("job", "kjbod_log_directory_health"),
            ("instance", 'kjbod_log_directory_health{job=~"$job"}'),
            ("log_directory", f"kjbod_log_directory_health{{{HOST}}}"),
        ),
    ),
)
"""``instance`` is one host; the other variables are all values, until somebody chooses."""


def panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """A panel as Grafana has it, at a place of the grid."""
    steps = [{"color": GREEN, "value": None}, *({"color": color, "value": value} for value, color in panel.steps)]
    if not panel.steps and panel.kind == "stat":
        steps = [{"color": BLUE, "value": None}]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        shown = {"mode": "line" if panel.steps else "off"}
        custom = {"fillOpacity": 0, "lineWidth": 1, "showPoints": "never", "thresholdsStyle": shown}
        defaults |= {"min": 0, "custom": custom}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    found: dict[str, Any] = {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [target(panel, query, chr(ord("A") + at)) for at, query in enumerate(panel.queries)],
    }
    if panel.kind == "stat":
        found["options"] = {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    elif panel.kind == "timeseries":
        found["options"] = {"legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"]}}
    else:
        found["options"] = {"showHeader": True}
        found["fieldConfig"]["overrides"] = [link_to_host(), colors()]
        organize = {
            "excludeByName": dict.fromkeys(panel.hidden, True),
            "indexByName": {name: place for place, (name, _) in enumerate(panel.names)},
            "renameByName": dict(panel.names),
        }
        found["transformations"] = [{"id": "organize", "options": organize}]
    return found


def target(panel: Panel, query: Query, name: str) -> dict[str, Any]:
    """A query of a panel; tables and figures ask for this moment alone."""
    now = {} if panel.kind == "timeseries" else {"instant": True, "range": False}
    shape = {"format": "table"} if panel.kind == "table" else {"legendFormat": query.legend or "__auto"}
    return {"refId": name, "datasource": DATASOURCE, "expr": query.expr, **shape, **now}


def link_to_host() -> dict[str, Any]:
    """A click on a host leads to its dashboard."""
    url = "/d/kjbod-host?var-datasource=${datasource}&var-instance=${__value.text}"
    links = [{"title": "Directories of this host", "url": url}]
    return {"matcher": {"id": "byName", "options": "Host"}, "properties": [{"id": "links", "value": links}]}


def colors() -> dict[str, Any]:
    """States in the colour of their trouble."""
    options = {state: {"color": color, "index": place} for place, (state, color) in enumerate(STATES)}
    shown = [
        {"id": "mappings", "value": [{"type": "value", "options": options}]},
        {"id": "custom.displayMode", "value": "color-text"},
        {"id": "custom.cellOptions", "value": {"type": "color-text"}},
    ]
    return {"matcher": {"id": "byRegexp", "options": "^(State|For Kafka)$"}, "properties": shown}


def placed(rows: dict[str, tuple[Panel, ...]]) -> Iterator[dict[str, Any]]:
    """Rows and panels, from left to right and from top to bottom."""
    number = y = 0
    for title, panels in rows.items():
        number += 1
        grid = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
        x, y, height = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            yield panel_json(panel, number, x, y)
            x, height = x + panel.width, max(height, panel.height)
        y += height


def variable_json(name: str, selector: str) -> dict[str, Any]:
    query = f"label_values({selector}, {name})"
    of_all = {} if name == "instance" else {"includeAll": True, "multi": True, "allValue": ".+"}
    current = {} if name == "instance" else {"current": {"text": ["All"], "value": ["$__all"]}}
    return {
        "name": name,
        "label": dict(NAMES).get(name, name.capitalize()),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        **of_all,
        **current,
    }


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    others = [
        {"title": other.title, "type": "link", "url": f"/d/{other.uid}", "keepTime": True}
        for other in DASHBOARDS
        if other is not dashboard
    ]
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["kjbod", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "links": others,
        "templating": {"list": [datasource, *(variable_json(*one) for one in dashboard.variables)]},
        "panels": list(placed(dashboard.rows)),
    }


def files() -> dict[Path, str]:
    """Texts of the dashboards, by file."""
    return {
        HOME / f"{one.uid.removeprefix('kjbod-')}.json": json.dumps(dashboard_json(one), indent=2) + "\n"
        for one in DASHBOARDS
    }


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text)
