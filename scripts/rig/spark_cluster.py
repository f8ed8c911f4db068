"""A Spark standalone cluster of processes on this machine: a master and workers, on ports of loopback.

From PySpark's own files, with the Java that the fleet commands would take. Whoever runs on it needs what another
machine would: ``spark-submit`` and ``scripts/fleet-bundle``.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from kjbod.fleet.java import find_java, make_java_home
from scripts.rig.rig_error import RigError

START_S = 60
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@dataclass(slots=True)
class Daemon:
    """A master or a worker."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first place in its log that matches.

        Raises:
            RigError: it ended, or took too long.
        """
        deadline = time.monotonic() + START_S
        while True:
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.log.read_text(errors="replace")):
                return found
            if ended or time.monotonic() > deadline:
                raise RigError(f"{self.log}: no {pattern!r}: {self.log.read_text(errors='replace')[-1_000:]}")
            time.sleep(0.02)

    def executors(self) -> list[psutil.Process]:
        """Processes that a worker has started."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """SIGKILL it and all that it has started, as a machine that is no more."""
        for executor in self.executors():
            with suppress(psutil.NoSuchProcess):
                executor.kill()
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class SparkCluster:
    """A running cluster; a context manager that ends it."""

    folder: Path
    workers_count: int = 2
    cores: int = 1
    memory: str = "1g"
    url: str = ""
    workers: list[Daemon] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    _daemons: list[Daemon] = field(default_factory=list)
    _logs: list[IO[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = spark_environment(self.folder)
        try:
            master = self._start("master", _MASTER, "--port", "0", "--webui-port", "0")
            self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
            self.workers = [self.start_worker() for _ in range(self.workers_count)]
            for worker in self.workers:
                worker.wait_for("Successfully registered with master")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def start_worker(self) -> Daemon:
        """Start another worker; it may not be known to the master yet."""
        name = f"worker-{len(self._daemons)}"
        work = str(self.folder / name)
        return self._start(
            name, _WORKER, "--webui-port", "0", "-c", str(self.cores), "-m", self.memory, "-d", work, self.url
        )

    def _start(self, name: str, *arguments: str) -> Daemon:
        path = self.folder / f"{name}.log"
        log = path.open("wb")
        self._logs.append(log)
        process = subprocess.Popen(
            [
                f"{self.environment['SPARK_HOME']}/bin/spark-class",
                *arguments[:1],
                "--host",
                "127.0.0.1",
                *arguments[1:],
            ],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        daemon = Daemon(process, path)
        self._daemons.append(daemon)
        return daemon

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self._daemons:
            daemon.kill()
        for log in self._logs:
            log.close()

    def submit(self, application: Sequence[str], *options: str) -> list[str]:
        """The command line of ``spark-submit`` with options, for an application and its arguments. To be run with
        :attr:`environment`."""
        submit = f"{self.environment['SPARK_HOME']}/bin/spark-submit"
        return [submit, "--master", self.url, *options, *application]


def spark_environment(folder: Path) -> dict[str, str]:
    """Environment for PySpark's own scripts; Java's wrapper and what Spark leaves behind are in ``folder``."""
    import pyspark

    (home,) = pyspark.__path__
    local = folder / "local"
    local.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    return kept | {
        "SPARK_HOME": home,
        "JAVA_HOME": str(make_java_home(find_java(os.environ), folder / "jre")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(local),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={local}",
    }


@contextmanager
def connect_server(folder: Path, master: str = "local[2]") -> Iterator[str]:
    """A Spark Connect server; gives its address."""
    environment = spark_environment(folder) | {"SPARK_DAEMON_MEMORY": "1g"}
    path = folder / "connect.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [
                *(f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", master),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.ui.enabled=false"),
                *("--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}"),
                *("--conf", "spark.sql.shuffle.partitions=2"),
                "--driver-java-options",
                f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={folder / 'local'}",
                "spark-internal",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        server = Daemon(process, path)
        try:
            yield f"sc://127.0.0.1:{server.wait_for(r'Spark Connect server started at: .*:([0-9]+)')[1]}"
        finally:
            server.kill()
