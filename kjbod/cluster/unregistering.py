"""Check whether a broker may be unregistered, which Kafka does not check, and describe the outcome. Pure."""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from kjbod.cluster.partitions import Share
from kjbod.printable import printable
from kjbod.wire.error_codes import ErrorCode, name_of

_MESSAGE_CHARS_MAX: Final = 200
_UNDECIDED: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NETWORK_EXCEPTION}
)
"""Errors after which the outcome is unknown: a controller may still apply the request after a late answer."""


class Standing(Struct, frozen=True, kw_only=True):
    """A broker's state in its cluster.

    Attributes:
        registered: whether the broker is registered.
        fenced: whether the controller considers the broker not alive.
        share: replicas that are assigned to the broker.
        others: ids of the other brokers.
        whole: whether these are certainly all of its replicas. Brokers silently leave out topics that the user may not
            see.
    """

    registered: bool
    fenced: bool
    share: Share
    others: Collection[int] = ()
    whole: bool


def objections(broker_id: int, standing: Standing, *, force: bool, stranded: bool) -> list[str]:
    """Return the reasons not to unregister the broker, each with a remedy.

    Args:
        broker_id: the broker.
        standing: what is known of it.
        force: also unregister a broker that is alive.
        stranded: also unregister a broker with replicas.
    """
    if not standing.registered:
        there = ", ".join(map(str, sorted(standing.others))) or "none"
        return [f"broker {broker_id} is not registered: there are {there}"]
    found = []
    if not standing.fenced and not force:
        found.append(f"broker {broker_id} is alive: stop it first, or unregister it all the same with --force")
    share = standing.share
    if share.replicas and not stranded:
        sole = f", {share.sole} of them the only copy in sync" if share.sole else ""
        least = "" if standing.whole else "at least "
        found.append(
            f"broker {broker_id} still has {least}{share.replicas} replica{'' if share.replicas == 1 else 's'}{sole}: "
            "move them to other brokers first (kafka-reassign-partitions), or leave them without a broker with --yes"
        )
    elif not standing.whole and not stranded:
        found.append(
            f"it is not known whether broker {broker_id} still has replicas, for brokers with an authorizer leave out "
            "the topics that who asks may not DESCRIBE: ask the controllers, who know all of them "
            "(--bootstrap-controller), or leave what there is without a broker with --yes"
        )
    return found


def refusal(broker_id: int, code: int, message: str | None) -> str:
    """Return the line about an error in the answer to UnregisterBroker."""
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return f"broker {broker_id} was not unregistered: {name_of(code)}: it takes ALTER on the cluster"
    why = f"{name_of(code)}: {printable(message, _MESSAGE_CHARS_MAX)}" if message else name_of(code)
    if code in _UNDECIDED:
        return unknown_outcome(broker_id, why)
    return f"broker {broker_id} was not unregistered: {why}"


def unknown_outcome(broker_id: int, why: str) -> str:
    """Return the line about a request that was sent without a conclusive answer."""
    return (
        f"it is not known whether broker {broker_id} was unregistered: {why}: kjbod cluster log-dirs shows whether it "
        "is still among the brokers"
    )
