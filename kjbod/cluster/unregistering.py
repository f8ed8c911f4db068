"""Whether a broker may be unregistered: Kafka asks nobody. Pure."""

from collections.abc import Collection

from kjbod.cluster.partitions import Share
from kjbod.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A broker as its cluster knows it.

    Attributes:
        registered: whether there is such a broker.
        fenced: whether it is not alive for the controller.
        share: replicas that are assigned to it.
        others: ids of the brokers that there are.
    """

    registered: bool
    fenced: bool
    share: Share
    others: Collection[int] = ()


def objections(broker_id: int, standing: Standing, *, force: bool, stranded: bool) -> list[str]:
    """Reasons not to unregister it, each with what to do.

    Args:
        broker_id: the broker.
        standing: what is known of it.
        force: also while it is alive.
        stranded: also where its replicas are left without a broker.
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
        found.append(
            f"broker {broker_id} still has {share.replicas} replica{'' if share.replicas == 1 else 's'}{sole}: move "
            "them to other brokers first (kafka-reassign-partitions), or leave them without a broker with --yes"
        )
    return found
