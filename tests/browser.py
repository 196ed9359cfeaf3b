"""A page in a real browser: Chromium without a window, over its own debugging pipe, no driver in between."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
# Layout faults as the page itself can find them: things wider than the window, pictures without size, ids used twice.
PROBE = """(() => {
  const wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('svg') && !e.closest('.scroll') &&
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName);
  const flat = [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height < 40).length;
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  const ink = getComputedStyle(document.body);
  return JSON.stringify({wide, flat, twice: ids.filter((id, i) => ids.indexOf(id) !== i).slice(0, 5),
    scroll: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    pictures: document.querySelectorAll('figure svg').length, titles: document.querySelectorAll('svg > title').length,
    background: ink.backgroundColor, color: ink.color,
    text: getComputedStyle(document.querySelector('figure svg text') || document.body).fill,
    headings: [...document.querySelectorAll('h2')].map(h => h.textContent),
    broken: [...document.querySelectorAll('nav a[href^="#"]')].filter(a =>
      !document.getElementById(decodeURIComponent(a.hash.slice(1)))).length});
})()"""


def find_chromium() -> str:
    """The browser of this machine; without one the test is skipped, and says so."""
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.skip("no Chromium on this machine: install it (apt-get install chromium), or name it in CHROMIUM")
    return found


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Reading and writing ends for us and for the browser, at numbers above those that it expects them at."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 50) for end in (theirs_in, theirs_out)]
    os.close(theirs_in)
    os.close(theirs_out)
    return (ours_in, ours_out), (high[0], high[1])


class Browser:
    """One Chromium process; commands and events are JSON messages that end with a zero byte."""

    def __init__(self) -> None:
        ours, theirs = _pipes()
        command = [
            find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", "--no-first-run", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, pass_fds=(3, 4), preexec_fn=lambda: (os.dup2(theirs[0], 3), os.dup2(theirs[1], 4)),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in theirs:
            os.close(end)
        self._in, self._out = os.fdopen(ours[0], "rb", 0), os.fdopen(ours[1], "wb", 0)
        self._number, self._buffer, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        # Every page is opened as if for the first time: one that remembers a light look would not turn dark.
        self.call("Page.addScriptToEvaluateOnNewDocument", source="try { localStorage.clear() } catch {}")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = self._in.read(1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, page: Path, *, width: int = 1200, dark: bool = False) -> dict[str, Any]:
        """Load a page and look at it: what it complains of, what it fetches, how it is laid out."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        found = json.loads(self.call("Runtime.evaluate", expression=PROBE)["result"]["value"])
        return {**found, "complaints": self._complaints(), "requests": self._requests(page)}

    def _complaints(self) -> list[str]:
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"])[:300] for event in self.events if event.get("method") in kinds]

    def _requests(self, page: Path) -> list[str]:
        """What the page asks for besides itself and what it carries inside."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if url != page.resolve().as_uri() and not url.startswith("data:")]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()
