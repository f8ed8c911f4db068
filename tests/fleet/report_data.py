"""A fleet report as plain data, of any size: with the troubles that a page has to show."""

from typing import Any

from kjbod.fleet.insight.model import (
    Capacity,
    Days,
    Forecast,
    Health,
    Imbalance,
    Insights,
    Latency,
    OwnWork,
    Place,
    Rate,
    RateOf,
    Reliability,
    Risk,
    Window,
)
from kjbod.fleet.page.model import (
    Agent,
    Cell,
    Changes,
    Data,
    Deed,
    Directory,
    FleetReport,
    Incident,
    MapHost,
    ModelDisks,
)

NOW_MS = 1_793_750_400_000
HOSTILE = "</svg></script><script>alert(1)</script>\x00\x1b & \"'"
SILENT, STOPPED, LEADING, DEAD = 7, 11, 5, tuple(43 * number for number in range(1, 12))
DISKS = 12


def place(broker: int = 1, path: str = "/mnt/d1", **more: Any) -> Place:
    known: dict[str, Any] = {"fleet": "cluster-a", "rack": f"r{broker % 20:02d}", "host": host_name(broker)}
    disk = {"device": "sdb", "serial": f"Z{broker}-{path[6:]}", "model": "ST16000NM001G", "dir_id": f"id{broker}"}
    return Place(**(known | {"broker_id": broker, "path": path} | disk | more))


def host_name(broker: int) -> str:
    return f"kafka-{broker:04d}.example.org"


def too_few(days: int = 12, failures: int = 3) -> Rate:
    """Counts of too few drive-days for a rate."""
    unknown = dict.fromkeys(("afr_pct", "low_pct", "high_pct", "mtbf_hours", "mtbf_low_hours", "mtbf_high_hours"))
    return Rate(drive_days=days, failures=failures, **unknown)


def rate(days: int = 100_000, failures: int = 10) -> Rate:
    years = days / 365
    limits = (100 * failures * 0.5 / years, 100 * (failures + 3) * 1.6 / years)
    return Rate(
        drive_days=days,
        failures=failures,
        afr_pct=100 * failures / years,
        low_pct=limits[0],
        high_pct=limits[1],
        mtbf_hours=24 * days / failures if failures else None,
        mtbf_low_hours=None,
        mtbf_high_hours=None,
    )


def reliability(**more: Any) -> Reliability:
    models = tuple(RateOf(name=f"MODEL {n}", rate=rate(50_000, n)) for n in range(6))
    known: dict[str, Any] = {
        "source": "kjbod",
        "whole": rate(300_000, 15),
        "models": models,
        "hidden_models": (RateOf(name=HOSTILE, rate=rate(50, 0)),),
        "drive_days_min": 10_000,
        "firmwares": (RateOf(name="MODEL 1 · SN02", rate=rate(50_000, 1)),),
        "ages": (RateOf(name="2-3 years", rate=rate()),),
        "sites": (RateOf(name="r01", rate=rate()),),
        "drives": 12_000,
        "censored": 3,
        "returned": (),
        "returned_drives": 0,
        "survival": (),
        "bursts": None,
    }
    return Reliability(**(known | more))


def forecast(broker: int, days: float | None) -> Forecast:
    marks = tuple(Days(mark_pct=m, days=days, soonest=days, latest=None) for m in (80, 90, 100))
    return Forecast(
        place=place(broker, "/mnt/d3"),
        bytes_total=1 << 44,
        bytes_used=1 << 43,
        used_ratio=0.5,
        growth_bytes_per_day=1e9,
        growth_low=None,
        growth_high=None,
        since="2026-11-01",
        days_seen=10,
        resets=0,
        until=marks,
    )


def imbalance(broker: int) -> Imbalance:
    return Imbalance(
        fleet="cluster-a",
        rack="r01",
        host=host_name(broker),
        broker_id=broker,
        directories=12,
        used_max=0.9,
        used_mean=0.5,
        used_max_over_mean=1.8,
        used_gini=0.3,
        busy_gini=None,
        fullest="/mnt/d1",
        emptiest="/mnt/d2",
        move_bytes=1 << 40,
        used_max_after=0.6,
        about_partitions=12,
        commands=("kjbod log-dirs -c FILE", "kjbod move -c FILE orders-0 --to /mnt/d2 --watch"),
    )


