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
from collections.abc import Mapping
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
_KEY_CODES = {
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Delete": 46,
    "Tab": 9,
    "F2": 113,
}
_MODIFIERS = {"alt": 1, "ctrl": 2, "shift": 8}


class Browser:
    """One browser process. `preferences` are written into its profile before it starts."""

    def __init__(self, profile: Path, preferences: Mapping[str, Any] | None = None) -> None:
        assert EXECUTABLE is not None
        if preferences is not None:
            (profile / "Default").mkdir(parents=True)
            (profile / "Default" / "Preferences").write_text(json.dumps(preferences))
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
        self._pages: dict[str, Page] = {}

    def page(
        self, *, width: int = 1100, height: int = 760, dark: bool = False, context: str | None = None
    ) -> Page:
        """A new tab; with a storage of its own unless it shares another page's `context`."""
        context = context or str(self.call("Target.createBrowserContext")["browserContextId"])
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target, context)
        page.prepare(width, height, dark)
        return page

    def default_page(self) -> Page:
        """A tab in the profile that the browser was started with."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target, "")
        page.prepare(1100, 760, False)
        return page

    def close(self) -> None:
        self._send("Browser.close", {}, None)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to_browser)
        os.close(self._from_browser)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = self._send(method, params, session)
        while True:
            message = self._receive(timeout_s=30)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            page = self._pages.get(message.get("sessionId", ""))
            if page is not None:
                page.note(message)

    def _send(self, method: str, params: dict[str, Any], session: str | None) -> int:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:  # a pipe takes a long text in pieces
            data = data[os.write(self._to_browser, data) :]
        return number

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


class Page:
    """One tab. Raises `TimeoutError` when the browser or the page does not do what is waited for."""

    def __init__(self, browser: Browser, session: str, target: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.context = context
        self.problems: list[str] = []  # exceptions, console errors and blocked requests of the page
        self.requests: list[dict[str, Any]] = []  # bodies of the chat completions that it has asked for

    def prepare(self, width: int, height: int, dark: bool) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        # The tabs of these tests are in one window, and each is to behave as if it was in front.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def resize(self, width: int, height: int = 760) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def open(self, url: str) -> None:
        self.call("Page.bringToFront")  # the browser draws nothing in a tab behind another one
        # By way of an empty page: of an address that differs after the # only, the browser would load nothing.
        for address in ("about:blank", url):
            self.call("Page.navigate", url=address)
            self.wait_for(
                f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'"
            )

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise what it resolves to."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def module(self, imports: Mapping[str, str], body: str) -> Any:
        """Runs an asynchronous function's body with names imported from the page's modules: {"Tree": "tree.js"}."""
        lines = [f"const {{ {name} }} = await import('/static/{file}');" for name, file in imports.items()]
        return self.run("(async () => {" + "\n".join([*lines, body]) + "})()")

    def wait_for(self, expression: str, timeout_s: float = 30) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self.run(f"Boolean({expression})"):  # an element by value would be an empty dict
            if time.monotonic() > deadline_s:
                shown = self.run("document.body.innerText.slice(0, 800)")
                raise TimeoutError(
                    f"{expression} stayed false for {timeout_s} s; problems: {self.problems}; shown: {shown!r}"
                )
            time.sleep(0.02)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, keys: str) -> None:
        """A key by its DOM name as a user's keyboard would send it, after modifiers: `ctrl+shift+o`, `Enter`, `e`."""
        *modifiers, key = keys.split("+")
        mask = sum(_MODIFIERS[name] for name in modifiers)
        code = _KEY_CODES.get(key) or ord(key.upper())
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": mask}
        text = "\r" if key == "Enter" else key if len(key) == 1 and not mask & ~_MODIFIERS["shift"] else ""
        kind = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **kind, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """A real click in the middle of the first element that is found; it has to be visible."""
        self.wait_for(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
        x, y = self.run(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); found.scrollIntoView({{block: 'nearest'}});"
            " const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        at = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def choose_files(self, selector: str, *files: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in files])

    def download_to(self, folder: Path) -> None:
        where = {"browserContextId": self.context} if self.context else {}
        self._browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), **where)

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and params["request"]["url"].endswith("/chat/completions"):
            self.requests.append(json.loads(params["request"]["postData"]))
