"""Case of the guard benchmark: the broker, its bad disk, and each means against it."""

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.ids import Uuid
from kjbod.wire.admin_messages import ElectLeadersRequest, ElectLeadersRequestTopicPartition
from kjbod.wire.client import Connection
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    BrokerHeartbeatRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from scripts.rig.cluster import ask
from scripts.rig.java_clients import now_ms
from scripts.rig.rig_error import RigError

REPORT_AFTER_S: Final = 0.5
"""From the cut to the report in the broker's name."""
HEARTBEAT_INTERVAL_S: Final = 2.2
"""``broker.heartbeat.interval.ms``, and what a heartbeat may be late."""
_RECORD_TIMEOUT_S: Final = 5.0
_TOOL_TIMEOUT_S: Final = 10.0
_READY_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.002
_MODES: Final = {"hang": FaultMode.HANG, "hang-writes": FaultMode.HANG_WRITES, "eio": FaultMode.EIO}
_TABLE: Final = "kjbod-bench-guard"
_RULES: Final = """
table inet {table} {{
  chain input {{
    type filter hook input priority 0
    tcp dport {port} reject with tcp reset
  }}
}}
"""


class Helper:
    """A small program that does something to the disk, and may be stuck in it."""

    def __init__(self, program: str, path: Path) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name(program)), str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RigError(f"{program} {path}: it did not begin")

    def tell(self) -> None:
        """Have it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it; the disk must answer."""
        self._process.kill()
        self._process.wait(_READY_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@dataclass(slots=True)
class Case:
    """A broker with a bad disk.

    Attributes:
        broker: its node id.
        port: on which it listens.
        controller_port: of the controller.
        pid: of its process.
        epoch: of its registration.
        disk: the bad one.
        directory: the id of the log directory on it.
        topic: whose partitions are written and read.
        on_disk: its partitions on that disk, with the brokers that have them.
        controller_pid: of the controller's process.
        restart: starts the broker again; says whether it serves then.
        recorded_ms: says when the metadata showed that the directory is offline, on the wall clock, or None.
        acts: what was done, and when, in milliseconds of the wall clock.
        helpers: the processes that are told to do something.
        begun_s: when the topic was there, on the wall clock.
    """

    broker: int
    port: int
    controller_port: int
    pid: int
    epoch: int
    disk: RealDisk
    directory: Uuid
    topic: str
    on_disk: dict[int, tuple[int, ...]]
    controller_pid: int
    restart: Callable[[], bool]
    recorded_ms: Callable[[], float | None]
    acts: dict[str, float] = field(default_factory=dict)
    helpers: list[Helper] = field(default_factory=list)
    begun_s: float = field(default_factory=time.time)
    _cutter: Helper | None = None
    _masked: bool = False

    def prepare(self) -> None:
        """Start the prober that a guard has on each disk, and what opens the directory before it hangs."""
        self.helpers.append(Helper("guard_prober.py", self.disk.log_dir / ".kjbod_probe_guard"))
        self._cutter = Helper("guard_cutter.py", self.disk.log_dir)
        self.helpers.append(self._cutter)

    def mark(self, name: str) -> None:
        """Keep when a step was done."""
        self.acts[name] = now_ms()

    def break_disk(self, fault: str) -> float:
        """Inject a fault; its moment on the wall clock."""
        if fault == "freeze":
            self.disk.freeze()
        else:
            self.disk.set(_MODES[fault])
        return now_ms()

    # ---- the means

    def act(self, means: str) -> None:
        """Do what the means is; what a cluster in trouble refuses is noted as refused."""
        steps: dict[str, Sequence[Callable[[], None]]] = {
            "nothing": (),
            "mask": (self.mask,),
            "cut": (self.cut,),
            "cut-report": (self.cut, lambda: time.sleep(REPORT_AFTER_S), self.report),
            "cut-evict": (self.cut, self.await_record, self.evict),
            "fence": (self.fence,),
            "fence-in-flight": (self.fence_in_flight,),
            "fence-restart": (self.cut, self.fence, self.start_again),
        }
        single: dict[str, Sequence[Callable[[], None]]] = {
            "claim": (self.claim,),
            "demote": (self.demote,),
            "report": (self.report, self.await_record),
            "cut": (self.cut,),
            "evict": (self.evict,),
        }
        plan = steps[means] if means in steps else [step for name in means.split("-") for step in single[name]]
        for step in plan:
            step()

    def bring_back(self) -> None:
        """Have the disk answer again, and nothing else."""
        self.disk.set(FaultMode.OK)
        self.mark("back")

    def claim(self) -> None:
        """Write a claim of the guard into the metadata log."""
        config = IncrementalAlterConfigsRequestConfig(
            name="kjbod.guard.claim", config_operation=0, value=str(self.directory)
        )
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=4, resource_name=str(self.broker), configs=(config,)
        )
        answer = ask(self.controller_port, IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))
        codes = {one.error_code for one in answer.responses}
        self.mark("claim" if codes == {0} else f"claim refused {sorted(codes)}")

    def demote(self) -> None:
        """Put the broker at the end of the lists of what it leads on the disk, and elect the first of each list."""
        led = {number: nodes for number, nodes in self.on_disk.items() if nodes[0] == self.broker}
        partitions = tuple(
            AlterPartitionReassignmentsRequestPartition(partition_index=number, replicas=(*nodes[1:], nodes[0]))
            for number, nodes in led.items()
        )
        topic = AlterPartitionReassignmentsRequestTopic(name=self.topic, partitions=partitions)
        answer = ask(self.controller_port, AlterPartitionReassignmentsRequest(topics=(topic,)))
        codes = {answer.error_code, *(one.error_code for of in answer.responses for one in of.partitions)}
        chosen = ElectLeadersRequestTopicPartition(topic=self.topic, partitions=tuple(led))
        elected = ask(self.controller_port, ElectLeadersRequest(topic_partitions=(chosen,), timeout_ms=5000))
        codes |= {one.error_code for of in elected.replica_election_results for one in of.partition_result}
        self.mark("demote" if codes == {0} else f"demote refused {sorted(codes)}")

    def cut(self) -> None:
        assert self._cutter is not None
        self._cutter.tell()
        self.mark("cut")

    def mask(self) -> None:
        """A read-only file system over the log directory; mount may wait for a lock that a stuck thread holds."""
        command = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "kjbod-mask", str(self.disk.log_dir)]
        self._masked = True
        try:
            subprocess.run(command, timeout=_TOOL_TIMEOUT_S, check=True, capture_output=True)
        except subprocess.SubprocessError:
            self.mark("mask failed")
            return
        self.mark("mask")

    def await_record(self) -> None:
        """Until the metadata show the directory as offline."""
        deadline = time.monotonic() + _RECORD_TIMEOUT_S
        while self.recorded_ms() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def evict(self) -> None:
        """Take the broker out of the replica lists of what lies on the disk, once the metadata show it gone."""
        if self.recorded_ms() is None:
            return  # a broker that still has the directory would delete its replicas
        partitions = tuple(
            AlterPartitionReassignmentsRequestPartition(
                partition_index=partition, replicas=tuple(node for node in nodes if node != self.broker)
            )
            for partition, nodes in self.on_disk.items()
        )
        topic = AlterPartitionReassignmentsRequestTopic(name=self.topic, partitions=partitions)
        answer = ask(self.controller_port, AlterPartitionReassignmentsRequest(topics=(topic,)))
        codes = {answer.error_code, *(one.error_code for of in answer.responses for one in of.partitions)}
        self.mark("evict" if codes == {0} else f"evict refused {sorted(codes)}")

    def report(self) -> None:
        """A heartbeat in the broker's name with the directory among the offline ones."""
        self._heartbeat("report", want_fence=False, offline=(self.directory,))

    def fence(self) -> None:
        """SIGKILL, a heartbeat that wants the fence, and no connection that waits for a process that cannot end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.mark("kill")
        self._heartbeat("fence", want_fence=True)
        if not has_ended(self.pid):
            self._reset_connections()

    def fence_in_flight(self) -> None:
        """The fence reaches the controller just before the broker's last heartbeat: both wait while it stands still."""
        opened, stopped = threading.Event(), threading.Event()
        request = BrokerHeartbeatRequest(broker_id=self.broker, broker_epoch=self.epoch, want_fence=True)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            fencing = pool.submit(_ask_when, self.controller_port, request, opened, stopped)
            opened.wait(_READY_TIMEOUT_S)
            os.kill(self.controller_pid, signal.SIGSTOP)
            try:
                stopped.set()
                time.sleep(HEARTBEAT_INTERVAL_S)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                self.mark("kill")
            finally:
                os.kill(self.controller_pid, signal.SIGCONT)
            code = fencing.result()
        self.mark(f"fence refused {code}" if code else "fence")
        if not has_ended(self.pid):
            self._reset_connections()

    def start_again(self) -> None:
        """As systemd does, as soon as the process has ended."""
        deadline = time.monotonic() + _RECORD_TIMEOUT_S
        while not has_ended(self.pid):
            if time.monotonic() > deadline:
                self.mark("not ended")
                return
            time.sleep(_POLL_S)
        self.mark("ended")
        self._forget_rules()  # a new process listens there
        self.mark("serving" if self.restart() else "restart failed")

    def _heartbeat(self, name: str, *, want_fence: bool, offline: tuple[Uuid, ...] = ()) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=self.broker, broker_epoch=self.epoch, want_fence=want_fence, offline_log_dirs=offline
        )
        try:
            answer = ask(self.controller_port, request)
        except (KjbodError, OSError):
            self.mark(f"{name} not answered")
            return
        self.mark(f"{name} refused {answer.error_code}" if answer.error_code else name)

    def _reset_connections(self) -> None:
        rules = _RULES.format(table=_TABLE, port=self.port)
        options = {"capture_output": True, "text": True, "timeout": _TOOL_TIMEOUT_S, "check": False}
        done = [
            subprocess.run(["nft", "-f", "-"], input=rules, **options),  # type: ignore[call-overload]
            subprocess.run(["ss", "-K", "-t", "sport", "=", f":{self.port}"], **options),  # type: ignore[call-overload]
        ]
        self.mark("reset failed" if any(one.returncode for one in done) else "reset")

    # ---- and back

    def mend(self) -> None:
        """Have the disk answer again, and undo the means; whoever is stuck goes on. Twice does no harm."""
        self.disk.set(FaultMode.OK)
        if self._masked:
            with contextlib.suppress(OSError):
                syscalls.umount(self.disk.log_dir)
            self._masked = False
        with contextlib.suppress(OSError):
            self.disk.thaw()
        for helper in self.helpers:
            helper.close()
        self.helpers.clear()
        self._forget_rules()

    def _forget_rules(self) -> None:
        subprocess.run(["nft", "delete", "table", "inet", _TABLE], capture_output=True, check=False)


def _ask_when(port: int, request: BrokerHeartbeatRequest, opened: threading.Event, stopped: threading.Event) -> int:
    """Open a connection, say so, and send the request when it is time; the error code of the answer."""

    async def exchange() -> int:
        async with await Connection.open("127.0.0.1", port, client_id="kjbod-rig", clock=SystemClock()) as connection:
            opened.set()
            await asyncio.to_thread(stopped.wait, _READY_TIMEOUT_S)
            return (await connection.request(request, timeout_ms=round(_READY_TIMEOUT_S * 1000))).error_code

    return asyncio.run(exchange())


def has_ended(pid: int) -> bool:
    """Whether a process has ended, perhaps unreaped; one with a stuck thread has not."""
    try:
        # The first thread is a zombie also while others cannot end.
        tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if _state(task) != "Z"]
    except OSError:
        return True
    return not tasks


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
