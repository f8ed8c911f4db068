"""A cluster of real processes on this machine: a controller of either kind, and agents or real brokers beside it.

::

    with Processes(logs) as processes:
        cluster = Cluster(base, processes)  # kjbod's controller; with kafka=KafkaKit.find() it is Apache Kafka's
        cluster.format_controller()
        cluster.start_controller()
        config = cluster.configure_broker(1, [base / "d1", base / "d2"], {"kjbod.host": "host1"})
        cluster.format_broker(config)
        agent = cluster.start_agent(config)  # or, on the same directories: cluster.launch_broker(kit, config)
        agent.wait_for_event("agent.unfenced")
        cluster.create_topic("events", partitions=6)

A node is its ``server.properties``. A log directory is a path, whoever mounted a disk there. Every node listens on a
port of 127.0.0.1 that is nobody else's.
"""

import asyncio
import concurrent.futures
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from kjbod.clock import SystemClock, system_random
from kjbod.config import load_config
from kjbod.ids import Uuid, random_uuid
from kjbod.meta_properties import META_PROPERTIES_NAME, parse_meta_properties
from kjbod.storage_tool import FormatOptions, format_directories
from kjbod.wire.client import Connection
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    RequestBody,
    ResponseT,
)
from scripts.rig.kafka import (
    HEAP_MIB,
    RELEASE,
    SERVER,
    SIGTERMED,
    STARTED,
    KafkaKit,
    broker_properties,
    controller_properties,
    render_properties,
    voters_property,
)
from scripts.rig.processes import ManagedProcess, Processes, free_port, kjbod_command
from scripts.rig.rig_error import RigError

Properties: TypeAlias = Mapping[str, object]
"""Keys and values of a ``server.properties``."""

CONTROLLER_ID: Final = 3000
NOTHING: Final[Properties] = MappingProxyType({})
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 120.0
GUARD_TIMEOUT_S: Final = 30.0
_ASK_TIMEOUT_MS: Final = 20_000


# configuration files and directories ----------------------------------------------------------------------------------


def format_node(
    config: Path,
    cluster_id: str,
    *,
    again: bool = False,
    release: str | None = None,
    scram: Sequence[str] = (),
) -> None:
    """Format the directories of a node as ``kjbod format`` does, in this process: a process of its own takes 0.3 s.

    A controller without static voters becomes a dynamic quorum of one.

    Args:
        config: its ``server.properties``.
        cluster_id: of the cluster that it belongs to.
        again: skip directories that are formatted (``--ignore-formatted``).
        release: whose feature levels to begin with (``--release-version``); a controller's default is
            :data:`scripts.rig.kafka.RELEASE`.
        scram: credentials to begin with (``--add-scram``).

    Raises:
        KjbodError: as the command would say it.
    """
    loaded = load_config(config)
    is_controller = "controller" in loaded.process_roles
    standalone = is_controller and not loaded.controller_quorum_voters
    if is_controller and release is None:
        release = RELEASE
    options = FormatOptions(
        cluster_id=cluster_id, ignore_formatted=again, release_version=release, standalone=standalone, scram=scram
    )
    format_directories(loaded, options, rng=system_random(), clock=SystemClock(), out=_unsaid, warn=_unsaid)


def _unsaid(_line: str) -> None:
    """Take a line for nobody."""


def directory_id(log_dir: Path) -> Uuid:
    """The ``directory.id`` of a formatted log directory. Raises :class:`RigError` where it has none."""
    path = log_dir / META_PROPERTIES_NAME
    found = parse_meta_properties(path.read_bytes(), str(path)).directory_id
    if found is None:
        raise RigError(f"{path}: it has no directory.id")
    return found


def ask(
    port: int, request: RequestBody[ResponseT], *, version: int | None = None, host: str = "127.0.0.1"
) -> ResponseT:
    """A controller's answer to a request, as an admin client gets it. Blocks, also where a loop runs in this thread.

    Args:
        port: of the controller.
        request: what to send.
        version: of the request; the highest common one where not given.
        host: where it is.

    Raises:
        ProtocolError: it did not answer.
        OSError: it cannot be reached.
    """

    async def exchange() -> ResponseT:
        async with await Connection.open(host, port, client_id="kjbod-rig", clock=SystemClock()) as connection:
            return await connection.request(request, timeout_ms=_ASK_TIMEOUT_MS, version=version)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, exchange()).result()


