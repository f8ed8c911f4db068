"""Gold tables of a fleet with known troubles, without ingest and rollup: what a report is made of.

``python -m tests.fleet.gold_fleet LAKE [HOSTS] [DAYS]`` makes a lake of it, to look at its page.
"""

import datetime
import sys
from typing import Any

from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.lake.state import ALL_DATES, Piece, State
from kjbod.fleet.tables import TABLES

DISKS = 12
FIRST = datetime.date(2026, 11, 1)
DAY_MS = 86_400_000
FIRST_MS = 1_793_491_200_000  # 2026-11-01 00:00 UTC
HOSTILE = "WD \"'</script><script>alert(1)</script>\x01 &amp;"
"""Model of the disks ``d11``."""
SILENT, STOPPED, LEADING, DEAD, RISKY, CRIPPLED = 7, 11, 5, (13, 23, 43), 3, 17
"""Numbers of the hosts in trouble: silent since noon of the last day but one, stopped, with a dead disk ``d02`` that
leads, with dead disks ``d04`` that do not, with a disk ``d06`` of growing defects, with a guard that is crippled."""


def add(lake: Lake, table: str, rows: Any, **columns: str) -> None:
    """Rows of a table, by SQL expressions on ``rows``; columns that are not given are null."""
    from pyspark.sql import functions as F  # noqa: N812

    known = TABLES[table].columns
    full = rows.select(*(F.expr(f"cast({columns.get(n, 'null')} as {kind})").alias(n) for n, kind in known.items()))
    root = lake.new_directory(table)
    marked = full.withColumn("_d", F.col("date"))
    marked.repartition("_d").sortWithinPartitions(*TABLES[table].key[:4]).write.partitionBy("_d").parquet(
        lake.full(root)
    )
    hours = tuple(f"{h:02d}" for h in range(24)) if TABLES[table].hourly else ()
    counts = full.groupBy("date").count().collect()
    pieces = [Piece(f"{root}/_d={row['date']}", row["date"], hours, row["count"]) for row in counts]

    def change(state: State) -> State:
        return state.with_pieces(table, pieces)

    lake.commit(change, "test")


_DAY = f"date_format(date_add(date'{FIRST}', cast(day as int)), 'yyyy-MM-dd')"
_START = f"({FIRST_MS} + day * {DAY_MS})"
_HOST = "concat('kafka-', lpad(cast(host as string), 4, '0'), '.example.org')"
_PATH = "concat('/disks/d', lpad(cast(disk as string), 2, '0'))"
_MODEL = (
    "case when disk = 11 then '{}' else "
    "element_at(array('ST16000NM001G', 'WUH721816ALE6L4', 'MG08ACA16TE'), cast(host % 3 as int) + 1) end"
)
_BROKER = {
    "fleet": "case when host % 10 = 0 then 'cluster-b' else 'cluster-a' end",
    "rack": "concat('r', lpad(cast(host % 20 as string), 2, '0'))",
    "host": _HOST,
    "broker_id": "host",
}
_DISK = {
    **_BROKER,
    "path": _PATH,
    "dir_id": "substring(sha2(concat_ws('/', host, disk), 256), 1, 22)",
    "device": "concat('sd', chr(97 + cast(disk as int)))",
    "serial": "concat('Z', upper(substring(sha2(concat_ws('#', host, disk), 256), 1, 7)))",
    "firmware": "'SN02'",
    "capacity_bytes": "16000000000000",
}


