"""Network of the quorum benchmark: a namespace for each host, a link each, and the bench's own namespace as the router
between them, where packets are lost without a word to anybody."""

import subprocess
from pathlib import Path
from typing import Final

from scripts.rig.processes import ManagedProcess, Processes
from scripts.rig.rig_error import RigError

_TIMEOUT_S: Final = 30.0
_PREFIX: Final = "10.85"
_TABLE: Final = "kjbod_bench"


def _run(*command: str) -> None:
    """Raises :class:`RigError`."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RigError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Network:
    """Hosts by number, from 1 on. The namespaces end with ``processes``; the rules with the bench's own namespace."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._holders: dict[int, ManagedProcess] = {}
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run("nft", f"add table inet {_TABLE}; add chain inet {_TABLE} lost {{ type filter hook forward priority 0; }}")

    @staticmethod
    def address(host: int) -> str:
        return f"{_PREFIX}.{host}.2"

    def add(self, host: int) -> None:
        """A namespace with a link to the router. Raises :class:`RigError`."""
        holder = self._processes.start(
            ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"], name=f"host-{host}"
        )
        holder.wait_for_text("up")
        link, router = _link(host), f"{_PREFIX}.{host}.1"
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "addr", "add", f"{router}/24", "dev", link)
        _run("ip", "link", "set", link, "up")
        enter = ("nsenter", "-t", str(holder.pid), "-n")
        _run(*enter, "ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run(*enter, "ip", "link", "set", "eth0", "up")
        _run(*enter, "ip", "route", "add", "default", "via", router)
        self._holders[host] = holder

    def enter(self, host: int) -> list[str]:
        """The command line that starts a program on a host."""
        return ["nsenter", "-t", str(self._holders[host].pid), "-n"]

    def lose(self, source: int | None, to: int | None) -> None:
        """From now on packets between these hosts are lost, in this direction alone; None: any host."""
        match = [] if source is None else [f"iifname {_link(source)}"]
        match += [] if to is None else [f"oifname {_link(to)}"]
        _run("nft", f"add rule inet {_TABLE} lost {' '.join(match)} drop")

    def heal(self) -> None:
        """Nothing is lost any more."""
        _run("nft", f"flush chain inet {_TABLE} lost")


def _link(host: int) -> str:
    return f"kj{host}"
