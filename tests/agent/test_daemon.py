"""The agent as a user runs it: real processes, plain directories, the stub as the controller."""

import fcntl
import os
import signal
import socket
import urllib.request
from pathlib import Path

import psutil
import pytest

from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.agent.daemon_cluster import LEADING_SESSION_MS, Cluster, wait_assigned
from tests.metrics.exposition import checked, of_directory, values
from tests.preloading import begin_kjbod


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Cluster:
    return Cluster(tmp_path, processes)


def unfenced(agent: ManagedProcess) -> ManagedProcess:
    agent.wait_for_event("agent.unfenced")
    return agent


def fail_by_moving_away(directory: Path) -> Path:
    """What happens to a path when its disk is unmounted."""
    away = directory.with_name(directory.name + ".away")
    directory.rename(away)
    return away


def test_lc_16_new_replicas_are_spread_over_the_directories_assigned_and_deleted_by_renaming(cluster: Cluster) -> None:
    cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    cluster.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(agent, 9)
    assert [len(names) for names in cluster.replicas(1)] == [3, 3, 3]
    assert (cluster.directory(1, 1) / cluster.replicas(1)[0][0] / "partition.metadata").read_text().startswith("vers")
    cluster.delete_topics("events")
    wait_until(lambda: sum(map(len, cluster.replicas(1, "events-*-delete"))) == 9, 20, "renamed replicas")
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_assigned(agent, 12)


def test_an_agent_that_starts_registers_once(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    unfenced(cluster.start_agent(cluster.configure(1)))
    assert len(controller.events("broker.registered")) == 1


def test_replicas_that_are_there_already_are_assigned_before_the_broker_is_unfenced(cluster: Cluster) -> None:
    cluster.start_controller()
    config = cluster.configure(1, broker_session_timeout_ms=9000)
    agent = unfenced(cluster.start_agent(config))
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    assert agent.stop() == 0
    moved = cluster.replicas(1)[0][0]
    (cluster.directory(1, 1) / moved).rename(cluster.directory(1, 2) / moved)
    again = unfenced(cluster.start_agent(config))
    names = [event["event"] for event in again.events()]
    assert names.index("assignments.acknowledged") < names.index("agent.unfenced")
    assert again.events("assignments.acknowledged")[0]["count"] == 1


def test_lc_10_a_failed_directory_is_reported_at_once_and_its_leaders_move(cluster: Cluster) -> None:
    cluster.configure_controller({"broker.session.timeout.ms": LEADING_SESSION_MS})
    cluster.start_controller()
    agents = [unfenced(cluster.start_agent(cluster.configure(node))) for node in (1, 2)]
    cluster.create_topic("events", partitions=60, brokers=(1, 2))
    for agent in agents:
        wait_assigned(agent, 60)
    cluster.wait_leading(1, 20)
    fail_by_moving_away(cluster.directory(1, 2))
    failed = agents[0].wait_for_event("directory.failed")
    agents[0].wait_for_event("directory.offline.sent")
    acknowledged = agents[0].wait_for_event("directory.offline.acknowledged")
    moved = agents[0].wait_for_event("directory.leadership.moved")
    assert failed["path"] == str(cluster.directory(1, 2))
    assert failed["partitions"] == 20
    assert failed["leaders"] == moved["leaders"] == 20
    assert acknowledged["directory_ids"] == [failed["directory_id"]]
    assert agents[0].running
    assert "directory.offline.sent" not in [event["event"] for event in agents[1].events()]


def test_a_directory_that_is_away_gets_no_second_copies_and_is_welcome_when_it_is_back(cluster: Cluster) -> None:
    cluster.start_controller()
    config = cluster.configure(1)
    agent = unfenced(cluster.start_agent(config))
    cluster.create_topic("events", partitions=6, replication_factor=1)
    wait_assigned(agent, 6)
    before = cluster.replicas(1)
    away = fail_by_moving_away(cluster.directory(1, 3))
    agent.wait_for_event("directory.offline.acknowledged")
    assert agent.stop() == 0
    cluster.directory(1, 3).write_text("not a directory: unreadable, as an unreadable disk is")
    again = unfenced(cluster.start_agent(config))
    unreadable = again.events("directory.unreadable")[0]
    assert unreadable["directory_id"] is not None
    assert cluster.replicas(1)[:2] == before[:2]
    cluster.create_topic("new", partitions=2, replication_factor=1)
    wait_assigned(again, 2)
    assert again.stop() == 0
    cluster.directory(1, 3).unlink()
    away.rename(cluster.directory(1, 3))
    third = unfenced(cluster.start_agent(config))
    assert third.events("assignments.sent") == []


def test_lc_8_agent_that_cannot_report_a_dead_disk_stops_in_time(cluster: Cluster) -> None:
    cluster.configure_controller({"broker.session.timeout.ms": LEADING_SESSION_MS})
    controller = cluster.start_controller()
    config = cluster.configure(1, log_dir_failure_timeout_ms=1500)
    agent = unfenced(cluster.start_agent(config))
    cluster.create_topic("events", partitions=6, replication_factor=1)
    wait_assigned(agent, 6)
    cluster.wait_leading(1, 2)
    controller.signal(signal.SIGSTOP)
    fail_by_moving_away(cluster.directory(1, 3))
    assert agent.wait() == 74
    stopped = agent.events("agent.stopped")[0]
    for part in (str(cluster.directory(1, 3)), "failed since", "log.dir.failure.timeout.ms", "leads 2 partitions"):
        assert part in stopped["reason"]
    controller.signal(signal.SIGCONT)


def test_agent_that_leads_nothing_on_a_dead_disk_goes_on_without_a_controller(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1, log_dir_failure_timeout_ms=300)))
    controller.signal(signal.SIGSTOP)
    fail_by_moving_away(cluster.directory(1, 3))
    agent.wait_for_event("controller.request.failed")
    agent.wait_for_event("directory.failed")
    controller.signal(signal.SIGCONT)
    agent.wait_for_event("directory.offline.acknowledged")
    assert agent.running


