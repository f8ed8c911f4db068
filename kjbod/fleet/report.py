"""Collect a report from the gold of a lake: what the page is drawn from.

What comes to the driver is bounded: counts, the worst of each kind, a row for each of the hosts in the map, and for the
pages of hosts one host after the other.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window as Partition
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.dates import check_dates
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.insight.insights import insights, seen, settings_of, until
from kjbod.fleet.insight.model import Place, Window
from kjbod.fleet.insight.own_work import SILENT_AFTER_MS, SILENT_INTERVALS
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.page.changes import Before, Spot, changes, disk_of, spot
from kjbod.fleet.page.model import (
    CELLS_MAX,
    FAILED,
    HOSTS_MAX,
    LIST_MAX,
    ONLINE,
    SILENT,
    STATES_WORST_FIRST,
    STOPPED,
    Agent,
    BadFile,
    Cell,
    Changes,
    Data,
    Deed,
    Directory,
    DirectoryDetail,
    FleetReport,
    Guards,
    Happening,
    HostDetail,
    Incident,
    Lack,
    MapHost,
    ModelDisks,
    Series,
    SharedSerial,
    Stand,
)
from kjbod.fleet.page.words import evidence
from kjbod.fleet.rollup.happenings import LACKS, NOT_DONE_STATES, RELEASED, lack_counts
from kjbod.fleet.rollup.merge import joined
from kjbod.fleet.schema import DirectoryState
from kjbod.fleet.session import PLAIN, at_once, tuned

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    Progress = Callable[[str], None]

BROKER = ("fleet", "host", "broker_id")
SPOT = (*BROKER, "path")
HAPPENINGS_MAX = 120
"""Of a host on its page, the newest."""
HOST_INCIDENTS_MAX = 40
UNREADABLE = str(DirectoryState.UNREADABLE)
FLAPS_MIN = 3
"""So often a directory may leave online in two days before it is named."""
DEFECTS = ("smart_realloc", "smart_pending", "smart_uncorrect", "smart_reported_uncorrect", "smart_media_errors")
MODELS_MAX = 300
_LAST = (
    *("rack", "dir_id", "device", "model", "serial", "state", "state_since", "last_ts", "bytes_total", "used_last"),
    *("partitions", "leaders"),
)
_STAGES = ("detect_ms", "send_ms", "acknowledge_ms", "move_ms", "give_up_ms", "total_ms")


def dates_of(
    state: State, from_date: str | None, to_date: str | None, days: int | None = None, now_ms: int = 0
) -> list[str]:
    """Dates of a report, in order; ``days``: so many up to the last one that is not after ``now_ms``.

    Raises:
        FleetError: one that is no date, in the wrong order, or of which there are no data.
    """
    check_dates(from_date, to_date)
    there = sorted({*state.dates("gold.dir_day"), *state.dates("gold.agent_day")})
    if not there:
        raise FleetError("the lake has no gold yet: run kjbod fleet rollup first")
    if days is not None:
        last = to_date or max((d for d in there if d <= _date_of(now_ms)), default=there[-1])
        before = min(days, date.fromisoformat(last).toordinal()) - 1
        from_date = (date.fromisoformat(last) - timedelta(before)).isoformat()
    found = [d for d in there if (from_date or d) <= d <= (to_date or d)]
    if not found:
        raise FleetError(
            f"no data from {from_date or there[0]} to {to_date or there[-1]}: there are {there[0]} to {there[-1]}"
        )
    return found


def _date_of(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).date().isoformat()


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """Rows that the pages of hosts are drawn from."""

    rows: "DataFrame"
    count: int
    window: Window
    dates: Sequence[str]
    lake: Lake
    state: State

    @property
    def days(self) -> int:
        """From the first date to the last one."""
        return _day(self.dates[-1], self.dates[0]) + 1

    def details(self) -> Iterator[HostDetail]:
        """All hosts by cluster, name and broker, one at a time."""
        return _host_details(self)


def collect_report(
    lake: Lake,
    state: State,
    dates: Sequence[str],
    progress: "Progress",
    draw_hosts: "Callable[[Hosts], None]",
    *,
    silent_after_ms: int | None = None,
    before: Before | None = None,
    open_end: bool = False,
) -> FleetReport:
    """The report of some dates; ``before``: the report to compare with; ``open_end``: not of those after "now", which
    are of clocks that are ahead. ``draw_hosts`` is called as soon as there is what it draws, while Spark works on.

    ``silent_after_ms``: how much older than "now" an agent's newest line may be; None:
    :data:`kjbod.fleet.insight.own_work.SILENT_AFTER_MS`."""
    progress("the newest moment")
    asked = seen(lake, state, dates[0], None if open_end else dates[-1])
    if open_end:
        dates = until(dates, asked.window.now_ms)
    window = dataclasses.replace(asked.window, from_date=dates[0], to_date=dates[-1])
    after_ms = SILENT_AFTER_MS if silent_after_ms is None else silent_after_ms
    is_stale = open_end and lake.clock.wall_ms() - window.now_ms > after_ms
    progress("health before failure, room, failure rates, kjbod's own work; directories and agents")
    incidents = lake.read("gold.incident", state, dates=dates)
    with at_once(1) as pool:
        looked = pool.submit(insights, lake, state, asked)
        rows = _hosts(lake, state, dates, window.now_ms, after_ms, incidents).persist()
        try:
            with tuned(lake.spark, settings_of(state, dates)):
                counts = _counts(rows)
            hosts = Hosts(rows, counts["hosts"], window, dates, lake, state)
            with tuned(lake.spark, PLAIN):
                draw_hosts(hosts)
                but_insights = _report(hosts, counts, incidents)
                found = looked.result()
                room = found.capacity
                report = but_insights(
                    insights=found, is_stale=is_stale, bytes_used=room.bytes_used, bytes_total=room.bytes_total
                )
                return dataclasses.replace(report, changes=_changes(report, before, rows))
        finally:
            rows.unpersist()


def _report(hosts: Hosts, counts: Mapping[str, Any], incidents: "DataFrame") -> "Callable[..., FleetReport]":
    """A report but for ``insights``, ``is_stale`` and the space, which are to be given, and without changes."""
    lake, state, dates = hosts.lake, hosts.state, hosts.dates
    directories = _directories(hosts.rows)
    newest = _newest_incidents(incidents)
    states = directories.groupBy("state").agg(F.count("*").alias("n")).collect()
    by_state = {row["state"]: row["n"] for row in states}
    drawn = _map(hosts.rows)
    outcomes, slowest = _outcomes(incidents)
    timeline = lake.read("gold.timeline", state, dates=dates)
    files = [d for d in state.dates("audit.files") if dates[0] <= d <= dates[-1]]
    return functools.partial(
        FleetReport,
        window=hosts.window,
        states={state_: by_state[state_] for state_ in _in_order(by_state)},
        statuses=counts["statuses"],
        models=_models(directories),
        hosts=drawn,
        hidden_hosts=counts["hosts"] - len(drawn),
        samples=counts["samples"],
        leaders=counts["leaders"],
        failed=tuple(_with_evidence(d, newest) for d in _failed(directories)),
        other=_other(directories),
        flapping=_flapping(directories),
        agents=_agents(hosts.rows),
        stands=_stands(timeline, hosts.rows),
        lacks=_lacks(timeline, hosts.rows),
        guards=_guards(lake.read("gold.agent_day", state, dates=dates)),
        incidents=newest,
        incident_outcomes=outcomes,
        slowest_ms=slowest,
        data=_with_shared_serials(
            _data(lake.read("audit.files", state, dates=files)), lake.read("gold.dir_day", state, dates=dates)
        ),
        changes=Changes(counts={}),
    )


def _changes(report: FleetReport, before: Before | None, hosts: "DataFrame") -> Changes:
    health = report.insights.health
    return changes(
        before,
        report.window.now_ms,
        {_spot_of(d.place): disk_of(d) for d in report.failed},
        [spot(a.fleet, a.host, a.broker_id) for a in report.agents if a.status == SILENT],
        [_spot_of(r.place) for r in health.risks if r.score >= health.at_risk_from],
        _seen(_directories(hosts), before.failed if before else ()),
    )


def _in_order(found: Iterable[str]) -> list[str]:
    known = list(STATES_WORST_FIRST)
    return sorted(found, key=lambda s: (known.index(s) if s in known else len(known) - 2, s))


def _day(day: str, first: str) -> int:
    return (date.fromisoformat(day) - date.fromisoformat(first)).days


# --- one row for each broker, with its directories


def _hosts(
    lake: Lake, state: State, dates: Sequence[str], now_ms: int, after_ms: int, incidents: "DataFrame"
) -> "DataFrame":
    """A row for each broker: the agent's last word, and ``directories``, each with its days."""
    days = lake.read("gold.dir_day", state, dates=dates)
    defects = sum((F.coalesce(F.col(f"{name}_last"), F.lit(0)) for name in DEFECTS), F.lit(0))
    knows = F.coalesce(*(F.col(f"{name}_last") for name in DEFECTS)).isNotNull()
    # In doubles: no sum of them is too large.
    probed = F.col("probe_write_us_sum").cast("double")
    for name in ("probe_sync_us_sum", "probe_read_us_sum"):
        probed += F.coalesce(F.col(name), F.lit(0)).cast("double")
    series: dict[str, Column] = {
        "day": F.datediff(F.to_date("date"), F.to_date(F.lit(dates[0]))),
        "state": F.col("state"),
        "used": F.col("used_last"),
        "probe_us": F.when(F.col("probe_n") > 0, probed / F.nullif("probe_n", F.lit(0))).try_cast("bigint"),
        "temp_c": F.col("smart_temp_c_max"),
        "errors": F.col("io_errors_added"),
        "defects": F.when(knows, defects),
    }
    moment = F.struct(F.col("last_ts"), F.col("date"), F.col("dir_id"))
    spots = days.groupBy(*SPOT).agg(
        F.max_by(F.struct(*_LAST), moment).alias("last"),
        F.max_by("state", F.when(F.col("state").isNotNull(), moment)).alias("known_state"),
        F.max("online_last_ts").alias("well_ts"),
        F.sum("samples").alias("samples"),
        F.sum("failures").alias("failures"),
        F.sum(F.when(F.col("date").isin(list(dates[-2:])), F.col("transitions"))).alias("transitions"),
        F.array_sort(
            F.collect_list(F.struct(F.col("last_ts").alias("at"), *(c.alias(n) for n, c in series.items())))
        ).alias("series"),
    )
    by_directory = (
        _still_dead(spots, incidents)
        .groupBy(*BROKER)
        .agg(
            F.array_sort(
                F.collect_list(
                    F.struct(
                        "path",
                        "last",
                        "known_state",
                        "samples",
                        "failures",
                        "transitions",
                        *(F.col(f"series.{n}").alias(n) for n in series),
                    )
                )
            ).alias("directories"),
            F.max("last.last_ts").alias("seen"),
            F.max("last.rack").alias("sample_rack"),
        )
    )
    agents = _agent_words(lake.read("gold.agent_day", state, dates=dates))
    null_safe = [by_directory[name].eqNullSafe(agents[name]) for name in BROKER]
    brokers = by_directory.join(agents, null_safe, "full").select(
        *(F.coalesce(by_directory[name], agents[name]).alias(name) for name in BROKER),
        F.coalesce("sample_rack", "rack").alias("rack"),
        F.coalesce("directories", F.expr("cast(array() as " + _type_of(by_directory, "directories") + ")")).alias(
            "directories"
        ),
        F.greatest("seen", "last_ts").alias("last_ms"),
        *("said", "reason", "exit_code", "role", "mode", "version", "interval_ms"),
    )
    silent_ms = F.greatest(F.lit(now_ms) - F.col("last_ms"), F.lit(0))
    allowed = F.greatest(F.lit(after_ms), SILENT_INTERVALS * F.coalesce("interval_ms", F.lit(0)))
    is_silent = (F.coalesce("said", F.lit("")) != STOPPED) & (silent_ms > allowed)
    status = F.when(is_silent, SILENT).otherwise(F.coalesce("said", F.lit("unknown")))
    return brokers.withColumn("silent_ms", silent_ms).withColumn("status", status)