def make_gold(lake: Lake, hosts: int = 50, days: int = 3) -> None:
    """All gold that a report reads."""
    spark = lake.spark
    last = days - 1
    model = _MODEL.format(HOSTILE.replace("\\", "\\\\").replace("'", "\\'"))
    dead = f"((host in {DEAD} and disk = 4) or (host = {LEADING} and disk = 2))"
    failed = f"({dead} and day >= {last})"
    day_end, noon = f"{_START} + {DAY_MS} - 60000", FIRST_MS + (last - 1) * DAY_MS + DAY_MS // 2
    seen_until = f"case when host = {SILENT} then least({day_end}, {noon}) else {day_end} end"
    used = "(16000000000000 * (0.2 + 0.6 * (abs(hash(host, disk)) % 1000) / 1000) + day * 20000000000)"
    used = f"case when disk = 8 and host % 25 = 2 then 13000000000000 + day * 400000000000 else {used} end"
    grid = spark.range(hosts * DISKS * days).selectExpr(
        f"id div {DISKS * days} + 1 as host", f"(id div {days}) % {DISKS} + 1 as disk", f"id % {days} as day"
    )
    # Of a silent host nothing is there of the last day.
    grid = grid.where(f"not (host = {SILENT} and day = {last})")
    growing = f"case when host = {RISKY} and disk = 6 then 8 * (day + 1) else 0 end"
    slow = f"case when host = {RISKY} and disk = 9 then 12 else 1 end"
    state = f"case when {failed} then 'failed' when host = 9 and disk = 1 then 'slow' else 'online' end"
    measures = {
        **_DISK,
        "model": model,
        "samples": "1440",
        "boots": "1",
        "skewed": "0",
        "first_ts": _START,
        "last_ts": seen_until,
        "state": state,
        "state_since": f"case when {failed} then {_START} + 3600000 else {FIRST_MS} end",
        "states": f"map({state}, 1440L)",
        "transitions": f"case when {dead} and day = {last} then 1 else 0 end",
        "failures": f"case when {dead} and day = {last} then 1 else 0 end",
        "bytes_total": "16000000000000",
        **dict.fromkeys(("used_first", "used_last", "used_min", "used_max"), used),
        "line_n": "24",
        "line_x": "cast(24 * 41400 as decimal(38,0))",
        "line_xx": "cast(24 * 2400000000 as decimal(38,0))",
        "line_y": f"cast(24 * cast({used} as bigint) as decimal(38,0))",
        "line_xy": f"cast(cast({used} as bigint) as decimal(38,0)) * 24 * 41400",
        "partitions": "300",
        "leaders": f"case when {failed} and host != {LEADING} then 0 else 100 end",
        "leaders_max": "100",
        "resets": "0",
        "reads_added": "100000",
        "writes_added": "200000",
        "io_errors_added": f"case when {failed} then 17 else 0 end",
        "busy_ms_added": "20000000",
        "probes": "1440",
        "probe_failures": "0",
        "probe_histogram": f"map(cast(40 + cast(log2({slow}) * 4 as int) as string), 1440L)",
        "probe_write_us_sum": f"1440 * 700 * {slow}",
        "probe_sync_us_sum": f"1440 * 200 * {slow}",
        "probe_read_us_sum": f"1440 * 100 * {slow}",
        "probe_n": "1440",
        "smart_passed": "1",
        "smart_poh": "20000 + day * 24 + host",
        "smart_temp_c_max": "30 + (host + disk + day) % 12",
        **{f"smart_{n}_{part}": growing for n in ("realloc", "reported_uncorrect") for part in ("first", "last")},
        **{f"smart_{n}_{part}": "0" for n in ("pending", "uncorrect") for part in ("first", "last")},
        "date": _DAY,
    }
    add(lake, "gold.dir_day", grid, **measures, hours="24")
    hourly = grid.where(f"day >= {max(last - 1, 0)}").selectExpr("*", "explode(sequence(0, 23)) as h")
    of_hour = {
        "samples": "60",
        "hour": "lpad(cast(h as string), 2, '0')",
        "probes": "60",
        "probe_n": "60",
        "probe_histogram": measures["probe_histogram"].replace("1440L", "60L"),
        **{f"probe_{n}_us_sum": measures[f"probe_{n}_us_sum"].replace("1440", "60") for n in ("write", "sync", "read")},
    }
    add(lake, "gold.dir_hour", hourly, **{**measures, **of_hour})
    brokers = grid.where("disk = 1")
    status = f"case when host = {STOPPED} and day = {last} then 'stopped' when day = 0 then 'unfenced' end"
    add(
        lake,
        "gold.agent_day",
        brokers,
        **_BROKER,
        status=status,
        reason=f"case when host = {STOPPED} and day = {last} then 'SIGTERM' end",
        exit_code=f"case when host = {STOPPED} and day = {last} then '0' end",
        role="case when host % 2 = 0 then 'guard' end",
        mode="case when host % 2 = 0 then 'act' end",
        version="case when host = 29 then '1.3.0' else '1.4.0' end",
        boots="1",
        first_ts=_START,
        last_ts=seen_until,
        interval_ms="60000",
        would="0",
        acts="0",
        failed_acts="0",
        refusals="0",
        skewed="0",
        date=_DAY,
    )
    happened = grid.where(f"{dead} and day = {last}")
    deed = (
        "named_struct('after_ms', 104.0D, 'means', 'recorded', 'outcome', null, 'reason', null, "
        "'took_ms', null, 'count', null)"
    )
    add(
        lake,
        "gold.incident",
        happened,
        **{**{n: e for n, e in _DISK.items() if n not in ("firmware", "capacity_bytes")}, "model": model},
        incident="concat_ws('-', host, disk)",
        ts=f"{_START} + 3600000",
        boot_id="'run-1'",
        cause="'error'",
        evidence=f"concat({_PATH}, ' failed: EIO at fsync of .kjbod_probe after 4.2 ms')",
        errno="'EIO'",
        call="'fsync'",
        version="'1.4.0'",
        partitions="300",
        leaders="100",
        outcome=f"case when host = {LEADING} then 'open' else 'acknowledged' end",
        detect_ms="1200.0 + host",
        send_ms="2.0",
        acknowledge_ms=f"case when host != {LEADING} then 29.0 + host / 10 end",
        move_ms=f"case when host != {LEADING} then 48.0 end",
        total_ms=f"case when host != {LEADING} then 1231.0 + host end",
        deeds=f"array({deed})",
        date=_DAY,
    )
    kinds = (
        "explode(array('agent_started', 'registered', 'unfenced', "
        "'dir_failed', 'acknowledged', 'guard_stands')) as kind"
    )
    events = brokers.selectExpr("*", kinds).where(
        f"(day = 0 and kind in ('agent_started', 'registered', 'unfenced')) or (day = {last} and host in {DEAD} "
        f"and kind in ('dir_failed', 'acknowledged')) or (day = {last} and host = {CRIPPLED} and kind = 'guard_stands')"
    )
    order = "array_position(array('agent_started', 'registered', 'unfenced', 'dir_failed', 'acknowledged'), kind)"
    add(
        lake,
        "gold.timeline",
        events,
        fleet=_BROKER["fleet"],
        host=_HOST,
        broker_id="host",
        boot_id="'run-1'",
        ts=f"{_START} + 3600000 + 40 * {order}",
        mono_ns=order,
        kind="kind",
        path="case when kind in ('dir_failed', 'acknowledged') then '/disks/d04' end",
        count="1",
        attrs="case when kind = 'dir_failed' then map('evidence', 'EIO <b>at</b> fsync') "
        "when kind = 'guard_stands' then map('state', 'crippled', 'reason', 'a fetcher is stuck') else map() end",
        date=_DAY,
    )
    drives = spark.createDataFrame(
        [(m, d) for m in ("ST16000NM001G", "WUH721816ALE6L4", "MG08ACA16TE") for d in range(days)],
        "m STRING, day BIGINT",
    )
    add(
        lake,
        "gold.exposure_day",
        drives,
        source="'kjbod'",
        fleet="'cluster-a'",
        site="'r01'",
        model="m",
        firmware="'SN02'",
        age_years="2",
        drive_days=str(hosts * DISKS // 3),
        failures=f"case when day = {last} and m like 'ST%' then 3 else 0 end",
        date=_DAY,
    )
    add(
        lake,
        "gold.drive_life",
        grid.where("day = 0"),
        source="'kjbod'",
        fleet=_BROKER["fleet"],
        drive=_DISK["serial"],
        model=model,
        host=_HOST,
        path=_PATH,
        first_date=_DAY,
        last_date=f"'{FIRST + datetime.timedelta(days=last)}'",
        days=str(days),
        first_poh="20000",
        last_poh="20000 + 24",
        failed_date=f"case when {dead} then '{FIRST + datetime.timedelta(days=last)}' end",
        failures=f"case when {dead} then 1 else 0 end",
        days_after_failure="0",
        date=f"'{ALL_DATES}'",
    )
    files = brokers.where("day = 0 and host <= 40")
    add(
        lake,
        "audit.files",
        files,
        stream="'samples'",
        file=f"concat({_HOST}, '.aaaaaaaa.2026110100.0.jsonl.gz')",
        uri="'file:/inbox'",
        inbox="'file:/inbox'",
        host=_HOST,
        lines="720",
        good_lines="case when host = 2 then 0 else 720 end",
        bad_lines="0",
        status="case when host = 2 then 'torn' else 'ok' end",
        kept="host != 2",
        ingested_ts=str(FIRST_MS + days * DAY_MS),
        run="'r'",
        batch="0",
        date=_DAY,
    )


if __name__ == "__main__":
    from kjbod.fleet.session import spark_session

    given = [int(text) for text in sys.argv[2:]] or [50, 3]
    with spark_session("local[2]", 1 << 30) as session:
        make_gold(open_lake(session, sys.argv[1], create=True), *given)
