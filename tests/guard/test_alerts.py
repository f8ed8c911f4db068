"""The alert rules for Prometheus, by ``promtool test rules``: each is quiet while all is well, and fires for what it is
for. The series are those that a guard or an agent serves in a situation."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kjbod.metrics.listener import complete, render
from kjbod.security.certificates import Certificate, Certificates
from kjbod_agent.metrics import AgentCollector
from kjbod_guard import effects
from kjbod_guard.metrics import MEANS, metrics_of
from kjbod_guard.picture import ActionCounters, Picture
from kjbod_guard.redundancy import Needs
from kjbod_host.metrics import Disk
from kjbod_host.smart.readings import Smart
from scripts.rig import prometheus
from tests.agent.core.test_metrics import SNAPSHOT
from tests.guard.test_answers import NOW, ROW, STATUS
from tests.pages.markdown import ROOT
from tests.security.ending import Ending

MONITORING = ROOT / "systemd" / "monitoring"
RULES = MONITORING / "kjbod.rules.yml"
RUNBOOK = MONITORING / "alerts.md"
BASE = "file:///opt/kjbod/share/kjbod/systemd/monitoring/alerts.md"
MINUTES: Final = 20
"""Of a situation; rules that wait longer have tests of their own."""
NOW_S: Final = MINUTES * 60
DAY_S: Final = 86_400
GUARD, AGENT = {"job": "kjbod-guard", "instance": "h1:9858"}, {"job": "kjbod-agent", "instance": "h2:9404"}
FIRING = 'group by (alertname) (ALERTS{alertstate="firing"})'

OF_ALL: Final = ("KjbodGuardsWaitForEachOther",)
"""What is counted over all guards has no instance."""

Series = dict[str, str]
"""Values in promtool's notation, by series."""


def series(metrics: Iterable[Metric], target: Mapping[str, str], before: Iterable[Metric] = ()) -> Series:
    """What the rules look at of a target, a sample each minute: ``metrics``; counters as ``before`` until five minutes
    ago."""
    until = dict(_samples(before))
    used = set(re.findall(r"\w+", RULES.read_text()))
    found = {f"up{_labels(target)}": f"1+0x{MINUTES}"}
    for (name, labels), value in _samples(metrics):
        earlier = until.get((name, labels), value) if name.endswith("_total") else value
        if name in used:
            found[name + _labels({**dict(labels), **target})] = f"{earlier}+0x{MINUTES - 5} {value}+0x4"
    return found


