"""A headless Chromium driven over its DevTools pipe, which needs no driver and no extra package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One page. Raises `TimeoutError` when the browser or the page does not do what is waited for."""

    def __init__(self, profile: Path, *, width: int = 1100, height: int = 760, dark: bool = False) -> None:
        assert EXECUTABLE is not None
        to_read, self._to_browser = os.pipe()
        self._from_browser, to_write = os.pipe()

        def place_pipes() -> None:  # the browser expects its pipe at descriptors 3 and 4
            read_end, write_end = os.dup(to_read), os.dup(to_write)
            os.dup2(read_end, 3)
            os.dup2(write_end, 4)

        self._process = subprocess.Popen(
            [EXECUTABLE, *_FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=place_pipes,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.problems: list[str] = []  # exceptions, console errors and blocked requests of the page
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 30) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self.run(expression):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{expression} stayed false for {timeout_s} s; problems: {self.problems}")
            time.sleep(0.02)

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def press(self, key: str, code: int, *, shift: bool = False) -> None:
        """A key by its DOM name and virtual key code, as a user's keyboard would send it."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self._call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._session = None
        self._send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to_browser)
        os.close(self._from_browser)

    def _send(self, method: str, **params: Any) -> int:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        return number

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = self._send(method, **params)
        while True:
            message = self._receive(timeout_s=30)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while b"\0" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._from_browser], [], [], left_s)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._from_browser, 1 << 20)
            if not data:
                raise TimeoutError("the browser has quit")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message