def _still_dead(spots: "DataFrame", incidents: "DataFrame") -> "DataFrame":
    """A directory that an agent cannot read since its start is the one that failed before, where it was not well since:
    what it says of itself no more is what its failure said."""
    names = ("device", "serial", "model", "dir_id")
    newest = incidents.groupBy(*SPOT).agg(F.max(F.struct("ts", *names, "partitions")).alias("fell"))
    dead = (F.col("known_state") == UNREADABLE) & (F.col("fell.ts") > F.coalesce("well_ts", F.lit(0)))
    dead = F.coalesce(dead, F.lit(False))
    told = {name: F.col(f"fell.{name}") for name in names} | {"state_since": F.col("fell.ts")}
    last = (
        F.when(dead & F.col(f"last.{name}").isNull(), told[name]).otherwise(F.col(f"last.{name}")).alias(name)
        if name in told
        else F.col(f"last.{name}")
        for name in _LAST
    )
    found = joined(spots, newest, SPOT)
    return found.withColumn("last", F.struct(*last)).withColumn(
        "known_state", F.when(dead, FAILED).otherwise(F.col("known_state"))
    )


def _type_of(frame: "DataFrame", column: str) -> str:
    return frame.schema[column].dataType.simpleString()


def _agent_words(days: "DataFrame") -> "DataFrame":
    moment = F.struct("date", "last_ts")

    def last(name: str, where: "Column") -> "Column":
        return F.max_by(F.col(name), F.when(where, moment))

    said, started = F.col("status").isNotNull(), F.col("role").isNotNull() | F.col("version").isNotNull()
    return days.groupBy(*BROKER).agg(
        F.max_by("rack", F.when(F.col("rack").isNotNull(), moment)).alias("rack"),
        last("status", said).alias("said"),
        last("reason", said).alias("reason"),
        last("exit_code", said).alias("exit_code"),
        *(last(name, started).alias(name) for name in ("role", "mode", "version")),
        F.max("last_ts").alias("last_ts"),
        F.min("interval_ms").alias("interval_ms"),
    )


