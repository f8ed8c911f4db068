"""``kjbod top``: what the screen shows of two answers, what keys do, and that a real terminal shows it."""

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli.top_screen import HELP, Line, Style, View, press, quantile_ms, screen
from scripts.rig.processes import kjbod_command
from tests.cli.fake_agent import configure, fake_agent

HISTORY = [f"2026-11-29 00:00:{number:02} does cut" for number in range(40)]


def row(path: str = "/mnt/d1/kafka", **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "verdict": "online",
        "since_ms": 1_795_000_000_000,
        "kafka": "online",
        "total_bytes": 100,
        "usable_bytes": 25,
        "leaders": 3,
        "replicas": 9,
        "device": "sdb 8:16",
        "serial": "S1",
        "error": None,
        "probe_histogram": {"40": 90, "60": 10},
        "busy_ms": 1_000,
        **more,
    }


def answer(*rows: dict[str, Any], level: str = "ok", text: str = "OK: all is well") -> dict[str, Any]:
    return {
        "role": "guard",
        "mode": "act",
        "node": 1,
        "version": "0.2.0",
        "broker": {"pid": 77},
        "evicted": 0,
        "condition": {"level": level, "text": text},
        "directories": list(rows) or [row()],
    }


def shown(
    now: dict[str, Any], before: dict[str, Any] | None = None, view: View | None = None, **size: int
) -> list[Line]:
    return screen(now, before, 60_000, view or View(), HISTORY, size.get("columns", 120), size.get("rows", 20))


def test_a_screen_has_the_verdict_a_line_for_each_directory_and_the_newest_history() -> None:
    before = answer(row(probe_histogram={"40": 1}, busy_ms=400))
    lines = shown(answer(), before)
    assert lines[0] == Line("OK: all is well", Style.GOOD)
    assert lines[1].text == "node 1, guard 0.2.0, mode act, broker 77, evicted 0".removesuffix(", evicted 0")
    assert lines[3].text.split() == [
        *("STATE", "SINCE", "KAFKA", "P50", "P99", "BUSY", "USED", "LEADERS", "REPLICAS", "DEVICE", "DIRECTORY"),
    ]
    assert lines[4].text.split() == [
        *("online", "11-18", "11:06", "online", "1.2", "ms", "39.0", "ms", "1", "%", "75", "%", "3", "9", "sdb"),
        "/mnt/d1/kafka",
    ]
    assert lines[-1].text == HELP
    assert lines[-2].text == HISTORY[-1]
    assert len(lines) == 20


def test_without_an_earlier_answer_nothing_is_made_up() -> None:
    (line,) = [line.text for line in shown(answer(row(probe_histogram=None, leaders=None))) if "/mnt/d1" in line.text]
    assert line.split()[4:8] == ["-", "-", "-", "75"]
    assert "?" in line


def test_a_directory_that_is_not_healthy_stands_out() -> None:
    states = ("failed", "unreadable", "slow", "held", "suspect", "unwatched")
    rows = [row("/mnt/first"), *(row(f"/mnt/{state}", verdict=state) for state in states)]
    found = {line.text.split()[0]: line.style for line in shown(answer(*rows, level="critical"))[5:11]}
    assert {state for state, style in found.items() if style is Style.BAD} == {"failed", "unreadable"}
    assert {state for state, style in found.items() if style is Style.WARNING} == set(states[2:])


def test_keys_choose_show_and_end() -> None:
    view: View | None = View()
    for key, expected in (
        ("up", View()),
        ("down", View(1)),
        ("down", View(1)),
        ("enter", View(1, details=True)),
        ("x", View(1, details=True)),
        ("h", View(1, history=True)),
        ("h", View(1)),
        ("q", None),
    ):
        assert view is not None
        view = press(view, key, 2)
        assert view == expected
    assert press(View(), "down", 0) == View()


def test_details_have_the_serial_number_and_the_reason() -> None:
    bad = row("/mnt/d2/kafka", verdict="failed", error="EIO at read", serial="S2", would="cut", waits_for="patience")
    texts = [line.text for line in shown(answer(row(), bad), view=View(1, details=True))]
    assert "serial number  S2" in texts
    assert "evidence       EIO at read" in texts
    assert "waits for      patience" in texts


@pytest.mark.parametrize("columns", [10, 40, 80, 300])
@pytest.mark.parametrize("rows", [1, 2, 5, 24])
def test_a_screen_fits_its_terminal_and_obeys_no_name(columns: int, rows: int) -> None:
    hostile = answer(*(row(f"/mnt/\x1b[2J\n{number}") for number in range(30)), text="\x1b]0;x\x07" * 90)
    for view in (View(), View(29, details=True), View(history=True)):
        lines = shown(hostile, hostile, view, columns=columns, rows=rows)
        assert len(lines) <= rows
        assert all(line.text.isprintable() and len(line.text) <= columns for line in lines)


def test_quantiles_are_those_of_the_probes_between_two_answers() -> None:
    assert quantile_ms({}, {}, 0.5) is None
    assert quantile_ms({"40": 5}, {"40": 5}, 0.5) is None
    assert quantile_ms({"40": 100, "80": 1}, {"40": 99}, 0.99) == pytest.approx(2 ** (81 / 4) / 1000)
    assert quantile_ms({"40": 100, "80": 1}, {}, 0.5) == pytest.approx(2 ** (41 / 4) / 1000)


def test_a_terminal_shows_it_and_q_ends_it(world: None, tmp_path: Path) -> None:
    config = configure(tmp_path)
    with fake_agent(tmp_path, status=answer()):
        master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
        command = [kjbod_command(), "top", "-c", str(config)]
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as running:
            os.close(slave)
            text = b""
            deadline = time.monotonic() + 30
            while b"/mnt/d1/kafka" not in text and time.monotonic() < deadline:
                if select.select([master], [], [], 1)[0]:
                    text += os.read(master, 65536)
            os.write(master, b"q")
            assert running.wait(30) == 0
        os.close(master)
    assert "OK: all is well" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode())


def test_a_pipe_is_told_to_use_status(world: None, tmp_path: Path) -> None:
    done = subprocess.run(
        [kjbod_command(), "top", "-c", str(configure(tmp_path))], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        "kjbod: kjbod top needs a terminal: kjbod status prints the same once\n",
    )
