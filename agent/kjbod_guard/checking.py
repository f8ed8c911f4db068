"""``kjbod guard check``: lists the disks that a guard could watch on this host, and missing parts. Changes nothing.

Log directories are read through workers, each for at most :data:`READ_TIMEOUT_MS`, so a disk that hangs costs a line.
Nothing is probed, written or locked; the controllers are asked as an observer asks them, for :data:`FOLLOW_MS` at most.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from kjbod.clock import Clock, SystemClock, system_random
from kjbod.config import Config
from kjbod.config.keys import settings
from kjbod.config.needs import DECISIVE
from kjbod.errors import KjbodError, StorageError
from kjbod.file_kinds import misspelled
from kjbod.ids import NO_CLUSTER_ID
from kjbod.meta_properties import format_command
from kjbod.metadata import versions
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.permissions import DENIED, explain, user_name
from kjbod.printable import printable
from kjbod.runtime.control_socket import ControlClient
from kjbod.security.channel import EXPIRES_SOON, Security
from kjbod.security.stores import why_empty_for_java
from kjbod.wire.client import Connection
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.messages import DescribeQuorumRequest
from kjbod_guard import rights, surroundings
from kjbod_guard.binding import Heads, Holder, Owned, heads, why_not_ours, why_not_registered
from kjbod_guard.canary_asking import CanaryAsking, listener_to_ask
from kjbod_guard.daemon import ROLE
from kjbod_guard.following import observer, security_to_controllers
from kjbod_guard.majority import Quorum, heard, unanswered, why_needed
from kjbod_guard.observing import Observed
from kjbod_guard.processes import Processes
from kjbod_guard.start_up import missed, read_config
from kjbod_guard.watching import mounts_now
from kjbod_host.ending import first_of
from kjbod_host.health import sysfs
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.medium import cut_after, medium_of
from kjbod_host.health.mounts import Mount, mount_of
from kjbod_host.quorum import servers
from kjbod_host.smart.asker import ANYWHERE, find_smartctl
from kjbod_host.smart.asking import ask_once
from kjbod_host.smart.names import is_physical
from kjbod_host.smart.processes import Processes as SmartProcesses
from kjbod_host.smart.rights import has_rights
from kjbod_host.smart.words import NEWER_SMARTCTL, asked_by, recovery
from kjbod_host.storage.api import (
    CanSurvey,
    DirectoryError,
    DirectoryTimeout,
    LoadedDirectory,
    StorageAgent,
    StorageOptions,
    Survey,
)
from kjbod_host.storage.registry import create
from kjbod_host.storage.worker import LINK, parse_replica

READ_TIMEOUT_MS: Final = 5_000
FOLLOW_MS: Final = 10_000
ASK_MS: Final = 3_000
QUESTIONS: Final = 3
BETWEEN_S: Final = 0.7
"""Time between two questions about the voters, which fetch each 0.5 s."""
COMMIT_S_MIN: Final = 5
"""Interval of ext4's journal below which appends of a hung disk stop before the verdict."""
BACKOFF_KEY: Final = "replica.fetch.backoff.ms"
BACKOFF_MS: Final = 1_000
"""Kafka's default of :data:`BACKOFF_KEY` (ReplicationConfigs.REPLICA_FETCH_BACKOFF_MS_DEFAULT)."""
BACKOFF_MS_GOOD: Final = 100
CAPABILITIES: Final = {
    "CAP_SYS_ADMIN": (21, "cut, mask"),
    "CAP_KILL": (5, "kill a broker of another user"),
    "CAP_SYS_PTRACE": (19, "see its threads"),
    "CAP_NET_ADMIN": (12, "reset its connections"),
    "CAP_DAC_READ_SEARCH": (2, "see its files"),
    "CAP_IPC_LOCK": (14, "keep the privileged helper in memory"),
    "CAP_SYS_CHROOT": (18, "mask in its mount namespace"),
}
"""Capabilities of the privileged helper: number (capability.h) and purpose."""
KEY_MAX: Final = 80
"""Maximum number of characters of a key that are shown."""
FOR_JAVA: Final = (
    "make it with keytool -importcert, or with openssl pkcs12 -jdktrust anyExtendedKeyUsage (3.2 or later), or use PEM;"
    " the guard believes the certificates in it"
)
ACT_DROP_IN: Final = "systemd/examples/kjbod-guard.service.d/act.conf"


