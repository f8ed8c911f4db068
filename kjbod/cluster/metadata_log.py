"""The log directory whose failure ends a broker: the one with the metadata log. Pure.

A broker of Kafka halts when it cannot use ``metadata.log.dir``, by default the first of ``log.dirs``
(``ReplicaManager.handleLogDirFailure``; in 4.x ``AbstractKafkaConfig.metadataLogDir``), so that what lies in its
other directories is lost, too. DescribeLogDirs does not tell of the metadata log, the broker's own configuration says
where it is. A broker in ZooKeeper mode has none. An agent of kjbod tells none of its ``server.properties``, and goes on
without that directory, unless it is a controller, too.
"""

from collections.abc import Sequence
from typing import Final

from kjbod.cluster.log_dirs import BrokerDirs, Failure
from kjbod.wire.messages import DescribeConfigsResponseResult

_ROLES: Final = "process.roles"
KEYS: Final = ("metadata.log.dir", "log.dirs", "log.dir", _ROLES)
"""Keys that say it. The first of the first three that is set counts."""
NO_DIRECTORY: Final = ""


def metadata_log_dir(results: Sequence[DescribeConfigsResponseResult], is_controller: bool | None) -> str | None:
    """The directory whose failure ends the broker.

    Args:
        results: the answer of the broker about itself.
        is_controller: whether the node is one; None: not known.

    Returns:
        Its path; :data:`NO_DIRECTORY` where there is none; None where it is not known.
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
    """Note at each directory whether it is ``path``. A failure of that one concerns all that the broker has."""
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
    """``path`` as ``java.io.File`` has it: slashes that say nothing are left out."""
    return "/" + "/".join(filter(None, path.split("/")))


def _sum(failures: Sequence[Failure | None]) -> Failure | None:
    """All of them together; None: one is not known."""
    total = Failure()
    for each in failures:
        if each is None:
            return None
        total.moves += each.moves
        total.leaderless += each.leaderless
        unknown = total.under_min_isr is None or each.under_min_isr is None
        total.under_min_isr = None if unknown else (total.under_min_isr or 0) + (each.under_min_isr or 0)
    return total
