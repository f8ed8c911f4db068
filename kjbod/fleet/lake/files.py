"""The small files of a lake (states, claims), on any file system that Hadoop has.

Tables are read and written by Spark. What Spark has no word for, such as creating a file that must not be there, goes
through Hadoop's own classes in Spark's Java process, so that it has the same rights, credentials and settings.

What :meth:`Files.create` holds: on a local disk it is a hard link, on HDFS and the like a rename, both of which fail
when the name is taken; on object stores it is a conditional write (S3A since Hadoop 3.4.2, with
``fs.s3a.create.conditional.enabled``; Google's and Azure's connectors always). A file is whole when it is there.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kjbod.clock import system_random
from kjbod.fleet.fleet_error import FleetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECT_STORES = frozenset({"s3a", "s3", "gs", "abfs", "abfss", "wasb", "wasbs", "oss"})
"""Schemes whose rename is a copy, or does not fail when the name is taken."""
NOT_WRITABLE = ("Permission denied", "Operation not permitted", "Read-only file system", "Mkdirs failed")
"""Words of file systems for a place that this user may not write to."""
_ONLY_NAMED = {
    "UnknownHostException": "unknown host",
    "AccessDeniedException": "Permission denied",
    "NoSuchFileException": "no such file",
}
"""Classes of Java's whose message is a name alone, and what is wrong with it."""
_GLOB = frozenset("{}[]*?\\")


def refuse_glob(option: str, given: str, root: str) -> None:
    """Refuse a root that Spark would take for a pattern.

    Raises:
        FleetError: it would.
    """
    if not _GLOB.isdisjoint(root):
        raise FleetError(f"{option} {given}: not with any of {{}}[]*?\\ in its name, which Spark takes for a pattern")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory in a directory."""

    name: str
    is_directory: bool
    size: int
    modified_ms: int
    """Wall time of the file system."""


class Files(Protocol):
    """Files below a root; paths are relative to it, with ``/`` between their parts.

    All raise :class:`FleetError` for what they were refused."""

    root: str
    """Qualified URI, without a slash at its end."""

    def read(self, path: str) -> str | None:
        """Content; None when there is no such file."""

    def create(self, path: str, text: str) -> bool:
        """Make a file that is not there, durable and whole; False when it is there."""

    def replace(self, path: str, text: str) -> None:
        """Make a file, or put it in the place of the one that is there."""

    def list(self, path: str) -> list[Entry]:
        """Entries of a directory by name; none when there is no such directory."""

    def rename(self, path: str, to: str) -> bool:
        """False when it is not there, or the name is taken."""

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it; also when there is none."""

    def sync(self, path: str) -> None:
        """Make what Spark wrote below a directory durable, where writing has not."""

    def is_link(self, path: str) -> bool:
        """Whether it is a symbolic link; only local file systems have them."""


