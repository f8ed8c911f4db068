"""``scripts/universe``: stories by their seeds, and what is said of one in which a rule is broken."""

import re

import pytest

from scripts import universe_cli, universe_mutants
from tests.guard.mutants import MUTANTS, Mutant
from tests.guard.stories import Event, Plan
from tests.guard.universe import Universe


def test_one_story_is_told_with_all_that_happens_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert universe_cli.main(["--seed", "331", "--stories", "1"]) == 0
    *story, last = capsys.readouterr().out.splitlines()
    assert last.startswith("1 story from seed 331, 0 broken; ") and last.endswith("times real time")
    assert any("guard 1: broker serving" in line for line in story)


def test_it_ends_when_the_cores_have_handled_so_many_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert universe_cli.main(["--seed", "331", "--steps", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = re.match(r"1 story from seed 331, 0 broken; (\d+) steps, ", last)
    assert found is not None and int(found[1]) > 1


def test_a_rule_that_is_broken_is_said_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(universe: Universe) -> None:
        if universe.guarded and any("hangs" in one for one in universe.notes):
            universe.violations.append("7.00 data: all is lost")

    def plan(seed: int) -> Plan:
        events = (Event(1.0, "hang", (1, 0, 1_000)), Event(2.0, "widen", ()), Event(3.0, "stall", (500,)))
        return Plan(seed, {"brokers": 2, "rf": 2, "min_isr": 1}, events)

    monkeypatch.setattr(Universe, "check_data", check)
    monkeypatch.setattr(universe_cli, "plan", plan)
    assert universe_cli.main(["--seed", "5", "--stories", "2"]) == 1
    said = capsys.readouterr().out
    assert "seed 5: 7.00 data: all is lost" in said
    shortened = said.partition("shortened:")[2].partition("7.00 data")[0]
    assert "hang 1, 0, 1000" in shortened and "widen" not in shortened and "stall" not in shortened
    assert "again: scripts/universe --seed 6 --stories 1" in said
    assert "2 stories from seed 5, 2 broken; " in said


@pytest.mark.parametrize("time", ["", "10", "m", "0s", "1d", "1.5h"])
def test_a_time_that_is_none_is_one_line(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        universe_cli.main(["--for", time])
    assert ended.value.code == 2
    assert f"argument --for: {time}: give a time as 30s, 10m or 2h" in capsys.readouterr().err


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_the_rule_that_a_mutant_breaks_stands_once_in_the_guard(mutant: Mutant) -> None:
    compile(mutant.source(), mutant.module, "exec")


@pytest.mark.usefixtures("world")
def test_stories_find_a_rule_that_is_broken_on_purpose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(universe_mutants, "MUTANTS", [one for one in MUTANTS if one.name == "no patience"])
    assert universe_cli.main(["--mutants", "--for", "60s"]) == 0
    found, last = capsys.readouterr().out.splitlines()
    assert found.startswith("found  no patience: story ") and "against invariant 3: " in found
    assert last == "1 of 1 broken rules found"
