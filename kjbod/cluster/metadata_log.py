"""Find the log directory whose failure ends a broker: the one with the metadata log. Pure.

A Kafka broker halts when it cannot use ``metadata.log.dir``, by default the first of ``log.dirs``
(``ReplicaManager.handleLogDirFailure``; in 4.x ``AbstractKafkaConfig.metadataLogDir``). So the replicas in its other
directories become unavailable too. DescribeLogDirs does not show the metadata log; the broker's configuration has its
path. A broker in ZooKeeper mode has none. An agent of kjbod does not report its ``server.properties``, and continues
without that directory unless it is also a controller.
"""

from collections.abc import Sequence
from typing import Final

from kjbod.cluster.log_dirs import BrokerDirs, Failure
from kjbod.wire.messages import DescribeConfigsResponseResult

_ROLES: Final = "process.roles"
KEYS: Final = ("metadata.log.dir", "log.dirs", "log.dir", _ROLES)
"""Keys with the path. The first set key among the first three counts."""
NO_DIRECTORY: Final = ""


def metadata_log_dir(results: Sequence[DescribeConfigsResponseResult], is_controller: bool | None) -> str | None:
    """Return the directory whose failure ends the broker.

    Args:
        results: answer of the broker about its own configs.
        is_controller: whether the node is also a controller; None: unknown.

    Returns:
        Its path; :data:`NO_DIRECTORY` if there is none; None if unknown.
    """
    result = next(iter(results), None)
    if result is None or result.error_code:
        return None
    values = {each.name: each.value for each in result.configs}
    if _ROLES not in values:
        return NO_DIRECTORY if is_controller is False else None
    if not values[_ROLES]:
        return NO_DIRECTORY
    first = next((value for key in KEYS[:3] if (value := values.get(key))), "").split(",")[0].strip()
    return first if first.startswith("/") else None


def mark(broker: BrokerDirs, path: str | None) -> None:
    """Mark the directory with ``path``. A failure of that directory affects all replicas of the broker."""
    if path is None:
        return
    for each in broker.log_dirs:
        each.has_metadata_log = path != NO_DIRECTORY and _plain(each.path) == _plain(path)
    failures = [each.failure for each in broker.log_dirs if not each.offline]
    whole = _sum(failures)
    for each in broker.log_dirs:
        if each.has_metadata_log and not each.offline:
            each.failure = whole


def _plain(path: str) -> str:
    """Return ``path`` as ``java.io.File`` normalizes it, without redundant slashes."""
    return "/" + "/".join(filter(None, path.split("/")))


def _sum(failures: Sequence[Failure | None]) -> Failure | None:
    """Return the sum of failures; None if one is unknown."""
    total = Failure()
    for each in failures:
        if each is None:
            return None
        total.moves += each.moves
        total.leaderless += each.leaderless
        unknown = total.under_min_isr is None or each.under_min_isr is None
        total.under_min_isr = None if unknown else (total.under_min_isr or 0) + (each.under_min_isr or 0)
    return total
