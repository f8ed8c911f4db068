"""Series of metrics that are made of a daemon's use of the host (:mod:`kjbod.usage`).

Those of the process itself have the names that Prometheus' own client libraries give them (``process_*``), so that
dashboards for any process show it. Its workers and helpers are told together: no series for each of them.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kjbod.usage import Usage, Use


def families(usage: Usage) -> Iterator[Metric]:
    """Make all series; those of what is not known are left out."""
    own = usage.own
    yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size in bytes.", own.rss_bytes)
    yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.", usage.virtual_bytes)
    yield CounterMetricFamily("process_cpu_seconds", "Total user and system CPU time spent in seconds.", own.cpu_s)
    yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", own.descriptors)
    if usage.descriptors_max is not None:
        yield GaugeMetricFamily("process_max_fds", "Maximum number of open file descriptors.", usage.descriptors_max)
    yield GaugeMetricFamily(
        "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", usage.started_ms / 1000
    )
    yield from _memory("kjbod_process", "this process", own)
    for name, what, use in (
        ("kjbod_workers", "worker processes, which touch the disks", usage.workers),
        ("kjbod_helpers", "other processes of this one", usage.helpers),
    ):
        yield GaugeMetricFamily(name, f"Number of {what}.", use.processes)
        yield GaugeMetricFamily(f"{name}_unmeasured", f"Of the {what}: did not tell their memory.", use.unmeasured)
        yield from _memory(name, what, use)
        yield CounterMetricFamily(f"{name}_cpu_seconds", f"CPU time of {what}, ended ones too.", use.cpu_s)
        yield GaugeMetricFamily(f"{name}_open_fds", f"Open file descriptors of {what}.", use.descriptors)


def _memory(name: str, what: str, use: Use) -> Iterator[Metric]:
    if use.pss_bytes is not None:
        yield GaugeMetricFamily(f"{name}_pss_bytes", f"Memory of {what}, shared pages by share.", use.pss_bytes)
    if use.uss_bytes is not None:
        yield GaugeMetricFamily(f"{name}_uss_bytes", f"Memory of {what} that nothing shares.", use.uss_bytes)