def _directories(hosts: "DataFrame") -> "DataFrame":
    """A row for each directory, with its state as it has to be shown."""
    each = hosts.select(*BROKER, "rack", "status", "role", F.explode("directories").alias("d"))
    said = F.coalesce("d.known_state", F.lit("unknown"))
    state = F.when((said != FAILED) & F.col("status").isin(SILENT, STOPPED), F.col("status")).otherwise(said)
    return each.select(
        *BROKER,
        "d.path",
        F.coalesce("d.last.rack", "rack").alias("rack"),
        *(f"d.last.{name}" for name in _LAST if name not in ("rack", "state")),
        said.alias("last_state"),
        state.alias("state"),
        "status",
        "role",
        "d.failures",
        "d.transitions",
        "d.samples",
    )


def _place(row: Any) -> Place:
    return Place(
        **{
            name: row[name]
            for name in ("fleet", "rack", "host", "broker_id", "path", "dir_id", "device", "model", "serial")
        }
    )


def _directory(row: Any) -> Directory:
    return Directory(
        place=_place(row),
        state=row["state"],
        last_state=row["last_state"],
        since_ms=row["state_since"],
        last_ms=row["last_ts"],
        used=row["used_last"],
        total=row["bytes_total"],
        partitions=row["partitions"],
        leaders=row["leaders"],
        failures=row["failures"] or 0,
        transitions=row["transitions"] or 0,
        role=row["role"],
    )


