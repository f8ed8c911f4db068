"""Names of release 0.1 beside those of this release. Pure. Remove this module in the release after the next one."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

NEW_NAMES: Final = b"names=new"
"""Query of a scrape without the old names."""
DIRECTORY: Final = "log_directory"
OLD_DIRECTORY: Final = "logDirectory"
"""Label of ``kjbod_*`` in release 0.1. Series with Kafka's names keep it."""
POWER_ON: Final = "kjbod_disk_smart_power_on_seconds"
OLD_POWER_ON: Final = "kjbod_disk_smart_power_on_hours"


def with_old_names(families: Iterable[Metric]) -> Iterator[Metric]:
    """Add :data:`OLD_DIRECTORY` to each series of a directory, and :data:`OLD_POWER_ON` after :data:`POWER_ON`."""
    for family in families:
        for sample in family.samples:
            if DIRECTORY in sample.labels:
                sample.labels[OLD_DIRECTORY] = sample.labels[DIRECTORY]
        yield family
        if family.name == POWER_ON:
            old = GaugeMetricFamily(OLD_POWER_ON, f"Hours of its life; use {POWER_ON}.")
            for sample in family.samples:
                old.add_sample(OLD_POWER_ON, sample.labels, sample.value / 3600)
            yield old
