"""``kjbod metadata shell | dump`` take options of KIP-631's shell and of ``kafka-dump-log``, print what it does, and
refuse what they do not know."""

import json
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from scripts.rig.kafka import DUMP_LOG, KafkaKit, controller_properties
from scripts.rig.processes import Processes, free_port
from tests.cli.test_metadata import GOLDEN, SNAPSHOT, formatted, run
from tests.metadata.rich_image import rich_checkpoint

SEGMENT = GOLDEN / f"{0:020d}.log"


def usage(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error of arguments that are refused before anything is read."""
    assert cli.run(["metadata", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()[-1]


# ---------------------------------------------------------------- as kafka-dump-log


@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.parametrize("which", ["segment", "snapshot", "rich", "bootstrap"])
@pytest.mark.parametrize("options", [[], ["--skip-record-metadata"]], ids=["all", "payloads"])
def test_the_text_of_a_dump_is_that_of_kafka_dump_log(
    tmp_path: Path, kafka_kit: KafkaKit, capsys: pytest.CaptureFixture[str], which: str, options: list[str]
) -> None:
    made = {"rich": tmp_path / SNAPSHOT.name, "bootstrap": tmp_path / "bootstrap.checkpoint"}
    file = {"segment": SEGMENT, "snapshot": SNAPSHOT, **made}[which]
    if which in made:
        file.write_bytes(rich_checkpoint())
    theirs = kafka_kit.run(DUMP_LOG, "--cluster-metadata-decoder", *options, "--files", str(file)).stdout
    code, ours, _ = run(capsys, "dump", "--text", "--secrets", *options, "-s", str(file))
    assert (code, ours) == (0, theirs.splitlines())
    assert sum(line.startswith("baseOffset: ") for line in ours) > 1


def test_payloads_alone_are_what_is_in_the_records_and_no_control_record(capsys: pytest.CaptureFixture[str]) -> None:
    _, whole, _ = run(capsys, "dump", "-s", str(SNAPSHOT))
    code, payloads, _ = run(capsys, "dump", "--skip-record-metadata", "-s", str(SNAPSHOT))
    records = [json.loads(line) for line in whole]
    assert code == 0
    assert [json.loads(line) for line in payloads] == [
        {key: record[key] for key in ("type", "version", "data")} for record in records if "control" not in record
    ]


def test_the_text_of_a_directory_has_its_files_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = run(capsys, "dump", "--text", "-s", str(GOLDEN))
    assert [line for line in lines if line.startswith("Dumping ")] == [f"Dumping {SNAPSHOT}", f"Dumping {SEGMENT}"]


def test_a_narrowed_text_has_only_the_batches_of_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = run(capsys, "dump", "--text", "--type", "TOPIC_RECORD", "-s", str(SEGMENT))
    assert all('{"type":"TOPIC_RECORD",' in line for line in lines if line.startswith("| "))
    assert [line[:10] for line in lines[2:4]] == ["baseOffset", "| offset: "]
    assert lines[-1].startswith("| offset: ")


def test_a_record_that_cannot_be_decoded_is_told_in_text_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kjbod.metadata.batches import encode_batch

    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(encode_batch([b"\x01\x63\x00\x00"], 0, 1, 5))
    code, lines, _ = run(capsys, "dump", "--text", "-s", str(segment))
    assert code == 1
    assert " payload: Error at 0, skipping. " in lines[-1]


@pytest.mark.parametrize(
    ("name", "hint"), [("TOPC_RECORD", "did you mean TOPIC_RECORD?"), ("\x1b[2J", "there are ABORT_TRANSACTION_RECORD")]
)
def test_a_type_that_no_record_has_is_refused(capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    error = usage(capsys, "dump", "--type", name, "-s", str(SNAPSHOT))
    assert hint in error and "\x1b" not in error


@pytest.mark.parametrize("name", ["kraftvoters", "SnapshotHeader", "topic_record"])
def test_every_type_that_a_dump_shows_can_be_asked_for_in_any_case(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, lines, _ = run(capsys, "dump", "--type", name, "-s", str(SNAPSHOT))
    assert code == 0 and lines
    assert {str(r.get("type", r.get("control"))).upper() for r in map(json.loads, lines)} == {name.upper()}


def test_text_of_a_running_cluster_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--text needs --snapshot PATH" in usage(capsys, "dump", "--text", "-C", "localhost:9093")


# ---------------------------------------------------------------- options of the shell


@pytest.mark.parametrize("arguments", [["--nonsense", "ls"], ["ls", "-l"], ["-x"]])
def test_an_option_that_the_shell_does_not_know_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert "No such option" in usage(capsys, "shell", "-s", str(SNAPSHOT), *arguments)


@pytest.mark.parametrize("command", ["shell", "dump"])
def test_one_source_is_named(capsys: pytest.CaptureFixture[str], command: str) -> None:
    expected = "Error: give one of --snapshot PATH, --bootstrap-controller HOST:PORT and --config FILE"
    assert usage(capsys, command) == expected
    assert usage(capsys, command, "-s", "x", "-C", "h:1") == expected
    assert usage(capsys, command, "-c", "x", "-C", "h:1") == expected
    assert "expected id@host:port" in usage(capsys, command, "-C", "x@h:1")


def test_controllers_are_named_as_voters_or_by_a_file(
    tmp_path: Path, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    config, port = formatted(tmp_path)
    processes.kjbod("controller", "-c", str(config), name="controller").wait_for_event("controller.started")
    static = tmp_path / "static.properties"
    static.write_text(
        controller_properties(3000, port, tmp_path / "x").replace(
            f"controller.quorum.bootstrap.servers=127.0.0.1:{port}", f"controller.quorum.voters=3000@127.0.0.1:{port}"
        )
    )
    for source in (
        ["-C", f"127.0.0.1:{port}"],
        ["--controllers", f"3000@127.0.0.1:{port}"],
        ["-c", str(config)],
        ["--config", str(static)],
    ):
        assert run(capsys, "shell", *source, "ls", "/image/cluster/controllers") == (0, ["3000"], [])


def test_a_file_without_the_login_that_its_controllers_want_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "secured.properties"
    secured = "listener.security.protocol.map=CONTROLLER:SASL_SSL\n"
    config.write_text(controller_properties(3000, free_port(), tmp_path / "x") + secured)
    code, out, err = run(capsys, "shell", "-c", str(config), "ls")
    assert (code, out) == (78, [])
    assert "gssapi.sasl.jaas.config is missing: expected the login of GSSAPI (Kafka's default" in err[0]
