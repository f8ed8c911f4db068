"""The page: it parses, repeats byte for byte, and shows what the data say, however odd they are."""

import random
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from kjbod.fleet.charts import MARK_PX, Cell, GridRow, Mark, grid, spread
from kjbod.fleet.html import page
from kjbod.fleet.summary import Report, sentences
from kjbod.fleet.svg import date_time, distinct_tails, duration, fit, nice_ticks, size, text_width, time_ticks
from tests.fleet.report_tables import TABLES

T0 = 1_793_534_400_000
HOSTILE = "</svg><script>alert(1)</script>\x00\x1b & \"'"


def directory(path: str = "/mnt/d1", broker_id: int = 1, state: str = "online", **more: Any) -> dict[str, Any]:
    row = {
        "host": f"kafka-{broker_id}",
        "broker_id": broker_id,
        "path": path,
        "state": state,
        "first_seen": T0,
        "last_seen": T0 + 60_000,
        "leaders": 3,
        "leaders_max": 4,
        "partitions": 10,
        "failures": 0,
        "bytes_used": 1 << 30,
        "bytes_total": 4 << 30,
    }
    empty = dict.fromkeys(("fleet", "rack", "dir_id", "device", "model", "serial"))
    return {**row, **empty, **more}


def agent(broker_id: int = 1, status: str = "unfenced", **more: Any) -> dict[str, Any]:
    row = {"host": f"kafka-{broker_id}", "broker_id": broker_id, "status": status, "last_seen": T0 + 60_000}
    counts = {"directories": 1, "failed": 0, "impaired": 0, "reason": None, "exit_code": None, "rack": None}
    of_guards = {"role": None, "mode": None, "would": 0, "acts": 0, "failed_acts": 0, "refusals": 0}
    return {**row, **counts, **of_guards, **more}


def incident(**more: Any) -> dict[str, Any]:
    row = {"host": "kafka-1", "broker_id": 1, "path": "/mnt/d1", "ts": T0, "outcome": "acknowledged", "evidence": "EIO"}
    times = {"detect_ms": 1200.0, "send_ms": 2.0, "acknowledge_ms": 29.0, "move_ms": 48.0, "total_ms": 1231.0}
    rest = {"give_up_ms": None, "cause": None, "device": "sdb", "serial": "S1", "partitions": 10, "leaders": 3}
    return {**row, **times, **rest, "errno": None, "call": None, "deeds": [], **more}


def happened(kind: str, at_ms: int = 0, path: str | None = None, **more: Any) -> dict[str, Any]:
    row = {
        "host": "kafka-1",
        "broker_id": 1,
        "path": path,
        "kind": kind,
        "ts": T0 + at_ms,
        "mono_ns": at_ms,
        "count": 1,
    }
    names = ("previous", "state", "cause", "evidence", "errno", "reason", "exit_code", "leaders", "partitions")
    return {**row, **dict.fromkeys((*names, "means", "outcome", "took_ms")), **more}


def report(**more: Any) -> Report:
    lists: dict[str, Any] = dict.fromkeys(("agents", "directories", "incidents", "capacity", "timeline", "files"), ())
    return Report(**(lists | {"samples": 0, "events": 0, "duplicates": 0, "open_files": 0} | more))


def usual(**more: Any) -> Report:
    directories = [
        directory(f"/mnt/d{n}", b, "failed" if (b, n) == (1, 2) else "online") for b in (1, 2) for n in (1, 2)
    ]
    capacity = [
        {**d, "used_ratio": 0.25, "growth_bytes_per_day": None, "days_to_full": None, "samples": 1} for d in directories
    ]
    timeline = [
        happened("agent_started"),
        happened("state_changed", 20_000, "/mnt/d2", previous="online", state="suspect"),
        happened("dir_failed", 21_000, "/mnt/d2", evidence="pwrite: EIO"),
        happened("acknowledged", 21_030, "/mnt/d2"),
        happened("a_kind_of_tomorrow", 21_031),
        happened("agent_stopped", 50_000, reason="SIGTERM", exit_code="0"),
    ]
    known: dict[str, Any] = {
        "agents": [agent(1, failed=1), agent(2)],
        "directories": directories,
        "incidents": [incident(path="/mnt/d2")],
        "capacity": capacity,
        "timeline": timeline,
    }
    return report(**(known | more))


