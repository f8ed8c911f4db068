"""The pages in a real browser: nothing overlaps, nothing is cut, in both themes, from a telephone to a large screen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.fleet.page.details import host_page, model_page
from kjbod.fleet.page.index import index_page
from kjbod.fleet.page.model import (
    DirectoryDetail,
    Happening,
    HostDetail,
    Series,
    host_file,
    model_file,
)
from tests.fleet.browser import Browser
from tests.fleet.report_data import LEADING, NOW_MS, agent, failed, host_name, incident, report

WIDTHS = (400, 1280, 3840)

OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll("svg")) {
  const outer = svg.getBoundingClientRect();
  if (!outer.width) continue;
  const boxes = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
  boxes.forEach(([a, p], i) => {
    if (p.left < outer.left - 1 || p.right > outer.right + 1 || p.top < outer.top - 1 || p.bottom > outer.bottom + 2)
      found.push("outside: " + a);
    for (const [b, q] of boxes.slice(i + 1))
      if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
        found.push(a + " / " + b);
  });
}
const racks = [...document.querySelectorAll(".racks figure")].map(f => f.getBoundingClientRect());
racks.forEach((p, i) => racks.slice(i + 1).forEach(q => {
  if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1) found.push("racks");
}));
return found;
"""
CUT = """
return [...document.querySelectorAll("body *")].filter(e => !e.closest("svg") && !e.matches(".scroll") &&
  e.clientWidth && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline")
  .map(e => e.tagName + "." + e.className + ": " + e.textContent.slice(0, 60));
"""
TOO_WIDE = "return document.documentElement.scrollWidth - window.innerWidth"
DARK = "return getComputedStyle(document.body).backgroundColor"
COLUMN = """
const table = [...document.querySelectorAll("table.sort")].find(t => t.tHead.textContent.includes("drive-days"));
table.closest("details").open = true;
return [...table.tBodies[0].rows].map(r => r.cells[arguments[0]].dataset.v ?? r.cells[arguments[0]].textContent);
"""
HEAD = """
const table = [...document.querySelectorAll("table.sort")].find(t => t.tHead.textContent.includes("drive-days"));
const button = table.tHead.rows[0].cells[arguments[0]].querySelector("button");
if (arguments[1] === "click") button.click(); else button.focus();
return table.tHead.rows[0].cells[arguments[0]].getAttribute("aria-sort");
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A fleet of 1,000 hosts, one of 50, the page of a host and of a model."""
    root = tmp_path_factory.mktemp("pages")
    for folder in ("hosts", "models"):
        (root / folder).mkdir()
    large, small = report(1_000), report(50)
    paths = tuple(f"/mnt/d{n}" for n in range(1, 13))
    days = tuple(range(30))
    values = tuple(10**12 + 10**10 * day for day in days)
    series = Series(days=days, states=(), used=values, probe_us=values, temp_c=days, errors=days, defects=days)
    detail = HostDetail(
        agent=agent(LEADING, failed=1),
        directories=tuple(DirectoryDetail(directory=failed(LEADING, path), series=series) for path in paths),
        happenings=tuple(
            Happening(
                ts=NOW_MS + 1_000 * n, kind=kind, path=paths[n % 12] if n % 3 else None, attrs={"evidence": "EIO"}
            )
            for n, kind in enumerate(("agent_started", "dir_failed", "acknowledged", "state_changed") * 12)
        ),
        hidden_happenings=3,
        incidents=(incident(LEADING),),
    )
    host = root / "hosts" / host_file("cluster-a", host_name(LEADING), LEADING)
    model = root / "models" / model_file(large.models[0].model)
    for path, text in (
        (root / "index.html", index_page(large)),
        (root / "small.html", index_page(small)),
        (host, host_page(detail, large.window, 30)),
        (model, model_page(large.models[0], large)),
    ):
        path.write_text(text, encoding="utf-8")
    return {"large": root / "index.html", "small": root / "small.html", "host": host, "model": model}


@pytest.fixture(scope="module")
def browser(world: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.mark.xdist_group("fleet-browser")
@pytest.mark.parametrize("page", ["large", "small", "host", "model"])
def test_nothing_overlaps_and_nothing_is_cut_at_any_width_in_both_themes(
    browser: Browser, pages: dict[str, Path], page: str
) -> None:
    backgrounds = set()
    for width in WIDTHS:
        for dark in (False, True):
            browser.look(pages[page], width, dark=dark)
            backgrounds.add(browser.run(DARK))
            where = f"{page}, {width} px"
            assert browser.run(TOO_WIDE) <= 0, where
            assert browser.run(OVERLAPS) == [], where
            assert browser.run(CUT) == [], where
    assert len(backgrounds) == 2, "dark is another one than light"


SPOIL = """
document.querySelector("main").insertAdjacentHTML("afterbegin",
  "<svg width=100 height=40><text x=5 y=20>one</text><text x=9 y=20>two</text><text x=90 y=20>outside</text></svg>" +
  "<p class=more>" + "w".repeat(9000) + "</p>");
document.querySelector("p.more").style.overflowWrap = "normal";
"""


@pytest.mark.xdist_group("fleet-browser")
def test_what_overlaps_or_is_cut_would_be_found(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(pages["small"], 1280)
    browser.run(SPOIL)
    assert set(browser.run(OVERLAPS)) >= {"one / two", "outside: outside"}
    assert any(found.startswith("P.more") for found in browser.run(CUT))
    assert browser.run(TOO_WIDE) > 0


@pytest.mark.xdist_group("fleet-browser")
def test_a_table_is_sorted_by_a_click_and_by_a_key(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(pages["large"], 1280)
    before = browser.run(COLUMN, 2)
    browser.run(HEAD, 2, "click")
    up = browser.run(COLUMN, 2)
    assert up == sorted(before, key=float)
    assert browser.run(HEAD, 2, "focus") == "ascending"
    browser.press("\ue007")  # Enter
    assert browser.run(COLUMN, 2) == sorted(before, key=float, reverse=True)
    assert browser.run(HEAD, 2, "focus") == "descending"


@pytest.mark.xdist_group("fleet-browser")
def test_the_policy_lets_the_page_s_own_style_and_script_run_and_nothing_else(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for path in pages.values():
        browser.look(path, 1280)
        assert browser.complaints() == [], "the policy refused something of the page"
        assert browser.run("return document.scripts.length") == 1
        assert browser.run("return document.querySelectorAll('[style],[onclick],img,iframe,link').length") == 0


@pytest.mark.xdist_group("fleet-browser")
def test_links_of_the_pages_lead_to_each_other(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(pages["large"], 1280)
    links = browser.run("return [...document.querySelectorAll('a')].map(a => a.href)")
    for name in ("host", "model"):
        assert pages[name].as_uri() in links
    browser.look(pages["host"], 1280)
    assert browser.run("return document.querySelector('nav a').href") == pages["large"].as_uri()
    assert pages["model"].as_uri() in browser.run("return [...document.querySelectorAll('a')].map(a => a.href)")
