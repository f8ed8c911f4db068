"""What ``promtool check metrics`` says of the scrapes of guard, agent and controller."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import Metric

from kjbod import __version__
from kjbod.metrics.distribution import Distribution
from kjbod.metrics.listener import complete, render
from kjbod.metrics.web_settings import read_web_settings
from kjbod.security.tls_keys import REQUIRED
from kjbod.usage import Usage, Use
from kjbod_agent.metrics import AgentCollector
from kjbod_controller_stub import metrics as controller
from kjbod_guard.metrics import metrics_of
from kjbod_guard.picture import ActionCounters
from kjbod_guard.redundancy import Needs
from kjbod_host.metrics import Disk, disk_series
from kjbod_host.smart.readings import Smart
from scripts.rig import prometheus
from scripts.rig.certificates import Authority
from tests.agent.core.test_metrics import SNAPSHOT
from tests.guard.test_answers import NOW, STATUS
from tests.metrics.exposition import not_on_the_page, of_directory, values
from tests.metrics.test_web_settings import HASH
from tests.pages.markdown import ROOT

USE = Use(rss_bytes=1, pss_bytes=1, uss_bytes=1, cpu_s=1, descriptors=1, processes=1, unmeasured=0)
USAGE = Usage(own=USE, workers=USE, helpers=USE, virtual_bytes=1, descriptors_max=1, started_ms=1)
SMART = Smart(
    at_ms=1,
    passed=True,
    power_on_hours=1,
    temp_c=1,
    wear_pct=1,
    spare_pct=1,
    media_errors=1,
    critical_warning=1,
    realloc=1,
    pending=1,
    uncorrect=1,
    reported_uncorrect=1,
    command_timeout=1,
)


def of_guard() -> Iterable[Metric]:
    counters = ActionCounters(outcomes={}, canary_lag=1, evicted_since_ms=1)
    told = replace(STATUS, smart=SMART)
    now = replace(NOW, needs=Needs(0, 0, 0), broker_state="serving", counters=counters, disks={"/mnt/d1": told})
    return metrics_of(now)


def of_agent() -> Iterable[Metric]:
    return AgentCollector(lambda: SNAPSHOT).collect()


def of_controller() -> Iterable[Metric]:
    durations = Distribution().now()
    now = controller.Snapshot(
        values=[(bean, 1) for bean in controller.MBEANS if not bean.key and "ercentile" not in bean.attribute],
        brokers={1: controller.BrokerFigures(state=30, silent_ms=1)},
        features={"metadata.version": 25},
        certificates=(("listener", "/k.pem", 1),),
        waiting=0,
        queued=durations,
        worked=durations,
    )
    return controller.metrics(now)


DAEMONS: dict[str, Callable[[], Iterable[Metric]]] = {
    "guard": of_guard,
    "agent": of_agent,
    "controller": of_controller,
}
OLD_LABEL = "label names should be written in 'snake_case' not 'camelCase'"
OLD_UNIT = 'use base unit "seconds" instead of "hours"'


def complaints(text: str) -> list[str]:
    code, said = prometheus.promtool("check", "metrics", text=text)
    assert (code == 0) == (said == ""), said
    return [line for line in said.splitlines() if not re.match(r"(org_apache_)?kafka_", line)]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("daemon", DAEMONS)
def test_promtool_has_nothing_against_kjbods_own_metrics(
    machine_can: Callable[[Callable[[], None]], None], daemon: str
) -> None:
    machine_can(prometheus.require)
    text = render(complete(DAEMONS[daemon](), USAGE, old_names=False)).decode()
    assert complaints(text) == []
    assert complaints(text.replace("# HELP kjbod_build_info", "# kjbod_build_info")) != [], "it looks"
    assert not_on_the_page(text) == []


@pytest.mark.usefixtures("world")
def test_it_has_something_against_old_names_alone_which_go_with_the_next_release(
    machine_can: Callable[[Callable[[], None]], None],
) -> None:
    machine_can(prometheus.require)
    found = complaints(render(complete(of_guard(), USAGE)).decode())
    assert {line.partition(" ")[2] for line in found} == {OLD_LABEL, OLD_UNIT}


@pytest.mark.parametrize("daemon", ["guard", "agent"])
def test_series_of_a_directory_have_both_labels_and_are_there_once(daemon: str) -> None:
    new, both = (values(render(complete(DAEMONS[daemon](), None, old_names=old)).decode()) for old in (False, True))
    assert len(new) == len([series for series in both if "power_on_hours" not in series])
    assert {series for series in new if "log_directory=" in series}
    for series in both:
        if series.startswith("kjbod_"):
            old, name = (re.findall(rf'\b{label}="([^"]*)"', series) for label in ("logDirectory", "log_directory"))
            assert old == name, series


def test_hours_of_a_disk_are_there_in_seconds_too() -> None:
    told = disk_series({"/d1": Disk(smart=Smart(power_on_hours=10)), "/d2": Disk(smart=Smart(power_on_hours=0))})
    found = values(render(complete(told, None)).decode())
    for path, hours in (("/d1", 10), ("/d2", 0)):
        labels = f"{{{of_directory(path)}}}"
        assert found[f"kjbod_disk_smart_power_on_seconds{labels}"] == hours * 3600
        assert found[f"kjbod_disk_smart_power_on_hours{labels}"] == hours


@pytest.mark.parametrize("daemon", DAEMONS)
def test_each_daemon_tells_its_version(daemon: str) -> None:
    found = values(render(complete(DAEMONS[daemon](), None)).decode())
    (told,) = [series for series in found if series.startswith("kjbod_build_info{")]
    assert f'version="{__version__}"' in told and found[told] == 1


def of_page(page: str, first: str) -> str:
    """The YAML of a page that begins with this line."""
    (found,) = re.findall(rf"^```yaml\n({first}.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.usefixtures("world")
def test_prometheus_takes_what_pages_show_of_its_files(
    machine_can: Callable[[Callable[[], None]], None], tmp_path: Path
) -> None:
    machine_can(prometheus.require)
    config, web = tmp_path / "prometheus.yml", tmp_path / "web.yml"
    config.write_text(of_page("systemd/README.md", "rule_files").replace("/opt/kjbod/share/kjbod", str(ROOT)))
    assert prometheus.promtool("check", "config", config)[0] == 0
    assert "job_name: kjbod-guard\n" in config.read_text(), "as the rules have it"
    web.write_text(of_page("kjbod/metrics/README.md", "tls_server_config").replace("HASH", HASH))
    settings = read_web_settings(web.read_bytes(), str(web))
    assert settings.tls is not None and settings.tls.client_auth == REQUIRED and list(settings.users) == ["prometheus"]
    host = Authority.make().leaf("127.0.0.1")
    for name, text in (("host.pem", host.chain_pem), ("host.key", host.key_pem()), ("ca.pem", host.chain_pem)):
        (tmp_path / name).write_text(text)
    assert prometheus.promtool("check", "web-config", web)[0] == 0
