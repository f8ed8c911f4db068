"""What ``promtool check metrics`` would refuse, and what a client would."""

import re
from itertools import groupby
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

_PAGE = Path(__file__).parents[2] / "kjbod" / "metrics" / "README.md"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",)}


def checked(text: str) -> dict[str, Metric]:
    """The families of a scrape by name, once it is proven to be one: each family in one piece with its help and type,
    each series once, counters named ``_total``, the buckets of histograms in order and up to +Inf."""
    families = list(text_string_to_metric_families(text))
    named = {family.name: family for family in families}
    assert len(named) == len(families), "a family is there twice"
    blocks = [name for name, _ in groupby(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))]
    assert len(blocks) == len(set(blocks)), "a family is in two pieces"
    for family in families:
        assert _NAME.fullmatch(family.name), family.name
        assert family.documentation, f"{family.name} has no help"
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(series) == len(set(series)), f"{family.name}: a series is there twice"
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), family.name
            assert all(sample.value >= 0 for sample in family.samples), family.name
        if family.type == "histogram":
            _check_histogram(family)
    return named


def _check_histogram(family: Metric) -> None:
    def directory(sample: object) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))  # type: ignore[attr-defined]

    for labels, found in groupby(sorted(family.samples, key=directory), key=directory):
        samples = list(found)
        buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets), f"{family.name}{labels}: buckets are out of order"
        assert buckets[-1][0] == float("inf"), f"{family.name}{labels}: no +Inf"
        (count,) = [s.value for s in samples if s.name.endswith("_count")]
        assert count == buckets[-1][1]
        assert sum(s.name.endswith("_sum") for s in samples) == 1


def values(text: str) -> dict[str, float]:
    """Value by series, as the text has it: ``name{label="value"}``."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


def of_directory(path: str | Path) -> str:
    """Labels of a directory in a scrape: today's, and that of the release before."""
    return f'logDirectory="{path}",log_directory="{path}"'


def not_on_the_page(text: str) -> list[str]:
    """kjbod's own families in a scrape that ``kjbod/metrics/README.md`` does not name."""
    told = set(re.findall(r"`(kjbod_[a-z0-9_]+)", _PAGE.read_text()))
    own = re.findall(r"^# TYPE (kjbod_[a-z0-9_]+) ", text, re.MULTILINE)
    assert own
    return [name for name in own if name not in told]
