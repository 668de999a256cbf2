"""Pictures of pages as a desktop, a phone and a dark desktop show them: ``python tools/screenshots.py OUT PAGE...``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from reports.chromium import Page

VIEWS = {"desktop": (1200, 900, False, "light"), "phone": (390, 844, True, "light"), "dark": (1200, 900, False, "dark")}


def main(out: Path, pages: list[Path]) -> None:
    """Write one PNG per page and view, named after both."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        browser = Page(folder)
        for page in pages:
            for view, (width, height, mobile, scheme) in VIEWS.items():
                browser.call(
                    "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
                )
                browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                browser.open(page)
                wide = browser.evaluate("document.documentElement.scrollWidth")
                target = out / f"{page.parent.name}_{page.stem}_{view}.png"
                browser.screenshot(target)
                print(f"{target}: {wide} of {width} pixels wide; errors {browser.errors or 'none'}")
                browser.errors.clear()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
