"""The small files of a lake where there is no Java process to ask: of a Spark Connect client.

Tables go through the server; what Spark has no word for is done here, by pyarrow's file systems, with the rights and
settings of this process. So the lake's URI has to mean the same here as on the server.

A state must be created where there is none, by one of many. pyarrow can do that on no file system: it clobbers on HDFS,
and has no conditional write on object stores. On a ``file:`` lake a hard link does it, as in
:class:`kjbod.fleet.lake.files.HadoopFiles`. Elsewhere a lake can be read through Spark Connect, and is changed with
``--master`` or ``spark-submit``: what would change it says so, and changes nothing.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.durable import sync_file_system
from kjbod.fleet.lake.files import Entry, uuid_text, writing

_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of schemes to pyarrow's."""


class ArrowFiles:
    """:class:`kjbod.fleet.lake.files.Files` by pyarrow."""

    def __init__(self, uri: str) -> None:
        """Raises:
        FleetError: not a URI of a file system that is known here."""
        try:
            from pyarrow.fs import FileSystem, LocalFileSystem
        except ImportError:
            raise FleetError(f"{uri}: through Spark Connect it needs pyarrow: pip install pyarrow") from None
        scheme, rest = _split(uri)
        self._local = scheme == "file"
        self._fs: Any
        with _refused(uri):
            if self._local:
                self._fs, self._path_of_root = LocalFileSystem(), str(Path(rest).absolute())
                self.root = f"file:{self._path_of_root}".rstrip("/")
            else:
                self._fs, self._path_of_root = FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}:{rest}")
                self.root = uri.rstrip("/")

    def _path(self, path: str) -> str:
        return f"{self._path_of_root.rstrip('/')}/{path}" if path else self._path_of_root

    def _here(self, path: str) -> Path:
        return Path(self._path(path))

    def _only_local(self) -> None:
        if not self._local:
            raise FleetError(
                f"{self.root}: through Spark Connect only a lake at file: can be changed (pyarrow cannot create a file"
                " as the only one): use --master or spark-submit"
            )

    def read(self, path: str) -> str | None:
        """Implements :class:`Files`."""
        with _refused(f"{self.root}/{path}"):
            try:
                with self._fs.open_input_stream(self._path(path), compression=None) as stream:
                    return str(stream.read().decode())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def kind(self, path: str) -> str:
        """``File``, ``Directory`` or ``NotFound``."""
        with _refused(f"{self.root}/{path}"):
            return str(self._fs.get_file_info(self._path(path)).type.name)

    def opened(self, path: str) -> tuple[int | None, str | None]:
        """Size of a file, and why it cannot be opened."""
        try:
            size = self._fs.get_file_info(self._path(path)).size
            self._fs.open_input_stream(self._path(path), compression=None).close()
        except OSError as error:
            return None, error.strerror or str(error)
        return size, None

    def create(self, path: str, text: str) -> bool:
        """Implements :class:`Files`."""
        self._only_local()
        with writing(), _refused(f"{self.root}/{path}"):
            target = self._here(path)
            if target.exists():
                return False
            hidden = self._write_hidden(target, text)
            try:
                target.hardlink_to(hidden)
            except FileExistsError:
                return False
            finally:
                hidden.unlink()
            _sync_directory(target.parent)
            return True

    @staticmethod
    def _write_hidden(target: Path, text: str) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{target.name}.{uuid_text()}")
        with hidden.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        return hidden

    def replace(self, path: str, text: str) -> None:
        """Implements :class:`Files`."""
        self._only_local()
        with writing(), _refused(f"{self.root}/{path}"):
            self._write_hidden(self._here(path), text).replace(self._here(path))

    def list(self, path: str) -> list[Entry]:
        """Implements :class:`Files`."""
        from pyarrow.fs import FileSelector, FileType

        with _refused(f"{self.root}/{path}"):
            try:
                found = self._fs.get_file_info(FileSelector(self._path(path)))
            except (FileNotFoundError, NotADirectoryError):
                return []
        entries = [
            Entry(info.base_name, info.type == FileType.Directory, info.size or 0, (info.mtime_ns or 0) // 1_000_000)
            for info in found
            if info.type != FileType.NotFound
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def rename(self, path: str, to: str) -> bool:
        """Implements :class:`Files`."""
        self._only_local()
        with _refused(f"{self.root}/{path}"):
            source, target = self._here(path), self._here(to)
            if not source.exists() or target.exists():
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                source.rename(target)
                return True
            try:
                target.hardlink_to(source)  # fails where the name was taken meanwhile
                source.unlink()
            except (FileExistsError, FileNotFoundError):
                return False
            return True

    def delete(self, path: str) -> None:
        """Implements :class:`Files`."""
        self._only_local()
        with _refused(f"{self.root}/{path}"), contextlib.suppress(FileNotFoundError):
            target = self._here(path)
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()

    def sync(self, path: str) -> None:
        """Implements :class:`Files`: the server wrote it, perhaps on this machine."""
        if self._local:
            with _refused(self.root), contextlib.suppress(FileNotFoundError):
                sync_file_system(self._here(""))

    def is_link(self, path: str) -> bool:
        """Implements :class:`Files`."""
        return self._local and self._here(path).is_symlink()


def _split(uri: str) -> tuple[str, str]:
    """Scheme and the rest; ``file`` for what has none. As Hadoop has it, ``%`` in a path is a character."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", uri, re.DOTALL)
    if found is None:
        return "file", uri
    scheme, rest = found[1].lower(), found[2]
    if scheme != "file":
        return scheme, rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise FleetError(f"{uri}: file: of the host {host}: give a path of this machine: file:/...")
        rest = slash + path
    if not rest.startswith("/"):
        raise FleetError(f"{uri}: no absolute path: file:/...")
    return scheme, rest


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _refused(where: str) -> Iterator[None]:
    """Make of a refusal of the file system one line that says where."""
    from pyarrow import ArrowException

    refusals: tuple[Any, ...] = (OSError, ValueError, NotImplementedError, ArrowException)
    try:
        yield
    except refusals as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FleetError(f"{where}: {reason.strip().splitlines()[0]}") from error