def drawings(html: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg xmlns.*?</svg>", html, re.S)]


def test_the_same_data_make_the_same_bytes() -> None:
    assert page(usual()) == page(usual())


def test_every_drawing_is_well_formed_and_described() -> None:
    found = drawings(page(usual()))
    assert len(found) == 10  # five charts, wide and narrow
    for drawing in found:
        assert drawing.get("role") == "img"
        assert drawing.get("aria-label")


def test_every_label_is_inside_its_drawing() -> None:
    long_names = [directory(f"/srv/kafka/a-very-long-directory-name-for-disk-{n}", state="failed") for n in range(14)]
    for drawing in drawings(page(usual(directories=long_names, incidents=[], capacity=[], timeline=[]))):
        _, _, width, height = map(float, (drawing.get("viewBox") or "").split())
        for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
            label, x, y = "".join(t for t in [text.text or ""]), float(text.get("x") or 0), float(text.get("y") or 0)
            half = text_width(label, 11) * {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor") or "", 0)
            assert x - half >= -1, label
            assert x - half + text_width(label, 11) <= width + 1, label
            assert 0 < y <= height, label


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    html = page(usual())
    assert "<script" not in html
    assert not re.search(r'(src|href)="', html)
    assert "url(" not in html


def test_hostile_text_stays_text() -> None:
    odd = usual(
        agents=[agent(1, "stopped", host=HOSTILE, reason=HOSTILE, exit_code=HOSTILE)],
        directories=[directory(HOSTILE, host=HOSTILE, state=HOSTILE, serial=HOSTILE)],
        incidents=[incident(host=HOSTILE, path=HOSTILE, evidence=HOSTILE)],
        capacity=[],
        timeline=[happened(HOSTILE, 1, HOSTILE, host=HOSTILE)],
    )
    html = page(odd)
    assert "<script" not in html
    assert "\x00" not in html
    assert drawings(html)
    HTMLParser().feed(html)


def test_an_empty_fleet_has_a_page_too() -> None:
    html = page(report())
    assert "No directory has been reported yet." in html
    assert drawings(html) == []


# --- a large fleet: what is wrong comes first, and what is left out is where the page says


DEAD = tuple((43 * number, f"/mnt/d{number}") for number in range(1, 12))
"""Eleven disks among the 6,000 of 500 brokers."""
SILENT_MS = 8 * 86_400_000 + 3_600_000


def large(**more: Any) -> Report:
    rng = random.Random(858)
    directories, capacity, incidents = [], [], []
    for broker in range(1, 501):
        for number in range(12):
            path, state = f"/mnt/d{number}", "failed" if (broker, f"/mnt/d{number}") in DEAD else "online"
            if broker == 7:
                state = "silent"
            row = directory(path, broker, state, serial=f"Z{broker}-{number}", fleet="cluster-b", last_state="online")
            directories.append(row)
            days = rng.uniform(5.8, 29) if rng.random() < 0.1 else None
            if (broker, number) == (77, 3):
                days = 5.7
            growth = None if days is None else 1 << 30
            more_of = {"used_ratio": rng.random(), "growth_bytes_per_day": growth, "days_to_full": days, "samples": 1}
            capacity.append({**row, **more_of})
            if state == "failed":
                failure = incident(
                    host=row["host"], broker_id=broker, path=path, serial=row["serial"], fleet="cluster-b"
                )
                incidents.append(failure | {"ts": T0 + broker * 60_000})
    agents = [
        agent(b, "silent" if b == 7 else "unfenced", failed=sum(b == dead for dead, _ in DEAD), directories=12)
        | {"silent_ms": SILENT_MS if b == 7 else 0, "fleet": "cluster-b" if b % 2 else "cluster-a"}
        for b in range(1, 501)
    ]
    known = {"agents": agents, "directories": directories, "capacity": capacity, "incidents": incidents}
    return report(**(known | more))


def section(html: str, title: str) -> str:
    (found,) = (part for part in re.findall(r"<section>.*?</section>", html, re.S) if f"<h2>{title}</h2>" in part)
    return str(found)


def words(drawing: ET.Element) -> list[str]:
    """What is written in a drawing, without the titles that a pointer shows."""
    texts = drawing.iter("{http://www.w3.org/2000/svg}text")
    return [(text.text or "") + "".join(child.tail or "" for child in text) for text in texts]


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


def test_an_agent_that_is_silent_comes_first_and_none_of_its_directories_is_online() -> None:
    html, all_ = page(large()), large()
    assert sentences(all_)[0] == "1 of 500 agents is silent: broker 7 · kafka-7 for 8.0 d."
    assert sentences(all_)[1] == "11 of 6,000 directories failed and 12 are silent."
    assert all_.states == {"silent": 12, "failed": 11, "online": 5977}
    assert "5,977 / 6,000" in html
    first = section(html, "What needs a look")
    assert html.index("What needs a look") < html.index("State of every log directory")
    assert first.index("Agents that are silent: 1") < first.index("Directories that failed: 11")
    drawing = drawings(section(html, "State of every log directory, by agent"))[0]
    labels = [text for text in words(drawing) if "broker" in text]
    assert labels[0] == "broker 7 · kafka-7"


def test_500_green_brokers_do_not_hide_eleven_dead_disks() -> None:
    html = page(large())
    first = section(html, "What needs a look")
    rows = re.findall(r'<tr class="first">(.*?)</tr>', first)
    assert len(rows) == 11
    for row, (broker, path) in zip(rows, sorted(DEAD, reverse=True), strict=True):
        cells = re.findall(r"<td.*?>(.*?)</td>", row)
        moment = date_time(T0 + broker * 60_000)[:19]
        assert {moment, str(broker), f"kafka-{broker}", path, f"Z{broker}-{path[6:]}", "cluster-b"} <= set(cells)
    drawn = section(html, "State of every log directory, by agent")
    for broker, _ in DEAD:
        assert f"broker {broker} · kafka-{broker}" in drawn.partition("<details>")[0]
    assert "488 healthy agents with 5,856 directories, all online" in drawn
    assert drawn.partition("<details>")[0].count("</svg>") == 2
    assert len(html) < 700_000


def test_failures_have_date_host_and_cluster() -> None:
    part = section(page(large()), "How long each failure took from the first sign to the acknowledgement")
    newest = max(DEAD)
    assert f"{date_time(T0 + newest[0] * 60_000)[:19]} · acknowledged" in part
    assert f"d11 · broker {newest[0]} · kafka-{newest[0]}" in part
    assert "<th>cluster</th><th>broker</th><th>host</th>" in part
    two = [agent(1, fleet="cluster-a"), agent(2, fleet="cluster-b")]
    both = [incident(fleet="cluster-a"), incident(host="kafka-2", broker_id=2, fleet="cluster-b")]
    drawn = drawings(page(report(agents=two, incidents=both, directories=[directory(), directory(broker_id=2)])))
    assert {"cluster-a", "cluster-b"} <= {text for drawing in drawn for text in words(drawing)}


def test_the_directory_that_is_full_soonest_is_on_the_page_and_first() -> None:
    all_ = large()
    forecasts = sorted(row["days_to_full"] for row in all_.capacity if row["days_to_full"] is not None)
    assert len(forecasts) > 500
    html = page(all_)
    assert "<b>5.7 d</b><span>until the first directory is full</span>" in html
    first = section(html, "What needs a look")
    listed = first[first.index("Directories that will be full within 30 days") :]
    assert f"{len(forecasts):,}, the first 20 shown; all are in tables/capacity" in listed
    shown = [float(days) for days in re.findall(r'<tr><td class="n">([\d.]+) d</td>', listed)]
    assert shown == [round(days, 1) for days in forecasts[:20]]
    bars = section(html, "How full each directory is")
    assert bars.index("full in 5.7 d") < bars.index("full in 5.8 d")
    assert bars.index("broker 77 ") < bars.index("full in 5.8 d")
    assert f"{len(forecasts):,} forecasts" in bars


def test_what_the_page_leaves_out_is_counted_and_is_where_it_says() -> None:
    events = [happened("replica_created", n) for n in range(700)] + [
        happened("registered", 1000 + n) for n in range(700)
    ]
    html = page(large(timeline=events))
    told = re.findall(
        r"<summary[^>]*>[^<]*?: ([\d,]+)(?: rows?)?, the first (\d+) shown; all are in (\S+)</summary>", html
    )
    assert len(told) >= 4
    assert "more in the table" not in html
    for table in re.findall(r"<details.*?</details>", html, re.S):
        summary = re.search(r"<summary[^>]*>(.*?)</summary>", table)
        found = re.search(r": (\d[\d,]*\b)(?: rows?)?(?:, the first (\d+) shown)?", summary[1] if summary else "")
        if found is None or "<tbody>" not in table:
            continue
        body = table.split("<tbody>")[1]
        rows = body.count("<tr") - body.count('class="below"')
        assert rows == int((found[2] or found[1]).replace(",", "")), summary
    assert "all 6,000 are in tables/capacity" in text_of(html)
    assert "1 of 500 agents drawn" in text_of(html) or "agents drawn, those with problems first" in text_of(html)
    assert "all 1,400 are in tables/timeline" in text_of(html)
    assert {name.rstrip(".;:") for name in re.findall(r"tables/(\w+)", html)} <= set(TABLES)


def test_all_dead_disks_have_their_lane_in_the_timeline_of_a_large_fleet() -> None:
    at = {"host": "", "broker_id": 0}
    events = [
        happened("dir_failed", broker * 60_000, path) | at | {"host": f"kafka-{broker}", "broker_id": broker}
        for broker, path in sorted(DEAD)
    ]
    part = section(page(large(timeline=events)), "What happened when, for each agent and directory")
    lanes = words(drawings(part)[0])
    assert sorted(text for text in lanes if text.startswith("d")) == sorted(path[5:] for _, path in DEAD)
    assert "12 of 500 agents drawn, those with problems first" in part


def test_more_sick_agents_than_can_be_drawn_are_counted() -> None:
    agents = [agent(b, failed=1) for b in range(1, 61)]
    html = page(report(agents=agents, directories=[directory(broker_id=b, state="failed") for b in range(1, 61)]))
    assert "20 more agents with problems not drawn: all are in tables/agents" in html


def test_a_healthy_fleet_is_said_to_be_one() -> None:
    agents = [agent(b) | {"status": "unknown" if b == 3 else "unfenced"} for b in range(1, 61)]
    html = page(report(agents=agents, directories=[directory(broker_id=b) for b in range(1, 61)]))
    assert "Nothing: all agents run, all directories are online, and none is full within 30 days." in html
    assert "60 healthy agents with 60 directories, all online" in html


def test_a_stopped_agent_s_directories_are_not_online() -> None:
    gone = directory(broker_id=2, state="stopped", last_state="online")
    stopped = agent(2, "stopped", reason="gave up", exit_code="74")
    all_ = report(agents=[agent(1), stopped], directories=[directory(), gone])
    assert all_.states == {"stopped": 1, "online": 1}
    first = section(page(all_), "What needs a look")
    assert "Agents that are stopped or fenced: 1" in first
    assert "gave up" in first


def test_nothing_is_drawn_of_a_time_in_which_nothing_was_heard() -> None:
    newest = T0 + SILENT_MS
    lost = agent(1, "silent") | {"silent_ms": SILENT_MS - 60_000, "last_seen": T0 + 60_000}
    here = directory(state="silent", last_state="online")
    all_ = report(
        agents=[lost, agent(2) | {"last_seen": newest}],
        directories=[here, directory(broker_id=2, last_seen=newest)],
        timeline=[happened("agent_started"), happened("unfenced", 100)],
    )
    part = section(page(all_), "What happened when, for each agent and directory")
    bands = [r for r in drawings(part)[0].iter("{http://www.w3.org/2000/svg}rect") if "band" in (r.get("class") or "")]
    shown: dict[str, float] = {}
    for band in bands[:4]:  # the lanes of broker 1
        state = (band.get("class") or "").split()[-1]
        shown[state] = shown.get(state, 0) + float(band.get("width") or 0)
    assert shown["s-silent"] > 100 * max(shown.get("s-online", 0), 0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"directories": [directory()]}, "The only directory is online."),
        ({"directories": [directory(), directory("/mnt/d2")]}, "All 2 directories are online."),
        ({"directories": [directory(), directory("/mnt/d2", state="failed")]}, "1 of 2 directories failed."),
        ({"directories": [directory(state="slow"), directory("/b")]}, "None of 2 directories failed and 1 is slow."),
        ({"incidents": [incident()]}, "1 failure was acknowledged by the controller within 1.23 s of the first sign."),
        (
            {"incidents": [incident(detect_ms=None, total_ms=31.0)]},
            "1 failure was acknowledged by the controller within 31 ms of the verdict.",
        ),
        (
            {"incidents": [incident(outcome="timeout shutdown", give_up_ms=4000.0)]},
            "1 failure could not be reported, so the agent gave up in time.",
        ),
        ({"incidents": [incident(outcome="open")]}, "1 failure is not acknowledged yet."),
        (
            {"agents": [agent(1, "stopped", reason="timeout", exit_code="74"), agent(2)]},
            "1 of 2 agents stopped: broker 1 (timeout, exit code 74).",
        ),
    ],
)
def test_the_summary_says_it_in_plain_words(changes: dict[str, Any], words: str) -> None:
    assert words in sentences(report(**changes))


