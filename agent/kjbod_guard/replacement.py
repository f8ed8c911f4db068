"""Replacement of a disk of a Kafka broker, stage by stage, as the runbook has it. Pure.

An operator and the command ``kjbod guard replace`` go through the stages together. The command skips a stage that is
already over, so it may be stopped and typed again at any time.

=========  ================================================  =========================================================
stage      work                                              over when
=========  ================================================  =========================================================
release    the guard closes the log directories              the guard has answered
stop       ``systemctl stop`` of the broker's unit           the broker's process has ended
unmount    ``umount``                                        no file system is mounted at the mount point
swap       a person takes the disk out                       the person has repeated its serial number
prepare    a person makes the file system, and a line in     the person says so, and the line of ``/etc/fstab`` has not
           ``/etc/fstab``                                    the old UUID
mount      ``mount``                                         a file system is mounted at the mount point
format     ``mkdir``, ``kjbod format``, ``chown``            the commands have ended without an error
start      ``systemctl start`` of the broker's unit          the guard sees the broker's process
sync       Kafka copies                                      the broker serves the directories, nothing is evicted, and
                                                             all replicas of the broker are in sync
=========  ================================================  =========================================================

kjbod makes no file system, and writes no line of ``/etc/fstab``, because a mistake there destroys data. ``format``
begins only if a file system is mounted at the mount point. Otherwise Kafka would fill the root file system.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

VERSION: Final = 1
CLUSTER_ID: Final = "CLUSTER_ID"
OWNER: Final = "USER:GROUP"
QUESTIONS: Final[Mapping[str, str]] = {
    CLUSTER_ID: "Id of the Kafka cluster",
    OWNER: "User and group that run Kafka, as USER:GROUP",
}
"""Questions to the operator for placeholders in commands."""
_CHECKS: Final[Mapping[str, str]] = {"ext4": "fsck.ext4 -f", "xfs": "xfs_repair"}


class Stage(StrEnum):
    """Stage of a replacement."""

    RELEASE = "release"
    STOP = "stop"
    UNMOUNT = "unmount"
    SWAP = "swap"
    PREPARE = "prepare"
    MOUNT = "mount"
    FORMAT = "format"
    START = "start"
    SYNC = "sync"


ORDER: Final = tuple(Stage)


class Replacement(Struct, frozen=True, forbid_unknown_fields=True):
    """A replacement that has begun: the content of its file.

    Attributes:
        version: version of the file's format.
        paths: the log directories on the disk.
        mount_point: where the file system of the disk is mounted.
        source: the device that was mounted.
        fstype: type of the file system.
        device: ``/dev/sdb``; None: unknown.
        model: of the disk.
        serial: of the disk.
        fstab: first field of the line of ``/etc/fstab`` for the mount point; None: there is no line.
        cluster_id: of the Kafka cluster.
        pid: of the broker at the beginning; None: it did not run.
        unit: of systemd that runs the broker; None: unknown.
        owner: ``USER:GROUP`` of the broker's process; None: unknown.
        stage: the present stage.
        is_same: whether the old disk comes back, repaired; None: not answered yet.
    """

    version: int
    paths: tuple[str, ...]
    mount_point: str
    source: str
    fstype: str
    device: str | None
    model: str | None
    serial: str | None
    fstab: str | None
    cluster_id: str
    pid: int | None
    unit: str | None
    owner: str | None
    stage: Stage = Stage.RELEASE
    is_same: bool | None = None

    @property
    def disk(self) -> str:
        """Description of the disk for people."""
        found = [
            self.device or self.source,
            self.model,
            None if self.serial is None else f"serial number {self.serial}",
        ]
        return ", ".join(one for one in found if one)

    @property
    def proof(self) -> str:
        """Text that a person repeats before anything irreversible: the serial number, else the device."""
        return self.serial or self.device or self.source


class Facts(Struct, frozen=True):
    """Facts about the host at this moment.

    Attributes:
        runs: whether a process of the broker runs: the process from the beginning, or a process that the guard sees.
        is_seen: whether the guard sees a process of the broker.
        is_mounted: whether a file system is mounted at the mount point.
        behind: why the broker is not complete again; None: it is.
    """

    runs: bool
    is_seen: bool
    is_mounted: bool
    behind: str | None


def behind(answer: Mapping[str, Any], paths: Sequence[str]) -> str | None:
    """Return why a broker is not complete again after a replacement, by the ``status`` of its guard; None: it is."""
    rows = {row["path"]: row for row in answer["directories"]}
    for path in paths:
        row = rows.get(path)
        if row is None or row["verdict"] != "online":
            return f"{path} is {'unknown to the guard' if row is None else row['verdict']}"
        if row["kafka"] != "online":
            return f"Kafka does not use {path} yet; a broker that started before the disk was mounted must restart"
    if answer["metadata_missing"] or answer["needs"] is None:
        return f"the guard does not follow the metadata: {answer['metadata_missing'] or 'it has just started'}"
    if answer["fenced"]:
        return "the broker is fenced: it starts, or catches up"
    if answer["evicted"]:
        return f"replicas of the broker to restore: {answer['evicted']}"
    if answer["needs"]["out_of_sync"]:
        return f"replicas of the broker that are not in sync: {answer['needs']['out_of_sync']}"
    return None


def is_over(now: Replacement, facts: Facts) -> bool:
    """Return whether the facts show that the stage of a replacement is over."""
    match now.stage:
        case Stage.STOP:
            return not facts.runs
        case Stage.UNMOUNT:
            return not facts.is_mounted
        case Stage.PREPARE | Stage.MOUNT:
            return facts.is_mounted
        case Stage.FORMAT:
            return bool(now.is_same)
        case Stage.START:
            return facts.is_seen
        case Stage.SYNC:
            return facts.behind is None
        case _:
            return False


def after(now: Replacement) -> Replacement | None:
    """Return the replacement at its next stage; None: it is complete."""
    number = ORDER.index(now.stage) + 1
    return replace(now, stage=ORDER[number]) if number < len(ORDER) else None


def swapped(now: Replacement, repeated: str) -> Replacement | None:
    """Return the replacement after a person has repeated the serial number, or said ``same``; None: neither."""
    said = repeated.strip().casefold()
    if said not in (now.proof.casefold(), "same"):
        return None
    return after(replace(now, is_same=said == "same"))


def stale_fstab(now: Replacement, fstab: str | None) -> bool:
    """Return whether ``/etc/fstab`` still has the UUID of the old file system."""
    return not now.is_same and fstab is not None and fstab.startswith("UUID=") and fstab == now.fstab


def why_not_begin(now: Replacement, facts: Facts) -> str | None:
    """Return why the work of the stage must not be done; None: it may be."""
    if now.stage is Stage.FORMAT and not facts.is_mounted:
        return f"no file system is mounted at {now.mount_point}: mount it first"
    if now.stage in (Stage.MOUNT, Stage.FORMAT) and facts.runs:
        return "the broker runs again, and Kafka uses a disk only from a start on: stop the broker first"
    return None


Command = tuple[str, ...]


def commands(now: Replacement, files: Sequence[str], config: str, *, dynamic: bool) -> list[Command]:
    """Return the commands that do the work of the stage; none: a person does it, or nothing is to be done.

    Args:
        now: the replacement.
        files: arguments that name the files of broker and guard.
        config: the broker's file.
        dynamic: the node is also a controller of a quorum whose voters are in the metadata.
    """
    more = ["--no-initial-controllers"] if dynamic else []
    match now.stage:
        case Stage.RELEASE:
            return [("kjbod", "guard", "release", *files, path) for path in now.paths]
        case Stage.STOP if now.unit is not None:
            return [("systemctl", "stop", "--no-block", now.unit)]
        case Stage.UNMOUNT:
            return [("umount", now.mount_point)]
        case Stage.MOUNT if now.fstab is not None:
            return [("systemctl", "daemon-reload"), ("mount", now.mount_point)]
        case Stage.FORMAT:
            return [
                ("mkdir", "-p", *now.paths),
                ("kjbod", "format", "-t", now.cluster_id, "-c", config, "--ignore-formatted", *more),
                ("chown", "-R", now.owner or OWNER, *now.paths),
            ]
        case Stage.START if now.unit is not None:
            return [("systemctl", "start", now.unit)]
        case _:
            return []


def text(now: Replacement) -> list[str]:
    """Return lines for a person about the stage: first its work, then hints."""
    process = "the broker" if now.pid is None else f"the broker (process {now.pid})"
    match now.stage:
        case Stage.RELEASE:
            return ["The guard closes the log directory, and leaves it unchanged until it is healthy."]
        case Stage.STOP:
            todo = "Stop the broker." if now.unit is not None else f"Stop {process} in another terminal."
            return [f"{todo} Its leaders move to other brokers; the guard runs on."]
        case Stage.UNMOUNT:
            return [f"Unmount {now.mount_point}. Busy: a thread waits for the disk; pull the disk, then try again."]
        case Stage.SWAP:
            return [f"Take out {now.disk}. Put the new disk in."]
        case Stage.PREPARE if now.is_same:
            return [f"Repair the file system: {_CHECKS.get(now.fstype, 'fsck')} {now.source}"]
        case Stage.PREPARE:
            made = f"Make a partition and a file system on the new disk: mkfs.{now.fstype} DEVICE"
            line = "no line of /etc/fstab names the mount point" if now.fstab is None else f"now {now.fstab}"
            return [made, f"Put its UUID (blkid DEVICE) into /etc/fstab for {now.mount_point} ({line})."]
        case Stage.MOUNT:
            todo = "Mount the disk" if now.fstab is not None else "Mount the disk in another terminal"
            return [f"{todo} at {now.mount_point}."]
        case Stage.FORMAT:
            return ["Make the log directory on the new disk, and its meta.properties, for the user that runs Kafka."]
        case Stage.START:
            return ["Start the broker." if now.unit is not None else "Start the broker in another terminal."]
        case Stage.SYNC:
            return ["Kafka copies. The guard puts the broker back into the lists from which it evicted it."]


def encode(now: Replacement) -> bytes:
    """Return the content of the file."""
    return msgspec.json.format(msgspec.json.encode(now)) + b"\n"


def decode(content: bytes) -> Replacement:
    """Return the replacement of a file.

    Raises:
        ValueError: the content is no replacement, or is of a newer kjbod.
    """
    found = msgspec.json.decode(content, type=Replacement)
    if found.version != VERSION:
        raise ValueError(f"version {found.version}, and this kjbod knows {VERSION}")
    return found