def _spot_of(place: Place) -> Spot:
    return spot(place.fleet, place.host, place.broker_id, place.path)


def _failed(directories: "DataFrame") -> list[Directory]:
    rows = directories.where(F.col("state") == FAILED)
    order = (F.expr("coalesce(leaders, 0) > 0").desc(), F.desc_nulls_last("state_since"), *SPOT)
    return [_directory(row) for row in rows.orderBy(*order).limit(LIST_MAX).collect()]


def _other(directories: "DataFrame") -> tuple[Directory, ...]:
    rows = directories.where(~F.col("state").isin(ONLINE, FAILED, SILENT, STOPPED)).orderBy("state", *SPOT)
    return tuple(_directory(row) for row in rows.limit(LIST_MAX).collect())


def _flapping(directories: "DataFrame") -> tuple[Directory, ...]:
    rows = directories.where((F.col("state") != FAILED) & (F.col("transitions") >= FLAPS_MIN))
    return tuple(_directory(row) for row in rows.orderBy(F.desc("transitions"), *SPOT).limit(LIST_MAX).collect())


def _seen(directories: "DataFrame", wanted: Iterable[Spot]) -> dict[Spot, Directory]:
    """The directories at some places, as they are now."""
    places = list(wanted)[: 5 * LIST_MAX]
    if not places:
        return {}
    spots = directories.sparkSession.createDataFrame(places, "f STRING, h STRING, b BIGINT, p STRING")
    there = (F.coalesce("fleet", F.lit("")) == F.col("f")) & (F.col("host") == F.col("h"))
    there &= (F.coalesce("broker_id", F.lit(-1)) == F.col("b")) & (F.col("path") == F.col("p"))
    found = (_directory(row) for row in directories.join(F.broadcast(spots), there, "left_semi").collect())
    return {_spot_of(directory.place): directory for directory in found}