class HadoopFiles:
    """:class:`Files` by Hadoop's classes."""

    def __init__(self, spark: "SparkSession", uri: str) -> None:
        """Raises:
        FleetError: not a URI of a file system that is known here."""
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        with _refused(uri):
            conf = spark._jsc.hadoopConfiguration()
            path = self._jvm.org.apache.hadoop.fs.Path(uri)
            self._fs = path.getFileSystem(conf)
            self._root = path.makeQualified(self._fs.getUri(), self._fs.getWorkingDirectory())
            self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), conf)
            self._scheme = str(self._root.toUri().getScheme())
            if self._scheme == "file" and hasattr(self._fs, "getRaw"):
                # Without a hidden checksum beside each file: a kill between the two would make the file unreadable.
                self._fs = self._fs.getRaw()
        self.root = str(self._root.toString()).rstrip("/")

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def _here(self, path: str) -> Any:
        """The path on this machine, for ``java.nio``, which takes no URI with letters that are not ASCII."""
        none = self._gateway.new_array(self._jvm.java.lang.String, 0)
        return self._jvm.java.nio.file.Paths.get(str(self._path(path).toUri().getPath()), none)

    def read(self, path: str) -> str | None:
        """Implements :class:`Files`."""
        with _refused(f"{self.root}/{path}"):
            if not self._fs.exists(self._path(path)):
                return None
            stream = self._fs.open(self._path(path))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def create(self, path: str, text: str) -> bool:
        """Implements :class:`Files`."""
        with writing(), _refused(f"{self.root}/{path}"):
            if self._scheme in OBJECT_STORES:
                return self._create_there(path, text)
            if self._fs.exists(self._path(path)):
                return False
            hidden = self._write_hidden(path, text)
            try:
                return self._link(hidden, path) if self._scheme == "file" else self._renamed(hidden, path)
            finally:
                self._fs.delete(self._path(hidden), False)

    def _create_there(self, path: str, text: str) -> bool:
        builder = self._fs.createFile(self._path(path)).overwrite(False).recursive()
        try:
            self._fill(builder.build(), text)
        except Exception as error:
            if _java_name(error).endswith(("FileAlreadyExistsException", "RemoteFileChangedException")):
                return False
            raise
        return True

    def _link(self, hidden: str, path: str) -> bool:
        """A hard link fails when the name is taken; Java's rename on a local disk would not."""
        target = self._here(path)
        try:
            self._jvm.java.nio.file.Files.createLink(target, self._here(hidden))
        except Exception as error:
            if _java_name(error).endswith("FileAlreadyExistsException"):
                return False
            raise
        self._sync_directory(target.getParent())
        return True

    def _sync_directory(self, directory: Any) -> None:
        jvm = self._jvm
        options = jvm.java.util.HashSet()
        options.add(jvm.java.nio.file.StandardOpenOption.READ)
        none = self._gateway.new_array(jvm.java.nio.file.attribute.FileAttribute, 0)
        channel = jvm.java.nio.channels.FileChannel.open(directory, options, none)
        try:
            channel.force(True)
        finally:
            channel.close()

    def _renamed(self, path: str, to: str) -> bool:
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        option = self._gateway.new_array(rename, 1)
        option[0] = rename.NONE
        try:
            self._context.rename(self._path(path), self._path(to), option)
        except Exception as error:
            if _java_name(error).endswith(("FileAlreadyExistsException", "FileNotFoundException")):
                return False
            raise
        return True

    def _write_hidden(self, path: str, text: str) -> str:
        folder, _, name = path.rpartition("/")
        hidden = f"{folder}/.{name}.{uuid_text()}".lstrip("/")
        self._fill(self._fs.create(self._path(hidden), True), text)
        return hidden

    @staticmethod
    def _fill(stream: Any, text: str) -> None:
        try:
            stream.write(text.encode())
            if stream.hasCapability("hsync"):
                stream.hsync()
        finally:
            stream.close()

    def replace(self, path: str, text: str) -> None:
        """Implements :class:`Files`."""
        with writing(), _refused(f"{self.root}/{path}"):
            if self._scheme != "file":  # whoever reads a claim meanwhile finds it empty, and judges it by its age
                self._fill(self._fs.create(self._path(path), True), text)
                return
            option = self._jvm.java.nio.file.StandardCopyOption
            options = self._gateway.new_array(self._jvm.java.nio.file.CopyOption, 2)
            options[0], options[1] = option.REPLACE_EXISTING, option.ATOMIC_MOVE
            hidden = self._here(self._write_hidden(path, text))
            self._jvm.java.nio.file.Files.move(hidden, self._here(path), options)

    def list(self, path: str) -> list[Entry]:
        """Implements :class:`Files`."""
        with _refused(f"{self.root}/{path}"):
            if not self._fs.exists(self._path(path)):
                return []
            found = [
                Entry(
                    s.getPath().getName(),
                    s.isDirectory(),
                    0 if s.isDirectory() else s.getLen(),
                    s.getModificationTime(),
                )
                for s in self._fs.listStatus(self._path(path))
            ]
        return sorted(found, key=lambda entry: entry.name)

    def rename(self, path: str, to: str) -> bool:
        """Implements :class:`Files`."""
        with _refused(f"{self.root}/{path}"):
            return self._renamed(path, to)

    def delete(self, path: str) -> None:
        """Implements :class:`Files`."""
        with _refused(f"{self.root}/{path}"):
            self._fs.delete(self._path(path), True)

    def sync(self, path: str) -> None:
        """Implements :class:`Files`. Elsewhere than on this machine, a file that is closed is where it belongs."""
        if self._scheme != "file":
            return
        jvm = self._jvm
        with _refused(f"{self.root}/{path}"):
            top = self._here(path)
            none = self._gateway.new_array(jvm.java.nio.file.FileVisitOption, 0)
            for found in jvm.java.nio.file.Files.walk(top, none).toArray():
                self._sync_directory(found)
            above, root = top.getParent(), self._here("")
            while above is not None and above.startsWith(root):
                self._sync_directory(above)
                above = above.getParent()

    def is_link(self, path: str) -> bool:
        """Whether it is a symbolic link."""
        if self._scheme != "file":
            return False
        with _refused(f"{self.root}/{path}"):
            return bool(self._jvm.java.nio.file.Files.isSymbolicLink(self._here(path)))

    def free_bytes(self) -> int | None:
        """Bytes that can still be written; None where the file system has no such number, as object stores."""
        with _refused(self.root):
            if self._scheme in OBJECT_STORES:
                return None
            return int(self._fs.getStatus(self._root).getRemaining())


def uuid_text() -> str:
    """A name that nobody else has."""
    return str(uuid.UUID(int=system_random().getrandbits(128), version=4))


@contextmanager
def writing() -> Iterator[None]:
    """Say also what to do where a lake may not be written to."""
    try:
        yield
    except FleetError as error:
        if not any(words in str(error) for words in NOT_WRITABLE):
            raise
        raise FleetError(f"{error}: give its user the right to write there, or another --lake") from error


@contextmanager
def _refused(where: str) -> Iterator[None]:
    """Make of a refusal of Java one line that says where."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException  # what PySpark makes of some of Java's

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise FleetError(f"{where}: {java_reason(error)}") from error


def _java_name(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    return "" if java is None else str(java.getClass().getName())


def java_reason(error: BaseException) -> str:
    """The innermost Java message, without the names of classes: the outer ones only say that something failed."""
    cause, reason = getattr(error, "java_exception", None) or getattr(error, "_origin", None), str(error)
    while cause is not None:
        kind = str(cause.getClass().getSimpleName())
        reason = str(cause.getMessage() or kind)
        if kind in _ONLY_NAMED:
            reason = f"{_ONLY_NAMED[kind]}: {reason}"
        cause = cause.getCause()
    return reason.strip().splitlines()[0]
