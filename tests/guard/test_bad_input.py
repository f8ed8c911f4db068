"""Files and hosts that are not as they should be: one line each, and nothing is done."""

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from scripts.rig.cluster import directory_id
from scripts.rig.processes import Processes
from tests.agent.daemon_cluster import Cluster
from tests.guard.conftest import Beside
from tests.preloading import run_kjbod

BROKER = """process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:1
controller.listener.names=CONTROLLER
log.dirs=/mnt/d1,/mnt/d2
"""


@pytest.mark.parametrize(
    ("broker", "own", "options", "line"),
    [
        (None, None, [], "server.properties: No such file or directory: expected a readable server.properties"),
        ("zookeeper.connect=z:2181\nbroker.id=1\n", None, [], "in KRaft mode (process.roles), not in ZooKeeper mode"),
        (BROKER.replace("roles=broker", "roles=controller"), None, [], "expected the file of a broker"),
        (BROKER.replace("node.id=1", "node.id=one"), None, [], "node.id=one: expected a whole number"),
        (BROKER, "log.dirs=/mnt/d9\n", [], "own: log.dirs=/mnt/d9: expected keys that begin with kjbod. only"),
        (BROKER, "kjbod.gard.mode=observe\n", [], "own: kjbod.gard.mode=observe: unknown key; did you mean"),
        (BROKER, "kjbod.probe.timeout.ms=soon\n", [], "own: kjbod.probe.timeout.ms=soon: expected a whole number"),
        (BROKER, "kjbod.state.dir=/mnt/d1/kjbod\n", [], "expected a directory outside the disks that are watched"),
        (BROKER, "kjbod.guard.mode=atc\n", [], "own: kjbod.guard.mode=atc: expected observe or act"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    broker: str | None,
    own: str | None,
    options: list[str],
    line: str,
) -> None:
    config = tmp_path / "server.properties"
    if broker is not None:
        config.write_text(broker)
    if own is not None:
        (tmp_path / "own").write_text(own)
        options = [*options, "--guard-config", str(tmp_path / "own")]
    assert cli.run(["guard", "run", "-c", str(config), *options]) == 78
    said = capsys.readouterr().err
    assert line in said, said


def test_a_guard_is_not_told_both_to_act_and_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text(BROKER)
    assert cli.run(["guard", "run", "-c", str(tmp_path / "f"), "--act", "--observe"]) == 2
    assert "--observe and --act: give one of them" in capsys.readouterr().err


def change_meta(directory: Path, before: str, after: str) -> None:
    path = directory / "meta.properties"
    path.write_text(path.read_text().replace(before, after))


def test_a_guard_says_what_is_not_as_it_should_be_watches_the_rest_and_finds_what_comes_later(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    config = cluster.configure(1, directories=4, kjbod_host="h")
    d1, d2, d3, d4 = (cluster.directory(1, number) for number in (1, 2, 3, 4))
    change_meta(d2, "node.id=1", "node.id=2")
    change_meta(d3, cluster.cluster_id, "another")
    d4.rename(tmp_path / "away")

    # There is neither a controller nor a broker, and one directory of four.
    watch = beside(config)
    guard = watch.start()
    started = guard.wait_for_event("guard.started")
    assert started["log_dirs"] == {str(d1): str(directory_id(d1))}
    reasons = started["unwatched"]
    assert reasons[str(d2)] == f"{d2} belongs to node 2, not 1: it is not watched"
    assert reasons[str(d3)] == f"{d3} belongs to cluster another, not {cluster.cluster_id}: it is not watched"
    assert "ENOENT" in reasons[str(d4)]
    assert "kjbod.state.dir=" in guard.wait_for_event("guard.state.on.watched.disk")["reason"]
    assert "nobody holds .lock" in guard.wait_for_event("guard.broker.unbound")["reason"]
    assert "127.0.0.1" in guard.wait_for_event("guard.metadata.missing")["reason"]

    # What comes later is found.
    (tmp_path / "away").rename(d4)
    guard.wait_for_event("directory.watched", path=str(d4))
    cluster.start_controller()
    guard.wait_for_event("guard.metadata.followed")
    with open(d1 / ".lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        other = guard.wait_for_event("guard.broker.unbound", where=lambda line: "is no Kafka broker" in line["reason"])
    assert "python" in other["reason"]

    assert guard.stop() == 0
    assert not list(d2.glob(".kjbod*")) and not list(d3.glob(".kjbod*"))
    assert list(d1.glob(".kjbod_probe_guard")) and not (d4 / ".lock").exists()

    # Disks in each other's place.
    d1.rename(tmp_path / "away")
    d4.rename(d1)
    (tmp_path / "away").rename(d4)
    again = watch.start("again")
    for here, there in ((d1, d4), (d4, d1)):
        moved = f"{here} has the directory.id {directory_id(here)}, which was at {there} before"
        again.wait_for_event("guard.directory.moved", reason=moved)
    assert again.stop() == 0


def test_an_agent_is_no_broker_and_a_protocol_that_is_not_spoken_leaves_the_disks_watched(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    agent = cluster.start_agent(cluster.configure(1, directories=2))
    agent.wait_for_event("agent.unfenced")
    secure = tmp_path / "secure" / "server.properties"
    secure.parent.mkdir()
    lines = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL\n"
    text = (tmp_path / "b1" / "server.properties").read_text()
    secure.write_text("".join(one for one in text.splitlines(True) if not one.startswith("kjbod.")) + lines)

    watch = beside(secure)
    guard = watch.start()
    assert "a kjbod agent holds .lock" in guard.wait_for_event("guard.broker.unbound")["reason"]
    assert (
        "gssapi.sasl.jaas.config is missing: expected the login of GSSAPI (Kafka's default of the mechanism)"
        in guard.wait_for_event("guard.metadata.missing")["reason"]
    )
    told = run_kjbod("guard", "check", *watch.arguments)
    assert told.returncode == 1
    missing = [line for line in told.stdout.splitlines() if line.startswith("missing")]
    assert len(missing) == 2, told.stdout
    assert "agent holds .lock" in missing[0] and "expected the login of GSSAPI" in missing[1]
    assert "a guard runs for it" in told.stdout
    assert "replica.fetch.backoff.ms=1000: some partitions pause for as long when a disk is cut" in told.stdout
    assert "ok       who asks has the rights for --act" in told.stdout
    assert "the guard go on as root (uid 0) without any" in told.stdout
    limited = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", f"{sys.prefix}/bin/kjbod"]
    command = [*limited, "guard", "check", *watch.arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "note     for --act who asks lacks CAP_SYS_ADMIN (cut, mask)" in told.stdout, told.stdout

    # Controllers of another cluster.
    elsewhere = beside(cluster.configure(2, directories=1, cluster_id="kjbodAnotherCluster000")).start("elsewhere")
    reason = elsewhere.wait_for_event("guard.metadata.missing")["reason"]
    assert "belongs to another cluster than kjbodAnotherCluster000" in reason
    assert elsewhere.stop() == 0

    # A guard that would share the agent's state is refused.
    watch.own.write_text(f"kjbod.state.dir={tmp_path}/b1/state\n")
    shared = watch.start("shared")
    assert shared.wait() == 1
    assert f"is in use by another agent (node 1, pid {agent.pid}): stop it first" in shared.stderr()
    assert guard.stop() == 0 and agent.stop() == 0