def _samples(metrics: Iterable[Metric]) -> Iterable[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    for family in text_string_to_metric_families(render(complete(metrics, None)).decode() if metrics else ""):
        for sample in family.samples:
            yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def of_path(path: str) -> dict[str, str]:
    return {"log_directory": path, "logDirectory": path}


def of_guard(now: Picture, **labels: str) -> Series:
    """A guard; its counters were as when all was well, until lately."""
    before = replace(now, counters=None if now.counters is None else WELL.counters)
    return series(metrics_of(now), {**GUARD, **labels}, metrics_of(before))


def firing(names: Iterable[str], minutes: int = MINUTES) -> dict[str, Any]:
    expected = [{"labels": _labels({"alertname": name}), "value": 1} for name in sorted(names)]
    return {"promql_expr_test": [{"expr": FIRING, "eval_time": f"{minutes}m", "exp_samples": expected}]}


def case(name: str, found: Series, checks: Mapping[str, Any], interval: str = "1m") -> dict[str, Any]:
    input_series = [{"series": one, "values": values} for one, values in found.items()]
    return {"name": name, "interval": interval, "input_series": input_series, **checks}


@pytest.fixture
def rules_hold(world: None, machine_can: Callable[[Callable[[], None]], None], tmp_path: Path) -> Callable[..., None]:
    """Runs tests of the rules by promtool."""
    machine_can(prometheus.require)

    def run(*cases: dict[str, Any], interval: str = "1m") -> None:
        file = tmp_path / "tests.yml"  # JSON is YAML
        file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": cases}))
        code, said = prometheus.promtool("test", "rules", file)
        assert code == 0, said

    return run


WELL_ROW = ROW | {"verdict": "online", "would": "nothing", "step": "well", "step_reason": None}
OTHER_ROW = WELL_ROW | {"path": "/mnt/d2"}
WELL = replace(
    NOW,
    mode="act",
    broker_state="serving",
    counters=ActionCounters(outcomes={}),
    needs=Needs(0, 0, 0),
    directories=[WELL_ROW, OTHER_ROW],
    disks={},
)


def first(**changes: Any) -> Picture:
    """The first directory is another one."""
    return replace(WELL, directories=[WELL_ROW | changes, OTHER_ROW])


def ending(days: int) -> Certificates:
    """A certificate that ends in so many days."""
    found = Certificates()
    found.add("controllers", Ending(Certificate("ssl.keystore.location", "/k.pem", (NOW_S + days * DAY_S) * 1000)))
    return found


def telling(smart: Smart) -> Picture:
    """The disk of the first directory tells that of itself."""
    return replace(WELL, disks={WELL_ROW["path"]: replace(STATUS, path=WELL_ROW["path"], smart=smart)})


SITUATIONS: dict[str, tuple[Picture, set[str]]] = {
    "all is well": (WELL, set()),
    "the guard observes": (replace(WELL, mode="observe", broker_state=None, counters=None), set()),
    "a disk has failed unseen": (first(verdict="failed", would="cut"), {"KjbodDiskFailedUnnoticed"}),
    "a disk could not be read": (first(verdict="unreadable", kafka="unknown", would=None), {"KjbodDiskUnreadable"}),
    "it was cut, and the guard started again": (
        first(verdict="unreadable", kafka="offline", would=None),
        {"KjbodDiskOffline"},
    ),
    "it was cut": (first(verdict="failed", kafka="offline", step="offline"), {"KjbodDiskOffline"}),
    "nobody knows whether Kafka has noticed": (
        first(verdict="failed", kafka="unknown"),
        {"KjbodDiskFailedUnnoticed"},
    ),
    "no means has worked": (
        first(verdict="failed", would="cut", step="left", step_reason="the last directory"),
        {"KjbodDiskFailedUnnoticed", "KjbodGuardWaits"},
    ),
    "it may not be done yet": (
        first(verdict="failed", would="wait", step="well", waits_for="time"),
        {"KjbodDiskFailedUnnoticed"},
    ),
    "other brokers come first": (
        first(verdict="failed", would="wait", step="well", waits_for="budget"),
        {"KjbodDiskFailedUnnoticed", "KjbodGuardWaits", "KjbodGuardsWaitForEachOther"},
    ),
    "too few copies are in sync": (
        first(verdict="failed", would="wait", step="well", waits_for="copies"),
        {"KjbodDiskFailedUnnoticed", "KjbodGuardWaits"},
    ),
    "somebody wants it left alone": (first(kafka="offline", step="left", step_reason="released"), {"KjbodDiskOffline"}),
    "a disk is slow": (first(verdict="slow"), {"KjbodDiskSlow"}),
    "a disk is frozen": (first(verdict="held"), {"KjbodDiskHeld"}),
    "a disk is full": (first(verdict="full"), {"KjbodDiskFull"}),
    "a disk is being checked": (first(verdict="suspect"), set()),
    "a disk says that it is failing": (telling(Smart(passed=False)), {"KjbodDiskFailing"}),
    "a disk says that it is well, and another one nothing": (telling(Smart(passed=True)), set()),
    "the helper refuses": (
        replace(WELL, counters=ActionCounters(outcomes={("cut", "refused"): 1})),
        {"KjbodGuardRefused"},
    ),
    "the controllers refuse a record of suspicion": (
        replace(WELL, counters=ActionCounters(outcomes={("suspect", "refused"): 1})),
        {"KjbodGuardRefused"},
    ),
    "a disk was suspected, and answered in time": (
        replace(WELL, counters=ActionCounters(outcomes={("suspect", "done"): 1, ("trust", "done"): 1})),
        set(),
    ),
    "it was reported, and is not cut yet": (
        replace(first(verdict="failed", kafka="offline"), counters=ActionCounters(outcomes={("report", "done"): 1})),
        {"KjbodDiskOffline"},
    ),
    "a cut does not return": (replace(WELL, counters=ActionCounters(outcomes={("cut", "pending"): 1})), set()),
    "the broker must be given up": (
        replace(WELL, broker_state="crippled", counters=ActionCounters(outcomes={}, crippled=True)),
        {"KjbodBrokerCrippled"},
    ),
    "it was given up": (
        replace(
            WELL, broker_state="ended", counters=ActionCounters(outcomes={("kill", "done"): 1, ("fence", "done"): 1})
        ),
        {"KjbodBrokerGivenUp"},
    ),
    "partitions have no leader": (replace(WELL, needs=Needs(0, 0, 1)), {"KjbodPartitionsWithoutLeader"}),
    "replicas are in sync in an offline directory": (
        replace(WELL, needs=Needs(0, 0, 0, 1)),
        {"KjbodPartitionsInSyncOffline"},
    ),
    "partitions are below min.insync.replicas": (replace(WELL, needs=Needs(0, 1, 0)), {"KjbodPartitionsBelowMinIsr"}),
    "partitions lack the replica that was evicted": (
        replace(WELL, needs=Needs(1, 0, 0), counters=ActionCounters(outcomes={("evict", "done"): 1}, evicted=1)),
        {"KjbodPartitionsBelowReplicationFactor"},
    ),
    "the controllers refuse replica lists": (
        replace(WELL, refused=[{"topic": "t", "partition": 0, "means": "evict", "reason": "in reassignment"}]),
        {"KjbodPartitionsRefused"},
    ),
    "a right on the cluster is missing": (
        replace(WELL, counters=ActionCounters(outcomes={}, missing_rights=("the guard lacks ALTER on the cluster",))),
        {"KjbodGuardRightsMissing"},
    ),
    "no helper": (replace(WELL, counters=ActionCounters(outcomes={}, hand_missing=1)), {"KjbodGuardHandMissing"}),
    "the disk of the metadata log failed, and the broker was given up for it": (
        replace(
            first(verdict="failed", kafka="unknown"),
            unbound="no broker runs",
            broker_state="fenced",
            counters=ActionCounters(outcomes={("kill", "done"): 1, ("fence", "done"): 1}),
        ),
        {"KjbodBrokerGivenUp"},
    ),
    "its certificate ends in six days": (replace(WELL, certificates=ending(6)), {"KjbodCertificateEnds"}),
    "its certificate ends in eight days": (replace(WELL, certificates=ending(8)), set()),
    "Kafka is newer": (replace(WELL, metadata_version=34), {"KjbodGuardKafkaNewer"}),
    "Kafka is newer, and has records that concern no partition": (
        replace(WELL, metadata_version=34, unknown_records=2),
        {"KjbodGuardKafkaNewer"},
    ),
    "the picture is incomplete": (
        replace(WELL, metadata_version=34, unknown_records=3, incomplete="type 30 version 0"),
        {"KjbodGuardKafkaNewer", "KjbodGuardIncomplete"},
    ),
    "no metadata": (replace(WELL, blind="no controller answers", needs=None), {"KjbodGuardBlind"}),
}


def test_each_alert_fires_for_what_it_is_for_and_for_nothing_else(rules_hold: Callable[..., None]) -> None:
    """All situations are hosts of one cluster, and another cluster has hosts of the same names where all is well."""
    fleet: Series = {}
    expected: list[dict[str, str]] = []
    for host, (now, names) in SITUATIONS.items():
        fleet |= of_guard(now, instance=host, cluster="a") | of_guard(WELL, instance=host, cluster="b")
        expected += [
            {"alertname": name, **({} if name in OF_ALL else {"instance": host, "cluster": "a"})}
            for name in sorted(names)
        ]
    samples = [{"labels": _labels(labels), "value": 1} for labels in expected]
    found = {"expr": FIRING.replace("alertname", "alertname, instance, cluster"), "eval_time": f"{MINUTES}m"}
    rules_hold(case("a fleet", fleet, {"promql_expr_test": [{**found, "exp_samples": samples}]}), interval="5m")


def test_rules_are_tried_by_a_tool_that_notices_when_one_does_not_fire(rules_hold: Callable[..., None]) -> None:
    with pytest.raises(AssertionError, match="KjbodDiskOffline"):
        rules_hold(case("all is well", of_guard(WELL), firing({"KjbodDiskOffline"})))


def test_a_guard_that_is_down_and_guards_that_nobody_scrapes(rules_hold: Callable[..., None]) -> None:
    down = {f"up{_labels(GUARD)}": f"0+0x{MINUTES}"}
    rules_hold(
        case("the guard is down", down, firing({"KjbodGuardGone"})),
        case("no job", {}, firing({"KjbodGuardsAbsent"})),
        case(
            "an agent alone",
            series(AgentCollector(lambda: AGENTS).collect(), AGENT),
            firing({"KjbodDiskOffline"}),
        ),
    )


def test_guards_of_the_release_before_are_not_overlooked(rules_hold: Callable[..., None]) -> None:
    """They have the old label alone, beside guards that have both."""
    fleet: Series = {}
    expected: list[dict[str, Any]] = []
    for host in ("a disk has failed unseen", "it was cut", "a disk is full", "no means has worked", "all is well"):
        now, names = SITUATIONS[host]
        new = of_guard(now, instance=f"new {host}")
        old = {
            re.sub(r'\blog_directory="[^"]*",', "", key): value for key, value in of_guard(now, instance=host).items()
        }
        fleet |= new | {key: value for key, value in old.items() if not key.startswith("kjbod_build_info")}
        expected += [{"alertname": name, "instance": one} for name in names for one in (host, f"new {host}")]
    samples = [{"labels": _labels(labels), "value": 1} for labels in expected]
    found = {"expr": FIRING.replace("alertname", "alertname, instance"), "eval_time": f"{MINUTES}m"}
    rules_hold(case("a fleet", fleet, {"promql_expr_test": [{**found, "exp_samples": samples}]}), interval="5m")


def test_a_directory_that_fills_up_is_known_a_day_before(rules_hold: Callable[..., None]) -> None:
    def filling(size: int, free: int, per_hour: int) -> Series:
        labels, hours = _labels({**GUARD, "log_directory": "/mnt/d1"}), 9
        return {
            f"up{_labels(GUARD)}": f"1+0x{hours * 12}",
            f"kjbod_log_directory_info{labels}": f"1+0x{hours * 12}",
            f"kjbod_log_directory_size_bytes{labels}": f"{size}+0x{hours * 12}",
            f"kjbod_log_directory_available_bytes{labels}": f"{free}{-per_hour / 12:+}x{hours * 12}",
        }

    def holds(name: str, found: Series, expected: set[str]) -> dict[str, Any]:
        return case(name, found, firing(expected, minutes=8 * 60), interval="5m")

    rules_hold(
        holds("4 % an hour, 8 % left", filling(12_000, 4_800, 480), {"KjbodDiskFillsUp"}),
        holds("the same rate, and half of it free", filling(12_000, 9_840, 480), set()),
        holds("a tenth free, as ever", filling(12_000, 1_200, 0), set()),
        holds("a tenth free, and a week left", filling(12_000, 1_200, 6), set()),
        holds("it empties", filling(12_000, 600, -60), set()),
        interval="5m",
    )


def test_two_versions_are_told_after_a_day(rules_hold: Callable[..., None]) -> None:
    def host(number: int, version: str | None) -> Series:
        target = {"job": "kjbod-guard", "instance": f"h{number}"}
        named = {**target, "version": version, "python_version": f"3.{number}"} if version else None
        return {
            f"up{_labels(target)}": "1+0x40",
            f"kjbod_guard_acting{_labels(target)}": "1+0x40",
            **({f"kjbod_build_info{_labels(named)}": "1+0x40"} if named else {}),
        }

    def holds(name: str, versions: list[str | None], expected: set[str], hours: int = 30) -> dict[str, Any]:
        found = {key: value for number, one in enumerate(versions) for key, value in host(number, one).items()}
        return case(name, found, firing(expected, minutes=hours * 60), interval="1h")

    rules_hold(
        holds("one version", ["0.2.0"] * 3, set()),
        holds("two", ["0.2.0", "0.2.0", "0.3.0"], {"KjbodTwoVersions"}),
        holds("an upgrade of half a day", ["0.2.0", "0.3.0"], set(), hours=12),
        holds("one from before there was kjbod_build_info", ["0.2.0", None], {"KjbodTwoVersions"}),
        holds("only such", [None, None], set()),
        case(
            "clusters of a version each",
            {
                key.replace("{", f'{{cluster="{name}",'): value
                for name, version in (("a", "0.2.0"), ("b", "0.3.0"))
                for key, value in host(1, version).items()
            },
            firing(set(), minutes=30 * 60),
            interval="1h",
        ),
        interval="1h",
    )


@pytest.mark.parametrize("serial", ["ZL2F0K7N", ""])
def test_an_alert_of_a_directory_has_the_serial_number_and_a_runbook(
    rules_hold: Callable[..., None], serial: str
) -> None:
    found = of_guard(first(verdict="failed", kafka="offline"))
    info = next(one for one in found if one.startswith("kjbod_log_directory_info") and WELL_ROW["path"] in one)
    del found[info]
    labels = {**GUARD, **of_path(WELL_ROW["path"]), "device": "sdb", "model": "disk", "serial": serial}
    found[f"kjbod_log_directory_info{_labels(labels)}"] = f"1+0x{MINUTES}"
    told = {key: value for key, value in labels.items() if value}
    expected = {
        "exp_labels": {**told, "severity": "warning", "view": "offline"},
        "exp_annotations": {
            "summary": f"{WELL_ROW['path']} of h1:9858 (serial {serial or 'unknown'}) is offline for Kafka",
            "runbook_url": f"{BASE}#kjboddiskoffline",
        },
    }
    tried = {"alertname": "KjbodDiskOffline", "eval_time": f"{MINUTES}m", "exp_alerts": [expected]}
    rules_hold(case("a disk that Kafka has offline", found, {"alert_rule_test": [tried]}))


AGENTS = replace(SNAPSHOT, disks={path: Disk() for path in SNAPSHOT.health})
"""An agent with a disk that has failed."""
ELSEWHERE = {"KjbodGuardGone", "KjbodGuardsAbsent", "KjbodDiskFillsUp", "KjbodTwoVersions"}


def test_every_alert_is_tried_and_says_where_and_what_to_do() -> None:
    text = RULES.read_text()
    found = dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n      [-#]|\Z)", text, re.DOTALL))
    assert set(found) == set().union(*(names for _, names in SITUATIONS.values())) | ELSEWHERE
    for name, block in found.items():
        assert re.search(r"^ +severity: (critical|warning)$", block, re.MULTILINE), name
        summary = re.search(r"^ +summary: '(.+)'$", block, re.MULTILINE)
        assert summary is not None, name
        # What is counted over all guards has no instance.
        everywhere = re.search(r"expr: (>-\s+)?(count|absent)\b", block)
        assert everywhere or "$labels.instance" in summary[1], name
        assert ("$labels.log_directory" in summary[1]) == ("kjbod_log_directory_info" in block), name
        assert f"runbook_url: '{BASE}#{name.lower()}'" in block, name


PARTS = ("Meaning", "Impact", "Steps", "Escalate")


def test_every_alert_has_a_section_with_meaning_impact_steps_and_when_to_escalate() -> None:
    sections = dict(re.findall(r"^## (Kjbod\w+)\n(.*?)(?=^## |\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL))
    assert list(sections) == re.findall(r"- alert: (\w+)", RULES.read_text()), "the order of the rules"
    for name, section in sections.items():
        assert tuple(re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE)) == PARTS, name


def test_every_effect_of_a_guard_has_its_series_from_the_start() -> None:
    names = {
        each.__name__.lower()
        for each in vars(effects).values()
        if isinstance(each, type) and issubclass(each, effects.Effect) and each is not effects.Effect
    }
    assert set(MEANS) == names
