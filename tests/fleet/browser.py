"""A headless Chromium that tests ask what it sees, by the W3C WebDriver protocol."""

import base64
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Browser:
    """One browser. The driver picks a free port and says which."""

    def __init__(self, scratch: Path) -> None:
        driver = shutil.which("chromedriver")
        assert driver, "apt-get install chromium chromium-driver"
        environment = {**os.environ, "HOME": str(scratch), "TMPDIR": str(scratch), "no_proxy": "127.0.0.1"}
        self._process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self._process.stdout
        for line in self._process.stdout:
            if "successfully on port " in line:
                self._base = f"http://127.0.0.1:{line.rsplit('on port ', 1)[1].strip().rstrip('.')}"
                break
        options = {"args": [*FLAGS, f"--user-data-dir={scratch / 'profile'}"]}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self._session = ""
        try:
            started = self._ask("POST", "/session", {"capabilities": wanted})
        except BaseException:
            self._end()
            raise
        self._session = f"/session/{started['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def look(self, path: Path, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Open a file in a window of so many CSS px."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", {"features": scheme})
        self._ask("POST", f"{self._session}/url", {"url": path.as_uri()})

    def _devtools(self, command: str, params: Any) -> Any:
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script of the test returns; the page's policy does not hold for it."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, key: str) -> None:
        """A key, for what has the focus."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "k", "actions": keys}]})

    def complaints(self) -> list[str]:
        """What the browser's console said of pages since the last call."""
        return [entry["message"] for entry in self._ask("POST", f"{self._session}/se/log", {"type": "browser"})]

    def picture(self, path: Path) -> None:
        """A picture of the window."""
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        """End the browser and its driver."""
        try:
            self._ask("DELETE", self._session)
        finally:
            self._end()

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
