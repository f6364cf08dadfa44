"""The page in a real browser: no console error, every picture drawn, its text large enough, its data saved."""

import json
import re
import shutil
import subprocess

import pytest

from bench.measure.section import builtins_of
from bench.report.html.page import page_of, page_of_several, render

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
LEAST_TEXT_PX = 11
# Runs in the page after its own script: clicks, keys, and what came of them, into the title.
PROBE = """
const seen = {};
const texts = [...document.querySelectorAll('.picture svg text')].filter((t) => t.getClientRects().length);
const zoom = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
const px = (t) => parseFloat(getComputedStyle(t).fontSize) * zoom(t.ownerSVGElement);
seen.least = Math.min(...texts.map(px));
seen.empty = [...document.querySelectorAll('[data-figure]')].filter((f) => {
  const marks = [...f.querySelectorAll('.picture svg .line, .picture svg .area, .picture svg .lease')];
  return !marks.some((m) => { const b = m.getBoundingClientRect(); return b.width > 1 || b.height > 1; });
}).map((f) => f.dataset.figure);
seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.paper = getComputedStyle(document.body).backgroundColor;
const boxes = (svg, marks) => [...svg.querySelectorAll(marks)].map((mark) => mark.getBoundingClientRect());
seen.covered = [...document.querySelectorAll('svg.forest')].flatMap((svg) => boxes(svg, 'text.row').filter((text) =>
  boxes(svg, 'circle').some((dot) => Math.abs((dot.top + dot.bottom - text.top - text.bottom) / 2) < 6
    && dot.left < text.right && dot.right > text.left))).length;
const closed = () => document.querySelectorAll('.folded details:not([open])').length;
seen.folded = [closed()];
for (const name of ['beforeprint', 'afterprint']) { dispatchEvent(new Event(name)); seen.folded.push(closed()); }
const first = document.querySelector('.picture svg');
first.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', bubbles: true }));
seen.readout = first.closest('figure').querySelector('.readout').textContent;
const holders = document.querySelector('.holders');
if (holders) {
  const drawn = () => holders.querySelectorAll('.lease').length;
  seen.bad = holders.querySelectorAll('.lease.bad').length;
  seen.before = drawn();
  [...holders.querySelectorAll('button')].find((b) => b.textContent === 'Whole run').click();
  seen.whole = drawn();
}
const data = document.querySelector('details.data');
data.open = true;
data.dispatchEvent(new Event('toggle'));
seen.rows = data.querySelectorAll('tbody tr').length;
URL.createObjectURL = (blob) => { seen.saved = (seen.saved || 0) + blob.size; return 'data:,'; };
for (const button of data.querySelectorAll('button')) button.click();
parent.postMessage(JSON.stringify(seen), '*');
"""
# A window cannot be as narrow as a phone, a frame can; what the probe saw becomes the title.
FRAME = """<title></title><iframe src="page.html" style="width:{width}px;height:2000px;border:0"></iframe>
<script>addEventListener('message', (event) => {{ document.title = 'SEEN' + event.data; }});</script>"""


def look(page, tmp_path, *, width=1200, dark=False):
    """What the probe saw of `page`, and the lines of the browser's console."""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width), "utf-8")
    outcome = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 40},1000", "--enable-logging=stderr",
            "--virtual-time-budget=2000", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r"<title>SEEN(.*?)</title>", outcome.stdout)
    assert found, outcome.stdout[-2000:] + outcome.stderr[-2000:]
    return json.loads(found[1].replace("&amp;", "&")), re.findall(r"CONSOLE.*", outcome.stderr)


def test_a_safe_run_in_a_wide_window(safe, tmp_path):
    seen, console = look(render(page_of(safe)), tmp_path)
    assert console == []
    assert seen["empty"] == [], "pictures without a mark"
    assert seen["least"] >= LEAST_TEXT_PX
    assert seen["wide"] <= 0, "the page is wider than the window"
    assert seen["rows"] > 50
    assert seen["saved"] > 2_000
    assert re.match(r"percentile 99\.99\d+ % · acquire [\d.]+ ms", seen["readout"])
    assert seen["whole"] > seen["before"] > 0
    assert seen["folded"] == [4, 0, 4], "on paper the conditions are unfolded"


def test_a_violated_run_opens_at_its_violation_in_the_dark(violated, tmp_path):
    seen, console = look(render(page_of(violated)), tmp_path, dark=True)
    assert console == []
    assert seen["bad"] == 2, "both leases are in view and red"
    assert seen["paper"] == "rgb(16, 21, 28)"


def test_a_phone(violated, tmp_path):
    result, long = builtins_of(violated), "x" * 300
    result["scenario"]["recipe"] = result["instances"][0]["address"] = long
    result["warnings"] = [long]
    seen, console = look(render(page_of(result)), tmp_path, width=375)
    assert (console, seen["empty"]) == ([], [])
    assert seen["least"] >= LEAST_TEXT_PX, "pictures are read on a phone, too"
    assert seen["wide"] <= 0, "nothing is cut off"


@pytest.mark.slow
def test_names_beside_points_can_be_read_on_a_phone(request, tmp_path):
    result = json.loads((request.path.parents[3] / "histories/results/crash.json").read_text("utf-8"))
    page = render(page_of(result))
    seen, console = look(page, tmp_path, width=375)
    assert (console, seen["covered"], seen["wide"]) == ([], 0, 0)
    assert seen["least"] >= LEAST_TEXT_PX
    small, _ = look(
        page.replace("min-width: 470px", "min-width: 0").replace(".picture .forest text { font-size: 11.5px; }", ""),
        tmp_path,
        width=375,
    )
    assert small["covered"] > 0, "planted: as it would be if all shrank with the window"


@pytest.mark.slow
def test_several_runs(safe, violated, tmp_path):
    seen, console = look(render(page_of_several([safe, violated], ["a", "b"])), tmp_path)
    assert (console, seen["empty"]) == ([], [])


def test_the_browser_would_tell_of_an_error(safe, tmp_path):
    broken = render(page_of(safe)).replace('"use strict";', '"use strict"; console.error("planted");', 1)
    _, console = look(broken, tmp_path)
    assert len(console) == 1
