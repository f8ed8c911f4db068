"""What the demonstration prints is readable on any terminal."""

import pytest

from scripts.story.narrate import Narrator


def test_long_lines_are_broken_under_their_text_and_paths_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Narrator()
    tell.hide("/tmp/kjbod-demo-x/")
    tell.event(12.4, "broker 1", "stops: " + "/tmp/kjbod-demo-x/disks/d1 " * 15)
    tell.event(None, "broker 1", "disk 1 dies")
    tell.say("  " + "word " * 60)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert not any("/tmp" in line for line in lines)
    first, second = lines[:2]
    fault = next(line for line in lines if "fault" in line)
    assert first.index("stops") == len(second) - len(second.lstrip()) == fault.index("disk 1")
    assert {len(line) - len(line.lstrip()) for line in lines[-3:]} == {6}


def test_a_line_to_copy_is_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    command = "scripts/demo --stop --out " + "/a" * 100
    Narrator().show(command)
    assert capsys.readouterr().out.strip() == command


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_lines_fit_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    tell = Narrator()
    long = "word " * 60
    tell.title(long)
    tell.step(long)
    tell.say(long)
    tell.event(12.4, "broker 1", long)
    tell.claim(long)
    widest = max(map(len, capsys.readouterr().out.splitlines()))
    assert min(columns, 120) - 5 <= widest <= min(columns, 120)
