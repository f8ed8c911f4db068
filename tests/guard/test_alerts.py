"""The alert rules for Prometheus: each is quiet while all is well, and fires for what it is for."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from kjbod.metrics.listener import render
from kjbod.security.certificates import Certificate, Certificates
from kjbod_guard import effects
from kjbod_guard.metrics import MEANS, metrics_of
from kjbod_guard.picture import ActionCounters, Picture
from kjbod_guard.redundancy import Needs
from kjbod_host.smart.readings import Smart
from tests.guard.test_answers import NOW, ROW, STATUS
from tests.pages.markdown import ROOT
from tests.security.ending import Ending

RULES = ROOT / "systemd" / "examples" / "kjbod-guard.rules.yml"
NOW_S = 2_000_000
DAY_S = 86_400

Labels = tuple[tuple[str, str], ...]
Vector = Mapping[Labels, float]


@dataclass(frozen=True)
class Rule:
    """A rule of the file."""

    name: str
    expression: str
    severity: str
    summary: str


def rules(path: Path = RULES) -> list[Rule]:
    """The rules: of YAML, what this file uses of it."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    head, *parts = re.split(r"^ {6}- alert: ", text, flags=re.MULTILINE)
    assert head.split() == ["groups:", "-", "name:", "kjbod-guard", "rules:"]
    found = []
    for part in parts:
        shape = re.fullmatch(
            r"(?P<name>\w+)\n {8}expr: (?:>-\n)?(?P<expr>.+?)\n(?: {8}for: \d+[sm]\n)?"
            r" {8}labels:\n {10}severity: (?P<severity>\w+)\n"
            r" {8}annotations:\n {10}summary: '(?P<summary>[^'\n]+)'\n?",
            part,
            re.DOTALL,
        )
        assert shape, part
        found.append(Rule(shape["name"], " ".join(shape["expr"].split()), shape["severity"], shape["summary"]))
    return found


class Scrapes:
    """Two scrapes of a guard, None where it does not answer, and of PromQL what the rules use of it."""

    def __init__(self, before: Picture | None, now: Picture | None) -> None:
        self._scrapes = [self._read(picture) for picture in (before, now)]

    @staticmethod
    def _read(picture: Picture | None) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {"up": {(("job", "kjbod-guard"),): 0 if picture is None else 1}}
        if picture is None:
            return found
        for family in text_string_to_metric_families(render(metrics_of(picture)).decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def evaluate(self, expression: str) -> Vector:
        """The series for which an expression holds."""
        joined = re.fullmatch(r"(.+) and on \(([\w, ]+)\) (.+)", expression)
        if joined is None:
            return self._compare(expression)
        left, right, names = self.evaluate(joined[1]), self._compare(joined[3]), joined[2].split(", ")
        there = {self._only(labels, names) for labels in right}
        return {labels: value for labels, value in left.items() if self._only(labels, names) in there}

    @staticmethod
    def _only(labels: Labels, names: list[str]) -> Labels:
        return tuple(pair for pair in labels if pair[0] in names)

    def _compare(self, expression: str) -> Vector:
        shape = re.fullmatch(r"(.+?) (==|>|<) (\d+)", expression)
        assert shape, expression
        holds: Callable[[float, float], bool] = {"==": operator.eq, ">": operator.gt, "<": operator.lt}[shape[2]]
        return {labels: value for labels, value in self._values(shape[1]).items() if holds(value, float(shape[3]))}

    def _values(self, term: str) -> Vector:
        if increase := re.fullmatch(r"increase\((.+)\[10m\]\)", term):
            before, now = (self._select(increase[1], scrape) for scrape in self._scrapes)
            return {labels: value - before[labels] for labels, value in now.items() if labels in before}
        if counted := re.fullmatch(r"count\((.+)\)", term):  # of nothing it is nothing, and not 0
            return {(): len(each)} if (each := self.evaluate(counted[1])) else {}
        if most := re.fullmatch(r"max by \((\w+)\) \((.+)\)", term):
            found: dict[Labels, float] = {}
            for labels, value in self._values(most[2]).items():
                kept = self._only(labels, [most[1]])
                found[kept] = max(value, found.get(kept, value))
            return found
        if until := re.fullmatch(r"(\w+) - time\(\)", term):
            return {labels: value - NOW_S for labels, value in self._select(until[1], self._scrapes[1]).items()}
        return self._select(term, self._scrapes[1])

    @staticmethod
    def _select(selector: str, scrape: dict[str, dict[Labels, float]]) -> Vector:
        shape = re.fullmatch(r'(\w+)(?:\{((?:\w+="[^"]*",?)+)\})?', selector)
        assert shape, selector
        wanted = set(re.findall(r'(\w+)="([^"]*)"', shape[2] or ""))
        return {labels: value for labels, value in scrape.get(shape[1], {}).items() if wanted <= set(labels)}


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


SITUATIONS: dict[str, tuple[Picture | None, set[str]]] = {
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
    "the guard is down": (None, {"KjbodGuardGone"}),
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


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_alert_fires_for_what_it_is_for_and_for_nothing_else(situation: str) -> None:
    now, expected = SITUATIONS[situation]
    before = None if now is None else replace(now, counters=None if now.counters is None else WELL.counters)
    scrapes = Scrapes(before, now)
    assert {rule.name for rule in rules() if scrapes.evaluate(rule.expression)} == expected


def test_every_alert_is_tried_and_says_where() -> None:
    found = rules()
    assert {rule.name for rule in found} == set().union(*(names for _, names in SITUATIONS.values()))
    for rule in found:
        assert rule.severity in ("critical", "warning")
        # What is counted over all guards has no instance.
        assert ("$value" if rule.expression.startswith("count(") else "$labels.instance") in rule.summary, rule.name


def test_every_effect_of_a_guard_has_its_series_from_the_start() -> None:
    names = {
        each.__name__.lower()
        for each in vars(effects).values()
        if isinstance(each, type) and issubclass(each, effects.Effect) and each is not effects.Effect
    }
    assert set(MEANS) == names
