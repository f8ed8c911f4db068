"""The page of a large fleet: what is wrong comes first, what is left out is counted, and text stays text."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from kjbod.fleet.insight.model import Days, Forecast, RateOf, rate_text
from kjbod.fleet.page import todo
from kjbod.fleet.page.bursts import RECENT_MS, bursts
from kjbod.fleet.page.changes import Before, before, changes
from kjbod.fleet.page.details import host_page, hosts_page, model_page
from kjbod.fleet.page.document import report_json
from kjbod.fleet.page.frame import POLICY, SCRIPT
from kjbod.fleet.page.index import index_page
from kjbod.fleet.page.model import (
    Agent,
    Cell,
    Changes,
    Data,
    Deed,
    Directory,
    DirectoryDetail,
    Guards,
    Happening,
    HostDetail,
    Lack,
    MapHost,
    ModelDisks,
    Series,
    SharedSerial,
    Stand,
    host_file,
    model_file,
    safe_name,
)
from kjbod.fleet.page.words import deeds, describe, evidence, sentences
from kjbod.fleet.svg import date_time
from tests.fleet.report_data import (
    DEAD,
    HOSTILE,
    LEADING,
    NOW_MS,
    SILENT,
    agent,
    failed,
    forecast,
    host_name,
    incident,
    insights,
    place,
    rate,
    reliability,
    report,
    too_few,
)


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


def part(html: str, key: str) -> str:
    (found,) = re.findall(rf'<section id="{key}">.*?</section>', html, re.S)
    return str(found)


def healthy(count: int = 3, **more: Any) -> Any:
    drawn = tuple(MapHost(agent=agent(b), cells=(Cell(path="/mnt/d1", state="online"),)) for b in range(1, count + 1))
    quiet = insights(0)
    room = dataclasses.replace(quiet.capacity, forecasts=(), full_within={})
    known: dict[str, Any] = {
        "insights": dataclasses.replace(quiet, capacity=room),
        "hosts": drawn,
        "states": {"online": count},
        "statuses": {"unfenced": count},
        "failed": (),
        "agents": (),
        "incidents": (),
        "incident_outcomes": {},
    }
    return report(2, **(known | more))


def lack(broker: int, **more: Any) -> Lack:
    known: dict[str, Any] = {"since_ms": NOW_MS - broker * 60_000, "host": host_name(broker), "fleet": "cluster-a"}
    counts = {"below_replication_factor": 0, "below_min_isr": 0, "without_leader": 0}
    return Lack(**(known | {"rack": "r03", "broker_id": broker} | counts | more))


def hostile_host() -> HostDetail:
    series = Series(
        days=(0, 1), states=(), used=(1, 2), probe_us=(1, None), temp_c=(3, 4), errors=(0, 1), defects=(0, 0)
    )
    disk = failed(1, HOSTILE)
    disk = dataclasses.replace(
        disk, place=place(1, HOSTILE, host=HOSTILE, serial=HOSTILE, model=HOSTILE, device=HOSTILE)
    )
    return HostDetail(
        agent=Agent(
            host=HOSTILE, broker_id=1, status=HOSTILE, reason=HOSTILE, rack=HOSTILE, fleet=HOSTILE, version=HOSTILE
        ),
        directories=(DirectoryDetail(directory=disk, series=series),),
        happenings=(Happening(ts=NOW_MS, kind=HOSTILE, path=HOSTILE, attrs={"evidence": HOSTILE}),),
        hidden_happenings=0,
        incidents=(incident(1, HOSTILE, evidence=HOSTILE, outcome=HOSTILE),),
    )


def test_the_same_data_make_the_same_bytes() -> None:
    assert index_page(report(50)) == index_page(report(50))
    one = hostile_host()
    assert host_page(one, report(2).window, 2) == host_page(one, report(2).window, 2)


def test_every_drawing_is_well_formed_and_described() -> None:
    found = re.findall(r"<svg xmlns.*?</svg>", index_page(report(50)), re.S)
    assert len(found) >= 20
    for drawing in map(ET.fromstring, found):
        assert drawing.get("role") in ("img", "group")
        assert drawing.get("aria-label")


def test_a_page_loads_nothing_and_runs_only_the_script_that_its_policy_names() -> None:
    html = index_page(report(50))
    assert html.count("<script") == 1
    assert "default-src 'none'" in POLICY and "unsafe" not in POLICY
    assert not re.search(r'\ssrc=|url\(|\sstyle="|\son\w+="', html)
    assert all(re.match(r"#|hosts/|models/", to) for to in re.findall(r'href="([^"]*)"', html))
    assert len(SCRIPT.splitlines()) <= 40


def test_hostile_text_stays_text_on_every_page() -> None:
    odd = agent(1, "stopped", host=HOSTILE, reason=HOSTILE, exit_code=HOSTILE, rack=HOSTILE)
    of_hostile = dataclasses.replace(
        failed(1, HOSTILE), place=place(1, HOSTILE, host=HOSTILE, serial=HOSTILE, model=HOSTILE)
    )
    all_ = report(
        20,
        agents=(odd,),
        statuses={"stopped": 1, HOSTILE: 2},
        states={"failed": 1, HOSTILE: 3},
        hosts=(MapHost(agent=odd, cells=(Cell(path=HOSTILE, state=HOSTILE),)),),
        failed=(of_hostile,),
        incidents=(incident(1, HOSTILE, evidence=HOSTILE, outcome=HOSTILE),),
        guards=(Guards(fleet=HOSTILE, guards=1, acting=1, acts=1, failed_acts=0, refusals=0, would=0),),
        stands=(Stand(ts=NOW_MS, host=HOSTILE, broker_id=1, state="left", reason=HOSTILE),),
        lacks=(lack(1, host=HOSTILE, fleet=HOSTILE, rack=HOSTILE, reason=HOSTILE),),
    )
    disks = ModelDisks(model=HOSTILE, directories=1, hosts=1, failed=0, bytes_total=0, bytes_used=0)
    listed = "".join(hosts_page([odd], all_.window))
    for html in (index_page(all_), host_page(hostile_host(), all_.window, 2), model_page(disks, all_), listed):
        assert html.count("<script") == 1
        assert "alert(1)" in html
        assert "\x00" not in html and "\x1b" not in html
        HTMLParser().feed(html)
        for drawing in re.findall(r"<svg xmlns.*?</svg>", html, re.S):
            ET.fromstring(drawing)


def test_commands_quote_what_a_report_says() -> None:
    disk = dataclasses.replace(failed(1), place=place(1, "/mnt/d 1; rm -rf $HOME", host="a b"))
    (group,) = [g for g in todo.groups(healthy(states={"failed": 1}, failed=(disk,))) if g.key == "dead"]
    assert "'/mnt/d 1; rm -rf $HOME'" in group.items[0].commands[-1]


def test_an_empty_fleet_has_a_page_too() -> None:
    html = index_page(healthy(0, hosts=(), states={}, statuses={}, samples=0, models=()))
    assert "No directory has been reported yet." in html
    assert "Nothing was reported yet." in html


def test_what_is_most_urgent_comes_first_with_disk_reason_and_command() -> None:
    all_ = report(1_000)
    html = index_page(all_)
    first = part(html, "todo")
    titles = [title.strip() for title in re.findall(r"<h3>([^<]+)", first)]
    assert titles == [
        "Dead disks that still lead partitions",
        "Agents that are silent",
        "Dead disks to replace",
        "Agents that were stopped",
        "Disks that may fail soon",
        f"Directories that will be full within {todo.SOON_DAYS} days",
    ]
    assert html.index('id="todo"') < html.index('id="changes"') < html.index('id="map"') < html.index('id="afr"')
    for broker in DEAD:
        assert f"serial Z{broker}-4" in first
        assert date_time(NOW_MS - broker * 60_000)[:19] in first
        assert f"hosts/{host_file('cluster-a', host_name(broker), broker)}" in first
    assert "rack r03" in first and "device sdb" in first and "model ST16000NM001G" in first
    assert "kjbod dirs add -c /etc/kafka/server.properties /mnt/d4" in first
    assert "kjbod format -g -t cluster-a -c /etc/kafka/server.properties" in first
    assert "systemctl stop --no-block kjbod-agent" in first.partition("Agents that are silent")[0]


def test_a_disk_beside_a_broker_of_kafkas_is_replaced_as_the_guards_manual_says() -> None:
    dead, leading = failed(DEAD[0], role="guard"), failed(DEAD[1], leaders=3, role="guard")
    first = part(index_page(report(100, failed=(leading, dead))), "todo")
    guard = "--guard-config /etc/kafka/kjbod-guard.properties"
    assert f"kjbod guard release -c /etc/kafka/server.properties {guard} /mnt/d4" in first
    assert "systemctl stop --no-block kafka<" in first and "kjbod dirs add" not in first


def test_disks_of_a_rack_that_failed_together_are_one_thing_to_look_at() -> None:
    minute = 60_000
    together = [incident(b, ts=NOW_MS - b * 9 * minute, place=place(b, "/d", rack="r02")) for b in (1, 2, 3, 4)]
    again = incident(1, ts=NOW_MS, place=place(1, "/d", rack="r02"))
    alone = [incident(b, ts=NOW_MS - b * 40 * minute, place=place(b, "/d", rack="r03")) for b in (1, 2, 3)]
    old = [incident(b, ts=NOW_MS - RECENT_MS - b, place=place(b, "/d", rack="r04")) for b in (1, 2, 3)]
    two = [incident(b, place=place(b, "/d", rack="r05")) for b in (1, 2)]
    nowhere = [incident(b, place=place(b, "/d", rack=None)) for b in (4, 5, 6)]
    (found,) = bursts([*together, again, *alone, *old, *two, *nowhere], NOW_MS)
    assert (found.rack, found.disks, found.span_ms) == ("r02", 4, 36 * minute)
    first = part(index_page(report(100, incidents=(*together, again))), "todo")
    assert "rack r02: 4 disks failed in 36 min" in first
    assert first.index("Racks and hosts to look at first") < first.index("Dead disks to replace")
    since = date_time(NOW_MS - 41 * minute)[:19]  # whoever reads the page tomorrow is not helped by "two days ago"
    assert f"journalctl -k -p warning --since &#x27;{since} UTC&#x27;" in first or f"--since '{since} UTC'" in first


def test_two_disks_of_a_host_that_failed_together_are_one_thing_to_look_at() -> None:
    minute = 60_000
    of_host = [place(7, f"/d{n}", rack="r05", serial=f"S{n}") for n in (1, 2, 3)]
    both = [incident(7, ts=NOW_MS - n * 12 * minute, place=of_host[n]) for n in (1, 2)]
    later = incident(7, ts=NOW_MS - 90 * minute, place=of_host[0])
    (found,) = bursts([*both, later], NOW_MS)
    assert (found.rack, found.hosts, found.disks, found.span_ms) == (None, (host_name(7),), 2, 12 * minute)
    assert f"host {host_name(7)}: 2 disks failed in 12 min" in part(
        index_page(report(100, incidents=tuple(both))), "todo"
    )
    one = [place(7, "/d1", serial="S1"), place(7, "/d1", serial=None), place(7, "/d1", serial=None, dir_id=None)]
    one += [place(7, "/d2", serial="S1")]  # another directory of it
    assert bursts([incident(7, ts=NOW_MS, place=each) for each in one[:3]], NOW_MS) == []
    assert bursts([incident(7, ts=NOW_MS, place=each) for each in (one[0], one[3])], NOW_MS) == []
    rack = [incident(b, ts=NOW_MS, place=place(b, "/d", rack="r05")) for b in (8, 9)]
    assert [burst.rack for burst in bursts([*both, *rack], NOW_MS)] == ["r05"], "told with its rack"


def test_a_directory_that_is_full_in_hours_stands_beside_dead_disks() -> None:
    def forecast_of(broker: int, days: float) -> Forecast:
        return dataclasses.replace(
            report(100).insights.capacity.forecasts[0],
            place=place(broker, "/d"),
            until=(Days(mark_pct=100, days=days, soonest=days, latest=days),),
        )

    soon = tuple(forecast_of(broker, days) for broker, days in ((1, 0.0), (2, 1.4), (3, 12.0), (4, 200.0)))
    of_all = report(100)
    capacity = dataclasses.replace(of_all.insights.capacity, forecasts=soon, full_within={"30": 3})
    changed = dataclasses.replace(of_all, insights=dataclasses.replace(of_all.insights, capacity=capacity))
    found = {group.key: group for group in todo.groups(changed)}
    assert list(found)[:2] == ["led", "full-at-once"]
    assert [item.what for item in found["full-at-once"].items] == ["full", "full in 1.4 d"]
    assert [item.what for item in found["full"].items] == ["full in 12.0 d"]
    assert (found["full-at-once"].total, found["full"].total) == (2, 1)


def test_the_table_of_what_fills_up_has_what_fills_up_and_no_other() -> None:
    def filling(broker: int, days: float | None, latest: float | None) -> Forecast:
        until = tuple(Days(mark_pct=m, days=days, soonest=days, latest=latest) for m in (80, 90, 100))
        return dataclasses.replace(forecast(broker, days), until=until)

    def of(*found: tuple[int, float | None, float | None]) -> str:
        rows = tuple(filling(*one) for one in found)
        of_all = report(100)
        capacity = dataclasses.replace(of_all.insights.capacity, forecasts=rows)
        changed = dataclasses.replace(of_all, insights=dataclasses.replace(of_all.insights, capacity=capacity))
        return part(index_page(changed), "room")

    html = of((1, 1.4, 1.44), (2, 12.0, 19.0), (3, 40.0, None), (4, None, None), (5, None, None))
    table = html.partition("Soonest to be full")[2].partition("</table>")[0]
    assert all(host_name(broker) in table for broker in (1, 2, 3))
    assert not any(host_name(broker) in table for broker in (4, 5)) and "–" not in table
    assert re.findall(r"<td>([\d.]+ d[^<]*)</td>", table) == ["1.4 d", "12.0 d to 19.0 d", "40.0 d to later"]
    assert "Soonest to be full" not in of((4, None, None), (5, None, None))


def test_an_agent_that_was_asked_to_stop_comes_after_the_dead_disks() -> None:
    of_all = report(100)
    asked = dataclasses.replace(next(a for a in of_all.agents if a.status == "stopped"), exit_code="0")
    changed = dataclasses.replace(of_all, agents=(asked,), statuses={"stopped": 1})
    keys = [group.key for group in todo.groups(changed)]
    assert keys.index("dead") < keys.index("stopped")
    assert "ended" not in keys


def test_a_page_of_which_the_newest_line_is_old_says_so_first() -> None:
    stale = report(100, is_stale=True)
    newest = date_time(NOW_MS)[:16]
    assert sentences(stale)[0].startswith(f"Nothing newer than {newest} UTC has come in")
    assert report_json(stale)["is_stale"] is True


def test_a_directory_that_comes_and_goes_is_named() -> None:
    comes = failed(9, state="online", last_state="online", transitions=6)
    first = part(index_page(report(100, flapping=(comes,))), "todo")
    assert "left online 6 times in two days" in first


def test_a_silent_agent_s_directories_are_not_online() -> None:
    all_ = report(500)
    assert sentences(all_)[0] == f"1 of 500 agents is silent: broker {SILENT} · {host_name(SILENT)} for 8.0 d."
    assert sentences(all_)[1] == "12 of 6,000 directories failed, 12 are silent and 12 are stopped."
    assert "5,964 / 6,000" in index_page(all_)


def test_what_the_page_leaves_out_is_counted() -> None:
    many = tuple(failed(broker) for broker in range(1, 201))
    all_ = report(1_000, failed=many, states={"failed": 900, "online": 11_100})
    first = text_of(part(index_page(all_), "todo"))
    assert "Dead disks to replace  900" in first
    assert "and 840 more" in first


@pytest.mark.parametrize("hosts", [1, 50, 1_500])
def test_a_page_is_small_whatever_the_fleet_s_size(hosts: int) -> None:
    all_ = report(max(hosts, 3), hidden_hosts=50_000 if hosts == 1_500 else 0)
    html = index_page(all_)
    assert len(html.encode()) < 1_500_000
    assert len(json.dumps(report_json(all_))) < 1_500_000
    if hosts == 1_500:
        assert "and 50,000 more: hosts/index.html has every host" in text_of(html)


def test_a_map_of_few_hosts_has_their_names_and_one_of_many_none() -> None:
    assert "kafka-0005</text>" in part(index_page(report(50)), "map")
    dense = part(index_page(report(1_000)), "map")
    assert "</text>" not in dense
    assert f"kafka-0{DEAD[3]}.example.org, broker {DEAD[3]}: 1 failed, 11 online: /mnt/d4" in dense


def test_a_healthy_fleet_is_said_to_be_one() -> None:
    html = index_page(healthy())
    assert "Nothing: all agents run, all directories are online, no disk is about to fail" in html
    assert "none has stopped or fallen silent" in html
    assert "All 3 directories are online." in html


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"states": {"online": 1}}, "The only directory is online."),
        ({"states": {"failed": 1, "online": 1}}, "1 of 2 directories failed."),
        ({"states": {"slow": 1, "online": 1}}, "None of 2 directories failed and 1 is slow."),
        (
            {"incident_outcomes": {"acknowledged": 1}, "slowest_ms": 1231.0},
            "1 failure was acknowledged by the controller within 1.23 s.",
        ),
        (
            {"incident_outcomes": {"timeout shutdown": 1}},
            "1 failure could not be reported, so the agent gave up in time.",
        ),
        ({"incident_outcomes": {"open": 1}}, "1 failure is not acknowledged yet."),
        (
            {
                "agents": (agent(1, "stopped", reason="timeout", exit_code="74"),),
                "statuses": {"stopped": 1, "unfenced": 1},
            },
            "1 of 2 agents stopped: broker 1 (timeout, exit code 74).",
        ),
        (
            {
                "agents": (agent(1, "stopped", reason="long " * 99, exit_code="74"),),
                "statuses": {"stopped": 1},
                "incidents": (incident(1, "/mnt/d2", outcome="timeout shutdown", errno="EIO"),),
            },
            "1 of 1 agent stopped: broker 1 (could not report /mnt/d2: EIO, exit code 74).",
        ),
        (
            {"data": Data(files=2, by_status={"torn": 1}, lines=720, lines_set_aside=720, bad_files=1)},
            "Data problems: 720 lines of 1 report file set aside.",
        ),
    ],
)
def test_the_summary_says_it_in_plain_words(more: dict[str, Any], words: str) -> None:
    assert words in sentences(healthy(**more))


def test_each_failure_says_what_a_guard_did_about_it_when_and_what_was_refused() -> None:
    done = (
        Deed(after_ms=0.4, means="cut", outcome="pending", reason="it did not return"),
        Deed(after_ms=104.0, means="recorded"),
        Deed(after_ms=310.0, means="evict", outcome="done", count=214),
        Deed(after_ms=2_000.0, means="kill", outcome="refused", reason="no CAP_KILL"),
        Deed(after_ms=2_001.0, means="crippled", reason="a fetcher is stuck"),
    )
    told = (
        "cut pending after 0.4 ms (it did not return), recorded after 104 ms, evict of 214 partitions after 310 ms, "
        "kill refused after 2 s (no CAP_KILL), crippled after 2 s (a fetcher is stuck)"
    )
    assert deeds(done) == told
    assert f"Guard: {told}" in part(index_page(report(50, incidents=(incident(deeds=done),))), "incidents")
    assert "and 18 more" in deeds([Deed(after_ms=n, means="report", outcome="failed") for n in range(30)])


def test_evidence_that_names_the_device_is_not_followed_by_it_again() -> None:
    one = incident(evidence="/mnt/d1 failed: EIO; device sdb 8:16", deeds=())
    assert evidence(one) == "/mnt/d1 failed: EIO; device sdb 8:16; serial Z1-1"


def test_a_guard_that_could_not_do_what_should_be_done_is_named_with_its_reason() -> None:
    stand = Stand(ts=NOW_MS, host="h", broker_id=4, state="crippled", reason="a fetcher is stuck")
    first = part(index_page(healthy(stands=(stand,))), "todo")
    assert "crippled: the broker as a whole" in first and "a fetcher is stuck" in first
    assert "kjbod guard history" in first


LEADERLESS = lack(2, without_leader=3, below_min_isr=4, reason="3 partitions have no leader")
SHORT = lack(3, below_min_isr=4, reason="4 partitions are below min.insync.replicas")
EVICTED = lack(4, below_replication_factor=12, reason="12 partitions have 2 of 3 replicas: the guard evicted broker 4")


def test_brokers_whose_partitions_lack_replicas_are_named_with_reason_and_command() -> None:
    first = part(index_page(report(50, lacks=(LEADERLESS, SHORT, EVICTED))), "todo")
    said = first[first.index("Partitions that lack replicas") : first.index("Agents that are silent")]
    assert '<span class="count">3</span>' in said and said.count('<li class="bad">') == 3
    for one, kind in ((LEADERLESS, "no leader"), (SHORT, "below min.insync.replicas"), (EVICTED, "fewer replicas")):
        assert f"<b>{kind}" in said and f"<br>{one.reason}" in said
        assert f"{one.host}</a></b><span>broker {one.broker_id} · rack r03 · cluster-a" in said
        assert (f"since {date_time(one.since_ms)[:19]} UTC" in said) == (one is not EVICTED)
    files = "-c /etc/kafka/server.properties --guard-config /etc/kafka/kjbod-guard.properties"
    assert said.count(f"kjbod status {files}") == 3
    lists = "kafka-topics.sh --bootstrap-server BROKER:9092 --describe --unavailable-partitions"
    assert said.count(lists) == 1 and lists in said[: said.index(SHORT.host)], "of the broker without a leader alone"


@pytest.mark.parametrize(
    ("lacks", "tone", "before", "after"),
    [
        ((LEADERLESS, EVICTED), "bad", "led", "silent"),
        ((SHORT,), "bad", "led", "silent"),
        ((EVICTED,), "warn", "stopped", "risk"),
    ],
)
def test_lost_redundancy_is_urgent_when_a_partition_has_no_leader_or_too_few_in_sync_replicas(
    lacks: tuple[Lack, ...], tone: str, before: str, after: str
) -> None:
    groups = todo.groups(report(100, lacks=lacks))
    keys = [group.key for group in groups]
    at = keys.index("lacks")
    assert keys.count("lacks") == 1 and (groups[at].tone, groups[at].total) == (tone, len(lacks))
    assert keys.index(before) < at < keys.index(after)


def test_lost_redundancy_is_in_the_json_document() -> None:
    made = report_json(report(50, lacks=(EVICTED,)))
    assert made["lacks"] == [
        {
            "since_ms": NOW_MS - 4 * 60_000,
            "fleet": "cluster-a",
            "rack": "r03",
            "host": host_name(4),
            "broker_id": 4,
            "below_replication_factor": 12,
            "below_min_isr": 0,
            "without_leader": 0,
            "reason": "12 partitions have 2 of 3 replicas: the guard evicted broker 4",
        }
    ]
    (group,) = [group for group in made["todo"] if group["key"] == "lacks"]
    assert [item["host"] for item in group["items"]] == [host_name(4)]
    assert report_json(report(50))["lacks"] == []


def test_guards_are_counted_by_cluster() -> None:
    rows = (
        Guards(fleet="a", guards=2, acting=1, acts=5, failed_acts=1, refusals=2, would=3),
        Guards(fleet="b", guards=1, acting=1, acts=1, failed_acts=0, refusals=0, would=0),
    )
    all_ = healthy(guards=rows)
    assert "3 guards, of which 2 act: 6 acts, 1 in vain, 2 refused, 3 only observed." in sentences(all_)
    assert "What guards did" in index_page(all_) and "What guards did" not in index_page(healthy())
    assert report_json(all_)["guards"][0]["acts"] == 5


@pytest.mark.parametrize(
    ("kind", "attrs", "words"),
    [
        ("guard_does", {"means": "cut"}, "guard: cut begins"),
        ("guard_done", {"means": "cut", "outcome": "done", "took_ms": "3"}, "guard: cut done in 3 ms"),
        ("guard_stands", {"state": "crippled", "reason": "stuck"}, "guard: crippled: stuck"),
        (
            "guard_lacks",
            {"without_leader": "1", "reason": "1 partition has no leader"},
            "guard: 1 partition has no leader",
        ),
        ("guard_lacks", {"without_leader": "0"}, "guard: no partition lacks a replica any more"),
        ("state_changed", {"previous": "online", "state": "suspect"}, "online → suspect"),
        ("agent_stopped", {"reason": "SIGTERM", "exit_code": "0"}, "stopped: SIGTERM, exit code 0"),
        ("a_kind_of_tomorrow", {}, "a kind of tomorrow"),
    ],
)
def test_the_timeline_tells_each_event_in_words(kind: str, attrs: dict[str, str], words: str) -> None:
    assert describe(Happening(ts=NOW_MS, kind=kind, attrs=attrs)) == words


# --- what changed


WHOLE = {"failed": True, "silent": True, "at_risk": True}
A, B, C = (("c", f"h{n}", n, "/d") for n in (1, 2, 3))


def old(**more: Any) -> Before:
    known: dict[str, Any] = {"now_ms": 1, "failed": {}, "silent": frozenset(), "at_risk": frozenset()}
    return Before(**(known | {"whole": WHOLE, "changes": Changes(counts={})} | more))


def seen(state: str, serial: str) -> Directory:
    return Directory(place=place(1, "/d", serial=serial), state=state)


def test_changes_tell_what_failed_was_replaced_recovered_fell_silent_and_came_back() -> None:
    agents = [("c", f"h{n}", n, "") for n in (7, 8)]
    was = old(failed={A: "S1", B: "S2"}, silent=frozenset({agents[0]}))
    now = changes(was, 2, {C: "S3"}, [agents[1]], [A], {A: seen("online", "S9"), B: seen("online", "S2")})
    kinds = ("failed", "replaced", "recovered", "silent", "heard", "at_risk")
    assert now.counts == dict.fromkeys(kinds, 1)
    assert [c.detail for c in now.listed[:3]] == ["disk S3", "S1 → S9", "disk S2"]


def test_what_was_cut_off_before_is_not_new_and_a_silent_disk_has_not_recovered() -> None:
    cut = old(whole={**WHOLE, "failed": False}, failed={A: "S1"})
    assert changes(cut, 2, {C: "S3"}, [], [], {A: seen("silent", "S1")}).counts == {}


def test_the_same_report_again_says_the_same_changes() -> None:
    first = report(50)
    text = json.dumps(report_json(dataclasses.replace(first, changes=Changes(since_ms=5, counts={"failed": 2}))))
    again = before(text)
    assert again is not None
    assert changes(again, NOW_MS, {}, [], [], {}) == Changes(since_ms=5, counts={"failed": 2})
    assert len(again.failed) == len(first.failed) and again.failed["cluster-a", host_name(LEADING), LEADING, "/mnt/d2"]


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"version": 2}', "[" * 99_999, '{"version": 2, "remembered": {"failed": [[1]]}}']
)
def test_an_earlier_report_that_is_none_is_as_no_report(text: str | None) -> None:
    assert before(text) is None


# --- files


def test_names_of_pages_are_safe_and_tell_all_apart() -> None:
    odd = ("../../etc/passwd", "a b", "a-b", "A-B", "\x00", "", "é", "x" * 300, "con:1", HOSTILE)
    names = [model_file(name) for name in odd]
    assert len({name.lower() for name in names}) == len(odd)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,80}\.html", name) for name in names)
    assert safe_name("a", None) != safe_name("a", "-") != safe_name("a")
    assert host_file("c1", "h", 1) != host_file("c2", "h", 1) != host_file(None, "h", 1)


def test_without_a_failure_a_rate_is_its_upper_limit_wherever_it_is_said() -> None:
    none = rate(10_000, 0)
    assert none.high_pct is not None
    limit = f"{none.high_pct:.2f}"
    found = reliability(whole=none, models=(RateOf(name="MODEL 0", rate=none),), firmwares=(), ages=(), sites=())
    html = index_page(report(20, insights=dataclasses.replace(insights(), reliability=found)))
    said = text_of(part(html, "afr"))
    assert f"0 failures in 10,000 drive-days of 12,000 drives, &lt; {limit} %." in said
    assert "0.00 %" not in text_of(html)
    assert re.search(rf"MODEL 0\s+10,000\s+0\s+&lt; {limit}\s", said), said
    assert re.search(rf"&lt; {limit} %\s+failure rate a year|failure rate a year\s+&lt; {limit} %", text_of(html))


def test_of_too_few_drive_days_there_are_counts_and_no_rate_wherever_it_is_said() -> None:
    few = RateOf(name="MODEL 7", rate=too_few(12, 3))
    found = reliability(
        whole=too_few(28, 7), models=(), hidden_models=(few,), firmwares=(few,), ages=(few,), sites=(few,), drives=22
    )
    made = report(20, insights=dataclasses.replace(insights(), reliability=found))
    html = index_page(made)
    said = text_of(part(html, "afr"))
    assert "7 failures in 28 drive-days of 22 drives, too few drive-days (28)." in said
    assert said.count("too few drive-days (12)") == 4
    tiles = text_of(html[: html.index("<nav>")])
    assert "too few drive-days (28)" in tiles and "%" not in tiles.partition("too few")[0].rpartition("full")[2]
    disks: dict[str, Any] = {"model": "MODEL 7", "directories": 1, "hosts": 1, "failed": 0}
    disks |= {"bytes_total": 100, "bytes_used": 50}
    assert "too few drive-days (12)" in text_of(model_page(ModelDisks(**disks), made))
    told = report_json(made)
    assert (told["drive_days"], told["failures"]) == (28, 7)
    assert [told[name] for name in ("afr_pct", "afr_low_pct", "afr_high_pct")] == [None] * 3
    assert (told["models"][0]["failures"], told["models"][0]["afr_pct"]) == (3, None)


def test_a_rate_of_the_whole_is_said_with_its_limits_in_tile_and_sentence() -> None:
    whole = rate(300_000, 15)
    assert whole.low_pct is not None and whole.high_pct is not None
    wanted = f"{whole.afr_pct:.2f} % ({whole.low_pct:.2f} to {whole.high_pct:.2f})"
    html = index_page(report(20))
    assert f"15 failures in 300,000 drive-days of 12,000 drives, {wanted}." in text_of(part(html, "afr"))
    assert text_of(html).count(wanted) == 2


def test_verdicts_that_the_disks_did_not_bear_out_are_told_apart_from_failures() -> None:
    borne_out, verdicts = rate(300_000, 15), rate(300_000, 17)
    model = RateOf(name="MODEL 1", rate=rate(50_000, 1), verdicts=rate(50_000, 3))
    found = reliability(whole=borne_out, verdicts=verdicts, models=(model,))
    made = report(20, insights=dataclasses.replace(insights(), reliability=found))
    said = text_of(part(index_page(made), "afr"))
    assert f"With 2 verdicts that the disk did not bear out: 17 failures, {rate_text(verdicts)}." in said
    assert f"3: {rate_text(rate(50_000, 3))}" in said
    told = report_json(made)
    assert (told["failures"], told["verdicts"]["failures"]) == (15, 17)
    assert (told["models"][0]["failures"], told["models"][0]["verdicts"]["failures"]) == (1, 3)


def test_serial_numbers_on_several_hosts_are_a_data_problem_in_summary_table_and_json() -> None:
    serial = SharedSerial(fleet="f", serial="QEMU-1", hosts=3, directories=6, days=2, examples=("h1", "h3"))
    one = report(20, data=Data(files=1, by_status={"ok": 1}, lines=9, shared_serials=1, shared_serial_list=(serial,)))
    assert "Data problems: 1 serial number on several hosts at once." in sentences(one)
    assert re.search(r"QEMU-1\s+f\s+3\s+6\s+2\s+h1, h3", text_of(part(index_page(one), "data")))
    assert report_json(one)["data"]["shared_serial_list"][0]["serial"] == "QEMU-1"
    none = report(20)
    assert not any("serial" in text for text in sentences(none)) and "QEMU" not in index_page(none)


def test_json_has_the_rate_of_the_whole_and_of_each_model_and_what_to_do() -> None:
    made = report_json(report(1_000))
    assert made["afr_low_pct"] < made["afr_pct"] < made["afr_high_pct"]
    assert (made["drive_days"], made["failures"]) == (300_000, 15)
    assert made["afr_pct"] == pytest.approx(15 / (300_000 / 365) * 100)
    assert [(m["model"], m["drive_days"], m["failures"]) for m in made["models"][:2]] == [
        ("MODEL 0", 50_000, 0),
        ("MODEL 1", 50_000, 1),
    ]
    assert [group["key"] for group in made["todo"]][:2] == ["led", "silent"]
    assert made["counts"]["states"]["failed"] == 12
    assert made["incidents"][0]["path"] == "/mnt/d4"
