"""Inboxes that are followed, and rolled up as they grow."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli.main import run
from kjbod.fleet.command import Running, spark_errors
from kjbod.fleet.fleet_error import ClaimedError
from tests.fleet.conftest import Agent
from tests.fleet.parts import drawn

pytestmark = pytest.mark.usefixtures("with_spark")


class SeenAllError(Exception):
    """Ends what would go on."""


def agent(number: int) -> Agent:
    made = Agent(f"h{number}", number, f"run-{number}", dirs=1)
    for seq in range(3):
        made.sample(1_000 * seq, seq, made.paths[0])
    return made


def hosts_of(lake: Any) -> set[str]:
    return {row["host"] for row in lake.read("gold.dir_day", lake.state()).select("host").collect()}


@drawn("follow")
def test_an_inbox_that_is_followed_is_rolled_up_as_it_grows(spark: Any, tmp_path: Path) -> None:
    from kjbod.fleet.ingest.batch import one_at_a_time
    from kjbod.fleet.ingest.stream import ingest_into
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.rollup.run import rollup_into

    inbox, lake = tmp_path / "reports", open_lake(spark, (tmp_path / "lake").as_uri(), create=True)
    agent(1).write(inbox)

    def then() -> bool:
        assert one_at_a_time.locked(), "no batch is taken meanwhile"
        rollup_into(spark, lake, lambda _text: None)
        if (hosts := hosts_of(lake)) == {"h1"}:
            agent(2).write(inbox)
        elif hosts == {"h1", "h2"}:
            raise SeenAllError
        return True

    with pytest.raises(SeenAllError):
        ingest_into(spark, lake, [str(inbox)], lambda _text: None, every_s=0.2, then=then)
    assert not one_at_a_time.locked()
    assert lake.state().touched == {}


def test_a_rollup_that_runs_elsewhere_is_waited_for(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kjbod.fleet.ingest import command

    calls = []

    def refused(*_: Any, **__: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        raise ClaimedError("kjbod fleet rollup runs already, process 7")

    monkeypatch.setattr(Running, "session", shared_session(spark))
    monkeypatch.setattr(command, "rollup_into", refused)
    (tmp_path / "reports").mkdir()
    places = ["--lake", str(tmp_path / "lake"), "--reports", str(tmp_path / "reports")]
    assert run(["fleet", "ingest", *places, "--rollup", "--follow", "--every", "0.2"]) == 130
    assert capsys.readouterr().out.count("rolled up later: kjbod fleet rollup runs already, process 7") == 1


def shared_session(spark: Any) -> Any:
    @contextlib.contextmanager
    def shared(_running: Running, _input_bytes: int = 0) -> Iterator[Any]:
        with spark_errors():
            yield spark

    return shared


def test_one_command_takes_reports_and_rolls_them_up(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kjbod.fleet.ingest import command
    from kjbod.fleet.lake.lake import open_lake

    monkeypatch.setattr(Running, "session", shared_session(spark))
    inbox, root = tmp_path / "reports", tmp_path / "lake"
    agent(1).write(inbox)
    words = ["fleet", "ingest", "--lake", str(root), "--reports", str(inbox), "--rollup"]

    def refused(*_: Any, **__: Any) -> Any:
        raise ClaimedError("kjbod fleet rollup runs already")

    with monkeypatch.context() as patch:
        patch.setattr(command, "rollup_into", refused)
        assert run(words) == 2
    told = capsys.readouterr()
    assert "3 samples and 0 events" in told.out and "rollup runs already" in told.err
    assert run(words) == 0
    told = capsys.readouterr()
    assert "nothing new\n" in told.out and "rolled up 1 hour of 1 day" in told.out
    lake = open_lake(spark, str(root))
    assert hosts_of(lake) == {"h1"} and lake.state().touched == {}
