"""The dashboards for Grafana. tests/guard/test_monitored_kafka.py asks their queries."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import dashboards
from scripts.rig.rig_error import RigError

RULES = dashboards.HOME.parent / "kjbod.rules.yml"
PAGE = Path(__file__).parents[2] / "kjbod" / "metrics" / "README.md"
FILES = sorted(dashboards.HOME.glob("*.json"))


def panels(file: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(file.read_text())["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Name and text of each query."""
    for file in FILES:
        for panel in panels(file):
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']} {target['refId']}", target["expr"]


def test_the_files_are_what_the_script_writes() -> None:
    assert {file: file.read_text() for file in FILES} == dashboards.files(), "run: python -m scripts.dashboards"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_is_whole(file: Path) -> None:
    found = json.loads(file.read_text())
    every = found["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    titles = [panel["title"] for panel in panels(file)]
    assert len(set(titles)) == len(titles)
    cells = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < dashboards.COLUMNS
    variables = {one["name"] for one in found["templating"]["list"]} | {"__rate_interval"}
    for panel in panels(file):
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables, panel["title"]


def test_dashboards_and_rules_ask_for_metrics_of_the_page_and_recorded_ones_alone() -> None:
    name = re.compile(r"[a-z_:]*\b(?:kjbod|process)_[a-z0-9_]+(?::\w+)?")
    told = set(name.findall(PAGE.read_text())) | set(re.findall(r"- record: (\S+)", RULES.read_text()))
    asked = {one for _, expr in queries() for one in name.findall(expr)}
    asked |= {
        one
        for expr in re.findall(r"expr: (.+?)\n      ?(?:  for|  labels|-)", RULES.read_text(), re.DOTALL)
        for one in name.findall(expr)
    }
    assert {one for one in asked if one.removesuffix("_bucket") not in told} == set()


def jsonnet(text: str) -> Any:
    done = subprocess.run(
        ["jsonnet", "-J", str(RULES.parent), "-e", text], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def require_jsonnet() -> None:
    if shutil.which("jsonnet") is None:
        raise RigError("jsonnet: not found: run scripts/setup --world, or apt-get install jsonnet")


@pytest.mark.usefixtures("world")
def test_the_mixin_has_all_rules_and_dashboards_with_a_base_of_ones_own(
    machine_can: Callable[[Callable[[], None]], None],
) -> None:
    machine_can(require_jsonnet)
    parts = "{ alerts: m.prometheusAlerts, rules: m.prometheusRules, dashboards: m.grafanaDashboards }"
    base = "{ _config+:: { kjbodRunbookBase: 'https://wiki.example/kjbod' } }"
    found = jsonnet(f"local m = (import 'mixin.libsonnet') + {base}; {parts}")
    rules = [rule for part in ("alerts", "rules") for group in found[part]["groups"] for rule in group["rules"]]
    assert len(rules) == len(re.findall(r"^ +- (?:alert|record): ", RULES.read_text(), re.MULTILINE))
    for rule in found["alerts"]["groups"][0]["rules"]:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/kjbod#{rule['alert'].lower()}"
    assert found["dashboards"] == {f"kjbod-{file.name}": json.loads(file.read_text()) for file in FILES}
