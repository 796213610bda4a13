"""Open a run's report in headless Chromium: nothing may be said on the console, and pictures are taken at two widths.

The report must be one self-contained file: anything it would load from elsewhere is a fault too.

    usage: python scripts/report_check.py [REPORT.html]        default: the newest runs/*/report.html
                                                               CHROMIUM=/path/to/browser overrides the search
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = {"desktop": 1280, "phone": 390}
HEIGHT = 2400
TIMEOUT_S = 120.0
CONSOLE = re.compile(r"CONSOLE[:(]\d+\)?\] (.*)")
ELSEWHERE = re.compile(r"""<(?!a\b)[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)|url\(["']?((?:https?:)?//[^"')]+)""")
FRAME = '<!doctype html><body style="margin:0"><iframe src="{uri}" style="border:0;width:{width}px;height:{height}px"></iframe>'


def newest_report() -> Path | None:
    """The report written last."""
    reports = sorted((ROOT / "runs").glob("*/report.html"), key=lambda path: path.stat().st_mtime)
    return reports[-1] if reports else None


def open_in_browser(browser: str, report: Path, width: int, picture: Path) -> list[str]:
    """Take a picture of the report `width` CSS pixels wide; what was said on the console.

    The page sits in a frame of that width, because a browser's window cannot be made as narrow as a phone.
    """
    with tempfile.TemporaryDirectory(prefix="report-check-") as folder:
        frame = Path(folder, "frame.html")
        frame.write_text(FRAME.format(uri=report.resolve().as_uri(), width=width, height=HEIGHT), "utf-8")
        argv = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        argv += [
            "--enable-logging=stderr",
            "--log-level=0",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=8000",
        ]
        argv += ["--no-sandbox"] if os.geteuid() == 0 else []
        argv += [f"--window-size={max(width, 500)},{HEIGHT}", f"--screenshot={picture}", frame.as_uri()]
        run = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
            env={**os.environ, "HOME": folder},
        )
    if run.returncode != 0 or not picture.is_file():
        return [f"the browser ended with status {run.returncode} and no picture: {run.stderr.strip()[-500:]}"]
    return CONSOLE.findall(run.stderr)


def main(arguments: list[str]) -> int:
    """Check one report; 1 when the browser complained, 2 when there is nothing to check or no browser."""
    report = Path(arguments[0]) if arguments else newest_report()
    if report is None or not report.is_file():
        print(f"no report at {report or 'runs/*/report.html'}\n  fix: run `make quickstart` first, or name a report.html")
        return 2
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no browser: looked for {', '.join(BROWSERS)}\n  fix: install chromium, or set CHROMIUM=/path/to/browser")
        return 2
    loaded = [tag or style for tag, style in ELSEWHERE.findall(report.read_text("utf-8"))]
    print("".join(f"loaded from elsewhere: {address}\n" for address in loaded), end="")
    faults = len(loaded)
    for name, width in WIDTHS.items():
        picture = report.resolve().with_name(f"report-{name}.png")
        picture.unlink(missing_ok=True)
        said = open_in_browser(browser, report, width, picture)
        print(f"{name} ({width} px): {len(said)} console messages; picture: {picture}")
        print("".join(f"  {line}\n" for line in said), end="")
        faults += len(said)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
