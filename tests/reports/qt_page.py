"""The Chromium inside Qt WebEngine, which pip can install: for machines without a browser of their own.

Run as a script it is the browser's process, which answers one JSON line with another; `QtPage` talks to it.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec


def has_qt():
    """Whether PySide6 with WebEngine is installed and its system libraries are there."""
    if find_spec("PySide6") is None:
        return False
    trial = [sys.executable, "-c", "import PySide6.QtWebEngineCore, PySide6.QtWidgets"]
    return subprocess.run(trial, capture_output=True, timeout=120).returncode == 0


class QtPage:
    """As `chromium.Page`, without the calls that only a browser's debugger has."""

    def __init__(self, folder):
        flags = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu --no-sandbox"}
        self.errors, self.requests = [], []
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=os.environ | flags, cwd=folder,
        )  # fmt: skip

    def _ask(self, **message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.errors += answer["errors"]
        self.requests += answer["requests"]
        return answer["value"]

    def open(self, path):
        assert self._ask(open=str(path.resolve()))

    def evaluate(self, script):
        return json.loads(self._ask(script=f"JSON.stringify({script.rstrip().rstrip(';')})") or "null")

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def serve():
    """Answer questions until stdin ends."""
    from PySide6.QtCore import QEventLoop, QTimer, QUrl
    from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineProfile, QWebEngineUrlRequestInterceptor
    from PySide6.QtWidgets import QApplication

    errors, requests = [], []

    class Recorder(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info):
            requests.append(info.requestUrl().toString())

    class Listener(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):
            if level != QWebEnginePage.JavaScriptConsoleMessageLevel.InfoMessageLevel:
                errors.append(message)

    application = QApplication([])
    profile = QWebEngineProfile()  # in memory
    recorder = Recorder()
    profile.setUrlRequestInterceptor(recorder)
    page = Listener(profile)

    def wait(start):
        loop, answer = QEventLoop(), []

        def finish(value):
            answer.append(value)
            loop.quit()

        QTimer.singleShot(60_000, loop.quit)
        start(finish)
        if not answer:
            loop.exec()
        return answer[0] if answer else None

    for line in sys.stdin:
        message = json.loads(line)
        if "open" in message:

            def start(finish, path=message["open"]):
                page.loadFinished.connect(finish)
                page.load(QUrl.fromLocalFile(path))

            value = wait(start)
            page.loadFinished.disconnect()
        else:
            value = wait(lambda finish, script=message["script"]: page.runJavaScript(script, 0, finish))
        print(json.dumps({"value": value, "errors": errors, "requests": requests}), flush=True)
        errors.clear()
        requests.clear()
    application.quit()


if __name__ == "__main__":
    serve()
