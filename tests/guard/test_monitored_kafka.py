"""A guard beside a real broker with a dead disk, scraped by a real Prometheus with the rules that are shipped."""

import base64
import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kjbod.faults.orders import FaultMode
from scripts.rig import prometheus
from scripts.rig.certificates import Authority
from scripts.rig.cluster import Cluster
from scripts.rig.processes import Processes, WaitTimeoutError, free_port, wait_until
from scripts.rig.prometheus import Prometheus
from tests.agent.smart.test_daemons import command
from tests.agent.smart.test_smartctl import DATA
from tests.guard.conftest import Beside, OneBroker
from tests.metrics.test_dashboards import RULES, queries
from tests.metrics.test_web_settings import HASH

__all__ = ["command"]  # a fixture of theirs
ANSWER_S: Final = 30.0
OK: Final = (200, "ok\n")


def filled_in(expr: str) -> str:
    """As Grafana asks it, with all hosts and directories."""
    for variable, value in (("__rate_interval", "10s"), ("log_directory", ".+"), ("instance", ".+"), ("job", ".+")):
        expr = expr.replace(f"${variable}", value)
    return expr


class Secured:
    """A web configuration file, as Prometheus has it, and those who come with what it wants."""

    def __init__(self, home: Path) -> None:
        self.file, self._ca = home / "web.yml", home / "ca.pem"
        authority = Authority.make()
        host = authority.leaf("127.0.0.1")
        (home / "host.pem").write_text(host.chain_pem)
        (home / "host.key").write_text(host.key_pem())
        self._ca.write_text(authority.pem)
        tls = {"cert_file": "host.pem", "key_file": "host.key", "min_version": "TLS12"}
        self.file.write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": {"prometheus": HASH}}))
        code, said = prometheus.promtool("check", "web-config", self.file)
        assert code == 0, said

    @property
    def of_job(self) -> dict[str, Any]:
        login = {"username": "prometheus", "password": "secret"}
        return {"scheme": "https", "tls_config": {"ca_file": str(self._ca)}, "basic_auth": login}

    def asked(self, target: str, path: str) -> tuple[int, str]:
        login = base64.b64encode(b"prometheus:secret").decode()
        request = urllib.request.Request(f"https://{target}{path}", headers={"Authorization": f"Basic {login}"})
        return asked(request, ssl.create_default_context(cafile=self._ca))


def asked(request: urllib.request.Request, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
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
    secured = Secured(tmp_path)
    watch = beside(
        broker.config,
        guard_mode="act",
        metrics_listener=where["kjbod-guard"],
        metrics_web_config_file=secured.file,
    )
    guard = watch.start()

    def told(path: str) -> tuple[int, str]:
        return secured.asked(where["kjbod-guard"], path)

    wait_until(lambda: told("/healthz") == OK, ANSWER_S, "a guard that works")
    no_broker = (503, "no broker runs: nobody holds .lock in its log directories\n")
    wait_until(lambda: told("/readyz") == no_broker, ANSWER_S, "a guard that sees no broker")
    broker.launch()
    stub.create_topic("events", partitions=6, replication_factor=1)
    jobs: dict[str, dict[str, Any]] = {
        name: {"static_configs": [{"targets": [target]}]} for name, target in where.items()
    }
    jobs["kjbod-guard"] |= secured.of_job
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
    for path in ("/healthz", "/readyz"):  # a dead disk is no reason: both do what they are for
        assert told(path) == asked(urllib.request.Request(f"http://{where['kjbod-agent']}{path}")) == OK
    code, text = told("/metrics?names=new")
    assert (code, *prometheus.promtool("check", "metrics", text=text)) == (200, 0, "")
    health = [rule["health"] for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert set(health) == {"ok"}
