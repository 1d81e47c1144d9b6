"""Drive headless Chromium by the DevTools protocol: open pages, run JavaScript, count requests, take screenshots."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import until

#: Requests of the protocol answer within this time, or the test fails.
_ANSWER_S = 60
_SEEN_S = 30
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: React reads a field by the events of its own setter.
_FILL = """(() => {
  const e = [...document.querySelectorAll('[aria-label]')].find((field) => field.getAttribute('aria-label') === %s
    && ['INPUT', 'SELECT', 'TEXTAREA'].includes(field.tagName));
  if (!e) return false;
  const kind = {SELECT: HTMLSelectElement, TEXTAREA: HTMLTextAreaElement, INPUT: HTMLInputElement}[e.tagName];
  Object.getOwnPropertyDescriptor(kind.prototype, 'value').set.call(e, %s);
  e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));
  return true;
})()"""


@dataclass(slots=True, kw_only=True)
class Requests:
    """Requests of a page since the counter was reset, and the bytes that they transferred."""

    urls: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    size: int = 0


class Page:
    """One tab of the browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.requests, self.errors = Requests(), list[str]()
        self._urls: dict[str, str] = {}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=_ANSWER_S))
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])
            self._take(message)

    def log_in(self, url: str, token: str) -> None:
        """Set the cookie of a session."""
        self.send("Network.setCookie", name="_token", value=token, url=url)

    def open(self, url: str) -> None:
        """Open a URL; the counters of requests and the list of errors begin again."""
        self.requests, self.errors = Requests(), []
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def text(self) -> str:
        """Return the visible text of the page; a space that keeps a value on one line is a space."""
        return str(self.run("document.body ? document.body.innerText : ''")).replace("\u00a0", " ")

    def see(self, *texts: str) -> str:
        """Wait until the page shows all texts, and return its text."""

        def shown() -> bool:
            whole = self.text()
            return all(text in whole for text in texts)

        assert until(shown, _SEEN_S), f"the page does not show {texts}; errors {self.errors}; it shows\n{self.text()}"
        return self.text()

    def click(self, text: str, *, role: str = "button, a, [role=tab]", inside: str = "body") -> None:
        """Click the first enabled element of a CSS selector with a text or label, when it is there."""
        find = (
            f"[...(document.querySelector({json.dumps(inside)})||document).querySelectorAll({json.dumps(role)})]"
            f".find(e => !e.disabled && ((e.innerText||'').includes({json.dumps(text)})"
            f" || (e.getAttribute('aria-label')||'') === {json.dumps(text)}))"
        )
        script = f"(() => {{ const e = {find}; if (e) e.click(); return !!e; }})()"
        assert until(lambda: bool(self.run(script)), _SEEN_S), f"no {role} {text!r}; the page shows\n{self.text()}"

    def fill(self, label: str, value: str) -> None:
        """Type into the field with an accessible name."""
        script = _FILL % (json.dumps(label), json.dumps(value))
        assert until(lambda: bool(self.run(script)), _SEEN_S), f"no field {label!r}; the page shows\n{self.text()}"

    def screenshot(self, path: Path, *, width: int = 1360, height: int = 800) -> None:
        """Save a picture of the page."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        found = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def _take(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self._urls[given["requestId"]] = given["request"]["url"]
            self.requests.urls.append(given["request"]["url"])
        elif message.get("method") == "Network.responseReceived":
            self.requests.statuses[given["response"]["url"]] = given["response"]["status"]
        elif message.get("method") == "Network.loadingFinished":
            self.requests.size += int(given["encodedDataLength"])
        elif message.get("method") == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif message.get("method") == "Runtime.consoleAPICalled" and given["type"] == "error":
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in given["args"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile and yield its tab; skip the test if there is no Chromium."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        pytest.skip("missing: chromium")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    flags += ["--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1", f"--user-data-dir={profile}"]
    flags += ["--window-size=1360,800", "--no-first-run", "--disable-background-networking"]
    environ = {**os.environ, "HOME": str(profile)}
    profile.mkdir(parents=True, exist_ok=True)
    port = profile / "DevToolsActivePort"
    # A browser that was killed leaves its port behind.
    port.unlink(missing_ok=True)
    with (profile / "log").open("w") as log:
        process = subprocess.Popen([program, *flags, "about:blank"], stdout=log, stderr=log, env=environ)
    try:
        assert until(lambda: port.exists() and bool(port.read_text().split())), (profile / "log").read_text()
        number = port.read_text().split()[0]
        with urlopen(f"http://127.0.0.1:{number}/json/list") as answer:
            (tab,) = [found for found in json.load(answer) if found["type"] == "page"]
        # Events wait in the queue while a test waits for a server, and a full queue holds back the answers to pings.
        with connect(tab["webSocketDebuggerUrl"], max_size=None, ping_interval=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(timeout=_ANSWER_S)
