"""Log directories of a cluster as a table, a summary line, and JSON."""

from collections.abc import Sequence
from typing import Any

from kjbod.cluster.log_dirs import BrokerDirs, Known, LogDir, by_urgency, totals
from kjbod.cluster.partitions import Share
from kjbod.output import UNKNOWN, percent, plural, safe, size, table

_ID = "DIRECTORY.ID"
_HEAD = (
    *("BROKER", "STATE", ">USED", ">FREE", ">TOTAL", ">REPLICAS", ">BYTES", ">FUTURE", ">LEADERS"),
    *(">MOVES", ">LEADERLESS", ">UNDER MIN ISR", _ID, "DIRECTORY"),
)
_NOTHING = "-"
METADATA_LOG = "metadata log"
_SHOWN_MAX = 10
"""Maximum brokers in a line."""


def table_of(brokers: Sequence[BrokerDirs], *, ids: bool) -> list[str]:
    """Return the lines of a table, with a column of ids if there are any."""
    shown = [at for at, title in enumerate(_HEAD) if ids or title != _ID]
    rows = [_row(broker, found) for broker, found in by_urgency(brokers)]
    return table([_HEAD[at] for at in shown], [[row[at] for at in shown] for row in rows])


def _row(broker: BrokerDirs, found: LogDir | None) -> list[str]:
    name = f"{broker.node.id} (fenced)" if broker.node.fenced else str(broker.node.id)
    if found is None:
        state = "no answer" if broker.error else "no directory"
        share = broker.share
        told = [UNKNOWN if share is None else str(share.replicas), _NOTHING, _NOTHING]
        told.append(UNKNOWN if share is None else str(share.leaders))
        return [name, state, *[_NOTHING] * 3, *told, *[_NOTHING] * 4, safe(broker.error or "")]
    cells = [
        *(name, _state(found), *_space(found), _count(found.replicas)),
        *(size(found.replica_bytes), _count(found.future), _count(found.leaders), *_failure(found)),
        UNKNOWN
        if found.directory is None or found.directory.directory_id is None
        else str(found.directory.directory_id),
    ]
    if found.offline:
        cells = [_NOTHING if cell == UNKNOWN else cell for cell in cells]
        return [*cells, f"{_path(found)} ({found.error})"]
    return [*cells, _path(found)]


def _path(found: LogDir) -> str:
    return (safe(found.path) or UNKNOWN) + (f" ({METADATA_LOG})" if found.has_metadata_log else "")


def _state(found: LogDir) -> str:
    return "offline" if found.offline else "cordoned" if found.cordoned else "online"


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def _space(found: LogDir) -> list[str]:
    total, usable = found.total_bytes, found.usable_bytes
    if found.offline or total is None or usable is None:
        return [UNKNOWN] * 3
    return [percent(total - usable, total), size(usable), size(total)]


def _failure(found: LogDir) -> list[str]:
    failure = found.failure
    if failure is None:
        return [UNKNOWN] * 3
    return [str(failure.moves), str(failure.leaderless), _count(failure.under_min_isr)]


def summary(brokers: Sequence[BrokerDirs], known: Known) -> str:
    """Return a one-line summary."""
    sums, trouble = totals(brokers), known.trouble
    unanswered = f" ({sums.unanswered} without an answer)" if sums.unanswered else ""
    states = [f"{count} {name}" for count, name in ((sums.offline, "offline"), (sums.cordoned, "cordoned")) if count]
    parts = [
        f"{plural(sums.brokers, 'broker')}{unanswered}",
        plural(sums.log_dirs, "directory", "directories") + (f" ({', '.join(states)})" if states else ""),
        f"{plural(sums.replicas, 'replica')}, {size(sums.replica_bytes)}",
        f"{UNKNOWN} partitions"
        if trouble is None
        else f"{plural(trouble.count, 'partition')}: {trouble.leaderless} without a leader now, "
        f"{_count(trouble.under_min_isr)} under min.insync.replicas",
    ]
    if known.image is not None:
        parts.append(f"{sums.unassigned} replicas UNASSIGNED, {sums.lost} LOST")
    return "; ".join(parts)


def notes(brokers: Sequence[BrokerDirs], known: Known, *, asked: bool) -> list[str]:
    """Return lines about the source of the numbers, and about unknown numbers; ``asked``: a controller was given."""
    sums, found = totals(brokers), []
    if not asked:
        found.append(
            "directory.id, and which replicas are UNASSIGNED or LOST, stand in the metadata alone: "
            "give --bootstrap-controller HOST:PORT"
        )
    if sums.ids_by:
        how = " and ".join(f"by {by} ({count})" for by, count in sorted(sums.ids_by.items(), reverse=True))
        found.append(f"directory.id is inferred, since no broker tells it: {how}")
    if sums.ids_unknown:
        count = plural(sums.ids_unknown, "directory", "directories")
        found.append(f"directory.id of {count} cannot be inferred: --json says why of each")
    if unknown := len(known.partitions.keys() - known.min_isrs.keys()):
        found.append(
            f"min.insync.replicas of {plural(unknown, 'topic')} is not known: it takes DESCRIBE_CONFIGS on the topic"
        )
    found.extend(_notes_on_replicas(brokers, known, sums.untold))
    return found + _notes_on_metadata_logs(brokers)


