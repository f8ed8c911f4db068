"""``kjbod server`` runs what ``process.roles`` says."""

from pathlib import Path

import pytest

from kjbod.cli.main import run
from kjbod_agent import daemon
from kjbod_controller_stub import process
from tests.config.test_load import BROKER, CONTROLLER, KAFKAS_OWN


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was run, instead of running it."""
    found: list[str] = []

    def agent(path: Path, *halves: object, take_over: bool) -> int:
        found.append(("both" if halves else "agent") + (" that takes over" if take_over else ""))
        return 0

    def controller(path: Path) -> int:
        found.append("controller")
        return 0

    monkeypatch.setattr(daemon, "main", agent)
    monkeypatch.setattr(process, "main", controller)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [(BROKER, "agent"), (CONTROLLER, "controller"), (KAFKAS_OWN, "both")],
    ids=["broker", "controller", "both"],
)
def test_the_roles_of_the_file_decide_what_runs(tmp_path: Path, started: list[str], text: str, expected: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    assert run(["server", "-c", str(path)]) == 0
    assert started == [expected]


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [("server", BROKER, "agent"), ("server", KAFKAS_OWN, "both"), ("agent", BROKER, "agent")],
)
def test_a_person_permits_to_replace_kafka_at_the_start(
    tmp_path: Path, started: list[str], command: str, text: str, expected: str
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    assert run([command, "-c", str(path), "--take-over"]) == 0
    assert started == [f"{expected} that takes over"]


def test_a_controller_alone_takes_nothing_over(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(CONTROLLER)
    assert run(["server", "-c", str(path), "--take-over"]) == 2
    assert "--take-over is for a node with the role broker" in capsys.readouterr().err
    assert started == []


def test_mistakes_of_both_halves_and_of_the_file_are_told_at_once(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    wrong = {
        "num.partitions": "0",
        "advertised.listeners": "PLAINTEXT://localhost:9092",
        "controller.quorum.voters": "1@localhost:9093,2@localhost:9094",
        "create.topic.policy.class.name": "com.example.Policy",
        "kjbod.typo": "1",
    }
    path.write_text(KAFKAS_OWN + "".join(f"{key}={value}\n" for key, value in wrong.items()))
    assert run(["server", "-c", str(path)]) == 78
    told = capsys.readouterr().err
    for key in ("num.partitions=0", "controller.quorum.voters=1@", "create.topic.policy.class.name=", "kjbod.typo=1"):
        assert f"{path}: {key}" in told
    assert started == []


@pytest.mark.parametrize(("command", "role"), [("agent", "broker"), ("controller", "controller")])
def test_half_a_server_is_refused_in_one_line_that_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, role: str
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(KAFKAS_OWN)
    assert run([command, "-c", str(path)]) == 78
    assert capsys.readouterr().err == (
        f"kjbod: {path}: process.roles=broker,controller: expected {role}, which is what kjbod {command} runs; "
        "kjbod server runs both\n"
    )
