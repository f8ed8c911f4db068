"""``kjbod status``, ``log-dirs``, ``move``, ``dirs``: what they say of what an agent answers, and without one."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs, to_builtins

from kjbod.cli import main as cli
from kjbod.cli import move as moving
from kjbod.cli.log_dirs import block
from kjbod.cli.status import lines
from kjbod.ids import Uuid
from kjbod.output import Printer
from kjbod.runtime.control_socket import ControlError, bind
from kjbod.usage import Use
from kjbod_host.directories.known_directories import KnownDirectories
from kjbod_host.directories.start_up_rules import Memory
from tests.cli.fake_agent import configure, fake_agent
from tests.metrics.test_process_series import USAGE

GIB = 1 << 30
DIRECTORY: dict[str, Any] = {
    "path": "/mnt/d1",
    "role": "log",
    "directory_id": "tvZBbOOtuXsXF9uKAMlVNQ",
    "online": True,
    "verdict": "online",
    "cause": "none",
    "error": None,
    "since_ms": 1763744232000,
    "cordoned": False,
    "device": "sdb1 8:17",
    "model": "WDC WD181KFGX",
    "serial": "9XG1A2BC",
    "file_system": "ext4",
    "total_bytes": 18_000 * GIB,
    "usable_bytes": 5_123 * GIB,
    "replicas": 1204,
    "leaders": 402,
    "remembered": False,
}
FAILED = DIRECTORY | {
    "path": "/mnt/d2",
    "verdict": "failed",
    "cause": "mount",
    "online": False,
    "error": "/mnt/d2 failed: EIO at read of meta.properties after 4.2 ms; device loop1 7:1",
    "remembered": True,
}
STATUS: dict[str, Any] = {
    "condition": {
        "level": "degraded",
        "code": 1,
        "text": "DEGRADED: 1 of 2 directories failed",
        "reasons": ["1 of 2 directories failed"],
    },
    "controller": {
        "address": "host3:9093",
        "answers": True,
        "refused": False,
        "silent_ms": 1_400,
        "last_answer_ms": 1763744232000,
        "trouble": "",
    },
    "version": "0.1",
    "pid": 7,
    "node": 1,
    "cluster_id": "4L6g3nShT-eMCtK--X86sw",
    "state": "running",
    "fenced": False,
    "broker_epoch": 12,
    "metadata_offset": 345,
    "metadata_version": 25,
    "published": True,
    "queued_assignments": 2,
    "stuck_assignments": 1,
    "certificates": [
        {
            "key": "ssl.keystore.location",
            "path": "/etc/kafka/host.pem",
            "not_after_ms": 1763744232000,
            "not_renewed": None,
            "uses": ["controllers", "listener SSL"],
        }
    ],
    "unmade": ["orders-7 cannot be made since 2025-11-21T16:57:12Z: /mnt/d1: ENOSPC at mkdir of orders-7"],
    "creating": 3,
    "moves": 1,
    "strays": 2,
    "processes": to_builtins(USAGE),
    "directories": [DIRECTORY, FAILED],
}
MOVE: dict[str, Any] = {
    "topic": "orders",
    "partition": 0,
    "from": "/mnt/d1",
    "to": "/mnt/d2",
    "state": "copying",
    "total_bytes": 4 * GIB,
    "copied_bytes": GIB,
    "bytes_per_second": 120 << 20,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(configure(tmp_path))


# --------------------------------------------------------------------------------------------------------------- status


def test_status_is_one_screen(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with fake_agent(tmp_path, status=STATUS):
        assert cli.run(["status", "-c", config]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "DEGRADED: 1 of 2 directories failed",
        "node             1 of cluster 4L6g3nShT-eMCtK--X86sw, kjbod 0.1",
        "state            running, unfenced",
        "controller       host3:9093, last answer 1 s ago",
        "broker epoch     12",
        "metadata offset  345",
        "certificate      valid until 2025-11-21 16:57:12Z, /etc/kafka/host.pem (controllers, listener SSL)",
        "assignments      2 queued, 1 of them stuck: the agent's log names them",
        "not made         orders-7 cannot be made since 2025-11-21T16:57:12Z: /mnt/d1: ENOSPC at mkdir of orders-7",
        "replicas         2408, and 3 to create",
        "moves            1, see kjbod move --list",
        "strays           2, see kjbod strays",
        "agent            41 MiB, 63 descriptors of 1024",
        "processes        5 workers 12 MiB (1 without an answer), 4 helpers ?",
        "",
        "STATE   SINCE                 REPLICAS  LEADERS  USED  DIRECTORY",
        "online  2025-11-21 16:57:12Z      1204      402  71 %  /mnt/d1",
        "failed  2025-11-21 16:57:12Z      1204      402  71 %  /mnt/d2  "
        "EIO at read of meta.properties after 4.2 ms; device loop1 7:1",
    ]


def test_status_tells_what_the_processes_use() -> None:
    def shown(**own: Any) -> str:
        told = to_builtins(structs.replace(USAGE, own=structs.replace(USAGE.own, **own), workers=Use(), helpers=Use()))
        found = lines(STATUS | {"processes": told}, None)
        assert not [line for line in found if line.startswith("processes")], "nothing beside the agent itself"
        (line,) = [line for line in found if line.startswith("agent")]
        return line.removeprefix("agent").strip()

    assert shown(cpu_percent=0.84) == "41 MiB, 0.8 % CPU, 63 descriptors of 1024"
    assert shown(pss_bytes=None) == "50 MiB, 63 descriptors of 1024", "what is known beside it"
    older = {name: value for name, value in STATUS.items() if name != "processes"}
    for answer in (older, STATUS | {"processes": None}):
        assert not [line for line in lines(answer, None) if line.startswith(("agent", "processes"))]


def test_status_never_claims_what_nobody_knows_without_a_controller() -> None:
    gone = STATUS["controller"] | {"silent_ms": 42_000, "answers": False, "trouble": "cannot connect"}
    shown = lines(STATUS | {"controller": gone, "fenced": None}, None)
    assert shown[2:4] == [
        "state            running, whether it is fenced or unfenced is not known",
        "controller       host3:9093, last answer 42 s ago",
    ]
    never = gone | {"address": None, "last_answer_ms": None}
    assert lines(STATUS | {"controller": never}, None)[3] == (
        "controller       none is known, has accepted nothing yet"
    )


def test_a_metadata_directory_of_its_own_has_its_line() -> None:
    own = DIRECTORY | {"path": "/mnt/meta", "role": "metadata", "replicas": 0, "leaders": 0}
    assert lines(STATUS | {"directories": [DIRECTORY, own]}, None)[-1] == (
        "online  2025-11-21 16:57:12Z         -        -  71 %  /mnt/meta (metadata.log.dir)"
    )
    assert block(own | {"future": 0})[-1] == "  holds         the metadata log alone (metadata.log.dir)"


@pytest.mark.parametrize(("level", "code"), [("OK", 0), ("DEGRADED", 1), ("CRITICAL", 2)])
def test_a_check_is_one_line_and_its_exit_code(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], level: str, code: int
) -> None:
    condition = {"level": level.lower(), "code": code, "text": f"{level}: so it is", "reasons": []}
    with fake_agent(tmp_path, status=STATUS | {"condition": condition}):
        assert cli.run(["status", "--check", "-c", config]) == code
        assert capsys.readouterr().out == f"{level}: so it is\n"
        assert cli.run(["status", "--check", "--json", "-c", config]) == code
        document = json.loads(capsys.readouterr().out)
    assert (document["code"], document["text"], document["status"]["node"]) == (code, f"{level}: so it is", 1)


def test_a_check_of_an_agent_that_does_not_run_is_critical(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["status", "--check", "-c", config]) == 2
    captured = capsys.readouterr()
    assert captured.err == ""
    (line,) = captured.out.splitlines()
    assert line.startswith(f"CRITICAL: no agent or guard answers at {tmp_path}/state/control.sock")


@pytest.mark.parametrize("content", [None, "process.roles=controller\n", "kjbod.rol=x\nkjbod.rul=y\n"])
def test_a_check_that_cannot_ask_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "x.properties"
    if content is not None:
        path.write_text(content)
    assert cli.run(["status", "--check", "-c", str(path)]) == 3
    captured = capsys.readouterr()
    assert (captured.err, captured.out.count("\n")) == ("", 1)
    assert captured.out.startswith(f"UNKNOWN: {path}: ")


def test_a_check_of_another_nodes_agent_is_unknown(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, status=STATUS):
        Path(config).write_text(Path(config).read_text().replace("node.id=1", "node.id=2"))
        assert cli.run(["status", "--check", "-c", config]) == 3
    assert "control.sock has node 1, not 2" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
def test_status_fits_the_terminal_and_never_cuts_a_path(columns: int) -> None:
    path = "/srv/kafka/a/long/path/to/a/log/directory"
    answer = STATUS | {"directories": [DIRECTORY, FAILED, FAILED | {"path": path}]}
    shown = lines(answer, columns)
    assert all(len(line) <= columns for line in shown if path not in line)
    assert shown[-1].split(path)[0].startswith("failed")


def test_status_before_the_registration_says_so() -> None:
    shown = "\n".join(lines(STATUS | {"broker_epoch": -1, "published": False, "moves": 0, "strays": 0}, None))
    assert "none: not registered yet" in shown
    assert "345, not yet complete" in shown
    assert "replicas         not known yet: the metadata are being read" in shown
    assert "moves " not in shown and "strays " not in shown, "0 would be a claim"
    assert shown.splitlines()[-2].split()[3:5] == ["?", "?"]
    assert "see kjbod" not in shown


def test_status_for_machines(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_agent(tmp_path, status=STATUS):
        assert cli.run(["status", "--json", "-c", config]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["move", "--list"], ["move", "a-0", "--to", "/x"], ["dirs", "add", "/x"]],
)
def test_without_an_agent_one_line_says_where_it_was_looked_for(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run([*arguments, "-c", config]) == 69
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(
        f"kjbod: no agent or guard answers at {tmp_path}/state/control.sock (kjbod.state.dir={tmp_path}/state"
    )
    assert f"on a host with Kafka start a guard with `kjbod guard run -c {config}`" in line
    assert line.endswith(f"only on a host without Kafka start `kjbod agent -c {config}` or systemctl start kjbod-agent")


def test_without_a_combined_node_the_command_that_starts_both_roles_is_named(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(config).open("a") as file:
        file.write("process.roles=broker,controller\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\n")
    assert cli.run(["status", "-c", config]) == 69
    assert f"only on a host without Kafka start `kjbod server -c {config}`" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["status"], ["log-dirs"], ["move", "--list"], ["strays"], ["dirs", "add", "/x"]])
@pytest.mark.parametrize("content", [None, "process.roles=controller\n", "kjbod.rol=x\n"])
def test_a_configuration_that_cannot_be_used_is_told_before_anybody_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], content: str | None
) -> None:
    path = tmp_path / "x.properties"
    if content is not None:
        path.write_text(content)
    assert cli.run([*arguments, "-c", str(path)]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(line.startswith(f"kjbod: {path}: ") for line in captured.err.splitlines())


SECURED = """\
process.roles={roles}
node.id=1
controller.quorum.bootstrap.servers=c1:9093,c2:9093
controller.listener.names=CONTROLLER
listeners=INTERNAL://:9092,CLIENTS://:9094{more}
advertised.listeners=INTERNAL://h1:9092,CLIENTS://h1:9094
inter.broker.listener.name=INTERNAL
listener.security.protocol.map=CONTROLLER:SASL_SSL,INTERNAL:SASL_SSL,CLIENTS:SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
ssl.keystore.location=/etc/kafka/keystore.p12
config.providers=file
ssl.keystore.password=${{file:/etc/kafka/secrets:keystore}}
log.dirs={root}/d1,{root}/d2
kjbod.state.dir={root}/state
"""


def secured(root: Path, roles: str = "broker") -> str:
    """The file of a broker that speaks TLS and SASL everywhere."""
    path = root / "secured.properties"
    path.write_text(SECURED.format(root=root, roles=roles, more=",CONTROLLER://:9093" if "controller" in roles else ""))
    return str(path)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("roles", ["broker", "broker,controller"])
def test_commands_on_local_disks_take_the_file_of_a_secured_broker(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], roles: str
) -> None:
    path = secured(tmp_path, roles)
    cluster = ["-t", "4L6g3nShT-eMCtK--X86sw", *(["--standalone"] if "controller" in roles else [])]
    assert cli.run(["format", *cluster, "-c", path]) == 0
    assert cli.run(["info", "-c", path]) == 0
    assert cli.run(["log-dirs", "-c", path]) == 0
    assert cli.run(["strays", "-c", path]) == 0
    assert capsys.readouterr().out.endswith("no strays\n")
    for arguments in (["status"], ["move", "--list"], ["dirs", "add", f"{tmp_path}/d1"]):
        assert cli.run([*arguments, "-c", path]) == 69
        assert capsys.readouterr().err.startswith("kjbod: no agent or guard answers at ")
    with fake_agent(tmp_path, status=STATUS):
        assert cli.run(["status", "-c", path]) == 0


def test_the_agent_names_all_that_it_cannot_speak_and_every_other_mistake_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(secured(tmp_path))
    path.write_text(path.read_text().replace("=INTERNAL\n", "=NONE\n") + "kjbod.slow.ms=-1\n")
    assert cli.run(["agent", "-c", str(path)]) == 78
    told = capsys.readouterr().err
    for mistake in (
        "inter.broker.listener.name=NONE: expected a listener that is advertised",
        "kjbod.slow.ms=-1: ",
        "listener.name.controller.gssapi.sasl.jaas.config is missing: expected the login of GSSAPI (Kafka's default",
        "ssl.keystore.password: ${file:...}: config.providers.file.class is missing: expected FileConfigProvider",
    ):
        assert f"kjbod: {path}: {mistake}" in told
    assert cli.run(["controller", "-c", str(path)]) == 78
    told = capsys.readouterr().err
    assert f"kjbod: {path}: process.roles=broker: expected controller" in told
    assert f"kjbod: {path}: inter.broker.listener.name=NONE: " in told


def test_an_agent_of_another_node_is_not_taken_for_ours(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, status=STATUS):
        Path(config).write_text(Path(config).read_text().replace("node.id=1", "node.id=2"))
        assert cli.run(["status", "-c", config]) == 1
    assert "control.sock has node 1, not 2" in capsys.readouterr().err


def test_what_an_agent_refuses_with_cannot_write_to_the_terminal(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, status=ControlError("no\x1b[2J", 3)):
        assert cli.run(["status", "-c", config]) == 3
    assert capsys.readouterr().err == "kjbod: no\\x1b[2J\n"


# ------------------------------------------------------------------------------------------------------------- log-dirs

REPLICAS = [
    {"topic": "orders", "partition": 0, "size": 5 * GIB, "lag": 0, "future": False, "leader": True},
    {"topic": "orders", "partition": 1, "size": None, "lag": None, "future": True, "leader": False},
    {"topic": "pay", "partition": 0, "size": 0, "lag": 0, "future": False, "leader": False},
]
PARTS = [
    {"directory": DIRECTORY | {"future": 1}},
    {"path": "/mnt/d1", "replicas": REPLICAS[:2]},
    {"path": "/mnt/d1", "replicas": REPLICAS[2:]},
    {"directory": FAILED | {"future": 0}},
]


def test_log_dirs_tells_which_disk_a_directory_is_and_what_it_holds(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, log_dirs=PARTS) as asked:
        assert cli.run(["log-dirs", "--replicas", "-c", config]) == 0
    assert asked == [{"op": "log-dirs", "node": 1, "replicas": True}]
    assert capsys.readouterr().out.splitlines() == [
        "/mnt/d1",
        "  state         online since 2025-11-21 16:57:12Z",
        "  directory.id  tvZBbOOtuXsXF9uKAMlVNQ",
        "  device        sdb1 8:17, model WDC WD181KFGX, serial 9XG1A2BC",
        "  file system   ext4, 18 TiB, 5.0 TiB free (71 % used)",
        "  holds         1204 replicas, 402 leaders, 1 on the way here",
        "     SIZE  LAG  ROLE      REPLICA",
        "  5.0 GiB    0  leader    orders-0",
        "        ?    ?  future    orders-1",
        "      0 B    0  follower  pay-0",
        "",
        "/mnt/d2",
        "  state         failed (mount) since 2025-11-21 16:57:12Z",
        "  reason        /mnt/d2 failed: EIO at read of meta.properties after 4.2 ms; device loop1 7:1",
        "  directory.id  tvZBbOOtuXsXF9uKAMlVNQ",
        "  device        sdb1 8:17, model WDC WD181KFGX, serial 9XG1A2BC",
        "  file system   ext4, 18 TiB, 5.0 TiB free (71 % used) when last seen",
        "  holds         1204 replicas, 402 leaders, as far as is known",
    ]


def test_log_dirs_for_machines_is_one_document(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_agent(tmp_path, log_dirs=PARTS):
        assert cli.run(["log-dirs", "--replicas", "--json", "-c", config]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agent"] is True
    assert [d["path"] for d in document["directories"]] == ["/mnt/d1", "/mnt/d2"]
    assert [d["replica_list"] for d in document["directories"]] == [REPLICAS, []]


def test_a_directory_of_which_nothing_is_known_is_shown_all_the_same() -> None:
    unknown = dict.fromkeys(DIRECTORY) | {"path": "/mnt/d\n4", "verdict": "unreadable", "error": "no\x1b"}
    assert block(unknown | {"online": False, "replicas": 0, "leaders": 0, "future": 0}) == [
        "/mnt/d\\n4",
        "  state         unreadable",
        "  reason        no\\x1b",
        "  directory.id  unknown",
        "  device        unknown",
        "  file system   unknown, size unknown",
        "  holds         unknown",
    ]


def remember(state: Path, memory: Memory) -> None:
    state.mkdir(exist_ok=True)
    known = KnownDirectories(state, 1)
    known.path.write_bytes(known.content(memory))


@pytest.mark.parametrize("dead_socket", [False, True])
def test_without_an_agent_log_dirs_tells_what_is_remembered_and_touches_no_disk(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], dead_socket: bool
) -> None:
    memory = Memory().seen(f"{tmp_path}/d1", Uuid.parse("tvZBbOOtuXsXF9uKAMlVNQ"), 1763744232000)
    memory = memory.on_device(f"{tmp_path}/d1", "sdb1 8:17", "9XG1A2BC", None)
    memory = memory.seen(f"{tmp_path}/gone", Uuid.parse("AAAAAAAAAAAAAAAAAAAAZQ"), 1763744232000)
    remember(tmp_path / "state", memory)
    if dead_socket:
        bind(tmp_path / "state" / "control.sock").close()
    assert cli.run(["log-dirs", "-c", config]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"{tmp_path}/d1",
        "  state         unknown: no answer",
        "  directory.id  tvZBbOOtuXsXF9uKAMlVNQ, last seen 2025-11-21 16:57:12Z",
        "  device        sdb1 8:17, serial 9XG1A2BC",
        "",
        f"{tmp_path}/d2",
        "  state         unknown: no answer",
        "  directory.id  never seen",
        "",
        f"{tmp_path}/gone",
        "  state         unknown: no answer, and it is not in log.dirs",
        "  directory.id  AAAAAAAAAAAAAAAAAAAAZQ, last seen 2025-11-21 16:57:12Z",
    ]
    assert captured.err.splitlines()[1] == "kjbod: what follows is from memory; no disk was asked"


def test_without_an_agent_log_dirs_tells_of_a_metadata_directory_of_its_own(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(config).open("a") as file:
        file.write(f"metadata.log.dir={tmp_path}/meta\n")
    remember(tmp_path / "state", Memory().seen(f"{tmp_path}/meta", Uuid.parse("tvZBbOOtuXsXF9uKAMlVNQ"), 1763744232000))
    assert cli.run(["log-dirs", "-c", config]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        f"{tmp_path}/meta",
        "  state         unknown: no answer",
        "  directory.id  tvZBbOOtuXsXF9uKAMlVNQ, last seen 2025-11-21 16:57:12Z",
        "  holds         the metadata log alone (metadata.log.dir)",
    ]


def test_without_an_agent_and_a_state_directory_log_dirs_makes_none(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").rmdir()
    assert cli.run(["log-dirs", "--json", "-c", config]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agent"] is False
    assert [d["directory_id"] for d in document["directories"]] == [None, None]
    assert not (tmp_path / "state").exists()


# ----------------------------------------------------------------------------------------------------------------- move


def outcome(partition: int, note: str | None = None, error: str | None = None) -> dict[str, Any]:
    return {"topic": "orders", "partition": partition, "note": note, "error": error}


def test_move_says_what_became_of_each_replica(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [[outcome(0), outcome(1, note="is in /mnt/d2 already")], [outcome(2, error="there is no orders-2")]]
    with fake_agent(tmp_path, move=parts) as asked:
        arguments = ["move", "orders-0", "orders-1", "orders-2", "orders-0", "--to", f"{tmp_path}/x/../d2/"]
        assert cli.run([*arguments, "-c", config]) == 1
    assert asked == [
        {"op": "move", "node": 1, "partitions": [["orders", 0], ["orders", 1], ["orders", 2]], "to": f"{tmp_path}/d2"}
    ]
    captured = capsys.readouterr()
    assert captured.out == f"orders-0: on its way to {tmp_path}/d2\norders-1: is in /mnt/d2 already\n"
    assert captured.err == "kjbod: there is no orders-2\n"


def test_all_replicas_of_a_directory_are_moved_by_its_path(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_agent(tmp_path, move=[]) as asked:
        assert cli.run(["move", "--from", "d1", "--to", "d2", "-c", config]) == 0
    assert asked == [{"op": "move", "node": 1, "from": f"{tmp_path}/d1", "to": f"{tmp_path}/d2"}]
    assert capsys.readouterr().out == "nothing to do: no replica there\n"


def test_very_many_partitions_fit_into_requests(tmp_path: Path, config: str) -> None:
    names = [f"{'x' * 249}-{number}" for number in range(1200)]
    with fake_agent(tmp_path, move=[]) as asked:
        assert cli.run(["move", *names, "--to", "/mnt/d2", "-c", config]) == 0
    assert [len(request["partitions"]) for request in asked] == [500, 500, 200]


def test_very_many_moves_are_watched_together(tmp_path: Path, config: str) -> None:
    with fake_agent(tmp_path, move=[[outcome(number) for number in range(501)]], moves=progress(GIB)) as asked:
        assert cli.run(["move", "--from", "/mnt/d1", "--to", "/mnt/d2", "--watch", "-c", config]) == 0
    assert asked[-1] == {"op": "moves", "node": 1, "watch": True}


def test_a_reason_that_many_replicas_share_is_said_once_and_names_them(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = "/mnt/d1 is offline: no move begins until every log directory is online, as in Kafka"
    answer = [
        *(outcome(number, error=shared) for number in range(2000)),
        outcome(2001, error="orders-2001 lies in /mnt/d1, which is offline: a move has to read it"),
        outcome(2002, error="/mnt/d2 is offline: see kjbod log-dirs"),
    ]
    with fake_agent(tmp_path, move=[answer]):
        assert cli.run(["move", "--from", "/mnt/d3", "--to", "/mnt/d2", "-c", config]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"kjbod: orders-0 and 1,999 more: {shared}",
        "kjbod: orders-2001 lies in /mnt/d1, which is offline: a move has to read it",
        "kjbod: orders-2002: /mnt/d2 is offline: see kjbod log-dirs",
    ]


def test_watching_when_nothing_moves_says_so(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_agent(tmp_path, moves=[{"moves": [], "all": {"moves": 0}, "ended": []}]):
        assert cli.run(["move", "--watch", "-c", config]) == 0
    assert capsys.readouterr().out == "no moves\n"


def test_moves_are_cancelled(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = (outcome(0), outcome(1, error="orders-1 is not being moved"))
    with fake_agent(tmp_path, move_cancel=answer) as asked:
        assert cli.run(["move", "orders-0", "orders-1", "--cancel", "-c", config]) == 1
    assert asked == [{"op": "move-cancel", "node": 1, "partitions": [["orders", 0], ["orders", 1]]}]
    captured = capsys.readouterr()
    assert captured.out == "orders-0: cancelled\n"
    assert captured.err == "kjbod: orders-1 is not being moved\n"


def test_moves_are_listed(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = MOVE | {"topic": "a-b.c", "partition": 11, "from": None, "total_bytes": 0, "copied_bytes": 0}
    with fake_agent(tmp_path, moves=[{"moves": [MOVE]}, {"moves": [other]}]):
        assert cli.run(["move", "--list", "-c", config]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "REPLICA   STATE    DONE     SIZE       RATE  FROM -> TO",
        "orders-0  copying  25 %  4.0 GiB  120 MiB/s  /mnt/d1 -> /mnt/d2",
        "a-b.c-11  copying     ?      0 B  120 MiB/s  ? -> /mnt/d2",
    ]
    with fake_agent(tmp_path, moves=[]):
        assert cli.run(["move", "--list", "-c", config]) == 0
    assert capsys.readouterr().out == "no moves\n"


def progress(*copied: int, moved: bool | None = True) -> list[dict[str, Any]]:
    ended = {"topic": "orders", "partition": 0, "at": "/mnt/d2", "moved": moved}
    moves = [MOVE | {"copied_bytes": count} for count in copied]
    return [
        *({"moves": [move], "all": move | {"moves": 1}, "ended": []} for move in moves),
        {"moves": [], "all": {"moves": 0}, "ended": [ended]},
    ]


def test_a_watched_move_is_told_in_lines_where_there_is_no_terminal(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = progress(0, 1, 2, GIB, GIB + 1, 4 * GIB)
    with fake_agent(tmp_path, move=[[outcome(0)]], moves=parts) as asked:
        assert cli.run(["move", "orders-0", "--to", "/mnt/d2", "--watch", "-c", config]) == 0
    assert asked[1] == {"op": "moves", "node": 1, "watch": True, "partitions": [["orders", 0]]}
    assert capsys.readouterr().out.splitlines() == [
        "orders-0: on its way to /mnt/d2",
        "orders-0: 0 %, 0 B of 4.0 GiB, 120 MiB/s, 34 s left, copying",
        "orders-0: 25 %, 1.0 GiB of 4.0 GiB, 120 MiB/s, 25 s left, copying",
        "orders-0: 100 %, 4.0 GiB of 4.0 GiB, 120 MiB/s, copying",
        "orders-0: moved, it is in /mnt/d2",
    ]


def test_a_watched_move_for_machines_is_a_document_in_each_line(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = progress(0, GIB)
    with fake_agent(tmp_path, move=[[outcome(0)]], moves=parts):
        assert cli.run(["move", "orders-0", "--to", "/mnt/d2", "--watch", "--json", "-c", config]) == 0
    first, *rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == [outcome(0)]
    assert rest == parts


def test_a_watched_move_that_comes_to_nothing_is_a_failure(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, moves=progress(GIB, moved=False)):
        assert cli.run(["move", "--watch", "-c", config]) == 1
    assert "orders-0: not moved, it is in /mnt/d2: the log of the agent says why" in capsys.readouterr().out
    parts = progress(GIB, moved=False)
    parts[-1]["ended"][0]["reason"] = "/mnt/d1 is full: ENOSPC"
    with fake_agent(tmp_path, moves=parts):
        assert cli.run(["move", "--watch", "-c", config]) == 1
    assert "orders-0: not moved, it is in /mnt/d2: /mnt/d1 is full: ENOSPC" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_bar_fits_into_a_line(columns: int) -> None:
    line = moving.bar_line([MOVE], MOVE | {"moves": 1}, columns)
    assert len(line) <= columns
    assert "[#" in line
    everything = {"moves": 2, "total_bytes": 8 * GIB, "copied_bytes": 5 * GIB, "bytes_per_second": 1}
    several = moving.bar_line([MOVE, MOVE], everything, columns)
    assert several.startswith("2 moves  [#")
    assert "62 %" in several


def test_the_bar_is_drawn_over_itself_and_leaves_a_clean_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = moving._Bar(Printer())
    for part in progress(GIB, 2 * GIB):
        bar.show(part)
    bar.close()
    written = capsys.readouterr().out
    assert written.count("\r") == 4
    assert written.endswith("\rorders-0: moved, it is in /mnt/d2\n")
    assert "25 %" in written.split("\r")[1]


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "or\nders-0",
        "a b-0",
        "x" * 250 + "-0",
        "o-1e9",
        "o-99999999999",
        "o-\u0663",
    ],
)
def test_a_name_that_is_no_partition_is_refused_before_anybody_is_asked(
    config: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert cli.run(["move", "-c", config, "--to", "/mnt/d2", "--", name]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "expected a topic and a partition, as in orders-0" in error


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["orders-0"],
        ["--to", "/mnt/d2"],
        ["--from", "/mnt/d1"],
        ["--from", "/mnt/d1", "--watch"],
        ["orders-0", "--from", "/mnt/d1", "--to", "/mnt/d2"],
        ["--cancel"],
        ["--cancel", "orders-0", "--to", "/mnt/d2"],
        ["--list", "orders-0"],
        ["--list", "--to", "/mnt/d2"],
    ],
)
def test_arguments_of_move_that_say_too_little_or_too_much(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run(["move", *arguments, "-c", config]) == 2
    assert "Error: " in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------------- dirs


def test_dirs_add_prints_what_was_done(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_agent(tmp_path, dirs_add="added /mnt/d2, registered") as asked:
        assert cli.run(["dirs", "add", f"{tmp_path}/d2/", "-c", config]) == 0
        assert cli.run(["dirs", "add", "/mnt/d\n9", "--json", "-c", config]) == 0
    assert [request["path"] for request in asked] == [f"{tmp_path}/d2", "/mnt/d\n9"]
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "added /mnt/d2, registered"
    assert json.loads("\n".join(rest)) == {"path": "/mnt/d\n9", "said": "added /mnt/d2, registered"}


def test_dirs_add_that_cannot_be_done_is_one_line(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, dirs_add=ControlError("/mnt/d2 has no meta.properties: format it first")):
        assert cli.run(["dirs", "add", "/mnt/d2", "-c", config]) == 1
    assert capsys.readouterr().err == "kjbod: /mnt/d2 has no meta.properties: format it first\n"


def test_the_controller_of_a_combined_node_has_a_line_in_the_status() -> None:
    told = {"node": 1, "epoch": 3, "end_offset": 40, "brokers": 2, "fenced_brokers": 1}
    told |= {"topics": 1, "partitions": 6, "offline_partitions": 2}
    (line,) = [line for line in lines(STATUS | {"own_controller": told}, None) if line.startswith("own controller")]
    assert line == (
        "own controller   active in epoch 3, metadata to offset 40, 2 brokers (1 fenced), 1 topic, "
        "6 partitions (2 without a leader)"
    )
    assert not [line for line in lines(STATUS | {"own_controller": None}, None) if line.startswith("own controller")]
