"""A run's page in a real browser: nothing fetched, nothing complained of; by mouse, by keys, on a phone, on paper."""

import re
import shutil
import tempfile

import pytest

from tests.pages import ACCURACY, EVIL, MARKUP, a_run, checkpoint
from workbench.page import write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (Debian: apt-get install chromium)"),
]

MEANS = "#means table"

CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
    const x = c[i] / 255;
    return sum + share * (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const c = channels(getComputedStyle(one).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const out = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || one.matches("script, style, title, desc")) continue;
    const style = getComputedStyle(one);
    const ink = channels(one.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [low, high] = [luminance(ink), luminance(ground(one))].sort((a, b) => a - b);
    out.push([(high + 0.05) / (low + 0.05), walk.currentNode.textContent.trim()]);
  }
  return out;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a run with hostile labels, with attention of a small model."""
    folder = tmp_path_factory.mktemp("browser")
    checkpoint(folder / "home")
    return (write_page(a_run(folder / "run"), home=folder / "home") / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started, tempfile.TemporaryDirectory() as profile:
        context = started.chromium.launch_persistent_context(profile, executable_path=CHROMIUM, args=FLAGS)
        yield context
        context.close()


@pytest.fixture
def page(browser, address):
    """The page opened anew; what it asked for, complained of and popped up must be nothing when the test is over."""
    opened = browser.new_page()
    opened.set_default_timeout(10_000)
    asked, said = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("requestfailed", lambda request: said.append(f"failed: {request.url}"))
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.goto(address)
    yield opened
    assert {url for url in asked if not url.startswith("data:")} == {address}
    assert said == []
    opened.close()


def first_column(page):
    return page.locator(f"{MEANS} tbody th").all_inner_texts()


def sorted_ways(page):
    heads = page.locator(f"{MEANS} thead th")
    ways = heads.evaluate_all("heads => heads.map((head) => head.ariaSort)")
    return dict(zip(heads.locator("button").all_inner_texts(), ways, strict=True))


def named(page):
    return page.locator(".named").first.inner_text()


def test_labels_are_shown_as_they_are_and_nothing_of_them_runs(page):
    assert first_column(page) == list(ACCURACY)
    assert page.evaluate("document.scripts.length") == 1


def test_a_click_on_a_heading_sorts_up_then_down_then_as_it_was(page):
    button = page.locator(f"{MEANS} th button", has_text="mean")
    orders = []
    for _ in range(3):
        button.click()
        orders.append((sorted_ways(page)["mean"], first_column(page)))
    assert orders == [
        ("ascending", [MARKUP, EVIL, "clean", "0.10"]),
        ("descending", ["0.10", "clean", EVIL, MARKUP]),
        ("none", list(ACCURACY)),
    ]


def test_enter_on_a_heading_sorts_and_only_one_heading_says_so(page):
    page.locator(f"{MEANS} th button", has_text="mean").click()
    page.locator(f"{MEANS} th button", has_text="condition").focus()
    page.keyboard.press("Enter")
    ways = sorted_ways(page)
    assert ways.pop("condition") == "ascending"
    assert set(ways.values()) == {"none"}
    assert first_column(page) != list(ACCURACY) and sorted(first_column(page)) == sorted(ACCURACY)


def test_every_heading_is_reached_with_tab(page):
    page.locator(f"{MEANS} th button").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "model"


def test_arrow_keys_walk_the_grid_and_name_each_cell(page):
    page.locator("table.attention td[tabindex='0']").first.focus()
    assert named(page).startswith("destination 0 “c” ← source 0 “c”: weight 1.0000")
    page.keyboard.press("ArrowRight")
    assert re.fullmatch(r"destination 1 “.” ← source 0 “c”: weight 0\.\d{4}", named(page))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert re.fullmatch(r"destination 1 “.” ← source 2 “.”: hidden by the mask", named(page))
    page.keyboard.press("End")
    assert named(page).startswith("destination 8")
    page.keyboard.press("ArrowRight")  # there is nothing further
    assert named(page).startswith("destination 8")
    page.keyboard.press("Control+Home")
    assert named(page).startswith("destination 0 “c” ← source 0")


def test_one_cell_of_a_grid_is_reached_with_tab_and_it_is_the_last_one_visited(page):
    page.locator("table.attention td[tabindex='0']").first.focus()
    page.keyboard.press("ArrowRight")
    grid = page.locator("table.attention").first
    assert grid.locator("td[tabindex='0']").count() == 1
    assert grid.locator("td[tabindex='0']").get_attribute("aria-label") == named(page)


def test_the_pointer_names_the_cell_beneath_it(page):
    cell = page.locator("table.attention td[data-weight]").nth(3)
    cell.hover()
    assert named(page) == cell.get_attribute("aria-label")
    assert cell.get_attribute("data-weight") in named(page)


def test_a_touch_names_the_cell_beneath_it(page):
    cell = page.locator("table.attention td[data-weight]").nth(2)
    cell.scroll_into_view_if_needed()
    box = cell.bounding_box()
    finger = page.context.new_cdp_session(page)
    point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert named(page) == cell.get_attribute("aria-label")


def test_a_drawing_is_an_image_with_a_name_for_those_who_listen(page):
    drawing = page.get_by_role("img", name=re.compile("accuracy, two"))
    assert drawing.count() == 1
    assert "clean: 75.0%" in drawing.locator("desc").text_content()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_wide_table_scrolls_inside_its_box_on_a_phone(page):
    page.set_viewport_size({"width": 360, "height": 800})
    box = page.locator(".box", has=page.locator("caption", has_text="Means"))
    assert box.evaluate("b => b.scrollWidth > b.clientWidth && b.tabIndex === 0")
    box.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("b => b.scrollLeft > 0", arg=box.element_handle())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(page, scheme):
    page.emulate_media(color_scheme=scheme)
    measured = page.evaluate(CONTRASTS)
    assert len(measured) > 200
    assert [one for one in measured if one[0] < 4.5] == []


def test_the_dark_page_is_dark(page):
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)"


def test_the_page_prints_with_the_study_open(page):
    printed = page.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3
    assert len(printed) < 2_000_000
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details").get_attribute("open") is not None
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details").get_attribute("open") is None


def test_the_study_can_be_downloaded(page):
    with page.expect_download() as waiting:
        page.get_by_text("Download study.json").click()
    assert waiting.value.suggested_filename == "study.json"
    assert waiting.value.path().read_text(encoding="utf-8").startswith('{\n "format": 1,')
