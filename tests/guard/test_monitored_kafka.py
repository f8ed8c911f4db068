"""A guard beside a real broker with a dead disk, scraped by a real Prometheus with the rules that are shipped."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kjbod.faults.orders import FaultMode
from scripts.rig import prometheus
from scripts.rig.cluster import Cluster
from scripts.rig.processes import Processes, WaitTimeoutError, free_port, wait_until
from scripts.rig.prometheus import Prometheus
from tests.agent.smart.test_daemons import command
from tests.agent.smart.test_smartctl import DATA
from tests.guard.conftest import Beside, OneBroker
from tests.metrics.test_dashboards import RULES, queries

__all__ = ["command"]  # a fixture of theirs
ANSWER_S: Final = 30.0


def filled_in(expr: str) -> str:
    """As Grafana asks it, with all hosts and directories."""
    for variable, value in (("__rate_interval", "10s"), ("log_directory", ".+"), ("instance", ".+"), ("job", ".+")):
        expr = expr.replace(f"${variable}", value)
    return expr


def asked(target: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{target}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError as error:
        return 0, str(error)


def test_each_panel_is_answered_and_an_alert_is_raised_beside_a_dead_disk(
    one_broker: Callable[..., OneBroker],
    stub: Cluster,
    beside: Callable[..., Beside],
    command: Callable[[str], list[str]],
    processes: Processes,
    machine_can: Callable[[Callable[[], None]], None],
    tmp_path: Path,
) -> None:
    """The guard acts, and may not shut the disk down, which has the only copies. An agent's disk tells of itself."""
    machine_can(prometheus.require)
    broker, ports = one_broker(), {"kjbod-guard": free_port(), "kjbod-agent": free_port()}
    where = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    own: dict[str, object] = {
        "kjbod.state.dir": tmp_path / "agent-state",
        "kjbod.smart.interval.ms": 100,
        "kjbod.metrics.listener": where["kjbod-agent"],
    }
    agents = stub.configure_broker(2, [tmp_path / "of-agent"], own)
    stub.format_broker(agents)
    agent = stub.start_agent(agents, kjbod=command(f"cat {DATA}/ata-hdd-failing.json"))
    watch = beside(broker.config, guard_mode="act", metrics_listener=where["kjbod-guard"])
    guard = watch.start()
    wait_until(lambda: asked(where["kjbod-guard"], "/healthz") == (200, "ok\n"), ANSWER_S, "a guard that works")
    no_broker = (503, "no broker runs: nobody holds .lock in its log directories\n")
    wait_until(lambda: asked(where["kjbod-guard"], "/readyz") == no_broker, ANSWER_S, "a guard that sees no broker")
    broker.launch()
    stub.create_topic("events", partitions=6, replication_factor=1)
    jobs = {name: {"static_configs": [{"targets": [target]}]} for name, target in where.items()}
    server = Prometheus(processes, tmp_path / "prometheus", jobs, [RULES])
    guard.wait_for_event("guard.metadata.followed")
    agent.wait_for_event("smart.failing")
    broker.disks[0].set(FaultMode.HANG)
    unanswered = dict(queries())

    def all_answered() -> bool:
        for name, expr in list(unanswered.items()):
            if server.query(filled_in(expr)):
                del unanswered[name]
        return not unanswered

    with contextlib.suppress(WaitTimeoutError):
        wait_until(all_answered, ANSWER_S, "an answer to each panel")
    assert sorted(unanswered) == []

    dead = f'ALERTS{{alertname="KjbodDiskFailedUnnoticed", log_directory="{broker.paths[0]}"}}'
    (alert,) = wait_until(lambda: server.query(dead), ANSWER_S, "an alert on the dead disk")
    assert alert["metric"]["device"].startswith("loop") and alert["metric"]["severity"] == "critical"
    for target in where.values():  # a dead disk is no reason: both do what they are for
        assert [asked(target, path) for path in ("/healthz", "/readyz")] == [(200, "ok\n")] * 2
    health = [rule["health"] for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert set(health) == {"ok"}
