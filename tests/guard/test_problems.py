"""Problems of a guard: a stable code for each, and the lines that lead ``kjbod status``."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from kjbod.cli.status import guard_lines
from kjbod.cli.status_lead import NEXT, STEPS_MAX
from kjbod.output import cells
from kjbod.problems import TEXTS, Code, Problem
from kjbod_guard.condition import STATE_CODES, condition
from kjbod_guard.picture import Picture
from kjbod_host.condition import Condition, Level
from kjbod_host.health.state import Cause
from tests.guard.test_answers import NOW, ROW, UNREAD, answer
from tests.guard.test_words import CONDITIONS
from tests.pages.markdown import ROOT

ONE = {"/d1": "failed", "/d2": "online"}


def codes(states: dict[str, str], **told: Any) -> list[tuple[str, str | None]]:
    found = condition(states, **{"unnoticed": (), "unbound": None, "blind": None, **told})
    return [(one.code, one.path) for one in found.problems]


@pytest.mark.parametrize(
    ("states", "told", "expected"),
    [
        ({"/d1": "online"}, {}, []),
        (ONE, {"unnoticed": ["/d1"], "causes": {"/d1": Cause.HUNG}}, [("DISK_HUNG", "/d1")]),
        (ONE, {"unnoticed": ["/d1"], "causes": {"/d1": Cause.HELD}}, [("DISK_HUNG", "/d1")]),
        (ONE, {"unnoticed": ["/d1"], "causes": {"/d1": Cause.ERROR}}, [("DISK_FAILED", "/d1")]),
        (ONE, {"uncertain": ["/d1"], "causes": {"/d1": Cause.SILENT}}, [("DISK_HUNG", "/d1")]),
        (ONE, {"offline": ["/d1"], "causes": {"/d1": Cause.MOUNT}}, [("DISK_FAILED", "/d1")]),
        (ONE, {"answering": ["/d1"], "causes": {"/d1": Cause.HUNG}}, [("DISK_RECOVERING", "/d1")]),
        ({"/d1": "online"}, {"offline": ["/d1"]}, [("DISK_OFFLINE", "/d1")]),
        ({"/d1": "unwatched", "/d2": "online"}, {"helpless": ["/d1"]}, [("DISK_UNREADABLE", "/d1")]),
        ({"/d1": "unwatched"}, {}, [("NO_DISK_WATCHED", None), ("DISK_UNWATCHED", "/d1")]),
        (
            {"/d3": "slow", "/d1": "slow", "/d2": "full", "/d4": "held", "/d5": "suspect"},
            {},
            [
                *(("DISK_FULL", "/d2"), ("DISK_HELD", "/d4"), ("DISK_SLOW", "/d1"), ("DISK_SLOW", "/d3")),
                ("DISK_SUSPECT", "/d5"),
            ],
        ),
        ({}, {"lost": "it is stuck", "is_stuck": True}, [("BROKER_STUCK", None)]),
        ({}, {"lost": "it is lost"}, [("BROKER_LOST", None)]),
        ({}, {"unbound": "none", "blind": "TLS"}, [("BROKER_NOT_FOUND", None), ("METADATA_NOT_FOLLOWED", None)]),
        ({}, {"unable": ["a", "b"]}, [("RIGHTS_MISSING", None), ("RIGHTS_MISSING", None)]),
        (
            ONE,
            {"redundancy": [(Code.REPLICAS_EVICTED, "e"), (Code.BELOW_MIN_ISR, "b")], "offline": ["/d1"]},
            [("BELOW_MIN_ISR", None), ("REPLICAS_EVICTED", None), ("DISK_FAILED", "/d1")],
        ),
        (
            {},
            {"left": "l", "unwritten": "u", "certificates": ["c"], "unknown": ["k"]},
            [("KAFKA_NEWER", None), ("NOT_UNDONE", None), ("JOURNAL_NOT_WRITTEN", None), ("CERTIFICATE", None)],
        ),
    ],
)
def test_each_condition_has_its_code_and_the_worst_comes_first(
    states: dict[str, str], told: dict[str, Any], expected: list[tuple[str, str | None]]
) -> None:
    assert codes(states, **told) == expected


@pytest.mark.parametrize("situation", CONDITIONS)
def test_a_guard_that_is_not_well_reports_a_problem_and_one_that_is_well_reports_none(situation: str) -> None:
    states, told, _ = CONDITIONS[situation]
    found = condition(states, **{"unnoticed": (), "unbound": None, "blind": None, **told})
    assert bool(found.problems) == (found.level is not Level.OK)
    assert all(one.text and "{" not in one.text for one in found.problems)


def test_each_state_and_each_code_is_known_everywhere() -> None:
    assert set(NEXT) == set(Code)
    assert set(STATE_CODES.values()) <= TEXTS.keys()
    page = (ROOT / "agent" / "kjbod_guard" / "README.md").read_text()
    section = page.partition("### Problems in `kjbod status`")[2].partition("\n#")[0]
    assert re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE) == list(Code), "the page has each code once"


# ------------------------------------------------------------------------------------------------------------ the lines


def picture(*problems: Problem, **changes: Any) -> Picture:
    found = Condition(Level.CRITICAL, tuple(one.text for one in problems), "well", problems)
    return replace(NOW, condition=found, **changes)


HUNG = Problem(Code.DISK_HUNG, "/mnt/d1 does not answer, and Kafka has not noticed", "/mnt/d1")
SHORT = Problem(Code.BELOW_MIN_ISR, "3 partitions are below min.insync.replicas")
RIGHTS = Problem(Code.RIGHTS_MISSING, "the guard lacks ALTER on the cluster")
OFFLINE = [ROW | {"kafka": "offline", "would": "nothing"}]


async def test_a_status_leads_with_the_verdict_the_problems_and_the_next_commands() -> None:
    now = picture(HUNG, SHORT, RIGHTS, mode="act", directories=OFFLINE)
    lines = guard_lines(await answer(now), None)
    assert lines[: lines.index("") + 1] == [
        "CRITICAL: /mnt/d1 does not answer, and Kafka has not noticed; 3 partitions are below "
        "min.insync.replicas; the guard lacks ALTER on the cluster",
        "  DISK_HUNG              /mnt/d1 does not answer, and Kafka has not noticed",
        "  BELOW_MIN_ISR          3 partitions are below min.insync.replicas",
        "  RIGHTS_MISSING         the guard lacks ALTER on the cluster",
        "NEXT:",
        "   1. kjbod guard history  # what the guard did, or why it waits",
        "   2. kjbod guard replace /mnt/d1  # step by step, with disk /dev/sdb, serial S1",
        "   3. kafka-topics.sh --bootstrap-server HOST:PORT --describe --under-min-isr-partitions",
        "      # bring back a replica of these partitions",
        "   4. kjbod guard check  # what is missing, with the commands that add it",
        "",
    ]


async def test_a_guard_that_observes_leads_to_the_unit_of_the_broker_and_never_to_a_release() -> None:
    text = "\n".join(guard_lines(await answer(picture(HUNG)), None))
    assert "2. systemctl status 77" in text and "systemctl stop --no-block UNIT" in text
    assert "then replace disk /dev/sdb, serial S1" in text and "guard release" not in text


async def test_all_other_lines_stay_and_a_healthy_guard_has_no_others() -> None:
    well = replace(NOW, condition=Condition(Level.OK, (), "watching, 2 directories online"))
    plain = guard_lines(await answer(well), None)
    assert plain[0] == "OK: watching, 2 directories online" and plain[1].startswith("guard ")
    troubled = guard_lines(await answer(picture(HUNG)), None)
    assert troubled[troubled.index("") + 1 :] == plain[1:]


async def test_a_guard_before_this_release_reports_no_problems_and_its_verdict_is_whole() -> None:
    old = await answer(picture(HUNG, SHORT, RIGHTS))
    del old["problems"]
    lines = guard_lines(old, 40)
    assert lines[0].endswith("the guard lacks ALTER on the cluster") and lines[1].startswith("guard ")


async def test_a_code_of_a_newer_guard_is_shown() -> None:
    newer = await answer(picture(HUNG))
    newer["problems"].append({"code": "DISK_ON_FIRE", "text": "/mnt/d1 burns", "path": "/mnt/d1"})
    assert any(line.startswith("  DISK_ON_FIRE ") for line in guard_lines(newer, None))


async def test_the_options_that_were_typed_are_in_each_command_of_kjbod() -> None:
    told = await answer(picture(HUNG, RIGHTS, mode="act", directories=OFFLINE))
    lines = [line.partition("#")[0] for line in guard_lines(told, None, options=" -c /etc/a --guard-config /etc/b")]
    commands = [line for line in lines if ". kjbod " in line]
    assert len(commands) == 3 and all(" -c /etc/a --guard-config /etc/b" in line for line in commands)
    assert commands[1].strip().endswith("--guard-config /etc/b /mnt/d1")


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("mode", ["observe", "act"])
@pytest.mark.parametrize("columns", [None, 80, 200])
async def test_each_code_leads_to_a_next_step_and_only_commands_are_wider_than_80_columns(
    code: Code, mode: str, columns: int | None
) -> None:
    text = " ".join(["a reason of many words that says what is wrong and since when"] * 4)
    for row in (ROW, OFFLINE[0], UNREAD | {"kafka": "unknown"}):
        for pid in (None, 77):
            now = picture(Problem(code, text, "/mnt/d1"), mode=mode, directories=[row], pid=pid)
            told = guard_lines(await answer(now), columns)
            lines = told[1 : told.index("")]
            assert "NEXT:" in lines and lines[-1] != "NEXT:"
            assert [one for one in lines if cells(one) > 80 and not re.match(r" +\d+\. kafka-", one)] == []
            assert columns is None or cells(told[0]) <= 80
            assert "None" not in "".join(lines) and "{" not in "".join(lines)


async def test_a_path_of_others_is_one_word_for_a_shell_and_nothing_that_a_terminal_obeys() -> None:
    path = "/mnt/d 1; reboot\x1b[2J\n"
    row = OFFLINE[0] | {"path": path, "serial": "S\x1b1", "device": "sd$(b) 8:16"}
    problem = Problem(Code.DISK_FAILED, f"{path} has failed", path)
    slow = Problem(Code.DISK_SLOW, f"{path} is slow", path)
    told = await answer(picture(problem, slow, mode="act", directories=[row]))
    lines = guard_lines(told, None)
    assert all(line.isprintable() for line in lines)
    assert any("kjbod guard replace '/mnt/d 1; reboot" in line for line in lines)
    assert any("smartctl -a '/dev/sd$(b)'" in line for line in lines)


async def test_a_dozen_dead_disks_are_a_dozen_lines_and_not_more_commands_than_a_screen_has() -> None:
    rows = [OFFLINE[0] | {"path": f"/mnt/d{number}", "serial": f"S{number}"} for number in range(20)]
    problems = [Problem(Code.DISK_FAILED, f"{row['path']} has failed", str(row["path"])) for row in rows]
    lines = guard_lines(await answer(picture(*problems, mode="act", directories=rows)), None)
    assert sum(line.startswith("  DISK_FAILED ") for line in lines) == 20
    assert sum(". kjbod guard replace /mnt/d" in line for line in lines) == STEPS_MAX - 1
    assert any("9 more commands" in line for line in lines)
    assert sum("kjbod guard history" in line for line in lines) == 1, "each command once"


async def test_colour_is_in_verdict_and_codes_alone() -> None:
    told = await answer(picture(HUNG))
    plain, coloured = guard_lines(told, None), guard_lines(told, None, colour=True)
    assert coloured[0].startswith("\x1b[1;31mCRITICAL\x1b[0m: ") and "\x1b[1mDISK_HUNG" in coloured[1]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain
    assert not any("\x1b" in line for line in plain)


async def test_json_has_the_problems_with_code_text_and_path() -> None:
    told = await answer(picture(HUNG, SHORT))
    assert told["problems"] == [
        {"code": "DISK_HUNG", "text": HUNG.text, "path": "/mnt/d1"},
        {"code": "BELOW_MIN_ISR", "text": SHORT.text, "path": None},
    ]