@pytest.mark.parametrize("directories", [(1,), (2, 3, 1)])
def test_without_metadata_directory_or_any_directory_the_agent_fences_itself_and_stops(
    cluster: Cluster, directories: tuple[int, ...]
) -> None:
    controller = cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    for number in directories:
        fail_by_moving_away(cluster.directory(1, number))
    assert agent.wait() == 74
    controller.wait_for_event("broker.fenced", broker_id=1)


def test_a_single_directory_broker_stops_at_once_when_it_fails(cluster: Cluster) -> None:
    cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1, directories=1)))
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_until(lambda: len(agent.events("replica.created")) == 3, 20, "replicas")
    assert agent.events("assignments.sent") == []
    fail_by_moving_away(cluster.directory(1, 1))
    assert agent.wait() == 74


def test_sigterm_hands_leadership_over_and_marks_the_directories_clean(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    config = cluster.configure(1)
    agent = unfenced(cluster.start_agent(config))
    epoch = agent.events("agent.registered")[0]["broker_epoch"]
    assert agent.stop() == 0
    controller.wait_for_event("broker.fenced", broker_id=1)
    for number in (1, 2, 3):
        mark = (cluster.directory(1, number) / ".kafka_cleanshutdown").read_text()
        assert f'"brokerEpoch":{epoch}' in mark
    unfenced(cluster.start_agent(config))
    assert not (cluster.directory(1, 1) / ".kafka_cleanshutdown").exists()


def test_agent_and_controller_outlive_the_signals_of_terminals_and_scripts(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    for process in (controller, agent):
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            process.signal(number)
            process.wait_for_event("signal.passed.over", signal=number.name)
        process.signal(signal.SIGQUIT)
        stacks = process.wait_for_event("signal.stacks")["stacks"]
        assert any("run" in line for line in stacks)
        assert sum(line.startswith(("Thread ", "Current thread ")) for line in stacks) > 1
        process.signal(signal.SIGQUIT)  # as often as one likes
        wait_until(lambda: len(process.events("signal.stacks")) == 2, 20, "the second one")  # noqa: B023
    cluster.create_topic("t", 1, 1)
    assert agent.stop() == 0
    assert controller.stop() == 0


def test_sigterm_without_a_controller_ends_in_bounded_time_and_a_second_one_at_once(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    controller.signal(signal.SIGSTOP)
    agent.signal(signal.SIGTERM)
    agent.wait_for_event("agent.signal", count=1)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    controller.signal(signal.SIGCONT)


def test_kill_9_and_a_new_start_find_the_same_replicas_in_their_places(cluster: Cluster) -> None:
    cluster.start_controller()
    config = cluster.configure(1)
    agent = unfenced(cluster.start_agent(config))
    cluster.create_topic("events", partitions=6, replication_factor=1)
    wait_assigned(agent, 6)
    before = cluster.replicas(1)
    agent.kill()
    again = cluster.start_agent(config)
    again.wait_for_event("agent.unfenced", 60)
    assert cluster.replicas(1) == before
    assert again.events("assignments.sent") == []


def test_a_controller_that_comes_back_is_found_again(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    controller.kill()
    fail_by_moving_away(cluster.directory(1, 3))
    agent.wait_for_event("directory.offline.sent")
    cluster.start_controller()
    agent.wait_for_event("directory.offline.acknowledged")
    assert agent.running


def test_an_agent_that_never_registers_gives_up_and_says_why(cluster: Cluster) -> None:
    agent = cluster.start_agent(cluster.configure(1, initial_broker_registration_timeout_ms=500))
    assert agent.wait() == 1
    assert "initial.broker.registration.timeout.ms" in agent.events("agent.stopped")[0]["reason"]


def test_a_stray_replica_is_named_gives_up_its_name_and_is_kept_and_remembered(cluster: Cluster) -> None:
    cluster.start_controller()
    config = cluster.configure(1, log_segment_delete_delay_ms=200, kjbod_agent_take_over="true")
    stray = cluster.directory(1, 2) / "old-0"
    stray.mkdir()
    (stray / "00000000000000000000.log").write_bytes(b"data of long ago")
    agent = unfenced(cluster.start_agent(config))
    said = agent.events("replica.stray")[0]
    assert (said["path"], said["topic_id"]) == (str(stray), None)
    kept = stray.with_name(said["renamed"])
    wait_until(kept.is_dir, 20, "a renamed stray")
    memory = config.parent / "state" / "strays.json"
    wait_until(lambda: memory.exists() and kept.name in memory.read_text(), 20, "a memory of the stray")
    cluster.create_topic("old", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    cluster.delete_topics("old")
    wait_until(lambda: len(agent.events("replica.removed")) == 3, 20, "removed replicas")
    assert not any(cluster.replicas(1, "old-*-delete")) and not stray.exists()
    assert agent.stop() == 0
    before = memory.read_text()
    again = unfenced(cluster.start_agent(config))
    assert again.events("replica.stray") == [], "it is one already"
    assert (kept / "00000000000000000000.log").read_bytes() == b"data of long ago"
    assert (memory.read_text(), again.stop()) == (before, 0)


def test_metrics_carry_kafka_s_names(cluster: Cluster) -> None:
    cluster.start_controller()
    port = free_port()
    agent = unfenced(cluster.start_agent(cluster.configure(1, kjbod_metrics_listener=f"127.0.0.1:{port}")))
    fail_by_moving_away(cluster.directory(1, 3))
    agent.wait_for_event("directory.offline.acknowledged")
    found = scraped(port)
    good, bad = (str(cluster.directory(1, number)) for number in (1, 3))
    assert found["kafka_server_assignmentsmanager_queuedreplicatodirassignments"] == 0
    assert found['kafka_server_KafkaServer_Value{name="QueuedReplicaToDirAssignments"}'] == 0
    assert found["kjbod_strays"] == found["kjbod_assignments_stuck"] == 0
    assert found[rf'kafka_log_logmanager_remaininglogstorecover{{dir="\"{good}\""}}'] == 0
    assert found["kafka_log_logmanager_offlinelogdirectorycount"] == 1
    assert found[rf'kafka_log_logmanager_logdirectoryoffline{{logDirectory="\"{bad}\""}}'] == 1
    assert found["kafka_server_kafkaserver_brokerstate"] == 3
    assert found[f'kjbod_log_directory_health{{{of_directory(bad)},state="failed"}}'] == 1
    assert found[f'kjbod_log_directory_health{{{of_directory(good)},state="online"}}'] == 1
    assert found[f"kjbod_log_directory_size_bytes{{{of_directory(good)}}}"] > 0
    assert found[f"kjbod_log_directory_probe_seconds_count{{{of_directory(good)}}}"] > 0
    directory_id = agent.events("agent.started")[0]["log_dirs"][good]
    info = [series for series in found if series.startswith("kjbod_log_directory_info") and f'"{good}"' in series]
    assert len(info) == 1
    assert f'directory_id="{directory_id}"' in info[0]


def test_metrics_tell_what_the_agent_and_its_workers_use(cluster: Cluster) -> None:
    cluster.start_controller()
    port = free_port()
    agent = unfenced(cluster.start_agent(cluster.configure(1, kjbod_metrics_listener=f"127.0.0.1:{port}")))
    found, process = scraped(port), psutil.Process(agent.pid)
    assert found["process_start_time_seconds"] == pytest.approx(process.create_time(), abs=0.01)
    assert 0 < found["process_cpu_seconds_total"] <= sum(process.cpu_times()[:2])
    assert found["process_max_fds"] == process.rlimit(psutil.RLIMIT_NOFILE)[0]
    assert 10 < found["process_open_fds"] < 200
    assert (
        found["kjbod_process_uss_bytes"] <= found["kjbod_process_pss_bytes"] <= found["process_resident_memory_bytes"]
    )
    assert (found["kjbod_workers"], found["kjbod_workers_unmeasured"]) == (3, 0)
    assert found["kjbod_helpers"] == 6, "zygote, keeper, file calls of state, reports and metadata, state's lock"
    assert {found["kjbod_workers"] + found["kjbod_helpers"]} == {len(process.children(recursive=True))}
    assert 0 < found["kjbod_workers_pss_bytes"] < 100 << 20
    path = str(cluster.directory(1, 1))
    worker = next(child for child in process.children(recursive=True) if path in " ".join(child.cmdline()))
    worker.kill()
    agent.wait_for_event("worker.died")
    assert scraped(port)["kjbod_workers_cpu_seconds_total"] >= found["kjbod_workers_cpu_seconds_total"]


def test_metrics_tell_a_directory_that_cannot_be_read_from_one_that_failed(cluster: Cluster) -> None:
    cluster.start_controller()
    port = free_port()
    config = cluster.configure(1, kjbod_metrics_listener=f"127.0.0.1:{port}")
    assert unfenced(cluster.start_agent(config)).stop() == 0
    gone = cluster.directory(1, 3)
    fail_by_moving_away(gone)
    gone.write_text("not a directory: unreadable, as an unreadable disk is")
    unfenced(cluster.start_agent(config))
    found = scraped(port)
    assert found[f'kjbod_log_directory_health{{{of_directory(gone)},state="unreadable"}}'] == 1
    assert found[f'kjbod_log_directory_health{{{of_directory(gone)},state="failed"}}'] == 0
    assert found[rf'kafka_log_logmanager_logdirectoryoffline{{logDirectory="\"{gone}\""}}'] == 1


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    checked(text)
    return values(text)


def test_a_taken_metrics_port_is_one_clear_reason(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = cluster.start_agent(cluster.configure(1, kjbod_metrics_listener=where))
        assert agent.wait() == 1
    assert where in agent.events("agent.stopped")[0]["reason"]


def snapshot(base: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(base.rglob("*"))
        if path.is_file() and path.name not in (".lock",) and not path.name.startswith(".kjbod")
    }


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def duplicate_id(cluster: Cluster) -> None:
    content = (cluster.directory(1, 2) / "meta.properties").read_bytes()
    (cluster.directory(1, 3) / "meta.properties").write_bytes(content)


REFUSALS = {
    "duplicate id": (duplicate_id, "Duplicate directory ID"),
    "wrong node": (
        lambda c: edit(c.directory(1, 3) / "meta.properties", "node.id=1", "node.id=2"),
        "Stored node id",
    ),
    "wrong cluster": (
        lambda c: edit(c.directory(1, 3) / "meta.properties", "cluster.id=", "cluster.id=x"),
        "Invalid cluster.id",
    ),
    "missing mount": (lambda c: fail_by_moving_away(c.directory(1, 3)), "does not exist"),
    "not formatted": (lambda c: (c.directory(1, 3) / "meta.properties").unlink(), "kjbod format"),
    "garbage in meta.properties": (
        lambda c: (c.directory(1, 3) / "meta.properties").write_text("garbage"),
        "no node.id and no cluster.id",
    ),
    "foreign directory": (lambda c: (c.directory(1, 3) / "lost+found").mkdir(), "lost+found"),
    "metadata elsewhere": (lambda c: (c.directory(1, 3) / "__cluster_metadata-0").mkdir(), "unexpected metadata"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_directories_that_cannot_be_used_are_refused_with_one_line_and_nothing_is_changed(
    cluster: Cluster, case: str
) -> None:
    config = cluster.configure(1)
    spoil, text = REFUSALS[case]
    spoil(cluster)
    disks = cluster.directory(1, 1).parent
    before = {path: content for path, content in snapshot(disks).items() if "/state/" not in path}
    agent = cluster.start_agent(config)
    assert agent.wait() not in (0, None)
    lines = agent.stderr().splitlines()
    assert len(lines) == 1
    assert text in lines[0] and str(cluster.directory(1, 3)) in lines[0]
    assert {path: content for path, content in snapshot(disks).items() if "/state/" not in path} == before


def test_su_9_a_second_agent_on_the_same_directories_is_refused(cluster: Cluster) -> None:
    cluster.start_controller()
    config = cluster.configure(1)
    unfenced(cluster.start_agent(config))
    other = config.with_name("other.properties")
    other.write_text(config.read_text() + f"kjbod.state.dir={config.parent / 'other'}\n")
    second = cluster.start_agent(other)
    assert second.wait() == 1
    assert f"{cluster.directory(1, 1)}/.lock" in second.stderr()


def test_a_directory_id_that_is_missing_is_written_and_kept(cluster: Cluster) -> None:
    cluster.start_controller()
    config = cluster.configure(1)
    meta = cluster.directory(1, 3) / "meta.properties"
    kept = [line for line in meta.read_text().splitlines() if not line.startswith("directory.id")]
    meta.write_text("\n".join(kept) + "\n")
    agent = unfenced(cluster.start_agent(config))
    ids = agent.events("agent.started")[0]["log_dirs"]
    assert f"directory.id={ids[str(cluster.directory(1, 3))]}" in meta.read_text()


def test_events_of_a_failure_are_in_the_health_report_after_the_process_is_gone(cluster: Cluster) -> None:
    cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    for number in (2, 3, 1):
        fail_by_moving_away(cluster.directory(1, number))
    assert agent.wait() == 74
    reports = cluster.base / "b1" / "state" / "reports" / "events"
    assert [name for _, _, names in os.walk(reports) for name in names]


def test_disks_of_another_cluster_end_the_start_as_a_mistake_of_configuration_with_one_reason(cluster: Cluster) -> None:
    cluster.start_controller()
    agent = cluster.start_agent(cluster.configure(1, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ"))
    assert agent.wait() == 78
    (stopped,) = agent.events("agent.stopped")
    assert stopped["exit_code"] == 78
    assert "cluster" in stopped["reason"] and "AAAAAAAAAAAAAAAAAAAAAQ" in stopped["reason"]
    assert "Traceback" not in agent.stderr()


def test_a_controller_that_accepts_and_never_answers_does_not_hold_the_agent(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", cluster.port)):
        agent = cluster.start_agent(cluster.configure(1, initial_broker_registration_timeout_ms=500))
        assert agent.wait() == 1
    assert "initial.broker.registration.timeout.ms" in agent.events("agent.stopped")[0]["reason"]


def test_a_metadata_directory_apart_is_watched_as_well_and_its_loss_ends_the_agent(cluster: Cluster) -> None:
    cluster.start_controller()
    metadata = cluster.base / "b1" / "metadata"
    agent = unfenced(cluster.start_agent(cluster.configure(1, metadata_log_dir=metadata)))
    assert str(metadata) not in agent.events("agent.started")[0]["log_dirs"]
    fail_by_moving_away(metadata)
    assert agent.wait() == 74
    assert f"cluster metadata is lost: log directory {metadata}" in agent.events("agent.stopped")[0]["reason"]


def test_an_agent_whose_log_nobody_reads_works_and_ends(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    config = cluster.configure(1)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, bytes(4096))
    agent = begin_kjbod("agent", "-c", str(config), out=1, err=writer)
    try:
        controller.wait_for_event("broker.unfenced", broker_id=1)
        fail_by_moving_away(cluster.directory(1, 1))
        assert agent.wait(30) == 74
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait(30)
        os.close(reader)
        os.close(writer)
    controller.wait_for_event("broker.fenced", broker_id=1)


def test_a_report_folder_that_cannot_be_used_harms_nobody(cluster: Cluster) -> None:
    cluster.start_controller()
    (cluster.base / "file").write_text("not a directory")
    agent = unfenced(cluster.start_agent(cluster.configure(1, kjbod_reports_dir=cluster.base / "file" / "reports")))
    agent.wait_for_event("reports.failed")
    fail_by_moving_away(cluster.directory(1, 1))
    assert agent.wait() == 74


def test_what_verdicts_rest_on_is_said_once(cluster: Cluster) -> None:
    cluster.start_controller()
    agent = unfenced(cluster.start_agent(cluster.configure(1)))
    (sources,) = agent.events("health.sources")
    paths = {str(cluster.directory(1, number)) for number in (1, 2, 3)}
    assert {*sources["block_counters"], *sources.get("no_block_counters", {})} == paths
