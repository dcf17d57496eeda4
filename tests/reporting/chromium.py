"""A page in a headless Chromium, driven through its DevTools protocol: open, click, press keys, look at what happens."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.request
from types import TracebackType
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PROGRAM = os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
SECONDS = 120.0  # for anything to happen, on a busy machine
_CODES = {"ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Escape": 27, "Home": 36}
_BOX = "(e => (e.scrollIntoView({block: 'center', behavior: 'instant'}), e.getBoundingClientRect().toJSON()))(%s)"
_TOP = "(e => (e.scrollIntoView({behavior: 'instant'}), window.scrollY))(%s)"


class Page:
    """One tab. ``problems``: errors and warnings on its console; ``requests``: the addresses that it asked for."""

    def __init__(self) -> None:
        assert PROGRAM is not None, "there is no Chromium"
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1500,1000")
        command = [PROGRAM, *options, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._socket = websocket.create_connection(self._address(), suppress_origin=True, timeout=SECONDS)
        except BaseException:
            self._end()
            raise
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def _address(self) -> str:
        told = pathlib.Path(self._folder.name) / "DevToolsActivePort"
        until = time.monotonic() + SECONDS
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < until and self._process.poll() is None, f"{PROGRAM} does not start"
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{told.read_text().split()[0]}/json/list") as answer:
            return next(each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "navigated" in str(message.get("error")):
                    return {"result": {}}  # asked while another page was opened: there is no answer
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(told["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(told["args"])[:500])
            case "Log.entryAdded":
                self.problems.append(told["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])

    def open(self, path: pathlib.Path, scheme: str = "light") -> float:
        """Open a report; returns the seconds until it could be used. Comes back when the charts are drawn."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.problems, self.requests = [], []
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.documentElement?.dataset.drawn")
        return float(self.evaluate("document.documentElement.dataset.ready")) / 1000

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Until the expression is true."""
        until = time.monotonic() + SECONDS
        while not (found := self.evaluate(f"Boolean({expression})")):
            assert time.monotonic() < until, f"{expression} stays {found!r}; on the console: {self.problems}"
            time.sleep(0.03)
        return found

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"{_element(selector)}.innerText"))

    def number(self, selector: str) -> int:
        """How many such elements there are."""
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str) -> None:
        """The mouse, on the middle of the first such element."""
        box = None
        while box != (box := self.evaluate(_BOX % _element(selector))):
            time.sleep(0.05)  # until nothing moves any more
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = {"key": key, "windowsVirtualKeyCode": _CODES.get(key, ord(key[0]))}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **code)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def focused(self) -> str:
        """The text of the element that has the focus."""
        return str(self.evaluate("document.activeElement.innerText || document.activeElement.id"))

    def spoken(self) -> list[tuple[str, str]]:
        """The role and the name of everything that can have the focus, as a screen reader is told them."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if any(each["name"] == "focusable" for each in node.get("properties", ()))
        ]

    def screenshot(self, path: pathlib.Path, selector: str = "body", height: int = 1000) -> None:
        top = self.evaluate(_TOP % _element(selector))
        clip = {"x": 0, "y": top, "width": 1500, "height": height, "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))


def _element(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})"