def test_marks_never_cover_each_other_and_stay_inside() -> None:
    marks = [(x, Mark(0, "registered", "")) for x in (5.0, 6.0, 6.0, 300.0, 395.0, 396.0)]
    placed = [x for x, _ in spread(marks, 400)]
    assert all(b - a >= MARK_PX - 0.01 for a, b in pairwise(placed))
    assert max(placed) <= 400


def test_boxes_of_many_directories_wrap() -> None:
    row = GridRow("broker 1", "", tuple(Cell(f"d{n}", "online", "", "") for n in range(24)))
    assert grid([row], 330).height > grid([row], 1080).height


def test_short_names_still_tell_directories_apart() -> None:
    assert distinct_tails(["/mnt/a/kafka", "/mnt/b/kafka"]) == {"/mnt/a/kafka": "a/kafka", "/mnt/b/kafka": "b/kafka"}
    assert distinct_tails(["/mnt/d1", "/mnt/d2"]) == {"/mnt/d1": "d1", "/mnt/d2": "d2"}
    assert distinct_tails(["/"]) == {"/": "/"}


@pytest.mark.parametrize(
    ("hosts", "label"),
    [
        (["a.example.org", "b.example.org"], "broker 1 · a"),
        (["a.eu.example.org", "a.us.example.org"], "broker 1 · a.eu.example.org"),
        (["10.0.0.1"], "broker 1 · 10.0.0.1"),
    ],
)
def test_a_host_is_named_as_shortly_as_is_unique(hosts: list[str], label: str) -> None:
    agents = [agent(1, host=host) for host in hosts]
    assert report(agents=agents).label(agents[0]) == label


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "–"), (0, "0 ms"), (2, "2.0 ms"), (31, "31 ms"), (999.6, "1 s"), (4020, "4.02 s"), (150_000, "2 min")],
)
def test_durations_have_units(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_sizes_have_binary_units() -> None:
    assert [size(n) for n in (None, 0, 1023, 1024, 1536, 100 << 30, 4 << 40)] == [
        *("–", "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "100 GiB", "4.0 TiB")
    ]


def test_ticks_are_round_and_cover_the_data() -> None:
    assert nice_ticks(1, 4) == [0, 0.5, 1.0]
    assert nice_ticks(37, 5) == [0, 10, 20, 30, 40]
    assert nice_ticks(0, 5) == [0, 1]
    assert [text for _, text in time_ticks(T0 + 1, T0 + 30_000, 3)] == ["12:00:10", "12:00:20", "12:00:30"]
    assert len(time_ticks(T0, T0 + 400 * 86_400_000, 6)) <= 6


def test_a_label_that_is_too_long_keeps_its_head_and_its_end() -> None:
    short = fit("/srv/kafka/some/very/long/path/d17", 120)
    assert short.endswith("d17")
    assert "…" in short
    assert text_width(short) <= 120


def test_why_an_agent_gave_up_is_path_and_cause_whatever_its_own_reason_says() -> None:
    gave_up = incident(outcome="timeout shutdown", path="/mnt/d2", errno="EIO", call="read of meta.properties")
    stopped = agent(1, "stopped", reason="log directory /mnt/d2, failed since ..." * 9, exit_code="74")
    assert sentences(report(agents=[stopped, agent(2)], incidents=[gave_up], directories=[directory("/mnt/d2")]))[
        2
    ] == ("1 of 2 agents stopped: broker 1 (could not report /mnt/d2: EIO at read of meta.properties, exit code 74).")
    other = sentences(report(agents=[stopped], directories=[directory("/mnt/d2")]))[1]
    assert other.endswith("…, exit code 74).")
    assert len(other) < 160


def test_a_file_system_that_directories_share_counts_once_for_each_host() -> None:
    rows = [
        directory("/mnt/d1", device="sda1 8:1"),
        directory("/mnt/d2", device="sda1"),
        directory("/mnt/d3", device="sdb1", bytes_used=3 << 30),
        directory("/mnt/d4"),
        directory("/mnt/d5"),
        directory("/mnt/d1", 2, device="sda1"),
    ]
    assert report(directories=rows, capacity=rows).space == (7 << 30, 20 << 30)


def test_evidence_that_names_the_device_is_not_followed_by_it_again() -> None:
    told = incident(evidence="/mnt/d1 failed: EIO; device sdb 8:16", device="sdb 8:16", serial="S9")
    assert "device sdb 8:16; serial S9<" in page(report(incidents=[told], directories=[directory("/mnt/d1")]))


# --- guards


def deed(after_ms: float, means: str, outcome: str | None = None, **more: Any) -> dict[str, Any]:
    return {"after_ms": after_ms, "means": means, "outcome": outcome, "reason": None, "count": None, **more}


def test_each_failure_says_what_a_guard_did_about_it_when_and_what_was_refused() -> None:
    deeds = [
        deed(0.4, "cut", "pending", reason="it did not return"),
        deed(104.0, "recorded"),
        deed(310.0, "evict", "done", count=214),
        deed(2_000.0, "kill", "refused", reason="no CAP_KILL"),
        deed(2_001.0, "crippled", reason="a fetcher is stuck"),
        deed(7_200_000.0, "restore", "done", count=214),
    ]
    html = text_of(page(usual(incidents=[incident(path="/mnt/d2", deeds=deeds)])))
    assert (
        "Guard: cut pending after 0.4 ms (it did not return), recorded after 104 ms, "
        "evict of 214 partitions after 310 ms, kill refused after 2 s (no CAP_KILL), "
        "crippled after 2 s (a fetcher is stuck), restore of 214 partitions after 2.0 h"
    ) in html
    assert "Guard:" not in text_of(page(usual()))
    long = [incident(deeds=[deed(n, "report", "failed") for n in range(30)])]
    assert "and 18 more" in page(usual(incidents=long))


def test_guards_are_counted_by_cluster() -> None:
    agents = [
        agent(1, role="guard", mode="act", fleet="a", acts=5, refusals=2, failed_acts=1),
        agent(2, role="guard", mode="observe", fleet="a", would=3),
        agent(3, role="guard", mode="act", fleet="b", acts=1),
        agent(4, fleet="b"),
    ]
    shown = usual(agents=agents)
    assert "3 guards, of which 2 act: 6 acts, 1 in vain, 2 refused, 3 only observed." in sentences(shown)
    rows = re.findall(r"<tr><td>.*?</tr>", section(page(shown), "What guards did"))
    assert [text_of(row).split() for row in rows] == [list("a215123"), list("b111000")]
    assert shown.to_json()["guards"][0]["acts"] == 5
    assert "What guards did" not in page(usual()) and not any("guard" in text for text in sentences(usual()))


def test_the_timeline_tells_what_came_of_a_means() -> None:
    events = [
        happened("guard_does", 1, "/mnt/d2", means="cut"),
        happened("guard_done", 4, "/mnt/d2", means="cut", outcome="done", took_ms="3"),
        happened("guard_stands", 5, "/mnt/d2", state="cut"),
        happened("guard_done", 6, means="kill", outcome="refused", reason="no CAP_KILL"),
        happened("guard_stands", 7, state="crippled", reason="a fetcher is stuck"),
    ]
    text = text_of(page(usual(timeline=events)))
    for told in (
        *("guard: cut begins", "guard: cut done in 3 ms", "guard: cut "),
        *("guard: kill refused: no CAP_KILL", "guard: crippled: a fetcher is stuck"),
    ):
        assert told in text, told