def _models(directories: "DataFrame") -> tuple[ModelDisks, ...]:
    rows = (
        directories.where("model is not null")
        .groupBy("model")
        .agg(
            F.count(F.lit(1)).alias("directories"),
            F.count_distinct("host").alias("hosts"),
            F.count_if(F.col("state") == FAILED).alias("failed"),
            F.coalesce(F.try_sum("bytes_total"), F.lit(0)).alias("bytes_total"),
            F.coalesce(F.try_sum("used_last"), F.lit(0)).alias("bytes_used"),
        )
        .orderBy(F.desc("directories"), "model")
        .limit(MODELS_MAX)
    )
    return tuple(ModelDisks(**row.asDict()) for row in rows.collect())


# --- agents


def _with_counts(hosts: "DataFrame") -> "DataFrame":
    def states(is_it: "Callable[[Column], Column]") -> "Column":
        return F.size(F.filter("directories", lambda d: is_it(F.coalesce(d["known_state"], F.lit("unknown")))))

    return hosts.withColumns(
        {
            "all_directories": F.size("directories"),
            "failed": states(lambda state: state == FAILED),
            "impaired": states(lambda state: ~state.isin(FAILED, ONLINE)),
        }
    )


def _agent(row: Any) -> Agent:
    return Agent(
        fleet=row["fleet"],
        rack=row["rack"],
        host=row["host"],
        broker_id=row["broker_id"],
        status=row["status"],
        reason=row["reason"],
        exit_code=row["exit_code"],
        role=row["role"],
        mode=row["mode"],
        version=row["version"],
        last_ms=row["last_ms"],
        silent_ms=row["silent_ms"],
        directories=row["all_directories"],
        failed=row["failed"],
        impaired=row["impaired"],
    )


def _agents(hosts: "DataFrame") -> tuple[Agent, ...]:
    """Silent ones, the one silent longest first; then stopped and fenced ones."""
    rows = _with_counts(hosts.where(F.col("status").isin(SILENT, STOPPED, "fenced"))).drop("directories")
    order = (F.when(F.col("status") == SILENT, 0).otherwise(1), F.desc("silent_ms"), *BROKER)
    return tuple(_agent(row) for row in rows.orderBy(*order).limit(2 * LIST_MAX).collect())


def _counts(hosts: "DataFrame") -> dict[str, Any]:
    # The last that such an agent said is no longer so: what it led is led by others, and would count twice.
    leads = F.when(F.col("status").isin(SILENT, STOPPED), F.lit(0)).otherwise(
        F.aggregate(
            "directories",
            F.lit(0).cast("bigint"),
            lambda n, d: F.try_add(n, F.coalesce(d["last"]["leaders"], F.lit(0))),
        )
    )
    samples = F.aggregate("directories", F.lit(0).cast("bigint"), lambda n, d: n + F.coalesce(d["samples"], F.lit(0)))
    rows = (
        hosts.groupBy("status")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.coalesce(F.try_sum(leads), F.lit(0)).alias("leaders"),
            F.sum(samples).alias("samples"),
        )
        .orderBy("status")
        .collect()
    )
    return {
        "statuses": {row["status"]: row["n"] for row in rows},
        "hosts": sum(row["n"] for row in rows),
        "leaders": sum(row["leaders"] for row in rows),
        "samples": sum(row["samples"] for row in rows),
    }


