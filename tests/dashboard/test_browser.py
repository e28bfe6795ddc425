"""The page in a real browser, over a real sidecar: what people see and do."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.service

expect = pytest.importorskip("playwright.sync_api").expect
PATIENT_MS = 20_000  # a loaded machine
SOON_S = 2.0
DARK_DRAM = "#41b98f"
BLOCK = 16


def prompt(blocks: int, first: int = 0) -> bytes:
    return b"".join(each.to_bytes(4, "little") for each in range(first, first + blocks * BLOCK))


@pytest.fixture(scope="module")
def node(start, staged) -> Iterator:
    """staged: so that the two start at the same time."""
    with start("--gpu-price", "2") as made:
        yield made


@pytest.fixture(scope="module")
def engine(node):
    """It has served three requests; the second and the third begin like the first."""
    made = node.engine("tiny")
    node.serve(made, prompt(8), "chatcmpl-first", ttft_s=4.0)
    node.serve(made, prompt(8) + prompt(2, 9000), "chatcmpl-second")
    node.serve(made, prompt(8), "chatcmpl-third")
    return made


@pytest.fixture(scope="module")
def guarded(start) -> Iterator:
    rows = (("ann", "operator", ""), ("bob", "reader", ""))
    with start(rows=rows) as made:
        yield made


def opened(chromium, browse, node):
    made = browse(chromium, node.url)
    made.page.goto(node.url)
    expect(made.page.locator("h1").first).to_be_visible(timeout=PATIENT_MS)
    return made


@pytest.fixture(scope="module")
def kept(node, chromium, browse) -> Iterator:
    made = opened(chromium, browse, node)
    yield made
    made.context.close()


@pytest.fixture
def desk(kept) -> Iterator:
    """One page for many tests, with its drawer shut; nothing may have gone wrong in it in the end."""
    yield kept
    kept.page.keyboard.press("Escape")
    expect(kept.page.locator("dialog")).to_be_hidden()
    well(kept)


@pytest.fixture(scope="module")
def door(guarded, chromium, browse) -> Iterator:
    """Where one signs in."""
    made = opened(chromium, browse, guarded)
    yield made
    made.context.close()


@pytest.fixture(scope="module")
def stage(staged, chromium, browse) -> Iterator:
    made = opened(chromium, browse, staged)
    yield made
    made.context.close()


def well(visited) -> None:
    """Nothing went wrong in it, and nothing was asked of anybody else."""
    assert visited.errors == []
    assert visited.foreign == []


def test_a_node_that_has_done_nothing_says_so(desk) -> None:
    """First of all: nobody has asked it for anything yet."""
    for panel, words in (
        ("requests", "No engine has told"),
        ("prefixes", "Nothing is stored yet"),
        ("namespaces", "No engine has connected"),
        ("curve", "Not measured yet"),
        ("traffic", "No prompt was served"),
    ):
        expect(desk.page.locator(f"#kv-{panel} .kv-empty")).to_contain_text(words)
    for panel in ("tenants", "cluster"):
        expect(desk.page.locator(f"#kv-{panel}")).to_be_hidden()


def test_what_is_served_shows_without_a_reload(node, engine, desk) -> None:
    page = desk.page
    expect(page.locator("#kv-requests tbody tr")).to_have_count(3)
    expect(page.locator("[data-figure=saved]")).to_contain_text("USD")
    expect(page.locator("#kv-namespaces")).to_contain_text("tiny")
    page.evaluate("window.stays = true")
    soon = [shows_soon(node, engine, page, f"chatcmpl-live-{i}") for i in range(3)]
    soon += [shows_soon(node, engine, page, f"chatcmpl-live-{i}") for i in (3, 4) if not all(soon)]
    assert sum(soon) > len(soon) / 2  # in the middle: a busy machine may hold one up, or two
    assert page.evaluate("window.stays")
    expect(page.locator("#kv-prefixes tbody tr").first).to_be_visible(timeout=PATIENT_MS)


def shows_soon(node, engine, page, request_id: str) -> bool:
    """A request comes to the page; whether within two seconds."""
    node.serve(engine, prompt(8), request_id)
    began = time.monotonic()
    expect(page.locator("#kv-requests tbody tr").first).to_contain_text(request_id, timeout=PATIENT_MS)
    return time.monotonic() - began < SOON_S


def test_charts_are_drawn_and_say_their_numbers_in_a_table_and_in_words(node, engine, desk) -> None:
    page, panel = desk.page, desk.page.locator("#kv-traffic")
    drawn = panel.locator("svg path[fill]:not([fill=none])")
    expect(drawn.first).to_be_attached(timeout=PATIENT_MS)
    assert drawn.count() >= 2  # what came from DRAM, and what was computed
    assert "Prompt tokens a second" in (panel.locator(".kv-plot").get_attribute("aria-label") or "")
    panel.get_by_text("As a table").click()
    expect(panel.locator("thead")).to_have_text("TimeDRAMcomputed")
    expect(panel.locator("tbody tr").first).to_contain_text("tokens/s")
    page.locator("#kv-ttft .kv-plot").hover(position={"x": 200, "y": 100})
    expect(page.locator("#kv-ttft .kv-tip")).to_be_visible()


def test_a_page_whose_chart_library_does_not_come_has_all_the_rest(node, engine, kept) -> None:
    page = kept.context.new_page()
    page.route("**/esm/**", lambda route: route.abort())
    page.goto(node.url)
    expect(page.locator("#kv-requests tbody tr").first).to_be_visible(timeout=PATIENT_MS)
    panel = page.locator("#kv-traffic")
    expect(panel).to_contain_text("could not be loaded")
    panel.get_by_text("As a table").click()
    expect(panel.locator("tbody tr").first).to_contain_text("tokens/s")
    page.close()


def test_a_receipt_opens_by_keyboard_and_gives_the_focus_back(node, engine, desk) -> None:
    seen = desk
    page = seen.page
    row = page.locator("#kv-requests tr", has_text="chatcmpl-second").locator("button")
    row.focus()
    page.keyboard.press("Enter")
    sheet = page.locator("dialog")
    expect(sheet).to_contain_text("chatcmpl-second", timeout=PATIENT_MS)
    expect(sheet).to_contain_text("128 tokens, 80 %")
    expect(sheet).to_contain_text("token 128")  # where it broke off
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    assert page.evaluate("document.activeElement.textContent") == "chatcmpl-second"


def test_everything_can_be_reached_by_keyboard(node, engine, desk) -> None:
    seen = desk
    reached = set()
    seen.page.evaluate("document.activeElement.blur()")
    for _ in range(45):
        seen.page.keyboard.press("Tab")
        reached.add(
            seen.page.evaluate(
                "document.activeElement.closest('[id^=kv-]')?.id ?? document.activeElement.closest('header')?.className"
            )
        )
    assert {"kv-bar", "kv-traffic", "kv-requests", "kv-prefixes", "kv-namespaces"} <= reached
    seen.page.locator("#kv-traffic .kv-plot").focus()
    for _ in range(3):
        seen.page.keyboard.press("ArrowLeft")
    expect(seen.page.locator("#kv-traffic .kv-tip")).to_be_visible()
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator("#kv-traffic .kv-tip")).to_be_hidden()


def test_pin_unpin_and_clear_a_prefix(node, desk) -> None:
    other = node.engine("other", b"weights-2")
    node.serve(other, prompt(6, 500), "chatcmpl-other")
    node.serve(other, prompt(6, 500), "chatcmpl-other-2")
    seen = desk
    page, sheet = seen.page, seen.page.locator("dialog")
    page.locator("#kv-prefixes tr", has_text="other").first.click(timeout=PATIENT_MS)
    page.locator("[data-act=pin]").click(timeout=PATIENT_MS)
    expect(sheet).to_contain_text("6 blocks pinned", timeout=PATIENT_MS)
    page.locator("[data-act=unpin]").click()
    expect(sheet).to_contain_text("6 blocks unpinned", timeout=PATIENT_MS)
    page.locator("[data-act=clear]").click()
    sure = page.locator("[data-act=sure]")
    expect(sure).to_be_visible(timeout=PATIENT_MS)
    blocks = re.search(r"Clear (\d+) block", sure.text_content() or "")
    assert blocks is not None
    sure.click()
    expect(sheet).to_contain_text("cleared", timeout=PATIENT_MS)
    calls = [
        json.loads("{" + line.split("{", 1)[1]) for line in node.output().splitlines() if "kvterrace.audit" in line
    ]
    done = [(each["call"], each["outcome"]) for each in calls if not each.get("dry_run")]
    assert done[-3:] == [("Retain", "OK"), ("Retain", "OK"), ("Clear", "OK")]


def test_clear_a_model(node, desk) -> None:
    third = node.engine("third", b"weights-3")
    node.serve(third, prompt(3, 7000), "chatcmpl-third-model")
    seen = desk
    seen.page.locator("#kv-namespaces tr", has_text="third").click(timeout=PATIENT_MS)
    seen.page.locator("[data-act=clear]").click(timeout=PATIENT_MS)
    seen.page.get_by_role("button", name="Clear 3 blocks").click(timeout=PATIENT_MS)
    expect(seen.page.locator("dialog")).to_contain_text("3 blocks", timeout=PATIENT_MS)
    expect(seen.page.locator("dialog .kv-said")).to_contain_text("cleared", timeout=PATIENT_MS)


def test_what_a_client_calls_itself_is_never_taken_for_html(node, desk) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    client = node.engine(nasty, b"weights-4")
    node.serve(client, prompt(2, 400), f"chatcmpl-{nasty}`${{x}}")
    seen = desk
    row = seen.page.locator("#kv-requests tbody tr", has_text=f"chatcmpl-{nasty}").first
    expect(row).to_be_visible(timeout=PATIENT_MS)
    row.click()
    expect(seen.page.locator("dialog")).to_contain_text(nasty, timeout=PATIENT_MS)
    assert seen.page.locator("img[src=x]").count() == 0


def test_the_look_follows_the_system_until_one_is_chosen(node, engine, desk) -> None:
    page = desk.page

    def paper(scheme: str) -> str:
        page.emulate_media(color_scheme=scheme)
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = paper("light"), paper("dark")
    assert light != dark
    bars = page.locator(f"#kv-traffic svg path[fill='{DARK_DRAM}']")
    expect(bars.first).to_be_attached(timeout=PATIENT_MS)
    assert paper("light") == light
    expect(bars).to_have_count(0)
    look(page, "Dark")
    assert paper("light") == dark
    expect(bars.first).to_be_attached(timeout=PATIENT_MS)
    page.reload()
    expect(page.locator("h1")).to_be_visible(timeout=PATIENT_MS)
    assert paper("light") == dark
    look(page, "As the system")
    assert paper("light") == light


def look(page, name: str) -> None:
    """Choose it in the menu."""
    page.locator(".kv-menu summary").click()
    page.get_by_label(name).check()
    page.keyboard.press("Escape")


def test_nothing_is_wider_than_a_small_screen(node, engine, desk) -> None:
    page = desk.page
    expect(page.locator("#kv-requests tbody tr").first).to_be_visible(timeout=PATIENT_MS)
    for width in (768, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
        plot = page.locator("#kv-traffic .kv-plot svg")
        page.wait_for_function(
            "plot => plot.clientWidth <= plot.closest('.kv-plot').clientWidth", arg=plot.element_handle()
        )
    page.locator("#kv-requests tbody tr").first.click()
    expect(page.locator("dialog")).to_contain_text("Receipt", timeout=PATIENT_MS)
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_another_time_is_one_click(node, engine, desk) -> None:
    seen = desk
    seen.page.get_by_role("button", name="6 hours").click()
    expect(seen.page.locator("#kv-figures")).to_contain_text("in the last 6 hours", timeout=PATIENT_MS)
    expect(seen.page.get_by_role("button", name="6 hours")).to_have_attribute("aria-pressed", "true")


def test_signing_in_and_out(guarded, door) -> None:
    seen = door
    page = seen.page
    page.goto(guarded.url)
    assert page.url.endswith("/login")
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Nobody here has that token")
    page.get_by_label("Token").fill("secret-of-ann")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_contain_text("kvterrace", timeout=PATIENT_MS)
    page.locator(".kv-menu summary").click()
    expect(page.locator(".kv-menu")).to_contain_text("ann, operator")
    expect(page.locator(".kv-menu")).to_contain_text("Clear everything")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    page.goto(guarded.url)
    assert page.url.endswith("/login")
    assert all("401" in each for each in seen.errors)  # the browser's own line about the wrong token
    assert seen.foreign == []


def test_a_reader_looks_and_is_offered_nothing_else_until_the_token_is_withdrawn(guarded, door) -> None:
    page = door.page
    page.goto(guarded.url)
    page.get_by_label("Token").fill("secret-of-bob")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("kvterrace", timeout=PATIENT_MS)
    page.locator(".kv-menu summary").click()
    expect(page.locator(".kv-menu")).to_contain_text("takes the role operator")
    expect(page.locator(".kv-menu")).not_to_contain_text("Clear everything")
    file = Path(guarded.folder / "identities.toml")
    kept = file.read_text()
    file.write_text(kept.split('[[identity]]\nname = "bob"')[0])
    page.wait_for_url("**/login", timeout=PATIENT_MS)
    file.write_text(kept)


def test_the_tables_of_tenants_and_of_the_cluster(stage) -> None:
    page = stage.page
    rows = page.locator("#kv-tenants tbody tr")
    expect(rows.nth(0)).to_contain_text("acme")
    for words in ("90 %", "2 GiB", "of 8 GiB", "1 GiB assured"):
        expect(rows.nth(0)).to_contain_text(words)
    expect(rows.nth(1)).to_contain_text("<b>rival</b>")  # as text
    page.locator("#kv-cluster").scroll_into_view_if_needed()
    said = [" ".join(each.split()) for each in page.locator("#kv-cluster tbody tr").all_inner_texts()]
    states = ("node-a this node", "node-b linked", "node-c lost", "node-d draining")
    assert all(each.startswith(state) for each, state in zip(said, states, strict=True))
    expect(page.locator("#kv-cluster")).to_contain_text("west through valkey.example:6379")
    rows.nth(0).click()
    expect(page.locator("dialog")).to_contain_text("Pin all", timeout=PATIENT_MS)
    expect(page.locator("dialog")).to_contain_text("2 GiB, of 8 GiB")
    page.keyboard.press("Escape")
    well(stage)


def test_the_curve_marks_what_there_is_and_a_finding_what_differs(stage) -> None:
    page = stage.page
    curve = page.locator("#kv-curve")
    expect(curve).to_contain_text("+2 GiB of DRAM → +15 points")
    for words in ("DRAM now · 40 %", "with NVMe · 62 %", "75 %", "4 GiB", "llama-70b", "qwen-32b"):
        expect(curve.locator("svg")).to_contain_text(words, timeout=PATIENT_MS)
    curve.locator(".kv-plot").focus()
    page.keyboard.press("ArrowRight")
    expect(curve.locator(".kv-tip")).to_have_text("922 MiBwould hit20.0 %llama-70b24.0 %qwen-32b10.0 %")
    assert page.locator("#kv-findings mark").all_inner_texts() == ["1", "2"]
    well(stage)


def test_a_node_is_drained_from_its_page(node, kept) -> None:
    """Last of all: it ends."""
    page = kept.page
    page.locator(".kv-menu summary").click()
    page.get_by_text("Drain this node").click()
    expect(page.locator("dialog")).to_contain_text("its process ends", timeout=PATIENT_MS)
    page.locator("[data-act=sure]").click()
    assert node.process.wait(30) == 0
    expect(page.locator("#popup")).to_contain_text("Connection lost")
    assert '"call": "Drain"' in node.output()
