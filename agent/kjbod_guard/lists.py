"""The shell that changes replica lists: requests to the controllers, for up to 1,000 partitions each.

The core decides the new lists, and the journal has the old lists, fsynced, before a request is sent. A partition that a
controller refuses does not delay other partitions.
"""

from collections.abc import Mapping

from kjbod_guard.actions import Controllers, Done, Name, Outcome, in_requests, summed

CHANGED = Done(outcome=Outcome.FAILED, reason="the replica lists have changed meanwhile", changed=0)


async def reassign(controllers: Controllers, lists: Mapping[Name, tuple[int, ...]]) -> Done:
    """Set the replica lists of partitions."""
    if not lists:
        return CHANGED
    return summed([await controllers.reassign({name: lists[name] for name in piece}) for piece in in_requests(lists)])


async def order(controllers: Controllers, lists: Mapping[Name, tuple[tuple[int, ...], tuple[int, ...]]]) -> Done:
    """Put replica lists in another order, and have the first replica of each list lead.

    Args:
        controllers: speaks with the controllers.
        lists: each list now and in the new order, by topic and partition.
    """
    if not lists:
        return CHANGED
    answers: list[Mapping[Name, Done]] = []
    for piece in in_requests(lists):
        moved = {name: lists[name][1] for name in piece if lists[name][0] != lists[name][1]}
        reassigned = await controllers.reassign(moved) if moved else {}
        answers.append(reassigned)
        if ready := [name for name in piece if name not in reassigned or reassigned[name].happened]:
            answers.append(await controllers.elect(ready))
    return summed(answers)
