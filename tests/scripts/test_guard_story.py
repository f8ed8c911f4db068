"""What the guard's demonstration prints is true, and readable in 80 columns."""

from typing import Any

import pytest

from scripts.rig.pauses import CLASSES, FOLLOWED_BAD, LED_BAD, LED_HEALTHY, Pause
from scripts.rig.stuck_threads import Stuck
from scripts.story.guard_words import Part, live_head, live_row, longest, side_by_side, silences, stuck_line, told
from scripts.story.narrate import Narrator

BAD = "/mnt/d2"


def test_a_class_is_silent_as_long_as_its_worst_partition() -> None:
    acks = {0: [100.0, 900.0], 1: [100.0], 2: [950.0], 3: []}
    classes = {0: LED_BAD, 1: LED_BAD, 2: LED_HEALTHY, 3: FOLLOWED_BAD}
    assert silences(acks, classes, since_ms=50, now_ms=1000) == {LED_BAD: 900, LED_HEALTHY: 50, FOLLOWED_BAD: 950}


def test_a_live_row_says_for_how_long_what_stands_under_its_head() -> None:
    silent = dict.fromkeys(CLASSES, 40.0) | {FOLLOWED_BAD: 11_400.0}
    head, row = live_head(), live_row(12, silent)
    assert row.split() == ["+12", "s", "written", "STANDS", "11", "s", "written", "written"]
    assert row.index("STANDS") == head.index("followed there")
    assert row.index("written") == head.index("led, bad disk")
    assert max(len(head), len(live_row(99, dict.fromkeys(CLASSES, 99_000.0)))) <= 76


def test_what_stands_is_red_where_there_are_colours_and_plain_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = live_row(1, dict.fromkeys(CLASSES, 40.0) | {LED_BAD: 2_000.0})
    Narrator().live(row)
    assert capsys.readouterr().out == f"    {row}\n"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Narrator().live(row)
    assert "\033[31mSTANDS 2 s\033[0m" in capsys.readouterr().out


SAID: list[tuple[dict[str, Any], str | None]] = [
    (
        {"event": "directory.verdict", "state": "failed", "evidence": {"text": f"{BAD} failed: read for 1.9 s"}},
        "verdict: failed: read for 1.9 s",
    ),
    ({"event": "directory.verdict", "state": "slow", "evidence": {"text": "slow"}}, None),
    ({"event": "guard.would", "would": "cut", "text": f"disk {BAD} hung; would cut"}, f"disk {BAD} hung; would cut"),
    ({"event": "guard.would", "would": "nothing", "text": "nothing to do"}, None),
    ({"event": "guard.does", "means": "cut"}, None),
    ({"event": "guard.done", "means": "cut", "outcome": "done", "took_ms": 18, "reason": ""}, "cut: done in 18 ms"),
    (
        {"event": "guard.done", "means": "cut", "outcome": "refused", "took_ms": 1, "reason": "swap is there"},
        "cut: refused in 1 ms: swap is there",
    ),
    ({"event": "guard.kafka.view", "view": "offline"}, "Kafka's metadata have the directory offline"),
    ({"event": "guard.broker", "path": None, "state": "serving", "reason": ""}, None),
    ({"event": "guard.broker", "path": None, "state": "fencing", "reason": "stuck"}, "broker: fencing: stuck"),
    ({"event": "metadata.fetched"}, None),
]


@pytest.mark.parametrize(("line", "text"), SAID)
def test_the_guards_log_is_told_where_it_says_something_of_the_disk(line: dict[str, Any], text: str | None) -> None:
    assert told({"path": BAD, **line}, BAD) == text
    if line.get("path", BAD) is not None:
        assert told({"path": "/mnt/d9", **line}, BAD) is None


def test_stuck_threads_are_named_once_with_their_files() -> None:
    fetcher = Stuck("ReplicaFetcherT", "jbd2_log_wait_commit", "1", f"orders-3/{0:020}.log")
    stuck = [fetcher, fetcher, Stuck("kafka-scheduler", "folio_wait", None, ""), Stuck("data", "x", "0", "d1/a.tmp")]
    assert stuck_line(stuck).endswith(": ReplicaFetcherT (orders-3), data (d1/a.tmp), kafka-scheduler")
    assert stuck_line([]).endswith(": none")


def test_both_hangs_stand_side_by_side_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    endless = dict.fromkeys(CLASSES, Pause(11_240.0, 800.0, False)) | {LED_HEALTHY: Pause(92.4, 100.0, True)}
    alone = Part(endless, None, kept=True, watched_ms=12_004)
    guarded = Part(dict.fromkeys(CLASSES, Pause(287.0, 1900.0, True)), 2087, kept=True, watched_ms=12_010)
    assert longest(alone) == (
        "longest pauses: led on the bad disk no end in 11.2 s, followed there no end in 11.2 s; "
        "led on the other disks 92 ms, followed there no end in 11.2 s"
    )
    Narrator().table(*side_by_side(alone, guarded))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    told_of = {line[4:32].strip(): line[32:].split("  ") for line in lines}
    cells = {name: [cell.strip() for cell in row if cell.strip()] for name, row in told_of.items()}
    assert cells["led on the bad disk"] == ["no end in 11.2 s", "287 ms"]
    assert cells["led on its other disks"] == ["92 ms", "287 ms"]
    assert cells["Kafka knows of the disk"] == ["not in 12 s", "after 2.1 s"]
    assert cells["the broker"] == ["kept, unfenced", "kept, unfenced"]
