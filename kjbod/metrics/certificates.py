"""Series of certificates, the same for agents, guards and controllers."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric


def ends_of_certificates(ends: Iterable[tuple[str, str, int]]) -> Metric:
    """Ends of certificates: what each is for, its store, milliseconds since 1970."""
    family = GaugeMetricFamily(
        "kjbod_certificate_not_after_timestamp_seconds",
        "End of a certificate of ours, since the epoch.",
        labels=["use", "store"],
    )
    for use, store, not_after_ms in ends:
        family.add_metric([use, store], not_after_ms / 1000)
    return family
