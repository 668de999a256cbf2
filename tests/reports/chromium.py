"""Headless Chromium over its debugging pipe: no driver, no port, no package."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")


def find_browser():
    """Path of a Chromium, from the environment variable ATTSVM_BROWSER or the search path; None if there is none."""
    wanted = os.environ.get("ATTSVM_BROWSER")
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page; ``errors`` collects exceptions, console errors and refused or failed loads."""

    def __init__(self, folder, width=1200, height=900, timeout=60):
        self.timeout, self.count, self.rest, self.errors, self.requests, self.seen = timeout, 0, b"", [], [], []
        child_in, self.out = os.pipe()
        self.inp, child_out = os.pipe()
        # The browser reads from 3 and writes to 4; numbers from 10 on cannot be overwritten on the way.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (child_in, child_out)]

        def connect():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", f"--window-size={width},{height}"]
        self.process = subprocess.Popen(
            [find_browser(), *flags, "about:blank"], pass_fds=(3, 4), preexec_fn=connect,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (child_in, child_out, *ends):
            os.close(fd)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.count:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _next(self):
        end = time.monotonic() + self.timeout
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.inp], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.inp, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self.rest += part
        raw, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(raw)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, params):
        self.seen.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["exception"].get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str([a.get("value", a.get("description")) for a in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path):
        self.seen.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.seen:
            self._next()

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self.out)
        os.close(self.inp)
