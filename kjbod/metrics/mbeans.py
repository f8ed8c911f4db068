"""Kafka's MBeans as Prometheus metrics, under each name that a dashboard or an alert may look for.

Kafka itself has no Prometheus names: whoever runs it puts the JMX exporter beside it, and the exporter's configuration
makes them. Three are about, and an MBean gets a series for each:

*default*
    The exporter without rules (``JmxCollector.defaultExport``): domain, first property and attribute joined, the other
    properties as labels. ``kafka_log_LogManager_Value{name="OfflineLogDirectoryCount"}``, untyped.
*example*
    The exporter with its own example for Kafka (``examples/kafka-kraft-3_0_0.yml``, before that ``kafka-2_0_0.yml``):
    ``kafka_log_logmanager_offlinelogdirectorycount``, a gauge; ``…PerSec`` are counters with ``_total``, histograms
    gauges with a ``quantile``. Strimzi's rules make the same of all MBeans that have a ``name``.
*Strimzi*
    Of MBeans without a ``name`` (``raft-metrics``), whose attributes are the metrics, Strimzi's rules
    (``packaging/examples/metrics/kafka-metrics.yaml``) leave out the dashes of the type:
    ``kafka_server_raftmetrics_high_watermark``.

Values of properties that are no plain words are quoted by Kafka (``Sanitizer.jmxSanitize``), and the exporter leaves
the quotes in the label: ``logDirectory="\\"/disks/d1\\""``. So do these; ``kjbod_*`` have the path as it is.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from prometheus_client.core import Metric

from kjbod.metrics.distribution import Durations

QUANTILES = ("50", "75", "95", "98", "99", "999")
"""The percentiles of a histogram of Kafka's (``…thPercentile``); 999 is 99.9 %."""
_PLAIN = re.compile(r"[\w\-%. \t]*", re.ASCII)
_UNSAFE = re.compile(r"[^a-zA-Z0-9:_]+|_+")
_ESCAPED = re.compile(r'([\\"*?])')
_KAFKA_DOMAIN = re.compile(r"(?:.*\.)?kafka\.(\w+)")


class MBean(Struct, frozen=True):
    """An attribute of an MBean: ``domain:type=…,name=…[,key=…]``.

    Attributes:
        domain: ``kafka.log``.
        type: its first property.
        name: empty for Kafka's own metrics, which have none; there each attribute is a metric.
        help: one line.
        key: a further property, ``logDirectory``; empty: none.
        attribute: ``Value`` of a gauge, ``Count`` of a meter or a histogram, ``99thPercentile``, ``high-watermark``.
    """

    domain: str
    type: str
    name: str
    help: str
    key: str = ""
    attribute: str = "Value"


class Series(Struct, frozen=True):
    """Series that a naming makes of an MBean. ``name`` is that of the family: of a counter without ``_total``."""

    name: str
    kind: str
    """``gauge``, ``counter`` or ``unknown``."""
    labels: tuple[tuple[str, str], ...] = ()


class Reading(Struct, frozen=True):
    """A value, and of an MBean with a further property its value."""

    bean: MBean
    value: float
    key: str = ""


def default_series(bean: MBean, key: str = "") -> Series:
    """Series that the JMX exporter makes of an MBean without rules."""
    labels = ((("name", bean.name),) if bean.name else ()) + _key_label(bean, key)
    return Series(_safe(f"{bean.domain}_{bean.type}_{bean.attribute}"), "unknown", labels)


def example_series(bean: MBean, key: str = "") -> Series:
    """Series that the JMX exporter makes of an MBean with the rules of its example for Kafka."""
    found = _KAFKA_DOMAIN.fullmatch(bean.domain)
    start = f"kafka_{found[1] if found else bean.domain}_{bean.type}"
    labels = _key_label(bean, key)
    if not bean.name:
        return Series(_safe(f"{start}_{bean.attribute}").lower(), "gauge", labels)
    name = f"{start}_{bean.name}"
    if bean.attribute.endswith("thPercentile"):
        quantile = bean.attribute.removesuffix("thPercentile")
        return Series(_safe(name).lower(), "gauge", (*labels, ("quantile", f"0.{quantile}")))
    if bean.attribute == "Count" and "PerSec" in bean.name:
        return Series(_safe(name.partition("PerSec")[0]).lower(), "counter", labels)
    if bean.attribute == "Count":  # a counter; Prometheus' own libraries would put _total behind it
        return Series(_safe(f"{name}_count").lower(), "unknown", labels)
    return Series(_safe(name).lower(), "gauge", labels)


def strimzi_series(bean: MBean, key: str = "") -> Series:
    """Series that the JMX exporter makes of an MBean with Strimzi's rules."""
    if bean.name:
        return example_series(bean, key)
    return Series(_safe(f"kafka_server_{bean.type.replace('-', '')}_{bean.attribute}").lower(), "gauge")


def names_of(bean: MBean, key: str = "") -> tuple[Series, ...]:
    """All series of an MBean, each once."""
    made = (default_series(bean, key), example_series(bean, key), strimzi_series(bean, key))
    return tuple({(series.name, series.labels): series for series in reversed(made)}.values())[::-1]


def families(readings: Iterable[Reading]) -> Iterator[Metric]:
    """The metrics of MBeans. Two MBeans may have one name in common: the series is there once, with the first value."""
    found: dict[str, tuple[Metric, set[tuple[tuple[str, str], ...]]]] = {}
    for reading in readings:
        for series in names_of(reading.bean, reading.key):
            if series.name not in found:
                found[series.name] = (Metric(series.name, _help(reading.bean, series), series.kind), set())
            metric, known = found[series.name]
            if series.labels not in known:
                known.add(series.labels)
                suffix = "_total" if series.kind == "counter" else ""
                metric.add_sample(series.name + suffix, dict(series.labels), reading.value)
    yield from (metric for metric, _ in found.values())


def histogram(bean: MBean) -> tuple[MBean, ...]:
    """The attributes of a histogram of Kafka's that are served: its count, then :data:`QUANTILES`."""
    attributes = ("Count", *(f"{quantile}thPercentile" for quantile in QUANTILES))
    return tuple(MBean(bean.domain, bean.type, bean.name, bean.help, bean.key, a) for a in attributes)


def readings_of(bean: MBean, durations: Durations) -> Iterator[Reading]:
    """A histogram of Kafka's, in ms."""
    count, *percentiles = histogram(bean)
    yield Reading(count, durations.count)
    ordered = sorted(durations.recent_ns)
    for percentile, quantile in zip(percentiles, QUANTILES, strict=True):
        at = int(float(f"0.{quantile}") * len(ordered))
        yield Reading(percentile, ordered[min(at, len(ordered) - 1)] / 1e6 if ordered else 0.0)


def _help(bean: MBean, series: Series) -> str:
    if series.kind == "unknown" and dict(series.labels).get("name"):
        return (
            f"{bean.domain}:type={bean.type}, attribute {bean.attribute}, as the JMX exporter names it without rules."
        )
    return bean.help


def _key_label(bean: MBean, key: str) -> tuple[tuple[str, str], ...]:
    return ((_safe(bean.key), quoted(key)),) if bean.key else ()


def quoted(value: str) -> str:
    """The value of a property as Kafka has it in the MBean's name."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + _ESCAPED.sub(r"\\\1", value).replace("\n", "\\n") + '"'


def _safe(name: str) -> str:
    """``JmxCollector.safeName``."""
    return _UNSAFE.sub("_", name)
