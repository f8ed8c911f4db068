"""The shell that changes replica lists: requests to the controllers by partition, a thousand in one.

What is asked for is decided by the core, and is in the journal, fsynced, before it is sent. A partition that a
controller refuses holds up no other one.
"""

from collections.abc import Mapping

from kjbod_guard.actions import Controllers, Done, Name, Outcome, in_requests, summed

CHANGED = Done(outcome=Outcome.FAILED, reason="the replica lists have changed meanwhile", changed=0)


async def reassign(controllers: Controllers, lists: Mapping[Name, tuple[int, ...]]) -> Done:
    """Give partitions these replica lists."""
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
