"""``kjbod metadata shell | dump``: on files, on running controllers of either kind, from a terminal, on nonsense."""

import base64
import json
import os
import pty
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from kjbod.cli import main as cli
from kjbod.errors import KjbodError
from kjbod.metadata import live
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.image import BROKER, TOPIC
from kjbod.metadata.records import ConfigRecord, UserScramCredentialRecord
from kjbod.metadata.secrets import is_password
from kjbod_controller_stub.configs.node_configs import node_keys, rate_keys
from scripts.rig.cluster import format_node
from scripts.rig.kafka import KafkaKit, controller_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port, kjbod_command, wait_until
from tests.metadata.rich_image import rich_checkpoint
from tests.preloading import run_kjbod

GOLDEN = Path(__file__).parents[1] / "data/metadata-log/__cluster_metadata-0"
SNAPSHOT = GOLDEN / f"{488:020d}-{1:010d}.checkpoint"
CLUSTER_ID = "kjbodMetadataShell0AAA"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str]]:
    """Exit code, lines of standard output, lines of standard error."""
    code = cli.run(["metadata", *arguments])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err.splitlines()


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A log directory of a real controller."""
    shutil.copytree(GOLDEN, tmp_path / "log/__cluster_metadata-0")
    return tmp_path / "log"


# ---------------------------------------------------------------- files


def test_a_log_directory_is_its_newest_snapshot_and_the_log_behind_it(
    golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_log_dir = run(capsys, "shell", "-s", str(golden), "tree", "/image")
    of_directory = run(capsys, "shell", "-s", str(golden / "__cluster_metadata-0"), "tree", "/image")
    of_segment = run(capsys, "shell", "-s", str(golden / f"__cluster_metadata-0/{0:020d}.log"), "tree", "/image")
    assert of_log_dir == of_directory == of_segment
    assert of_log_dir[0] == 0
    assert "  offset 755, epoch 2, time 2026-11-20T18:37:40.815Z[UTC]" in of_log_dir[1]


def test_a_missing_node_is_told_and_makes_the_exit_code(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "shell", "-s", str(golden), "cat", "/image/topics/byName/events/name", "/nope")
    assert (code, out, err) == (1, ["events"], ["kjbod: cat: /nope: No such file or directory."])


def test_what_is_being_written_is_left_out(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = golden / f"__cluster_metadata-0/{0:020d}.log"
    whole = run(capsys, "dump", "-s", str(golden))[1]
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    code, cut, _ = run(capsys, "dump", "-s", str(golden))
    assert code == 0
    assert cut == whole[: len(cut)]
    assert 0 < len(whole) - len(cut) < 5


@pytest.mark.usefixtures("world")
def test_a_dump_has_the_snapshot_and_only_what_follows_it(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "dump", "-s", str(golden))
    records = [json.loads(line) for line in out]
    assert code == 0
    assert {record["file"] for record in records} == {SNAPSHOT.name, f"{0:020d}.log"}
    assert min(record["offset"] for record in records if record["file"].endswith(".log")) == 488
    assert records[0]["control"] == "SnapshotHeader"


def test_a_dump_can_be_narrowed(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = str(golden / f"__cluster_metadata-0/{0:020d}.log")
    code, out, _ = run(capsys, "dump", "-s", segment, "--type", "topic_record", "--from-offset", "1")
    records = [json.loads(line) for line in out]
    assert code == 0
    assert {record["type"] for record in records} == {"TOPIC_RECORD"}
    first = records[0]["offset"]
    _, out, _ = run(capsys, "dump", "-s", segment, "--from-offset", str(first), "--to-offset", str(first + 1))
    assert [json.loads(line) for line in out] == records[:1]


def test_a_record_of_the_future_is_told_and_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kjbod.metadata.batches import encode_batch
    from kjbod.metadata.records import NoOpRecord, encode_record

    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(encode_batch([b"\x01\x63\x00\x00", encode_record(NoOpRecord())], 0, 1, 5))
    code, out, _ = run(capsys, "dump", "-s", str(segment))
    assert code == 1
    assert "metadata record 99 version 0 is not known" in json.loads(out[0])["error"]
    assert json.loads(out[1])["type"] == "NO_OP_RECORD"
    code, out, err = run(capsys, "shell", "-s", str(segment), "ls")
    assert (code, out, len(err)) == (0, ["image", "local"], 1)
    assert "records that kjbod does not know (type 99 version 0): upgrade kjbod" in err[0]


@pytest.mark.parametrize("command", [("shell", "ls"), ("dump",)])
def test_nonsense_is_one_line(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x")
    segment = golden / f"__cluster_metadata-0/{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    (tmp_path / "bad.log").write_bytes(data)
    os.mkfifo(tmp_path / "fifo.log")
    os.mkfifo(tmp_path / "fifo.checkpoint")
    for path, reason in (
        ("nowhere", "there is no"),
        ("empty", "there is no metadata log in"),
        ("text.txt", "is neither a .log nor a .checkpoint file, nor a directory"),
        ("bad.log", "is corrupt at position"),
        ("fifo.log", "Not a regular file"),
        ("fifo.checkpoint", "Not a regular file"),
    ):
        code, out, err = run(capsys, command[0], "-s", str(tmp_path / path), *command[1:])
        assert code == 1
        assert len(err) == 1
        assert reason in err[0]
        assert path in err[0]
        assert command[0] == "dump" or not out


def test_a_segment_without_the_snapshot_before_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kjbod.metadata.batches import encode_batch
    from kjbod.metadata.records import NoOpRecord, encode_record

    segment = tmp_path / f"{70:020d}.log"
    segment.write_bytes(encode_batch([encode_record(NoOpRecord())], 70, 1, 5))
    code, _, err = run(capsys, "shell", "-s", str(segment), "ls")
    assert code == 1
    assert err == [
        f"kjbod: {segment} goes on at offset 70, and what is known ends at -1: give the directory that has the "
        "snapshot before it"
    ]


def test_a_source_must_be_named_once(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("-s", str(golden), "--bootstrap-controller", "localhost:1")):
        code, _, err = run(capsys, "dump", *arguments)
        assert code == 2
        assert err[-1] == "Error: give one of --snapshot PATH, --bootstrap-controller HOST:PORT and --config FILE"
    code, _, err = run(capsys, "shell", "--bootstrap-controller", "localhost", "ls")
    assert code == 2
    assert "expected host:port" in err[-1]


# ---------------------------------------------------------------- a terminal


@pytest.mark.usefixtures("world")
def test_commands_are_read_from_a_pipe(golden: Path) -> None:
    done = subprocess.run(
        [kjbod_command(), "metadata", "shell", "-s", str(golden)],
        input="cd /image/topics/byName\npwd\ncat nope\nls\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "/image/topics/byName", "__consumer_offsets", "__transaction_state", "events",
    ]  # fmt: skip
    assert done.stderr.splitlines() == ["kjbod: cat: nope: No such file or directory."]
    assert done.returncode == 1


@pytest.mark.usefixtures("world")
def test_a_terminal_has_completion_and_history(golden: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [kjbod_command(), "metadata", "shell", "-s", str(golden)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "100"},
    )
    os.close(follower)
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            piece = os.read(leader, 4096)
            assert piece, seen
            seen += piece.decode()

    try:
        until(">> ")
        os.write(leader, b"cat /im\ttop\tbyN\teve\tname\n")
        until("\r\nevents\r\n")
        os.write(leader, b"\x1b[A\n")  # the line before once more
        until("events/name")
        os.write(leader, b"history\n")
        until("2  history")
        os.write(leader, b"exit\n")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


# ---------------------------------------------------------------- running clusters


def shell_of(port: int, *command: str) -> list[str]:
    """What the shell says of a running controller, without how far it has got, which moves."""
    done = run_kjbod("metadata", "shell", "--bootstrap-controller", f"127.0.0.1:{port}", *command, check=True)
    return done.stdout.splitlines()


def dump_of(port: int) -> list[dict[str, object]]:
    done = run_kjbod("metadata", "dump", "--bootstrap-controller", f"127.0.0.1:{port}", check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def formatted(tmp_path: Path) -> tuple[Path, int]:
    port = free_port()
    config = tmp_path / "controller.properties"
    config.write_text(controller_properties(3000, port, tmp_path / "metadata"))
    format_node(config, CLUSTER_ID)
    return config, port


def look_at(port: int, log_dir: Path) -> None:
    assert shell_of(port, "ls", "/image/cluster/controllers") == ["3000"]
    assert shell_of(port, "cat", "/image/features/metadataVersion") == ["Optional[4.3-IV0]"]
    live = [record for record in dump_of(port) if record.get("type") != "NO_OP_RECORD"]
    assert any(record.get("control") == "KRaftVoters" for record in live)
    done = run_kjbod("metadata", "dump", "-s", str(log_dir), check=True)
    on_disk = [json.loads(line) for line in done.stdout.splitlines()]
    for record in on_disk:
        record.pop("file")
    assert live == [record for record in on_disk if record.get("type") != "NO_OP_RECORD"]


def test_a_running_controller_is_read_as_it_is_on_its_disk(tmp_path: Path, processes: Processes) -> None:
    config, port = formatted(tmp_path)
    controller: ManagedProcess = processes.kjbod("controller", "-c", str(config), name="controller")
    controller.wait_for_event("controller.started")
    look_at(port, tmp_path / "metadata")


@pytest.mark.usefixtures("kafka_kit")
def test_a_running_real_controller_too(tmp_path: Path, processes: Processes, kafka_kit: KafkaKit) -> None:
    config, port = formatted(tmp_path)
    kafka_kit.start_server(processes, config, name="kafka")
    listed = ("ls", "/image/cluster/controllers")
    wait_until(lambda: shell_of(port, *listed) == ["3000"], 60, "a controller that has registered with itself")
    look_at(port, tmp_path / "metadata")


def test_a_controller_that_does_not_answer_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kjbod.metadata.live.CATCH_UP_TIMEOUT_S", 0.2)
    port = free_port()
    for command in (("shell",), ("dump",)):
        code, _, err = run(capsys, *command, "--bootstrap-controller", f"127.0.0.1:{port}")
        assert code == 1
        where = f"127.0.0.1:{port}"
        assert err[-1].startswith(f"kjbod: no controller answers at {where} within 0 s: cannot connect to {where}: ")
        assert len(err) == 1


def test_metadata_that_end_in_a_transaction_are_not_said_to_be_a_controller_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kjbod.metadata.live.CATCH_UP_TIMEOUT_S", 0.0)
    observer = live.Observer([("k", 1)], lambda delivery: None, lambda line: None)
    observer._follower = SimpleNamespace(  # type: ignore[assignment]
        problem=None, denied=False, refusals={}, high_watermark=5, applied_offset=5
    )
    told = "the metadata of k:1 were not read within 0 s: their last transaction is not over"
    with pytest.raises(KjbodError, match=told):
        observer.catch_up(lambda: False)
    observer._loop.close()


def test_who_waits_for_a_controller_is_told_what_for_and_a_brokers_listener_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kjbod.metadata.live.CATCH_UP_TIMEOUT_S", 0.3)
    monkeypatch.setattr("kjbod.metadata.live.TOLD_AFTER_S", 0)
    where = f"127.0.0.1:{free_port()}"
    code, _, err = run(capsys, "dump", "--bootstrap-controller", where)
    assert (code, len(err)) == (1, 2)
    assert err[0].startswith(f"kjbod: waiting for a controller at {where}, up to 0 s: cannot connect to {where}: ")
    assert live.explained(f"{where} answered UNKNOWN_TOPIC_ID (100)") == (
        f"{where} answered UNKNOWN_TOPIC_ID (100): that is a broker's listener, give a controller's"
    )


# ---------------------------------------------------------------- Kafka's own shell


KAFKA_SHELL_ATTEMPTS = 5
"""It shows what it has loaded by then, on a busy machine nothing or a part."""


@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.parametrize("which", ["rich", "golden"])
def test_kafka_metadata_shell_shows_the_same_tree(
    tmp_path: Path, kafka_kit: KafkaKit, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    """But for how far the image reaches (Kafka counts within the file), the program, and a token, which Kafka prints
    with parentheses that do not match."""
    snapshot = tmp_path / f"{488:020d}-{1:010d}.checkpoint"
    snapshot.write_bytes(rich_checkpoint() if which == "rich" else SNAPSHOT.read_bytes())
    _, ours, _ = run(capsys, "shell", "-s", str(snapshot), "--secrets", "tree", "/")

    def same(lines: list[str]) -> list[str]:
        end = lines.index("local:")
        return [line for line in lines[:end] if "  offset " not in line and "DelegationTokenData" not in line]

    assert len(same(ours)) > 50
    for _ in range(KAFKA_SHELL_ATTEMPTS):
        theirs = kafka_kit.look_into(snapshot, "tree", "/").splitlines()
        if same(theirs) == same(ours):
            break
    assert same(ours) == same(theirs)


# ---------------------------------------------------------------- secrets


@pytest.fixture
def secretive(tmp_path: Path) -> Path:
    """A checkpoint with a SCRAM credential and a password among the configurations."""
    path = tmp_path / "bootstrap.checkpoint"
    records = (
        UserScramCredentialRecord(
            name="alice", mechanism=1, salt=b"SALT", stored_key=b"STORED", server_key=b"SERVER", iterations=4096
        ),
        ConfigRecord(resource_type=4, resource_name="1", name="listener.name.x.ssl.keystore.password", value="hush"),
        ConfigRecord(resource_type=4, resource_name="1", name="plugin.credentials", value="hush"),
        ConfigRecord(resource_type=4, resource_name="1", name="log.cleaner.threads", value="2"),
    )
    write_checkpoint(path, header_timestamp_ms=0, kraft=None, records=records)
    return path.rename(tmp_path / f"{9:020d}-{1:010d}.checkpoint")


@pytest.mark.parametrize(
    "command", [("dump",), ("dump", "--text"), ("shell", "tree", "/image")], ids=["dump", "text", "shell"]
)
def test_keys_and_passwords_are_shown_only_when_asked_for(
    secretive: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    first, *rest = command
    secrets = [base64.b64encode(b"STORED").decode(), b"STORED".hex(), "hush"]
    code, hidden, _ = run(capsys, first, "-s", str(secretive), *rest)
    assert code == 0
    assert not any(secret in line for line in hidden for secret in secrets)
    assert any("[redacted]" in line for line in hidden)
    assert any("alice" in line for line in hidden)
    code, shown, _ = run(capsys, first, "-s", str(secretive), "--secrets", *rest)
    assert code == 0
    assert any("hush" in line for line in shown)
    assert any(secret in line for line in shown for secret in secrets[:2])
    assert not any("[redacted]" in line for line in shown)


@pytest.mark.parametrize(
    ("name", "secret"),
    [("ssl.keystore.password", True), ("listener.name.a.scram-sha-256.sasl.jaas.config", True), ("password", True),
     ("delegation.token.secret.key", True), ("ssl.keystore.certificate.chain", True), ("ssl.keystore.location", False),
     ("listener.name.a.sasl.oauthbearer.assertion.private.key.passphrase", True), ("my.passphrase", True),
     ("listener.name.a.ssl.keystore.location", False), ("listener.name.a.plain.ssl.keystore.location", False),
     ("s3.access.key", True), ("client_secret", True), ("apiKey", True), ("my.ssl.keystore.location", True),
     ("listener.name.a.b.c.ssl.keystore.location", True), ("leader.replication.throttled.rate", False)],
)  # fmt: skip
def test_which_configurations_of_brokers_are_passwords(name: str, secret: bool) -> None:
    assert is_password(name, BROKER) is secret


@pytest.mark.parametrize(
    ("name", "secret"), [("retention.ms", False), ("password.encoder.iterations", False), ("x.password", True)]
)
def test_which_configurations_of_topics_are_passwords(name: str, secret: bool) -> None:
    assert is_password(name, TOPIC) is secret


def test_what_kafka_knows_of_brokers_is_shown_but_its_passwords() -> None:
    """The controller's table has all of Kafka's keys, with their types."""
    for key in (*node_keys().values(), *rate_keys().values()):
        assert is_password(key.name, BROKER) is (key.sensitive or not key.dynamic), key
