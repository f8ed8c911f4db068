"""Real Prometheus for tests: ``promtool``, and a server that scrapes what it is told to."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.rig.kafka import cache_directory
from scripts.rig.processes import Processes, free_port, wait_until
from scripts.rig.rig_error import RigError

START_TIMEOUT_S: Final = 30.0
TOOL_TIMEOUT_S: Final = 120.0


def program(name: str) -> str:
    """Path of ``prometheus`` or ``promtool``: that on PATH, or what ``scripts/setup`` got.

    Raises:
        RigError: there is none.
    """
    found = shutil.which(name) or shutil.which(str(cache_directory() / "prometheus" / name))
    if found is None:
        raise RigError(f"{name}: not found: run scripts/setup --world, or apt-get install prometheus")
    return found


def require() -> None:
    """Require both programs.

    Raises:
        RigError: one is not there.
    """
    program("prometheus")
    program("promtool")


def promtool(*arguments: str | Path, text: str | None = None) -> tuple[int, str]:
    """Run ``promtool``, with ``text`` on its standard input. Returns its exit code and all that it printed."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TOOL_TIMEOUT_S,
    )
    return done.returncode, done.stdout


class Prometheus:
    """A server that scrapes each second and evaluates rules each second.

    Args:
        processes: starts it.
        home: an empty directory of its own.
        jobs: what is scraped: further keys of each job of ``scrape_configs``, by its name.
        rules: files of rules.
    """

    def __init__(
        self, processes: Processes, home: Path, jobs: Mapping[str, Mapping[str, Any]], rules: Sequence[Path] = ()
    ) -> None:
        self.port = free_port()
        scrapes = [{"job_name": name, **keys} for name, keys in jobs.items()]
        intervals = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        home.mkdir()
        config = home / "prometheus.yml"  # JSON is YAML
        config.write_text(
            json.dumps({"global": intervals, "rule_files": [str(file) for file in rules], "scrape_configs": scrapes})
        )
        self.process = processes.start(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn",
            ],
            name="prometheus",
        )
        wait_until(self._is_ready, START_TIMEOUT_S, "Prometheus to be ready")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """``data`` of an answer of the HTTP API, as ``/api/v1/query``.

        Raises:
            RigError: Prometheus refuses it.
        """
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RigError(f"Prometheus refuses {parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now: ``metric`` and ``value`` of each."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found