def _guards(days: "DataFrame") -> tuple[Guards, ...]:
    counted = ("acts", "failed_acts", "refusals", "would")
    moment = F.struct("date", "last_ts")
    each = days.groupBy(*BROKER).agg(
        F.max_by("role", F.when(F.col("role").isNotNull(), moment)).alias("role"),
        F.max_by("mode", F.when(F.col("role").isNotNull(), moment)).alias("mode"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counted),
    )
    rows = (
        each.where("role = 'guard'")
        .groupBy(F.coalesce("fleet", F.lit("unknown")).alias("fleet"))
        .agg(
            F.count(F.lit(1)).alias("guards"),
            F.count_if(F.col("mode") == "act").alias("acting"),
            *(F.sum(name).alias(name) for name in counted),
        )
        .orderBy("fleet")
        .limit(LIST_MAX)
    )
    return tuple(Guards(**row.asDict()) for row in rows.collect())


def _map(hosts: "DataFrame") -> tuple[MapHost, ...]:
    cells = F.transform(
        F.slice("directories", 1, CELLS_MAX),
        lambda d: F.struct(
            d["path"].alias("path"),
            F.coalesce(d["known_state"], F.lit("unknown")).alias("state"),
            F.try_divide(100 * d["last"]["used_last"].cast("double"), d["last"]["bytes_total"])
            .try_cast("int")  # the two may be of different lines
            .alias("used"),
        ),
    )
    bad = F.expr("status in ('silent', 'stopped', 'fenced')").cast("int") + F.col("failed") * 2 + F.col("impaired")
    rows = (
        _with_counts(hosts)
        .withColumn("cells", cells)
        .withColumn("bad", bad)
        .drop("directories")
        .orderBy(F.desc("bad"), "fleet", "rack", "host", "broker_id")
        .limit(HOSTS_MAX)
        .collect()
    )
    found = [
        MapHost(
            agent=(agent := _agent(row)),
            cells=tuple(
                Cell(path=c["path"], state=_shown(c["state"], agent.status), used_pct=c["used"]) for c in row["cells"]
            ),
            hidden=max(row["all_directories"] - CELLS_MAX, 0),
        )
        for row in rows
    ]
    return tuple(
        sorted(found, key=lambda h: (h.agent.fleet or "", h.agent.rack or "", h.agent.host, h.agent.broker_id))
    )


def _shown(state: str, status: str) -> str:
    return status if status in (SILENT, STOPPED) and state != FAILED else state


# --- incidents, guards' stands, partitions that lack replicas, files


def _newest_incidents(incidents: "DataFrame") -> tuple[Incident, ...]:
    rows = incidents.orderBy(F.desc("ts"), *SPOT, "boot_id").limit(LIST_MAX).collect()
    return tuple(_incident(row.asDict(recursive=True)) for row in rows)


def _incident(row: Mapping[str, Any]) -> Incident:
    names = ("cause", "evidence", "errno", "outcome", "version", "partitions", "leaders", *_STAGES)
    deeds = tuple(Deed(**deed) for deed in row["deeds"] or ())
    return Incident(ts=row["ts"], place=_place(row), deeds=deeds, **{name: row[name] for name in names})


def _with_evidence(directory: Directory, newest: Sequence[Incident]) -> Directory:
    place = directory.place
    found = next((i for i in newest if _spot_of(i.place) == _spot_of(place)), None)
    if found is None:
        return directory
    return dataclasses.replace(directory, evidence=evidence(found), since_ms=directory.since_ms or found.ts)


def _outcomes(incidents: "DataFrame") -> tuple[dict[str, int], float | None]:
    recorded = F.when(F.col("outcome") == "acknowledged", F.col("total_ms"))
    rows = incidents.groupBy("outcome").agg(F.count(F.lit(1)).alias("n"), F.max(recorded).alias("slowest"))
    found = rows.orderBy(F.desc("n"), "outcome").collect()
    slowest = [row["slowest"] for row in found if row["slowest"] is not None]
    return {row["outcome"] or "unknown": row["n"] for row in found}, max(slowest, default=None)