def _notes_on_replicas(brokers: Sequence[BrokerDirs], known: Known, untold: int) -> list[str]:
    """Return lines about replicas with unknown facts, or in an unexpected place."""
    found = []
    if untold:
        changed = "partitions were created or deleted meanwhile: ask again"
        why = changed if known.whole else f"who asks may not DESCRIBE their topics, or {changed}"
        found.append(f"the cluster tells nothing of the partitions of {plural(untold, 'replica')}: {why}")
    elif known.trouble is None:
        found.append("which partitions there are is not known: it takes DESCRIBE on the topics")
    offline = [
        (broker.node.id, broker.share.offline)
        for broker in brokers
        if broker.share is not None and broker.share.offline and any(each.offline for each in broker.log_dirs)
    ]
    if offline:
        found.append(f"replicas that are offline, nobody tells in which directory: {_by_broker(offline)}")
    strange = [(broker, share.replicas) for broker, share in sorted((known.strangers or {}).items())]
    if strange:
        fenced = any(broker.node.fenced is None for broker in brokers) and known.image is None
        where = "not registered, or are fenced" if fenced else "not registered"
        found.append(f"replicas on brokers that are {where}: {_by_broker(strange)}")
    return found


def _by_broker(counts: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{count} on broker {broker}" for broker, count in counts[:_SHOWN_MAX])
    return shown + (f", and on {len(counts) - _SHOWN_MAX} more" if len(counts) > _SHOWN_MAX else "")


def _notes_on_metadata_logs(brokers: Sequence[BrokerDirs]) -> list[str]:
    """Return lines about directories whose failure ends a broker."""
    found, told = [], [each for broker in brokers for each in broker.log_dirs]
    if any(each.has_metadata_log for each in told):
        found.append(f"({METADATA_LOG}): the broker ends when this directory fails, so all of its partitions count")
    unknown = sum(any(each.has_metadata_log is None for each in broker.log_dirs) for broker in brokers)
    if unknown:
        found.append(
            f"in which directory {plural(unknown, 'broker')} {'has' if unknown == 1 else 'have'} the metadata log is "
            "not known (it takes DESCRIBE_CONFIGS on the cluster): a broker of Kafka ends with that one, and all its "
            "partitions are concerned"
        )
    return found


# ---------------------------------------------------------------- JSON


def as_document(cluster_id: str, known: Known, brokers: Sequence[BrokerDirs]) -> dict[str, Any]:
    """Return all facts as JSON; null is unknown."""
    trouble = known.trouble
    return {
        "cluster_id": cluster_id,
        "metadata_offset": None if known.image is None else known.image.offset,
        "partitions": {
            "count": trouble and trouble.count,
            "leaderless": trouble and trouble.leaderless,
            "under_min_isr": trouble and trouble.under_min_isr,
        },
        "unregistered_brokers": None
        if known.strangers is None
        else [{"id": broker, **_share(share)} for broker, share in sorted(known.strangers.items())],
        "brokers": [_broker(broker) for broker in brokers],
    }


def _broker(broker: BrokerDirs) -> dict[str, Any]:
    node, unplaced = broker.node, broker.unplaced
    return {
        "id": node.id,
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "fenced": node.fenced,
        "error": broker.error,
        **_share(broker.share),
        "unassigned_replicas": None if unplaced is None else unplaced.unassigned,
        "lost_replicas": None if unplaced is None else unplaced.lost,
        "migrating_replicas": None if unplaced is None else unplaced.migrating,
        "unregistered_directories": None if unplaced is None else [str(each) for each in unplaced.gone],
        "replicas_in_unregistered_directories": None if unplaced is None else unplaced.in_gone,
        "log_dirs": [_log_dir(each) for each in broker.log_dirs],
    }


def _share(share: Share | None) -> dict[str, int | None]:
    return {
        "replicas": None if share is None else share.replicas,
        "leaders": None if share is None else share.leaders,
        "offline_replicas": None if share is None else share.offline,
    }


def _log_dir(found: LogDir) -> dict[str, Any]:
    directory, failure = found.directory, found.failure
    return {
        "path": found.path,
        "directory_id": str(directory.directory_id) if directory and directory.directory_id else None,
        "directory_id_inferred_by": directory.by if directory else None,
        "directory_id_unknown_because": directory.reason if directory else None,
        "offline": found.offline,
        "error_code": found.error_code,
        "error": found.error,
        "cordoned": found.cordoned,
        "has_metadata_log": found.has_metadata_log,
        "total_bytes": found.total_bytes,
        "usable_bytes": found.usable_bytes,
        "replica_bytes": found.replica_bytes,
        "replicas": found.replicas,
        "leaders": found.leaders,
        "future_replicas": found.future,
        "untold_replicas": found.untold,
        "failure": failure
        and {
            "moves": failure.moves,
            "leaderless": failure.leaderless,
            "under_min_isr": failure.under_min_isr,
        },
    }