class Item(Struct, frozen=True):
    """A line of the check.

    Attributes:
        mark: ``ok``, ``note`` (good to know) or ``missing``.
        text: what was found.
        remedy: what to do; empty where nothing has to be done.
    """

    mark: str
    text: str
    remedy: str = ""


def main(config_path: Path, own_path: Path | None) -> list[Item]:
    """Return all lines of the check, for the broker of the ``server.properties`` at ``config_path``.

    Raises:
        KjbodError: the files cannot be used; one line for each mistake.
    """
    config = read_config(config_path, own_path)
    standing = _standing(config)  # before there are threads
    return asyncio.run(_Check(config, os.path.realpath(config_path), standing, SystemClock(), system_random()).run())


class _Standing(Struct, frozen=True):
    """Whether a guard in mode act would start if the user of this command started it.

    Attributes:
        user: in words.
        problem: why it would not start; None: it would.
    """

    user: str
    problem: str | None


def _standing(config: Config) -> _Standing:
    user = None
    try:
        if os.geteuid() == 0:
            user = rights.owner(rights.log_paths(config))
        problem = rights.why_unusable(config, user)
    except KjbodError as error:
        return _Standing("", str(error))
    return _Standing(user_name(os.geteuid()) if user is None else user.text, problem)


def capabilities(status: str) -> int:
    """Return the effective capabilities in ``/proc/PID/status`` (proc_pid_status(5)) as bits; 0 without that line."""
    found = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return int(found[0], 16) if found else 0


def start_blockers(loads: Mapping[str, LoadedDirectory]) -> list[str]:
    """Return lines about names in log directories that keep Kafka from starting: sub-directories that are no replica
    (``UnifiedLog.parseTopicPartitionName``), and replicas that exist twice (``LogManager.loadLog``).

    Args:
        loads: directories by path.
    """
    found = []
    places: dict[tuple[str, int], list[str]] = {}
    for path, loaded in loads.items():
        if loaded.unknown_names:
            names = ", ".join(loaded.unknown_names)
            found.append(f"{path}: Kafka does not start with directories that are not named topic-partition: {names}")
        for name in (r.name for r in loaded.replicas if not r.suffix and (r.is_directory or r.trouble == LINK)):
            parsed = parse_replica(name)
            if parsed is not None and not parsed[2]:
                places.setdefault(parsed[:2], []).append(f"{path}/{name}")
    for (topic, partition), each in sorted(places.items()):
        if len(each) > 1:
            found.append(f"Kafka does not start while {topic}-{partition} is there twice: {', '.join(each)}")
    return found