def _stands(timeline: "DataFrame", hosts: "DataFrame") -> tuple[Stand, ...]:
    """Last stands of guards, at those places where what should be done is not; a new run has left nothing."""
    began = F.col("kind") == "agent_started"
    told = timeline.where(began | (F.col("kind") == "guard_stands"))
    moment = F.struct("ts", "mono_ns")
    runs = told.where(began).groupBy(*BROKER).agg(F.max("ts").alias("began"))
    last = (
        told.where(~began)
        .groupBy(*BROKER, "path")
        .agg(F.max_by(F.struct("ts", "attrs"), moment).alias("last"))
        .where(F.col("last.attrs.state").isin(*NOT_DONE_STATES))
        .where(F.coalesce("last.attrs.reason", F.lit("")) != RELEASED)
    )
    racks = hosts.select(*BROKER, "rack").groupBy(*BROKER).agg(F.max("rack").alias("rack"))

    rows = (
        joined(joined(last, runs, BROKER), racks, BROKER)
        .where("began is null or last.ts >= began")
        .orderBy(F.desc("last.ts"), *SPOT)
        .limit(LIST_MAX)
        .collect()
    )
    return tuple(
        Stand(
            ts=row["last"]["ts"],
            state=row["last"]["attrs"]["state"],
            reason=row["last"]["attrs"].get("reason"),
            **{name: row[name] for name in ("fleet", "rack", "host", "broker_id", "path")},
        )
        for row in rows
    )


def _lacks(timeline: "DataFrame", hosts: "DataFrame") -> tuple[Lack, ...]:
    """Partitions that lack replicas, by what the newest run of each guard reported last."""
    began = F.col("kind") == "agent_started"
    told = _in_clusters(timeline.where(began | (F.col("kind") == "guard_lacks")))
    moment = F.struct("ts", "mono_ns", "boot_id")
    newest = told.groupBy(*BROKER).agg(F.max_by("boot_id", moment).alias("newest"))
    racks = hosts.select(*BROKER, "rack").groupBy(*BROKER).agg(F.max("rack").alias("rack"))
    urgent = (F.expr("without_leader > 0").desc(), F.expr("below_min_isr > 0").desc())
    rows = (
        joined(joined(_lacking(told.where(~began)), newest, BROKER), racks, BROKER)
        .where("boot_id = newest")
        .orderBy(*urgent, F.desc("since_ms"), *BROKER)
        .limit(LIST_MAX)
        .collect()
    )
    names = ("since_ms", "fleet", "rack", "host", "broker_id", *LACKS, "reason")
    return tuple(Lack(**{name: row[name] for name in names}) for row in rows)


def _in_clusters(events: "DataFrame") -> "DataFrame":
    """Events with the name of their cluster, which a guard that starts without a readable directory does not know."""
    own, here = F.nullif("fleet", F.lit("")), Partition.partitionBy("host", "broker_id")
    return events.withColumn("fleet", F.coalesce(own, F.max(own).over(here), F.lit("")))


def _lacking(told: "DataFrame") -> "DataFrame":
    """A row for each run that reported last that partitions lack replicas, with the counts of that report and
    ``since_ms``, the moment since which each report of the run has said so."""
    run, counts = (*BROKER, "boot_id"), lack_counts()
    ended_ns = F.max(F.when(F.greatest(*counts.values()) <= 0, F.col("mono_ns"))).over(Partition.partitionBy(*run))
    last = F.struct(*(count.alias(name) for name, count in counts.items()), F.col("attrs.reason").alias("reason"))
    return (
        told.withColumn("ended_ns", ended_ns)
        .where("ended_ns is null or mono_ns > ended_ns")
        .groupBy(*run)
        .agg(F.min("ts").alias("since_ms"), F.max_by(last, "mono_ns").alias("last"))
        .select(*run, "since_ms", "last.*")
    )


def _data(files: "DataFrame") -> Data:
    first = files.where("status != 'repeated'")
    aside = F.when(F.col("kept"), F.col("bad_lines")).otherwise(F.col("lines"))
    bad = (~F.col("kept")) | (F.col("bad_lines") > 0)
    by_status = files.groupBy("status").agg(F.count(F.lit(1)).alias("n")).orderBy(F.desc("n"), "status").collect()
    total = first.agg(
        F.count(F.lit(1)).alias("files"),
        F.sum("lines").alias("lines"),
        F.sum(aside).alias("aside"),
        F.count_if(bad).alias("bad"),
    ).collect()[0]
    listed = first.where(bad).orderBy(F.desc("date"), "stream", "file", "run", "batch").limit(LIST_MAX).collect()
    return Data(
        files=total["files"],
        by_status={row["status"] or "unknown": row["n"] for row in by_status},
        lines=total["lines"] or 0,
        lines_set_aside=total["aside"] or 0,
        bad_files=total["bad"],
        bad_file_list=tuple(
            BadFile(
                file=row["file"],
                host=row["host"],
                status=row["status"] or "unknown",
                kept=bool(row["kept"]),
                lines=row["lines"] or 0,
                bad_lines=row["bad_lines"] or 0,
            )
            for row in listed
        ),
    )