def wait_until_serving(process: ManagedProcess, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait until a controller of either kind, or a real broker, which is unfenced then, says that it is up.

    Raises:
        RigError: it has ended, with the end of its log.
        WaitTimeoutError: it did not in time.
    """
    if SERVER in process.command:
        process.wait_for_text(STARTED, timeout_s)
    else:
        process.wait_for_event("controller.started", timeout_s)


def wait_until_guarding(guard: ManagedProcess, timeout_s: float = GUARD_TIMEOUT_S) -> None:
    """Wait until a guard has found its broker, which serves, and follows the metadata: it knows all that it needs.

    Raises as :func:`wait_until_serving` does.
    """
    guard.wait_for_event("guard.broker.found", timeout_s)
    guard.wait_for_event("guard.metadata.followed", timeout_s)
    guard.wait_for_event("guard.broker", timeout_s, state="serving")


class Cluster:
    """A controller, and the nodes that are configured to register with it.

    Nothing is formatted or started unless it is asked for; ``processes`` ends whatever runs.

    Args:
        base: for configuration files, the controller's directory and nodes that are given no other place.
        processes: starts what is started here.
        kafka: Apache Kafka, whose controller it is then; None: kjbod's.
        cluster_id: of the cluster; drawn where not given.
        properties: further lines of the controller's ``server.properties``.
        name: of the controller's process, file and directory.
        heap_mib: of Kafka's controller.
        jvm: further options of its Java.
        static_quorum: every node names the controller in ``controller.quorum.voters``: for brokers, and controllers,
            that know nothing else. By default where Kafka's controller is so old.

    Attributes:
        host: of the controller.
        port: of the controller.
        controller_config: its ``server.properties``.
        controller_dir: its log directory.
        controller: its process, as it was last started.
    """

    def __init__(
        self,
        base: Path,
        processes: Processes,
        *,
        kafka: KafkaKit | None = None,
        cluster_id: str | None = None,
        properties: Properties = NOTHING,
        name: str = "controller",
        heap_mib: int = HEAP_MIB,
        jvm: Sequence[str] = (),
        static_quorum: bool | None = None,
    ) -> None:
        self.base = base
        self.processes = processes
        self.kafka = kafka
        self.cluster_id = str(random_uuid(system_random())) if cluster_id is None else cluster_id
        self.host = "127.0.0.1"
        self.port = free_port()
        self.controller_config = base / f"{name}.properties"
        self.controller_dir = base / name
        self.controller: ManagedProcess | None = None
        self._name = name
        self._heap_mib = heap_mib
        self._jvm = jvm
        self._static_quorum = kafka is not None and kafka.static_quorum if static_quorum is None else static_quorum
        self._nodes: list[ManagedProcess] = []
        self.configure_controller(properties)

    # ---- the controller

    def configure_controller(self, properties: Properties = NOTHING) -> None:
        """Write its ``server.properties`` anew; it counts from the next start."""
        text = controller_properties(CONTROLLER_ID, self.port, self.controller_dir)
        _write(self.controller_config, text, {**self._voters(), **properties})

    def _voters(self) -> Properties:
        """The line of each node that names the controller, where the quorum is a static one."""
        return voters_property(CONTROLLER_ID, self.port, self.host) if self._static_quorum else NOTHING

    def format_controller(
        self, *, release: str | None = None, by_kafka: bool = False, scram: Sequence[str] = ()
    ) -> None:
        """Make its directory, as a quorum of one; see :func:`format_node`. ``by_kafka``: with Kafka's own tool."""
        if by_kafka:
            assert self.kafka is not None
            how = [] if self._static_quorum else ["--standalone"]
            how += ["--release-version", release] if release else []
            how += [argument for one in scram for argument in ("--add-scram", one)]
            self.kafka.format(self.controller_config, self.cluster_id, *how)
        else:
            format_node(self.controller_config, self.cluster_id, release=release, scram=scram)

    def launch_controller(self) -> ManagedProcess:
        """Start it, without waiting."""
        config = str(self.controller_config)
        if self.kafka is None:
            command = [kjbod_command(), "controller", "-c", config]
        else:
            command = self.kafka.command(SERVER, config, heap_mib=self._heap_mib, options=self._jvm)
        self.controller = self.processes.start(command, name=self._name)
        return self.controller

    def start_controller(self, timeout_s: float = START_TIMEOUT_S) -> ManagedProcess:
        """Start it; returns when it accepts connections."""
        controller = self.launch_controller()
        wait_until_serving(controller, timeout_s)
        return controller

    def stop_controller(self) -> None:
        """SIGTERM, and its clean end. Raises :class:`RigError` when it ends otherwise."""
        assert self.controller is not None
        code = self.controller.stop(STOP_TIMEOUT_S)
        if code != (0 if self.kafka is None else SIGTERMED):
            raise RigError(f"{self._name}: exit code {code}:\n{self.controller.tail()}")

    def kill_controller(self) -> None:
        """SIGKILL."""
        assert self.controller is not None
        self.controller.kill()

    # ---- brokers: agents and real ones

    def configure_broker(
        self,
        node_id: int,
        log_dirs: Sequence[Path],
        properties: Properties = NOTHING,
        *,
        config: Path | None = None,
        port: int | None = None,
    ) -> Path:
        """Write the ``server.properties`` of an agent or a real broker; gives its path.

        Args:
            node_id: of the broker.
            log_dirs: its log directories.
            properties: further lines.
            config: the file; ``b1/server.properties`` in ``base`` where broker 1 is given none.
            port: its own one; drawn where not given.
        """
        path = config or self.base / f"b{node_id}" / "server.properties"
        text = broker_properties(node_id, port or free_port(), self.port, log_dirs)
        _write(path, text, {**self._voters(), **properties})
        return path

    def format_broker(self, config: Path, *, again: bool = False) -> None:
        """Format its directories; see :func:`format_node`."""
        format_node(config, self.cluster_id, again=again)

    def start_agent(
        self,
        config: Path,
        *,
        name: str | None = None,
        prefix: Sequence[str] = (),
        kjbod: Sequence[str] = (),
        processes: Processes | None = None,
    ) -> ManagedProcess:
        """Start an agent; returns at once: it logs ``agent.unfenced`` when it may serve.

        Args:
            config: its ``server.properties``.
            name: of the process; ``agent-b1`` where its configuration lies in ``b1``.
            prefix: what starts it, for example in a control group.
            kjbod: the ``kjbod`` command, where it is not the one of this environment.
            processes: what starts it, where it is not the cluster's own: in another environment.
        """
        command = [*prefix, *(kjbod or [kjbod_command()]), "agent", "-c", str(config)]
        agent = (processes or self.processes).start(command, name=name or f"agent-{config.parent.name}")
        self._nodes.append(agent)
        return agent

    def launch_broker(
        self, kit: KafkaKit, config: Path, *, name: str, prefix: Sequence[str] = (), heap_mib: int = HEAP_MIB
    ) -> ManagedProcess:
        """Start a real broker, without waiting; :func:`wait_until_serving` waits until it is up, and so unfenced."""
        command = [*prefix, *kit.command(SERVER, str(config), heap_mib=heap_mib)]
        self._nodes.append(self.processes.start(command, name=name))
        return self._nodes[-1]

    def stop(self) -> None:
        """Controlled shutdown of all agents and brokers that run, side by side, then of the controller."""
        running = [node for node in self._nodes if node.running]
        for node in running:
            node.signal(signal.SIGTERM)
        for node in running:
            node.wait(STOP_TIMEOUT_S)
        if self.controller is not None and self.controller.running:
            self.stop_controller()

    # ---- topics

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int = 1,
        *,
        brokers: Sequence[int] = (),
        in_turns: bool = False,
        configs: Properties = NOTHING,
    ) -> None:
        """Create a topic, as an admin client with ``--bootstrap-controller`` does.

        Args:
            name: of the topic.
            partitions: how many.
            replication_factor: where the controller places the replicas.
            brokers: where it does not: every partition on all of these, the first of which leads.
            in_turns: these lead one partition after the other; see :func:`in_turn`.
            configs: of the topic.

        Raises:
            RigError: the controller refused.
        """
        own = tuple(CreateTopicsRequestConfig(name=key, value=str(value)) for key, value in configs.items())
        if brokers:
            placed = tuple(
                CreateTopicsRequestAssignment(
                    partition_index=partition, broker_ids=in_turn(brokers, partition) if in_turns else tuple(brokers)
                )
                for partition in range(partitions)
            )
            topic = CreateTopicsRequestTopic(name=name, assignments=placed, configs=own)
        else:
            topic = CreateTopicsRequestTopic(
                name=name, num_partitions=partitions, replication_factor=replication_factor, configs=own
            )
        answer = ask(self.port, CreateTopicsRequest(topics=(topic,), timeout_ms=_ASK_TIMEOUT_MS), host=self.host)
        _require_granted(f"topic {name} was not created", [created.error_code for created in answer.topics])

    def delete_topics(self, *names: str) -> None:
        """Delete topics. Raises :class:`RigError` when the controller refuses one."""
        # In the last version that goes by names alone.
        answer = ask(
            self.port, DeleteTopicsRequest(topic_names=names, timeout_ms=_ASK_TIMEOUT_MS), version=5, host=self.host
        )
        _require_granted(f"not deleted: {', '.join(names)}", [deleted.error_code for deleted in answer.responses])


def in_turn(brokers: Sequence[int], partition: int) -> tuple[int, ...]:
    """The replica list of a partition of a topic that these brokers lead in turns."""
    first = partition % len(brokers)
    return (*brokers[first:], *brokers[:first])


def _require_granted(refusal: str, codes: Sequence[int]) -> None:
    if any(codes):
        raise RigError(f"{refusal}: error codes {codes}")


def _write(config: Path, text: str, more: Properties) -> None:
    """A ``server.properties``, and its directory; of a key that stands twice the last one counts."""
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(text + render_properties(more))
