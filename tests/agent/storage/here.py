"""A worker in this process, without daemon, zygote and keeper: for what it does to a directory, not for what hangs."""

import errno
import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kjbod_host.storage.replica_worker import ReplicaWorker

DIRECTORY_ID = "9bFlIkpYt5HfavHYMD5hzQ"
TOPIC_ID = "c6m-9Jm7RNy70qTyyK9b2Q"


class Here:
    """Asks a worker, and has it expect what was loaded as the daemon's side does."""

    def __init__(self, path: Path, role: str = "broker") -> None:
        self.path = path
        self._status = os.memfd_create("status")
        self._keeper, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.worker = ReplicaWorker(str(path), role, self._status, self._ours)
        self._expect: list[Any] = [None, None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._status)
        self._keeper.close()
        self._ours.close()

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request, as it would come over the socket."""
        request = json.loads(json.dumps({"n": 1, "op": operation, "expect": self._expect, **arguments}))
        answer: dict[str, Any] = json.loads(json.dumps(self.worker.answer(request)))
        return answer

    def format(self) -> None:
        """Write a ``meta.properties`` and load: from here on mount and directory id are compared."""
        assert "ok" in self.ask("write_meta_properties", content=f"version=1\ndirectory.id={DIRECTORY_ID}\n")
        found = self.ask("load")["ok"]
        self.ask("topic_ids", names=[name for name, _ in found["names"]])
        self._expect = [found["identity"], DIRECTORY_ID]

    def probe(self, *, full: bool = False) -> str:
        """``"ok"``, ``"ok ENOSPC"``, ``"ok ENOSPC unwritten"``, ``"EIO at fsync of .kjbod_probe"`` or our trouble."""
        answer = self.ask("probe", full=full)
        if "ok" in answer:
            found = answer["ok"]
            words = ["ok", found["no_space"], None if found["written"] else "unwritten"]
            return " ".join(word for word in words if word)
        if "errno" in answer:
            return f"{errno.errorcode[answer['errno']]} at {answer['call']}"
        return str(answer["trouble"])

    def probes(self, count: int) -> list[str]:
        """So many probes that are not full ones."""
        return [self.probe() for _ in range(count)]
