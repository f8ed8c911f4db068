"""Privileged helper: the only process of a guard with capabilities to act on disks, processes and connections.

The daemon execs the helper with ``python -I -S`` before it gives its own rights up. The helper uses only Python's
standard library. At the start the daemon tells the helper its targets: log directories, ports, the process that holds
``.lock``. The helper checks each target itself, keeps descriptors of the directories open, and refuses all other
targets. Its pages are locked and it has no network, so that it works while disks hang.

Protocol: a JSON object in a line, over a stream socket. The first line has the facts (:func:`Helper.__init__`),
answered with what was frozen. Then:

    ``{"n": 7, "verb": "cut", "directory": "/mnt/d3", "until_ms": 81234}``  not later than that, on CLOCK_MONOTONIC
    ``{"n": 7, "verb": "mask", "directory": "/mnt/d3"}``    no directory for threads, kill, reset, unreset, destroy
    ``{"n": 7, "verb": "hold", "pid": 4711, "started": 83}``  another process holds ``.lock`` now
    ``{"n": 7, "verb": "let_go", "directory": "/mnt/d3"}``  close it, so that its file system can be unmounted
    ``{"n": 7, "verb": "freeze", "directory": "/mnt/d3"}``  take hold of what is there now
    ``{"n": 7, "outcome": "done", "reason": ""}``           or pending, failed, refused; threads has ``threads`` as
                                                            well, let_go and freeze ``directories``

Each request has a child process and a deadline. A child that is stuck in the kernel is left behind, and holds only the
descriptors that it needs. The helper ends when the daemon's socket closes. Reset rules have a keeper: a child that
outlives the helper, and removes the rules when the broker's process has ended.
"""

# os.path, and not pathlib, which costs memory.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import contextlib
import encodings.ascii  # noqa: F401 - else imported when text is first read, from a disk that may hang by then
import json
import os
import signal
import socket
import sys
import time

if __name__ == "__main__":  # the source root goes last, so that nothing in it can stand in for Python's own library
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kjbod_guard import helper_kernel as kernel
from kjbod_guard.helper_broker import Broker, require_holder, threads
from kjbod_guard.helper_directory import Directory
from kjbod_guard.helper_freezing import LET_GO, freeze, freeze_again, restrict, taken, why_not_cut
from kjbod_guard.helper_netlink import Refused
from kjbod_guard.helper_requests import REQUEST_BYTES_MAX, Requests, Task
from kjbod_guard.helper_resets import Resets
from kjbod_guard.helper_rights import give_up_rights, secure, told

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

CONTROL_FD = 3
DIRECTORIES_MAX = 256
CUTS_MAX = 3
"""Maximum number of cuts of one file system: each may leave a process behind."""
CUTS_EVER_MAX = 12
"""Maximum number of cuts at one path, over all file systems that are mounted there one after the other."""


