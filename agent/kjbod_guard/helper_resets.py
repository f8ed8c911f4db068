"""Reset rules of the helper for the ports of a broker, and the keeper that removes the rules after the broker's end.

The keeper is a child that outlives the helper. Without a keeper the kernel removes the ports from the rules.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select

from kjbod_guard import helper_kernel as kernel
from kjbod_guard import helper_netlink as netlink
from kjbod_guard.helper_broker import is_running, is_there
from kjbod_guard.helper_netlink import Refused
from kjbod_guard.helper_rights import told

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from kjbod_guard.helper_broker import Broker

KEEP_MS = 20_000
"""Time until the ports are added to reset rules again. The kernel removes them after
:data:`.helper_netlink.PORTS_MS`."""
KEPT = "kept"


class Resets:
    """Reset rules for the ports of a broker.

    Args:
        node: id of the broker.
        ports: of its listeners.
    """

    def __init__(self, node: int, ports: list[int]) -> None:
        self.table, self.ports = netlink.table_of(node, ports), ports
        self.keeper: int | None = None

    def tidy(self, broker: Broker | None) -> list[str]:
        """Remove rules that an earlier helper left for a process that has ended; keep the rules for this broker. Return
        lines about rules that could not be removed."""
        missing = []
        chain = None if broker is None else chain_of(broker)
        for where in (None, broker) if kernel.is_elsewhere(broker, "net") else (None,):
            read_end, write_end = os.pipe()
            if os.fork() == 0:
                try:
                    os.write(write_end, tidied(self.table, chain, where).encode())
                finally:
                    os._exit(0)
            os.close(write_end)
            said = os.read(read_end, 4096).decode()
            os.close(read_end)
            if said == KEPT:
                self.keep(broker)
            elif said:
                missing.append(f"reset rules: {said}")
        return missing

    def reset(self, broker: Broker) -> None:
        """Answer packets to the ports with a TCP reset, in the name of this process."""
        kernel.enter(broker, "net", kernel.CLONE_NEWNET)
        netlink.reset(self.table, chain_of(broker), self.ports)

    def unreset(self, broker: Broker | None) -> None:
        """Remove the rules; if no broker runs, only the rules of a process that has ended."""
        found = None if broker is not None else netlink.reset_for(self.table)
        if found is not None and is_anothers(found):
            return
        kernel.enter(broker, "net", kernel.CLONE_NEWNET)
        netlink.unreset(self.table)

    def destroy(self, broker: Broker) -> None:
        """Destroy established connections of the ports."""
        kernel.enter(broker, "net", kernel.CLONE_NEWNET)
        netlink.destroy(self.ports)

    def keep(self, broker: Broker | None) -> None:
        """Start the keeper, a child that keeps the rules until the broker's process has ended."""
        if broker is None or (self.keeper is not None and is_there(self.keeper)):
            return
        try:
            pid = os.fork()
        except OSError:  # fork failed: the kernel ends the rules
            return
        if pid == 0:
            try:
                kernel.keep_only(broker.pidfd, *broker.namespaces.values())
                keep_rules(self.table, chain_of(broker), self.ports, broker)
            finally:
                os._exit(0)
        self.keeper = pid

    def leave(self) -> None:
        """Forget the keeper. It removes the rules itself, because the broker's process has ended."""
        self.keeper = None


def chain_of(broker: Broker) -> str:
    """Return the name of the chain with the rules for a process."""
    return f"broker_{broker.pid}_{broker.started}"


def is_anothers(chain: str) -> bool:
    """Whether the process of a chain runs: a broker of another cluster or network with the same node id and port."""
    _, _, rest = chain.partition("_")
    pid, _, started = rest.partition("_")
    return pid.isdecimal() and started.isdecimal() and is_running(int(pid), int(started))


def tidied(table: str, chain: str | None, broker: Broker | None) -> str:
    """Remove rules for a process that has ended. Return :data:`KEPT` if the rules are for this broker, an error text,
    or an empty text."""
    try:
        kernel.enter(broker, "net", kernel.CLONE_NEWNET)
        found = netlink.reset_for(table)
        if found is not None and found == chain:
            return KEPT
        if found is not None and not (chain is None and is_anothers(found)):
            netlink.unreset(table)
    except (OSError, Refused) as error:
        return told(error, "reset")
    return ""


def keep_rules(table: str, chain: str, ports: list[int], broker: Broker) -> None:
    """Keep the reset rules until the broker's process has ended, and then remove only these rules."""
    with contextlib.suppress(OSError, Refused):
        kernel.enter(broker, "net", kernel.CLONE_NEWNET)
        while not select.select([broker.pidfd], [], [], KEEP_MS / 1000)[0]:
            try:
                netlink.go_on(table, chain, ports)
            except OSError as error:
                if error.errno == errno.ENOENT:  # the rules were removed
                    return
        if netlink.reset_for(table) == chain:
            netlink.unreset(table)
