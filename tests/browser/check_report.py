"""Open a report in headless Chromium and check what a person would see. Needs `chromium`; no other package.

    python tests/browser/check_report.py [RUN] [--pictures FOLDER]

Without RUN a realistic run is made first. The browser is driven over its DevTools pipe. The exit status is 1 when the page logs
an error, asks for anything but itself, scrolls sideways at 1280 or 390 px, lacks a chart or a trajectory, lets hostile text run,
or cannot be used from the keyboard. Pictures at both widths, light and dark, are for looking at.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from composer_replication.observe.report import rebuild_report, write_report
from composer_replication.observe.run_dir import RunDir

FIXTURE = Path(__file__).parents[1] / "observe" / "fixture_run.py"
PROBES = Path(__file__).with_name("probes.js")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe"),
)
WIDTHS = {1280: 900, 390: 844}


class Chromium:
    """A headless browser with one page, driven over a pipe (https://chromedevtools.github.io/devtools-protocol/)."""

    def __init__(self, executable: str, profile: str) -> None:
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        pipes = f'exec 3<&{command_read} 4>&{answer_write}; exec "$@"'
        argv = ["bash", "-c", pipes, "bash", executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(argv, pass_fds=(command_read, answer_write), stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; events that arrive meanwhile are kept."""
        self._count += 1
        message = {
            "id": self._count,
            "method": method,
            "params": params,
            **({"sessionId": self._session} if self._session else {}),
        }
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait(self, method: str) -> None:
        """Wait for an event."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release one key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser: it goes when its pipe closes."""
        os.close(self._write)
        self.process.wait()
        os.close(self._read)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser went away")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer


def open_page(browser: Chromium, report: Path, width: int, scheme: str) -> None:
    """Load the report at a window width and colour scheme, and wait until its script has run."""
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=WIDTHS[width], deviceScaleFactor=1, mobile=width < 600)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.events.clear()
    browser.call("Page.navigate", url="about:blank")
    browser.wait("Page.loadEventFired")
    browser.events.clear()
    browser.call("Page.navigate", url=report.resolve().as_uri())
    browser.wait("Page.loadEventFired")
    browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    browser.evaluate(PROBES.read_text())


def noise(browser: Chromium, report: Path) -> list[str]:
    """Console errors and warnings, uncaught exceptions, and requests for anything but the report itself."""
    found = []
    for event in browser.events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            found.append(f"exception: {params['exceptionDetails']}")
        elif (
            method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
        ) or method == "Log.entryAdded":
            found.append(f"console: {params}")
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url != report.resolve().as_uri() and not url.startswith("data:"):
                found.append(f"request: {url}")
    return found


def check_page(browser: Chromium, width: int) -> list[str]:
    """What must hold on any report, at any width."""
    facts = browser.evaluate("pageFacts()")
    rules = {
        "the script ran to its end": facts["ready"] == "true",
        f"the window is {width} px wide": facts["inner"] == width,
        "no sideways scrolling": facts["scroll"] <= facts["inner"],
        "nothing sticks out": not facts["wide"],
        "there are charts, and each is drawn": facts["plots"] > 0 and facts["drawn"] == facts["plots"],
        "both axes of every chart are labelled": facts["labelled"] == facts["plots"],
        "chart text is at least 12 px and sound": facts["smallest"] >= 12 and facts["broken"] == 0,
        "no text of a chart overlaps another or leaves it": not facts["crowded"],
        "an outcome stands on one line": facts["split"] == 0,
        "a trajectory is shown with its turns and tests": facts["turns"] > 0 and facts["tests"] > 0,
        "every control has a label": facts["unlabelled"] == 0,
        "hostile text did not run": not facts["attacked"] and facts["images"] == 0 and facts["scripts"] == 2,
        "the result table has rows": facts["rows"] > 0,
    }
    return [f"at {width} px: not true that {rule}: {facts}" for rule, holds in rules.items() if not holds]


def check_made_run(browser: Chromium) -> list[str]:
    """What must hold on the run made by fixture_run.py: filters, hints, pairs, keyboard, pointer and links."""
    found = [f"not true that {sentence}" for sentence in browser.evaluate("falseBehaviours()")]
    browser.evaluate("all('svg.plot')[0].focus()")
    browser.press("Home")
    browser.press("ArrowRight")
    if (read := browser.evaluate("stepRead()")) != "step 1":
        found.append(f"the arrow keys do not read a chart: {read}")
    x, y = browser.evaluate("placeOfFirstChart()")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    if (read := browser.evaluate("stepRead()")) in ("step 1", "step 40"):
        found.append(f"pointing at a chart does not read it: {read}")
    browser.evaluate("entries()[0].focus()")
    browser.press("ArrowDown")
    if browser.evaluate("entries().indexOf(document.activeElement)") != 1:
        found.append("the arrow keys do not walk through the trajectories")
    browser.evaluate("document.activeElement.click()")
    if "arm=grpo&step=10&trajectory=10" not in (link := browser.evaluate("location.hash")):
        found.append(f"a chosen trajectory has no link of its own: {link}")
    return found


def check(browser: Chromium, report: Path, made: bool, pictures: Path | None) -> list[str]:
    """Everything, at both widths and in both colour schemes."""
    found: list[str] = []
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            open_page(browser, report, width, scheme)
            complaints = check_page(browser, width)
            complaints += [f"contrast is too low: {poor}" for poor in browser.evaluate("poorContrast()")]
            if pictures:
                take_pictures(browser, pictures, f"{width}-{scheme}")
            if made:
                complaints += check_made_run(browser) + check_page(browser, width)
            complaints += noise(browser, report)
            found += [f"{width} px, {scheme}: {complaint}" for complaint in complaints]
    return found


def take_pictures(browser: Chromium, folder: Path, name: str) -> None:
    """The top of the page, its charts, its reader at a hinted turn where there is one, and the whole."""
    places = {
        "top": "document.body",
        "curves": "document.querySelector('#curves')",
        "reader": "document.querySelector('#reader')",
    }
    browser.evaluate("tick.click(); entries().length || tick.click()")
    for part, node in {**places, "hint": "(document.querySelector('.turn.hinted') || detail())"}.items():
        browser.evaluate(f"{node}.scrollIntoView()")
        browser.picture(folder / f"{name}-{part}.png")
    browser.evaluate("tick.checked && tick.click(); scrollTo(0, 0)")
    browser.picture(folder / f"{name}-whole.png", whole=True)


def main() -> int:
    """Run the checks; print the complaints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    executable = (
        os.environ.get("CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if executable is None:
        print("no chromium found: install it (Debian: apt-get install chromium) or name it in $CHROMIUM")
        return 2
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        if options.run is None:
            fixture = runpy.run_path(str(FIXTURE))
            run = fixture["make_run"](Path(scratch) / "quickstart")
            report = write_report(
                run,
                title="Quickstart </title><script>window.attacked=1</script>",
                summary_rows=fixture["rows"](),
                notes=fixture["NOTES"],
            )
        else:
            report = rebuild_report(RunDir(options.run))
        browser = Chromium(executable, f"{scratch}/profile")
        try:
            found = check(browser, report, options.run is None, options.pictures)
        finally:
            browser.close()
        size = report.stat().st_size
    for complaint in found:
        print(complaint)
    print(f"{report.name}: {size:,} bytes, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