class Helper:
    """Directories, ports and broker that were frozen, and the actions on them.

    Args:
        facts: ``node``, the broker's id; ``directories``, paths, and ``later``, those that may be frozen later;
            ``ports`` of its listeners, ``never_ports`` of the controllers'; ``own``, paths that kjbod needs to run;
            ``broker``, pid and start time of the holder of ``.lock``, or null.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        node, paths, ports = facts["node"], facts["directories"], facts["ports"]
        later = [path for path in facts.get("later", ()) if path not in paths]
        if type(node) is not int or len(paths) + len(later) > DIRECTORIES_MAX:
            raise ValueError("the facts are of another form")
        if any(type(port) is not int or not 0 < port < 1 << 16 for port in ports):
            raise ValueError("a port is a number between 1 and 65535")
        if shared := sorted(set(ports) & set(facts["never_ports"])):
            raise ValueError(f"port {shared[0]} is a controller's, which is never reset")
        self.ports, self.resets = list(ports), Resets(node, list(ports))
        self.own = list(facts["own"])
        found = [freeze(path) for path in paths]
        restrict(found, self.own)
        self.directories = {one.path: one for one in (*found, *(freeze(path, later=True) for path in later))}
        self.broker: Broker | None = None
        self.missing: list[str] = []
        for directory in found:
            if directory.reason is None and directory.no_mask is None:
                self._prepare_mask(directory)
        if facts.get("broker"):
            try:
                broker = Broker(*facts["broker"])
                require_holder(broker, found)
                self.broker = broker
            except (OSError, Refused) as error:
                self.missing.append(f"the broker's process: {told(error, 'hold')}")
        self.missing += self.resets.tidy(self.broker)

    def hello(self) -> dict[str, Any]:
        """Return the answer to the facts: the frozen directories and broker, and missing rights."""
        broker = None if self.broker is None else [self.broker.pid, self.broker.started]
        return {"directories": self._rows(), "broker": broker, "missing": self.missing, "apart": self._is_apart()}

    def _is_apart(self) -> bool | None:
        """Whether the broker is in another network namespace: then another process answers at its ports here. None: not
        known."""
        if self.broker is None or "net" not in self.broker.namespaces:
            return None
        return kernel.is_elsewhere(self.broker, "net")

    def _rows(self) -> dict[str, Any]:
        found = self.directories.values()
        return {
            one.path: {
                "reason": one.reason,
                "no_cut": why_not_cut(one, found),
                "no_mask": one.no_mask,
                "masked": one.masked,
            }
            for one in found
        }

    def _prepare_mask(self, directory: Directory) -> None:
        try:
            directory.mask_fd = kernel.make_mask()
        except OSError as error:
            directory.no_mask = f"no mask can be prepared: {told(error, 'mask')}"

    def work(self, verb: str, request: dict[str, Any]) -> Task:
        """Return the task for a request. Raises Refused."""
        if verb in ("cut", "mask", "unmask", "let_go", "freeze"):
            return self._on_directory(verb, request["directory"], request.get("until_ms"))
        if verb == "unreset":
            return Task(lambda: self.resets.unreset(self.broker))
        if verb == "hold":
            broker = Broker(int(request["pid"]), int(request["started"]))
            directories = self.directories.values()
            return Task(
                lambda: require_holder(broker, directories),
                lambda answer: self._held(broker, answer),
                [one.fd for one in directories],
            )
        if self.broker is None:
            raise Refused("no broker runs that the helper knows of")
        broker = self.broker
        if verb == "kill":
            return Task(lambda: signal.pidfd_send_signal(broker.pidfd, signal.SIGKILL))
        if verb == "threads":
            reals = {one.path: one.real for one in self.directories.values()}
            return Task(lambda: threads(broker, reals))
        if not self.ports:
            raise Refused("no ports were frozen when the helper started")
        if verb == "reset":
            return Task(lambda: self.resets.reset(broker), self._was_reset)
        return Task(lambda: self.resets.destroy(broker))

    def _on_directory(self, verb: str, path: str, until_ms: Any) -> Task:
        directory = self.directories.get(path)
        if directory is None:
            raise Refused(f"{path} is no log directory that was frozen when the helper started")
        if verb == "let_go":
            return self._let_go(directory)
        if verb == "freeze":
            return self._freeze(directory)
        broker = self.broker
        if verb == "unmask" and directory.inode:
            return Task(lambda: kernel.unmask(directory, broker))
        if directory.reason is not None:
            raise Refused(f"{path} is not held: {directory.reason}")
        needed = [directory.fd, directory.mask_fd]
        no_cut = why_not_cut(directory, self.directories.values())
        if reason := no_cut if verb == "cut" else directory.no_mask:
            raise Refused(f"{path}: {reason}")
        if verb == "mask":
            return Task(lambda: kernel.mask(directory, broker), lambda answer: self._masked(directory, answer), needed)
        if directory.cuts >= CUTS_MAX:
            raise Refused(f"{path} was cut {CUTS_MAX} times")
        if directory.cuts_ever >= CUTS_EVER_MAX:
            raise Refused(f"file systems at {path} were cut {CUTS_EVER_MAX} times: start the guard again")
        if type(until_ms) is not int or time.monotonic_ns() > until_ms * 1_000_000:
            raise Refused(f"{path}: it is too late: the metadata that allowed it are old by now")
        directory.cuts, directory.cuts_ever = directory.cuts + 1, directory.cuts_ever + 1
        return Task(lambda: kernel.cut(directory, broker, until_ms), None, needed)

    def _let_go(self, directory: Directory) -> Task:
        """Close a directory. The last close on an unmounted file system waits for its disk. So the child keeps the
        descriptor longer than the helper, and does the last close."""
        if directory.fd < 0:
            return Task(lambda: None, self._tell_rows)
        gate = list(os.pipe2(os.O_CLOEXEC))

        def close_gate() -> None:
            while gate:
                os.close(gate.pop())

        def begun() -> None:
            os.close(directory.fd)
            directory.fd, directory.reason, directory.masked = -1, LET_GO, False
            close_gate()

        def after(answer: dict[str, Any]) -> None:
            close_gate()
            self._tell_rows(answer)

        return Task(lambda: os.read(gate[0], 1), after, [directory.fd, gate[0]], begun)

    def _freeze(self, directory: Directory) -> Task:
        """Freeze the directory that is at a path now."""
        if directory.fd >= 0:
            raise Refused(f"{directory.path} is held: let it go first")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        broker, own = self.broker, self.own

        def after(answer: dict[str, Any]) -> None:
            theirs.close()
            with ours:
                if answer["outcome"] == "done" and directory.fd < 0:
                    try:
                        taken(directory, ours)
                    except OSError as error:
                        answer |= {"outcome": "failed", "reason": f"{error.strerror}"}
            if directory.fd >= 0 and directory.mask_fd < 0 and directory.no_mask is None:
                self._prepare_mask(directory)
            self._tell_rows(answer)

        return Task(lambda: freeze_again(directory, own, broker, theirs), after, [theirs.fileno()], theirs.close)

    def _tell_rows(self, answer: dict[str, Any]) -> None:
        answer["directories"] = self._rows()

    def _masked(self, directory: Directory, answer: dict[str, Any]) -> None:
        if answer["outcome"] != "refused":  # the mask is mounted, or may be: prepare another one for the next time
            os.close(directory.mask_fd)
            directory.mask_fd = -1
            self._prepare_mask(directory)

    # ---- the broker's process

    def _held(self, broker: Broker, answer: dict[str, Any]) -> None:
        """Accept a process as the broker's, after a child has checked it."""
        before: Broker | None = self.broker
        if answer["outcome"] == "done" and before is not None and not before.ended:
            if (before.pid, before.started) != (broker.pid, broker.started):
                answer |= {"outcome": "refused", "reason": f"process {before.pid} has not ended, and is the broker's"}
            else:
                answer["apart"] = self._is_apart()
            broker.close()
        elif answer["outcome"] == "done":
            self.broker_ended()
            self.broker = broker
            answer["apart"] = self._is_apart()
        else:
            broker.close()

    def broker_ended(self) -> None:
        """Close the broker's process, which has ended. The keeper removes its reset rules."""
        if self.broker is not None:
            self.broker.close()
            self.broker = None
            self.resets.leave()

    def _was_reset(self, answer: dict[str, Any]) -> None:
        if answer["outcome"] in ("done", "pending"):
            self.resets.keep(self.broker)


def main() -> None:
    """Run the helper of the daemon at the other end of the socket."""
    os.chdir("/")
    with contextlib.suppress(PermissionError):
        os.setsid()
    os.closerange(CONTROL_FD + 1, 1 << 16)
    for number_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number_, signal.SIG_IGN)  # the helper ends with the daemon
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    control = socket.socket(fileno=CONTROL_FD)
    os.set_inheritable(CONTROL_FD, False)
    data = b""
    while not data.endswith(b"\n"):
        more = control.recv(64 << 10)
        if not more or len(data) > REQUEST_BYTES_MAX * DIRECTORIES_MAX:
            return
        data += more
    missing = secure()
    try:
        helper = Helper(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        text = str(error) if type(error) is ValueError else f"they are of another form: {error!r}"
        control.sendall(json.dumps({"error": text}).encode() + b"\n")
        return
    lacks = give_up_rights()
    helper.missing += missing
    control.sendall(json.dumps({**helper.hello(), "lacks": lacks}).encode() + b"\n")
    Requests(control, helper.work, lambda: helper.broker, helper.broker_ended).serve()


if __name__ == "__main__":
    main()