def _with_shared_serials(data: Data, days: "DataFrame") -> Data:
    """With the serial numbers that several hosts of a cluster have on one day."""
    of_day = (
        days.where("serial IS NOT NULL")
        .groupBy("fleet", "serial", "date")
        .agg(
            F.count_distinct("host").alias("hosts"),
            F.count_distinct("host", "path").alias("directories"),
            F.min("host").alias("first"),
            F.max("host").alias("last"),
        )
        .where("hosts > 1")
    )
    shared = of_day.groupBy("fleet", "serial").agg(
        *(F.max(name).alias(name) for name in ("hosts", "directories", "last")),
        F.min("first").alias("first"),
        F.count(F.lit(1)).alias("days"),
    )
    count = F.count(F.lit(1)).over(Partition.partitionBy())
    rows = shared.withColumn("count", count).orderBy(F.desc("directories"), "fleet", "serial").limit(LIST_MAX).collect()
    names = ("fleet", "serial", "hosts", "directories", "days")
    listed = (SharedSerial(**{n: row[n] for n in names}, examples=(row["first"], row["last"])) for row in rows)
    return dataclasses.replace(data, shared_serials=rows[0]["count"] if rows else 0, shared_serial_list=tuple(listed))


# --- the pages of hosts


def _host_details(hosts: Hosts) -> Iterator[HostDetail]:
    lake, state, dates = hosts.lake, hosts.state, hosts.dates
    told = lake.read("gold.timeline", state, dates=dates)
    happened = ("ts", "mono_ns", "kind", "path", "count", "partitions", "leaders")
    events = told.groupBy(*BROKER).agg(
        F.slice(
            F.sort_array(F.collect_list(F.struct(*happened, F.to_json("attrs").alias("attrs"))), asc=False),
            1,
            HAPPENINGS_MAX,
        ).alias("events"),
        F.count(F.lit(1)).alias("all_events"),
    )
    failed = lake.read("gold.incident", state, dates=dates)
    columns = [name for name in failed.columns if name not in ("ts", *BROKER, "date")]
    failures = failed.groupBy(*BROKER).agg(
        F.slice(F.sort_array(F.collect_list(F.struct("ts", *columns)), asc=False), 1, HOST_INCIDENTS_MAX).alias(
            "failures"
        )
    )
    counted = _with_counts(hosts.rows)

    rows = joined(joined(counted, events, BROKER), failures, BROKER).orderBy(*BROKER)
    for row in rows.toLocalIterator(prefetchPartitions=True):
        yield _detail(row.asDict(recursive=True))


def _detail(row: dict[str, Any]) -> HostDetail:
    import json

    agent = _agent(row)
    broker = {name: row[name] for name in BROKER}
    directories = []
    for found in row["directories"]:
        last = found["last"]
        said = found["known_state"] or "unknown"
        about = {**last, **broker, "path": found["path"], "rack": last["rack"] or row["rack"]}
        shown = {"state": _shown(said, agent.status), "last_state": said, "role": agent.role}
        shown |= {name: found[name] for name in ("failures", "transitions")}
        series = Series(
            days=found["day"],
            states=(),
            used=found["used"],
            probe_us=found["probe_us"],
            temp_c=found["temp_c"],
            errors=found["errors"],
            defects=found["defects"],
        )
        directories.append(DirectoryDetail(directory=_directory({**about, **shown}), series=series))
    events = list(reversed(row["events"] or []))
    happenings = tuple(
        Happening(
            **{name: e[name] for name in ("ts", "kind", "path", "partitions", "leaders")},
            count=e["count"] or 1,
            attrs=json.loads(e["attrs"] or "{}"),
        )
        for e in events
    )
    incidents = tuple(_incident({**i, **broker}) for i in row["failures"] or ())
    return HostDetail(
        agent=agent,
        directories=tuple(directories),
        happenings=happenings,
        hidden_happenings=max((row["all_events"] or 0) - len(happenings), 0),
        incidents=incidents,
    )
