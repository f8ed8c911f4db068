"""Kafka's own Java clients on every partition of a topic, and what they have said: one Java for all of them."""

import hashlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import wait_until
from scripts.rig.rig_error import RigError

_SOURCE: Final = Path(__file__).with_name("GuardClients.java")
_HEAP_MIB: Final = 256
_START_TIMEOUT_S: Final = 30.0
_ORDER_TIMEOUT_S: Final = 40.0
_COMPILE_TIMEOUT_S: Final = 120.0


def compiled(kit: KafkaKit, source: Path = _SOURCE, name: str = "guard-clients") -> Path:
    """Directory with the classes of a source, compiled once beside Kafka's jars. Raises :class:`RigError`."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = kit.libs.parent / f"{name}-{digest}"
    if classes.is_dir():
        return classes
    javac = shutil.which("javac", path=str(kit.java.parent)) or shutil.which("javac")
    if javac is None:
        raise RigError(f"{source.name} needs a Java compiler: javac not found (apt-get install default-jdk-headless)")
    fresh = classes.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [javac, "--release", "17", "-cp", f"{kit.libs}/*", "-d", str(fresh), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    if done.returncode:
        raise RigError(f"{source.name}: {done.stderr.strip().splitlines()[0]}")
    fresh.rename(classes)
    return classes


class Clients:
    """Producers and a consumer of one topic at a time. Use it in a ``with`` block: it ends with its standard input.

    Attributes:
        acks: moments of the acknowledgements by partition, milliseconds of the wall clock.
        waits: moment of each acknowledgement, and milliseconds since its record was sent, of all partitions.
        reads: the same as ``acks`` of the records that the consumer was given.
        errors: partition and error of each record that was given up.
    """

    def __init__(self, kit: KafkaKit, ports: list[int], request_timeout_ms: int, log: Path) -> None:
        self.acks: dict[int, list[float]] = {}
        self.waits: list[tuple[float, float]] = []
        self.reads: dict[int, list[float]] = {}
        self.errors: list[tuple[int, str]] = []
        self._said: list[str] = []
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        command = kit.command("GuardClients", bootstrap, str(request_timeout_ms), heap_mib=_HEAP_MIB)
        # Behind Kafka's own class path, so that the class data archive stays valid.
        command[command.index("-cp") + 1] += f":{compiled(kit)}"
        with open(log, "wb") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                cwd="/",
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="clients", daemon=True)
        self._reader.start()
        self._wait_for("ready", _START_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the Java."""
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def fill(self, topic: str, partitions: int, records: int) -> None:
        """Write so many large records to each partition; returns when they are acknowledged."""
        self._order(f"fill {topic} {partitions} {records}")
        self._wait_for("filled", _ORDER_TIMEOUT_S)

    def reread(self) -> None:
        """Read the topic from its beginning, again and again, beside the consumer."""
        self._order("reread")

    def start(self, topic: str, partitions: int, pause_ms: int, *, transactions: bool = False) -> None:
        """Begin to write and read; returns when each partition has done both. ``transactions``: each record in one of
        its own, read by a consumer group when it is committed."""
        self.acks = {partition: [] for partition in range(partitions)}
        self.reads = {partition: [] for partition in range(partitions)}
        self.waits = []
        self.errors = []
        self._order(f"{'transact' if transactions else 'start'} {topic} {partitions} {pause_ms}")
        wait_until(
            lambda: all(self.acks.values()) and all(self.reads.values()), _START_TIMEOUT_S, "clients of each partition"
        )

    def rest(self, partitions: Iterable[int]) -> None:
        """Write nothing to these until :meth:`wake`."""
        self._order(f"rest {','.join(map(str, partitions))}")

    def wake(self) -> None:
        """Write to all partitions again."""
        self._order("wake")

    def stop(self) -> None:
        """End all clients."""
        self._order("stop")
        self._wait_for("stopped", _ORDER_TIMEOUT_S)

    def verify(self) -> tuple[int, int]:
        """Number of records that were acknowledged, and how many of these cannot be read back."""
        self._order("verify")
        said = self._wait_for("v ", _ORDER_TIMEOUT_S)
        return int(said.split()[1]), int(said.split()[2])

    def _order(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def _wait_for(self, begin: str, timeout_s: float) -> str:
        def find() -> str | None:
            for line in self._said:
                if line.startswith(begin):
                    self._said.remove(line)
                    return line
            if self._process.poll() is not None:
                raise RigError(f"the clients ended with {self._process.returncode}: see the log {self._process.args!r}")
            return None

        found = wait_until(find, timeout_s, f"{begin!r} of the clients")
        assert found is not None
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if words[0] == "a":
                self.acks[int(words[1])].append(float(words[2]))
                self.waits.append((float(words[2]), int(words[3]) / 1000))
            elif words[0] == "c":
                self.reads[int(words[1])].append(float(words[2]))
            elif words[0] == "e":
                self.errors.append((int(words[1]), words[3]))
            else:
                self._said.append(line.strip())


def now_ms() -> float:
    """The clock of the clients' lines."""
    return time.time() * 1000