class _Check:
    """A single run of the check."""

    def __init__(self, config: Config, source: str, standing: _Standing, clock: Clock, rng: random.Random) -> None:
        self._config = config
        self._source = source
        self._standing = standing
        self._clock = clock
        self._rng = rng
        self._items: list[Item] = []
        self._paths = rights.log_paths(config)
        self._loads: dict[str, LoadedDirectory] = {}
        self._errors: dict[str, StorageError] = {}
        self._surveys: dict[str, Survey] = {}
        self._table: tuple[Mount, ...] = ()

    def _say(self, mark: str, text: str, remedy: str = "") -> None:
        self._items.append(Item(mark, text, remedy))

    async def run(self) -> list[Item]:
        roles = ",".join(sorted(self._config.process_roles))
        self._say("ok", f"{self._config.source}: node {self._config.node_id}, process.roles={roles}")
        for given, meant in misspelled(self._config.properties, settings()):
            text = f"{self._config.source}: {printable(given, KEY_MAX)}: unknown key, which Kafka ignores"
            self._say("note", text, f"did you mean {meant}?")
        for name, line in missed(self._config).items():
            self._say("missing" if name in DECISIVE else "note", line)
        storage = create(self._config.kjbod_storage_agent, StorageOptions(clock=self._clock, role=ROLE))
        await storage.start()
        try:
            await asyncio.gather(*(self._read(storage, path) for path in self._paths))
            self._table = mounts_now()
            config = self._config
            command = format_command(config.source, dynamic_controller=config.is_dynamic_controller)
            found = heads(config.node_id, self._loads, command=command)
            await asyncio.gather(*(self._survey(storage, owned) for owned in found.owned.values()))
        finally:
            await storage.close()
        for path in self._paths:
            self._directory(path, found)
        for text in start_blockers(self._loads):
            self._say("missing", text, "a running broker goes on, and does not start again: move them away before that")
        await self._broker(found)
        await self._metadata(found)
        self._backoff()
        await self._smart(found)
        self._rights()
        self._own_files()
        return self._items

    # ---- the directories

    async def _read(self, storage: StorageAgent, path: str) -> None:
        try:
            self._loads[path] = await storage.directory(path).load_head(timeout_ms=READ_TIMEOUT_MS)
        except StorageError as error:
            self._errors[path] = error

    async def _survey(self, storage: StorageAgent, owned: Owned) -> None:
        agent, real_path = storage.directory(owned.path), owned.loaded.real_path
        mount = mount_of(real_path, self._table)
        if mount is not None and isinstance(agent, CanSurvey):
            levels = surroundings.levels(real_path, mount.mount_point)
            with contextlib.suppress(StorageError):
                self._surveys[real_path] = await agent.survey(levels, timeout_ms=READ_TIMEOUT_MS)

    def _directory(self, path: str, found: Heads) -> None:
        if path in self._errors:
            error = self._errors[path]
            denied = isinstance(error, DirectoryError) and error.errno in DENIED
            remedy = "see that its disk is mounted and answers; it is looked at again while a guard runs"
            if isinstance(error, DirectoryTimeout):
                remedy = (
                    "until it answers only a guard that has read it since the host was started can judge it, and cut "
                    "or mask it (see kjbod status); for any other one nothing can be done about it"
                )
            if denied and isinstance(error, DirectoryError):
                remedy = explain(error.barrier, [path])
            self._say("missing", str(error), remedy)
        elif path in found.foreign:
            self._say("missing", found.foreign[path], "see log.dirs, and which disk is mounted there")
        else:
            self._owned(found.owned[path])

    def _owned(self, owned: Owned) -> None:
        loaded, mount = owned.loaded, mount_of(owned.loaded.real_path, self._table)
        where = "on a file system that the mount table does not show"
        if mount is not None:
            device = sysfs.block_device_of(mount)
            parts = [mount.fstype, "on", " ".join((*device.names, device.device))]
            parts += [f"serial {device.serial}"] if device.serial else []
            where = f"{' '.join(parts)}, mounted on {mount.mount_point}"
        whose = f"node {self._config.node_id}, cluster {owned.cluster_id or NO_CLUSTER_ID}"
        self._say("ok", f"{owned.path}: directory.id {owned.directory_id}, {whose}, {where}")
        own = {"kjbod.state.dir": self._config.kjbod_state_dir, "kjbod.reports.dir": self._config.kjbod_reports_dir}
        own = {name: os.path.realpath(one) for name, one in own.items()}
        shared = surroundings.why_shared(loaded.real_path, self._table, self._surveys, own)
        if shared is not None:
            self._say("note", f"{owned.path}: {shared}", "it is watched; only a file system of its own could be cut")
        commit = [one for one in (mount.options if mount else ()) if one.startswith("commit=")]
        if commit and commit[0][7:].isdigit() and int(commit[0][7:]) < COMMIT_S_MIN:
            remedy = f"appends of a hung disk stop before the verdict: mount with commit={COMMIT_S_MIN} or more"
            self._say("note", f"{owned.path} is mounted with {commit[0]}", remedy)

    # ---- the broker

    async def _broker(self, found: Heads) -> None:
        holders = await self._holders(found)
        if holders is None:
            self._say("missing", "which process holds the log directories cannot be found out", "see /proc/locks")
            return
        reason = why_not_ours(holders, self._source, self._config.properties)
        pid = next((one.pid for one in holders.values() if one is not None), None)
        if reason is None:
            self._say("ok", f"process {pid} is a Kafka broker that runs with {self._source}")
        else:
            self._say("missing", reason, "a guard watches the disks all the same, and goes on when it finds the broker")

    async def _holders(self, found: Heads) -> dict[str, Holder | None] | None:
        surveys = {path: self._surveys.get(owned.loaded.real_path) for path, owned in found.owned.items()}
        locks = {path: one.lock for path, one in surveys.items() if one is not None and one.lock is not None}
        kinds: dict[str, str | None] = {}
        for path, owned in found.owned.items():
            mount = mount_of(owned.loaded.real_path, self._table)
            kinds[path] = None if mount is None else mount.fstype
        processes = Processes()
        try:
            held = await processes.holders(locks, kinds)
        finally:
            processes.close()
        free: Mapping[str, Holder | None] = {path: None for path in surveys if path not in locks}
        return None if held is None else {**held, **free}

    # ---- the controllers

    async def _metadata(self, found: Heads) -> None:
        security = security_to_controllers(self._config)
        if isinstance(security, str):
            self._say("missing", security, "a guard watches the disks without the metadata")
            return
        if not await self._certificate(security):
            return
        observed, follower, trouble = await self._observe(found.cluster_id, security)
        leader = follower.leader
        if follower.denied:
            text = "the controllers answer, and this user may not read the metadata"
            remedy = "it takes CLUSTER_ACTION on the cluster; to act, DESCRIBE, ALTER and ALTER_CONFIGS too"
            self._say("missing", text, remedy)
            return
        if not observed.complete or leader is None:
            where = ", ".join(f"{host}:{port}" for host, port in servers(self._config))
            why = trouble or follower.problem or "no answer"
            text = f"no controller answers at {where} ({why})"
            if leader is not None:
                text = (
                    f"controller {leader.node_id} at {leader.host}:{leader.port} answers, and its metadata cannot be "
                )
                text += f"read: {why}"
            self._say("missing", text, "a guard watches the disks meanwhile")
            return
        level = observed.metadata_version
        release = versions.RELEASES.get(level, str(level))
        text = f"controller {leader.node_id} at {leader.host}:{leader.port}, metadata.version {release}"
        if level < versions.DIRECTORY_ASSIGNMENT:
            remedy = "nobody knows what Kafka has noticed below 3.7-IV2, where directories are recorded: upgrade it"
            self._say("missing", text, remedy)
        else:
            self._say("ok", text)
        mark = "note" if observed.incomplete is None else "missing"
        for unknown in observed.unknown:
            self._say(mark, unknown, "the README of the guard says what it does until then")
        await self._listener()
        for line in await self._voters(leader.host, leader.port, security):
            self._say(*line)
        reason = why_not_registered(
            observed, [one.directory_id for one in found.owned.values()], len(self._paths) - len(found.owned)
        )
        now = observed.registration
        if reason is not None or now is None:
            self._say("missing", reason or "the broker is not registered", "start the broker")
        else:
            state = "fenced" if now.fenced else "unfenced"
            # A directory for the metadata log alone is in no registration: it has no replicas of clients.
            of_replicas = [one for one in found.owned.values() if one.path in self._config.log_dirs]
            offline = [one.path for one in of_replicas if one.directory_id not in now.log_dirs]
            count = f"{len(now.log_dirs)} directories"
            self._say("ok", f"broker {now.id} is registered, epoch {now.epoch}, {state}, {count}")
            for path in offline:
                self._say("note", f"{path} is offline for Kafka", "the broker takes it up when it starts")

    async def _certificate(self, security: Security) -> bool:
        """Add a line about the end of kjbod's own certificate, if there is one; return whether the stores can be
        used."""
        try:
            await security.context(timeout_ms=READ_TIMEOUT_MS)
        except KjbodError as error:
            self._say("missing", str(error), "a guard watches the disks without the metadata")
            return False
        tls = security.settings.tls
        if tls is not None and tls.truststore is not None:
            empty = await asyncio.to_thread(why_empty_for_java, tls.truststore, tls.source)
            if empty is not None:
                self._say("note", empty, FOR_JAVA)
        if security.expires_at is None:
            return True
        left = security.expires_at.timestamp() - self._clock.wall_ms() / 1000
        text = f"our certificate is valid until {security.expires_at:%Y-%m-%d %H:%M} UTC"
        if left <= 0:
            self._say("missing", text, "replace it: nobody believes it any more")
        elif left < EXPIRES_SOON.total_seconds():
            self._say("note", text, "replace it: the guard takes the new one without a restart")
        else:
            self._say("ok", text)
        return True

    async def _listener(self) -> None:
        """Add a line about the broker's listener, which a guard asks while a disk is in doubt."""
        asked = listener_to_ask(self._config)
        if isinstance(asked, str):
            self._say("note", asked, "whether it is crippled is seen by its threads alone")
            return
        asking = CanaryAsking(asked, clock=self._clock)
        await asking.ask()
        await asking.close()
        text = f"the broker's listener {asked.listener}"
        if asking.problem is None:
            self._say("ok", f"{text} answers")
        else:
            self._say("note", f"{text} cannot be asked: {asking.problem}", "it is asked where threads are in doubt")

    async def _observe(
        self, cluster_id: str | None, security: Security
    ) -> tuple[Observed, MetadataFollower, str | None]:
        """Return the metadata that were read within :data:`FOLLOW_MS`, their follower, and the error that ended the
        reading."""
        observed = Observed(self._config.node_id)
        complete = asyncio.Event()

        def on_committed(batch: Committed) -> None:
            observed.committed(batch)
            if observed.complete:
                complete.set()

        def on_snapshot(snapshot: Snapshot) -> None:
            nonlocal observed
            observed = observed.snapshot(snapshot)

        follower = observer(
            self._config,
            self._clock,
            self._rng,
            security=security,
            client_id=f"kjbod-guard-check-{self._config.node_id}",
            cluster_id=cluster_id,
            on_committed=on_committed,
            on_snapshot=on_snapshot,
        )
        trouble = None
        try:
            async with asyncio.timeout(FOLLOW_MS / 1000), asyncio.TaskGroup() as group:
                task = group.create_task(follower.run())
                await complete.wait()
                task.cancel()
        except* TimeoutError:
            pass
        except* (KjbodError, MalformedMessageError) as errors:
            trouble = str(first_of(errors))
        return observed, follower, trouble

    async def _voters(self, host: str, port: int, security: Security) -> list[tuple[str, str, str]]:
        """Return lines about the voters of the quorum, and whether the quorum needs this node if it is also a
        controller."""
        is_controller = "controller" in self._config.process_roles
        quorum = Quorum(self._clock.monotonic_ms())
        try:
            async with await Connection.open(
                host,
                port,
                client_id="kjbod-guard-check",
                clock=self._clock,
                connect_timeout_ms=ASK_MS,
                security=security,
            ) as connection:
                # A voter fetches if its fetch time or offset changes between two answers.
                for _ in range(QUESTIONS if is_controller else 1):
                    asked_ms = self._clock.monotonic_ms()
                    answer = await connection.request(DescribeQuorumRequest(), timeout_ms=ASK_MS)
                    quorum = heard(quorum, answer, asked_ms)
                    await asyncio.sleep(BETWEEN_S if is_controller else 0)
        except (KjbodError, OSError) as error:
            quorum = unanswered(quorum, str(error))
        voters = sorted(quorum.voters)
        if not voters:
            remedy = "allow DESCRIBE on the cluster: without it the broker is not given up" if is_controller else ""
            mark = "missing" if is_controller else "note"
            return [(mark, f"the voters of the quorum are not known: {quorum.problem}", remedy)]
        lines = [("ok", f"voters {', '.join(map(str, voters))}", "")]
        if len(voters) == 1:
            lines = [("note", f"one voter, {voters[0]}: while it is away nobody can record a failure", "")]
        if is_controller:
            needed = why_needed(quorum, self._config.node_id, self._clock.monotonic_ms())
            kept = "this node is a controller too, and its quorum keeps a majority without it"
            lines.append(
                ("ok", kept, "") if needed is None else ("note", f"the broker is not given up now: {needed}", "")
            )
        return lines

    def _backoff(self) -> None:
        """Add a line about a long fetch backoff. After a cut, a fetcher thread pauses all its partitions that long."""
        given = self._config.properties.get(BACKOFF_KEY, str(BACKOFF_MS)).strip()
        if given.isdigit() and int(given) > BACKOFF_MS_GOOD:
            text = f"{BACKOFF_KEY}={given}: some partitions pause for as long when a disk is cut"
            self._say("note", text, f"{BACKOFF_KEY}={BACKOFF_MS_GOOD} on all brokers of the cluster makes it shorter")

    def _devices(self, found: Heads) -> Iterator[tuple[str, BlockDevice]]:
        """Yield the paths of the directories that were read, with their devices."""
        for owned in found.owned.values():
            mount = mount_of(owned.loaded.real_path, self._table)
            if mount is not None:
                yield owned.path, sysfs.block_device_of(mount)

    def _patience(self, found: Heads) -> dict[str, int]:
        """Add a line for each disk about the time that a guard waits before irreversible actions; return the times of
        physical disks in ms, by kernel name."""
        waits: dict[str, int] = {}
        configured_ms = self._config.kjbod_guard_cut_after_ms
        for path, device in self._devices(found):
            medium = medium_of(device)
            wait_ms = cut_after(configured_ms, self._config.log_dir_failure_timeout_ms, medium)
            why = "kjbod.guard.cut.after.ms" if configured_ms >= 0 else str(medium)
            text = f"{path}: a guard that acts waits until the disk has not answered for {wait_ms / 1000:g} s ({why})"
            self._say("ok", text)
            waits |= {name: wait_ms for name in device.disks if is_physical(name)}
        return waits

    async def _smart(self, found: Heads) -> None:
        """Add lines about the process that would query SMART data, and about disks that retry for longer than the guard
        waits."""
        waits = self._patience(found)
        disks, helper = sorted(waits), self._config.kjbod_smart_socket
        if not disks or self._config.kjbod_smart_interval_ms == 0 or not self._asked_by(disks, helper):
            return
        processes = SmartProcesses(helper, READ_TIMEOUT_MS)
        told = await asyncio.gather(*(ask_once(processes, name) for name in disks))
        if no_json := next((reason for _, reason in told if reason is not None), None):
            self._say("note", f"SMART and NVMe health of {', '.join(disks)}: {no_json}", NEWER_SMARTCTL)
        for name, (smart, _) in zip(disks, told, strict=True):
            if smart is not None and (warning := recovery(name, smart.recovery_ms, waits[name])) is not None:
                self._say(*warning)

    def _asked_by(self, disks: Sequence[str], helper: str) -> bool:
        """Add a line about the process that would query the disks; return whether the disks can be queried."""
        program = find_smartctl((*os.environ.get("PATH", "").split(":"), *ANYWHERE))
        line = asked_by(
            disks,
            helper,
            is_there=os.path.lexists(helper),
            is_usable=os.access(helper, os.R_OK | os.W_OK),
            may=has_rights(),
            has_smartctl=program is not None,
        )
        self._say(*line)
        return line[0] == "ok"

    # ---- our own

    def _rights(self) -> None:
        """Add a line about the rights of the user of this command, for a guard in mode act."""
        acts = self._config.kjbod_guard_mode == "act"
        mark = "missing" if acts else "note"
        held = capabilities(Path("/proc/self/status").read_text(encoding="ascii"))
        lacking = [f"{name} ({what})" for name, (number, what) in CAPABILITIES.items() if not held >> number & 1]
        if lacking:
            how = f"start it as root, or as a service with {ACT_DROP_IN}"
            remedy = how if acts else f"none is needed to observe; to act, {how}"
            self._say(mark, f"for --act who asks lacks {', '.join(lacking)}", remedy)
        elif self._standing.problem is not None:
            self._say(mark, f"with --act it would not start: {self._standing.problem}")
        else:
            self._say(
                "ok",
                f"who asks has the rights for --act: the privileged helper would keep them, and the guard go on as "
                f"{self._standing.user} without any",
            )

    def _own_files(self) -> None:
        config = self._config
        state = config.kjbod_state_dir
        with contextlib.suppress(KjbodError):
            told = ControlClient(Path(state), node_id=config.node_id, source=config.source).call("status")
            role = told.get("role", "agent")
            self._say("note", f"{'a guard' if role == 'guard' else 'an agent'} runs for it (process {told['pid']})")
        above = Path(state)
        while not above.exists() and above != above.parent:
            above = above.parent
        if os.access(above, os.R_OK | os.W_OK | os.X_OK):
            self._say("ok", f"kjbod.state.dir={state} can be used")
        else:
            remedy = "the guard needs it: make it, and give it to its user, or set kjbod.state.dir in --guard-config"
            self._say("note", f"kjbod.state.dir={state} cannot be written by who asks", remedy)