def insights(risks: int = 4, **more: Any) -> Insights:
    found = tuple(
        Risk(
            place=place(100 + n, "/mnt/d6"),
            score=0.95 - 0.001 * n,
            reasons=("SMART 5 reallocated sectors: 24, +16 in 14 days",),
            history=(),
            slow_ratio=None,
            leaders=4,
            partitions=10,
            state="online",
        )
        for n in range(risks)
    )
    health = Health(
        date="2026-11-03",
        at_risk_from=0.7,
        directories=12_000,
        with_smart=12_000,
        compared=12_000,
        scored=risks,
        at_risk=risks,
        risks=found,
        by_reason={},
    )
    capacity = Capacity(
        directories=12_000,
        bytes_total=1 << 57,
        bytes_used=1 << 56,
        full_within={"7": 1, "30": 41, "90": 60},
        resets=0,
        forecasts=tuple(forecast(b, 5.7 + b - 200) for b in range(200, 241)),
        uneven_hosts=30,
        imbalances=tuple(imbalance(b) for b in range(1, 31)),
    )
    stages = (("detect", "all", "all"), ("total", "all", "all"), ("total", "cause", "error"))
    work = OwnWork(
        incidents=12,
        outcomes={"acknowledged": 12},
        latencies=tuple(
            Latency(stage=s, by=by, name=name, incidents=12, median_ms=1200.0, p95_ms=2400.0, max_ms=9000.0)
            for s, by, name in stages
        ),
        false_verdicts=0,
        false_verdict_list=(),
        agents=1_000,
        silent=1,
        late=0,
        skewed=0,
        versions={"1.4.0": 999, "1.3.0": 1},
        other_versions=1,
        agents_to_look_at=(),
    )
    known: dict[str, Any] = {
        "window": Window(from_date="2026-11-01", to_date="2026-11-03", now_ms=NOW_MS),
        "reliability": reliability(),
        "imported": (),
        "tickets": None,
        "health": health,
        "capacity": capacity,
        "own_work": work,
    }
    return Insights(**(known | more))


def agent(broker: int = 1, status: str = "unfenced", **more: Any) -> Agent:
    known: dict[str, Any] = {"fleet": "cluster-a", "rack": f"r{broker % 20:02d}", "host": host_name(broker)}
    known |= {"broker_id": broker, "status": status, "last_ms": NOW_MS, "silent_ms": 0, "directories": DISKS}
    return Agent(**(known | more))


def incident(broker: int = 1, path: str = "/mnt/d1", **more: Any) -> Incident:
    times = {"detect_ms": 1200.0, "send_ms": 2.0, "acknowledge_ms": 29.0, "move_ms": 48.0, "total_ms": 1231.0}
    known: dict[str, Any] = {"ts": NOW_MS - broker * 60_000, "place": place(broker, path), "outcome": "acknowledged"}
    deeds = (Deed(after_ms=104.0, means="recorded"),)
    return Incident(**(known | times | {"evidence": "EIO at fsync", "deeds": deeds} | more))


def failed(broker: int, path: str = "/mnt/d4", leaders: int = 0, **more: Any) -> Directory:
    known: dict[str, Any] = {"place": place(broker, path), "state": "failed", "last_state": "failed"}
    known |= {"since_ms": NOW_MS - broker * 60_000, "leaders": leaders, "evidence": "EIO at fsync"}
    return Directory(**(known | more))


def report(count: int = 1_000, **more: Any) -> FleetReport:
    """A fleet of which one agent is silent, one has stopped, and some disks are dead."""
    dead = [broker for broker in DEAD if broker <= count]
    drawn = []
    for broker in range(1, count + 1):
        status = {SILENT: "silent", STOPPED: "stopped"}.get(broker, "unfenced")
        cells = tuple(
            Cell(path=f"/mnt/d{n}", state=_state(broker, n, status, dead), used_pct=(broker * 7 + n * 13) % 100)
            for n in range(1, DISKS + 1)
        )
        dead_here = sum(cell.state == "failed" for cell in cells)
        drawn.append(MapHost(agent=agent(broker, status, failed=dead_here), cells=cells))
    drawn.sort(key=lambda h: (h.agent.rack or "", h.agent.host))
    every = [cell.state for host in drawn for cell in host.cells]
    order = ("failed", "silent", "stopped", "online")
    silent_for = 8 * 86_400_000
    known: dict[str, Any] = {
        "window": Window(from_date="2026-11-01", to_date="2026-11-03", now_ms=NOW_MS),
        "insights": insights(),
        "states": {state: every.count(state) for state in order if state in every},
        "statuses": {"silent": 1, "stopped": 1, "unfenced": max(count - 2, 0)},
        "models": tuple(
            ModelDisks(model=m, directories=10, hosts=3, failed=0, bytes_total=100, bytes_used=50)
            for m in ("ST16000NM001G", "MODEL 1", HOSTILE)
        ),
        "hosts": tuple(drawn),
        "hidden_hosts": 0,
        "samples": 17_280_000,
        "leaders": 100_000,
        "bytes_used": 1 << 50,
        "bytes_total": 1 << 51,
        "failed": (failed(LEADING, "/mnt/d2", leaders=100), *(failed(broker) for broker in dead)),
        "other": (),
        "agents": (
            agent(SILENT, "silent", silent_ms=silent_for, last_ms=NOW_MS - silent_for),
            agent(STOPPED, "stopped", reason="SIGTERM", exit_code="0"),
        ),
        "stands": (),
        "guards": (),
        "incidents": tuple(incident(broker, "/mnt/d4") for broker in dead) or (incident(),),
        "incident_outcomes": {"acknowledged": max(len(dead), 1)},
        "slowest_ms": 1231.0,
        "data": Data(files=24_000, by_status={"ok": 24_000}, lines=17_280_000),
        "changes": Changes(counts={}),
    }
    return FleetReport(**(known | more))


def _state(broker: int, disk: int, status: str, dead: list[int]) -> str:
    if (broker, disk) == (LEADING, 2) or (broker in dead and disk == 4):
        return "failed"
    return status if status != "unfenced" else "online"
