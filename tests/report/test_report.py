"""The page in a real browser: what is seen, picked and typed, and what never happens."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from mirror import LocalMirror

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'consilience[dev]'")
expect = playwright.expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
COMMAND = Path(sys.executable).with_name("consilience")
EXAMPLE = Path(__file__).parents[2] / "docs" / "data" / "run.jsonl"
CHARTS = {  # with a colour each must show
    "weights": "group0",
    "correlation": "alike",
    "noise": "group0",
    "accuracy": "group2",
    "effective": "group2",
    "seconds": "group2",
}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable]:
    """Open an address; at the end, nothing may have gone wrong or been asked for elsewhere."""
    wrong: list[str] = []
    asked: list[str] = []
    contexts, allowed = [], []

    def go(url: str, **look):
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **look}
        )
        contexts.append(context)
        allowed.append(url)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        return page

    go.wrong, go.asked = wrong, asked
    yield go
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(tuple(allowed))] == []


def run(*words: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> str:
    page = tmp_path_factory.mktemp("report") / "page.html"
    found = run("report", EXAMPLE, "-o", page)
    assert (found.returncode, found.stdout) == (0, f"{page}: 60 rounds\n"), found.stderr
    return page.as_uri()


def report(record: Path) -> str:
    page = record.with_suffix(".html")
    found = CliRunner().invoke(app, ["report", str(record), "-o", str(page)])
    assert found.exit_code == 0, found.output
    return page.as_uri()


def names(page) -> list[str]:
    return page.locator("#parties tbody tr .name").all_inner_texts()


def test_ten_seconds_tell_whom_to_trust(visit, example):
    page = visit(example)
    expect(page.locator("h1")).to_have_text("5 of 15 parties stand out.")
    causes = page.locator("#causes li").all_inner_texts()
    assert re.fullmatch(r"c13 was rejected \d times in the last 10 rounds: .* nan .*", causes[0])
    assert re.fullmatch(r"c03, c07 and c11 move together: one voice, heard 0\.\d\d× .*", causes[1])
    assert re.fullmatch(
        r"c05 stands out: noise \d\.\d+× the typical; .*; heard 0\.0\d× .*", causes[2]
    )
    assert causes[3].startswith("The other 10 are heard")
    assert names(page)[:5] == ["c05", "c03", "c07", "c11", "c13"]
    # All this is on the first screen, the chart and the table too.
    for seen in ["h1", "#causes", "#weights canvas"]:
        box = page.locator(seen).first.bounding_box()
        assert box["y"] + box["height"] < 860
    rejected = page.locator("#rejected tbody tr").all_inner_texts()
    assert len(rejected) == 1
    assert rejected[0].startswith("c13")


PIXELS = """([section, wanted]) => {
    const hex = number => number.toString(16).padStart(2, "0");
    let count = 0;
    for (const canvas of document.querySelectorAll(`#${section} canvas`)) {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        for (let k = 0; k < data.length; k += 4)
            count += "#" + [0, 1, 2].map(c => hex(data[k + c])).join("") === wanted;
    }
    return count > 20;
}"""


def wait_for_colour(page, section: str, name: str) -> None:
    """Wait until a chart has more than a few pixels of a colour of the style's."""
    page.locator(f"#{section} .chart").scroll_into_view_if_needed()
    page.wait_for_function(PIXELS, arg=[section, page.evaluate("colour", name)])


def test_every_chart_is_drawn_and_has_a_table(visit, example):
    page = visit(example)
    for section, name in CHARTS.items():
        wait_for_colour(page, section, name)
        page.locator(f"#{section} summary").click()
        expect(page.locator(f"#{section} details tbody tr")).not_to_have_count(0)
    weights = page.locator("#weights details")
    assert weights.locator("thead th").all_inner_texts()[:3] == ["Round", "c05", "c03"]
    rows = weights.locator("tbody tr")
    expect(rows).to_have_count(50)  # the rest is on the next page
    weights.get_by_role("button", name="After").click()
    expect(rows).to_have_count(10)
    pairs = page.locator("#correlation details tbody tr").all_inner_texts()
    assert {tuple(pair.split("\t")[:2]) for pair in pairs[:3]} == {
        ("c03", "c07"),
        ("c03", "c11"),
        ("c07", "c11"),
    }


def test_a_round_is_picked_with_keys_slider_and_mouse(visit, example):
    page = visit(example)
    shown = page.locator("#shown")
    expect(shown).to_have_text("Round 60 of 60")
    page.keyboard.press("ArrowLeft")
    expect(shown).to_have_text("Round 59 of 60")
    page.keyboard.press("Home")
    expect(shown).to_have_text("Round 1 of 60")
    expect(page.locator("h1")).to_have_text("1 of 14 parties stands out.")  # c05; nobody lies yet
    page.locator("#round").focus()
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_text("Round 2 of 60")
    page.get_by_role("button", name="One round later").press("Enter")
    expect(shown).to_have_text("Round 3 of 60")
    chart = page.locator("#weights canvas").first.bounding_box()
    page.mouse.click(chart["x"] + chart["width"] / 2, chart["y"] + 0.65 * chart["height"])
    expect(shown).not_to_have_text("Round 3 of 60")
    assert 20 < int(shown.inner_text().split()[1]) < 45


def test_a_party_is_picked_and_let_go_with_the_keyboard_alone(visit, example):
    page = visit(example)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#parties tbody') !== null"):
            break
    assert page.evaluate("document.activeElement.textContent") == "c05"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    detail = page.locator("#detail")
    expect(detail.locator("h2")).to_have_text("c03")
    expect(detail).to_contain_text(re.compile(r"Rounds \d\d–60: moves with c07, c11: one voice"))
    expect(page.locator("#party")).to_have_value(page.evaluate("String(run.numbers.get('c03'))"))
    expect(page.locator("tr.picked .name")).to_have_text("c03")
    assert page.evaluate("document.activeElement.textContent") == "c03"  # focus is not lost
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()


def test_the_parties_are_sorted_by_any_column(visit, example):
    page = visit(example)
    noise = page.locator("#parties thead").get_by_role("button", name="Noise")
    noise.press("Enter")
    assert names(page)[0] == "c05"
    assert page.locator("#parties th[aria-sort]").get_attribute("aria-sort") == "descending"
    noise.press("Enter")
    assert names(page)[-1] == "c05"
    page.locator("#parties thead").get_by_role("button", name="Party").click()
    assert names(page) == sorted(names(page))


INTERVAL = r"(\d\.\d+)–(\d\.\d+)"
SERIES = """id => Object.fromEntries(
    charts.noise.canvas.getOption().series.map(one => [one.id, one.data.at(-1)[1]])
)"""


def test_noise_has_its_interval_in_the_tables_and_the_chart(visit, example):
    page = visit(example)
    cells = page.locator("#parties tbody tr td:nth-child(3)").all_inner_texts()
    for cell in cells:
        noise, low, high = map(float, re.fullmatch(rf"(\d+\.\d+)× \({INTERVAL}\)", cell).groups())
        assert low <= noise <= high
    expect(page.locator("#basis")).to_contain_text("95 % intervals")
    page.locator("#party").select_option(label="c07")
    found = re.search(rf"noise (0\.\d+) \({INTERVAL}\)", page.locator("#detail p").inner_text())
    noise, low, high = map(float, found.groups())
    wait_for_colour(page, "noise", "group0")
    drawn = page.evaluate(SERIES)
    number = page.evaluate("String(run.numbers.get('c07'))")
    assert [drawn[number], drawn["low"], drawn["high"]] == pytest.approx(
        [noise, low, high], rel=0.01
    )
    page.locator("#noise summary").click()
    expect(page.locator("#noise details tbody tr").first).to_contain_text(re.compile(INTERVAL))
    page.keyboard.press("Escape")
    page.wait_for_function(f"() => !('low' in ({SERIES})())")


def test_hovering_tells_the_numbers(visit, example):
    page = visit(example)
    chart = page.locator("#weights canvas").first.bounding_box()
    page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + 150)
    tip = page.locator("#weights .tip")
    expect(tip).to_contain_text(re.compile(r"Round \d+"))
    assert "c05" in tip.inner_text()


def test_light_and_dark(visit, example):
    background = "getComputedStyle(document.body).backgroundColor"
    page = visit(example, color_scheme="dark")
    assert page.evaluate(background) == "rgb(20, 22, 26)"
    wait_for_colour(page, "weights", "group0")
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(background) == "rgb(246, 245, 242)"
    wait_for_colour(page, "weights", "group0")  # which is another colour now
    page.emulate_media(color_scheme="light")
    page.evaluate("new Promise(requestAnimationFrame)")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_phone_shows_it_all_without_scrolling_sideways(visit, example):
    page = visit(example, viewport={"width": 375, "height": 740}, has_touch=True, is_mobile=True)
    expect(page.locator("h1")).to_be_in_viewport()
    for section in CHARTS:
        page.locator(f"#{section} .chart").scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    table = page.locator("#parties .scroll")
    assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
    page.locator("#parties").get_by_role("button", name="c03").tap()
    expect(page.locator("#detail h2")).to_have_text("c03")


LONG = "hospital-of-the-university-of-somewhere"


@pytest.fixture
def long_names(tmp_path) -> str:
    """One round of parties whose names begin alike, two of which move together."""
    file = tmp_path / "run.jsonl"
    rng = np.random.default_rng(0)
    rows = {f"{LONG}-{j}": rng.standard_normal(300) for j in range(8)}
    rows[f"{LONG}-7"] = rows[f"{LONG}-6"]
    rows[f"{LONG}-is-noisy"] = 9 * rng.standard_normal(300)
    rows[f"{LONG}-broken"] = np.full(300, np.nan)
    cs.aggregate(rows, record=file)
    return report(file)


def test_reasons_fit_a_phone_also_beside_long_names(visit, long_names):
    page = visit(long_names, viewport={"width": 375, "height": 740}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for section in ("parties", "rejected"):
        table = page.locator(f"#{section} .scroll")
        assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
    why = page.locator("#parties tbody tr .why").first.bounding_box()
    assert why["x"] + why["width"] <= 375
    assert why["width"] > 80


# The text of a chart, and from where to where it goes downwards.
WRITTEN = """chart => chart.canvas.getZr().storage.getDisplayList(true)
    .filter(one => one.style?.text && !one.invisible)
    .map(one => {
        const box = one.getBoundingRect().clone();
        if (one.transform) box.applyTransform(one.transform);
        return [one.style.text, box.y, box.y + box.height];
    })"""


def test_labels_of_the_matrix_are_apart_from_the_legend(visit, long_names):
    page = visit(long_names)
    wait_for_colour(page, "correlation", "alike")
    written = page.evaluate(f"() => ({WRITTEN})(matrix)")
    legend = min(top for text, top, _ in written if text in ("together 1", "−1 opposed"))
    names = [(text, bottom) for text, _, bottom in written if "…" in text]
    assert len(names) == 2 * 9
    assert len({text for text, _ in names}) == 9
    assert max(bottom for _, bottom in names) < legend


def test_one_round_is_drawn_in_the_middle(visit, long_names):
    page = visit(long_names)
    wait_for_colour(page, "weights", "group0")
    wait_for_colour(page, "noise", "noisy")
    for chart in ("weights", "noise", "effective", "seconds"):
        page.locator(f"#{chart} .chart").scroll_into_view_if_needed()
        page.wait_for_function("name => charts[name].drawn", arg=chart)
        at = "(name, x) => charts[name].canvas.convertToPixel({ xAxisIndex: 0 }, x)"
        left, x, right = page.evaluate(f"name => [0, 1, 2].map(x => ({at})(name, x))", chart)
        assert x - left == pytest.approx(right - x)
        assert x - left > 100


# How far to the right something is drawn on a canvas, of its width.
REACH = """canvas => {
    const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let last = 0;
    for (let k = 0; k < data.length / 4; k++) if (data[4 * k + 3]) last = Math.max(last, k % width);
    return last / width;
}"""


def test_the_page_prints_whole(visit, tmp_path):
    """Charts that were never in sight, rows of every page of a table, dark on light."""
    file = tmp_path / "run.jsonl"
    rng = np.random.default_rng(0)
    rows = {f"p{j}": rng.standard_normal(3000) for j in range(70)}
    rows["p1"] = rows["p0"]
    for _ in range(3):
        cs.aggregate(rows, record=file)
    page = visit(report(file), color_scheme="dark")
    charts = {name: tone for name, tone in CHARTS.items() if name != "accuracy"}
    page.evaluate(
        """([charts]) => addEventListener("beforeprint", () => {
            const drawn = Object.entries(charts).map(([name, tone]) => [
                name,
                pixels([name, colour(tone)]),
                document.querySelectorAll(`#${name} canvas:not([hidden])`).length,
                reach(document.querySelector(`#${name} canvas`)) > 0.8,
            ]);
            const rows = document.querySelectorAll("#parties tbody tr").length;
            window.printed = { drawn, rows, theme: document.documentElement.dataset.theme };
        })""".replace("pixels([", f"({PIXELS})([").replace("reach(", f"({REACH})("),
        [charts],
    )
    pages = page.pdf(format="A4").count(b"/Type /Page\n")
    assert page.evaluate("window.printed") == {
        "drawn": [[name, True, 1, True] for name in charts],
        "rows": 70,
        "theme": "light",
    }
    assert pages > 3
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("#parties tbody tr")).to_have_count(50)
    assert page.locator("canvas[hidden]").count() == 0
    page.emulate_media(media="print")
    cut = "boxes => boxes.filter(box => box.scrollHeight > box.clientHeight + 1).length"
    assert page.locator(".scroll").evaluate_all(cut) == 0


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<img src=x onerror='window.hacked = 3'>",
    "<!--data-->",
    "__proto__",
    "\u2028 \u202e \ud800",
    "a" * 300,
]


def test_a_name_is_text_whatever_it_contains(visit, tmp_path):
    file = tmp_path / "<b>run.jsonl"
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal(50) for name in HOSTILE}
    rows |= {f"h{j}": rng.standard_normal(50) for j in range(6)}
    rows[HOSTILE[0]] = rows[HOSTILE[2]]
    rows["bad<i>"] = {"<u>w</u>": np.zeros(3)}
    consensus = cs.aggregate(rows, record=file)
    note = "<script>window.hacked = 4</script>"
    cs.Record(file).append(consensus, note=note, metrics={"<s>": 1.0}, seconds={"<em>": 1})
    page = visit(report(file))
    shown = page.locator("#parties tbody .name").all_text_contents()
    assert set(HOSTILE[:5]) <= set(shown)
    assert any(re.fullmatch(r"a+…\([0-9a-f]{8}\)…a+#[0-9a-f]{16}", name) for name in shown)
    page.get_by_role("button", name=HOSTILE[0], exact=True).first.click()
    expect(page.locator("#detail h2")).to_have_text(HOSTILE[0])
    page.locator("#correlation .chart").scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    for section in ["weights", "correlation"]:
        chart = page.locator(f"#{section} canvas").first
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
        expect(page.locator(f"#{section} .tip")).to_be_visible()
    expect(page.locator("#notes")).to_contain_text(note)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main :is(img, b:not(.tip b), u, s, em, script)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_page_can_reach_nobody(visit, example):
    page = visit(example)
    with LocalMirror() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reached = page.evaluate(
            """async url => {
                const tried = [fetch(url).then(() => "fetch", () => null)];
                const image = new Image();
                tried.push(new Promise(done => {
                    image.onload = () => done("image");
                    image.onerror = () => done(null);
                }));
                image.src = url;
                const inline = document.createElement("script");
                inline.textContent = "window.hacked = 1";
                document.body.append(inline);
                return [...await Promise.all(tried), window.hacked ?? null];
            }""",
            server.url,
        )
        assert reached == [None, None, None]
        server.shutdown()
        assert server.requests == []
    assert visit.wrong, "the browser says what it blocked"
    assert all("Content Security Policy" in said for said in visit.wrong)
    visit.wrong.clear()
    visit.asked.clear()


def test_a_method_that_cannot_tell_is_not_made_to(visit, tmp_path):
    file = tmp_path / "run.jsonl"
    for seed in range(3):
        cs.aggregate(np.random.default_rng(seed).standard_normal((4, 30)), "mean", record=file)
    page = visit(report(file))
    expect(page.locator("h1")).to_have_text("No party stands out.")
    expect(page.locator("#causes")).to_have_text("mean hears everybody alike, whoever stands out.")
    expect(page.locator("#correlation")).to_be_hidden()
    expect(page.locator("#accuracy")).to_be_hidden()
    assert "(" not in page.locator("#parties tbody").inner_text()
    expect(page.locator("#basis")).not_to_contain_text("intervals")


def flipped(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(300)
    sent = {f"h{j}": truth + 0.1 * rng.standard_normal(300) for j in range(5)}
    return {**sent, "eve": -truth + 0.1 * rng.standard_normal(300)}


@pytest.mark.parametrize("method", ["mean", "krum", "ivar-vb", "coordinate-median"])
def test_the_page_says_what_the_record_says(visit, tmp_path, method):
    file = tmp_path / "run.jsonl"
    reasons = cs.aggregate(flipped(), method, record=file).reasons
    page = visit(report(file))
    expect(page.locator("h1")).to_have_text("1 of 6 parties stands out.")
    assert names(page)[0] == "eve"
    expect(page.locator("#parties tbody tr .why").first).to_have_text(reasons["eve"])
    expect(page.locator("#causes li").first).to_contain_text(f"eve stands out: {reasons['eve']};")


def test_weights_accuse_nobody(visit, tmp_path):
    """Krum hears one party alone, and a prior that knows better hears nobody much."""
    file = tmp_path / "krum.jsonl"
    rng = np.random.default_rng(0)
    cs.aggregate(rng.standard_normal((5, 300)), "krum", record=file)
    expect(visit(report(file)).locator("h1")).to_have_text("No party stands out.")
    file = tmp_path / "prior.jsonl"
    consensus = cs.aggregate(30 * rng.standard_normal((5, 300)), "ivar-vb", record=file)
    page = visit(report(file))
    expect(page.locator("h1")).to_have_text("No party stands out, but this is no all-clear.")
    expect(page.locator("#causes li").first).to_contain_text("The centre holds")
    expect(page.locator("#tiles")).to_contain_text(f"{100 * consensus.center_weight:.1f} %")


def test_two_parties_are_not_cleared(visit, tmp_path):
    file = tmp_path / "run.jsonl"
    cs.aggregate(np.random.default_rng(0).standard_normal((2, 300)), record=file)
    page = visit(report(file))
    expect(page.locator("h1")).to_have_text("No party stands out, but this is no all-clear.")
    expect(page.locator("#causes")).to_contain_text("neither can be judged by the other.")
    expect(page.locator("#tiles")).not_to_contain_text("centre")


def test_who_is_named_in_the_picked_round_or_half_of_the_last_stands_out(visit, tmp_path):
    file = tmp_path / "run.jsonl"
    honest = {**flipped(), "eve": -flipped()["eve"]}
    for sent in [honest] * 3 + [flipped()] + [honest] * 2 + [flipped()] * 4 + [honest]:
        cs.aggregate(sent, record=file)
    page = visit(report(file))
    for number, stands in {11: True, 10: True, 6: False, 4: True, 3: False}.items():
        page.locator("#round").fill(str(number - 1))
        expect(page.locator("#shown")).to_have_text(f"Round {number} of 11")
        said = "1 of 6 parties stands out." if stands else "No party stands out."
        expect(page.locator("h1")).to_have_text(said)
    page.locator("#round").fill("5")
    expect(page.locator("#parties tbody tr", has_text="eve").locator(".why")).to_have_text(
        re.compile(r"^in 1 of 6 rounds: noise \d+")
    )


def test_parties_come_and_go_and_rounds_come_to_nothing(visit, tmp_path):
    file = tmp_path / "run.jsonl"
    record, rng = cs.Record(file), np.random.default_rng(0)
    for number in range(1, 9):
        here = {f"p{j}": rng.standard_normal(40) for j in range(9) if (j + number) % 3}
        record.append(cs.aggregate(here), round=10 * number)
    record.append(None, note="nobody answered", rejected={"p1": "late"})
    page = visit(report(file))
    expect(page.locator("#shown")).to_have_text("Round 81 of 81")
    expect(page.locator("#causes")).to_contain_text("Round 81 came to nothing: nobody answered")
    expect(page.locator("#rejected tbody tr")).to_contain_text("late")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#tiles")).to_contain_text("of 6")


def test_many_parties(visit, tmp_path):
    """More than can be drawn one by one, or told apart in a matrix."""
    file = tmp_path / "run.jsonl"
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(60)
    rows = truth + rng.standard_normal((120, 60))
    rows[:30] = rows[0] + 0.1 * rng.standard_normal((30, 60))
    consensus = cs.aggregate(rows)
    for _ in range(160):
        cs.Record(file).append(consensus)
    url = report(file)
    assert Path(url.removeprefix("file://")).stat().st_size < 4_000_000
    page = visit(url)
    expect(page.locator("h1")).to_have_text(re.compile(r"3\d of 120 parties stand out\."))
    expect(page.locator("#weights")).to_contain_text(re.compile(r"that stand out, 16 are drawn"))
    expect(page.locator("#parties tbody tr")).to_have_count(50)
    expect(page.locator("#correlation > p")).to_contain_text("60 of 120 parties")
    for place in ("Home", "ArrowRight"):
        page.keyboard.press(place)
    expect(page.locator("#shown")).to_have_text("Round 2 of 160")
    expect(page.locator("#correlation > p")).to_contain_text("in round 2")


def test_the_usual_page_is_small(tmp_path):
    file = tmp_path / "run.jsonl"
    rng = np.random.default_rng(0)
    found = [cs.aggregate(rng.standard_normal((15, 200))) for _ in range(5)]
    for number in range(100):
        cs.Record(file).append(found[number % 5])
    page = Path(report(file).removeprefix("file://"))
    assert page.stat().st_size < 1_000_000


@pytest.fixture
def watching(tmp_path) -> Iterator[tuple[Path, str, subprocess.Popen]]:
    file = tmp_path / "run.jsonl"
    server = subprocess.Popen(
        [COMMAND, "watch", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with server:
        url = server.stdout.readline().split()[0]
        yield file, url, server
        server.kill()


def test_watching_a_run_from_before_its_first_round(visit, watching):
    file, url, server = watching
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
    page = visit(url)
    expect(page.locator("h1")).to_have_text("No round yet.")
    rows = np.random.default_rng(0).standard_normal((6, 50))
    rows[5] = rows[4]
    for _ in range(3):
        cs.aggregate(rows, record=file)
    expect(page.locator("#shown")).to_have_text("Round 3 of 3")
    expect(page.locator("#causes")).to_contain_text("4 and 5 move together")
    page.keyboard.press("Home")  # who looks at an earlier round is not torn away from it
    cs.aggregate(rows, record=file)
    expect(page.locator("#shown")).to_have_text("Round 1 of 4")
    file.unlink()
    cs.Record(file).append(None, note="begun anew")
    expect(page.locator("#shown")).to_have_text("Round 1 of 1")
    server.kill()
    expect(page.locator("body")).to_have_class(re.compile("lost"))
    expect(page.locator("#shown")).to_have_text("Round 1 of 1")
    assert all("ERR_CONNECTION" in said for said in visit.wrong)
    visit.wrong.clear()


def status(request: Request | str) -> int:
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


def test_watching_is_for_who_knows_the_address_and_to_read(watching):
    file, url, _ = watching
    root = url.rsplit("/", 2)[0]
    assert status(url) == 200
    for path in ["/", "/rounds?from=0", "/wrong/", f"/{'x' * 32}/rounds?from=0"]:
        assert status(root + path) == 404
    assert status(f"{url}../../etc/passwd") == 404
    assert status(f"{url}rounds?from=x") == 400
    assert status(f"{url}rounds") == 400
    for method in ["POST", "PUT", "DELETE"]:
        assert status(Request(url, method=method, data=b"")) == 501
    cs.Record(file).append(None, note="first")
    with urlopen(f"{url}rounds?from=0", timeout=10) as answer:
        news = json.load(answer)
    assert news["rounds"][0]["note"] == "first"
    assert news["next"] == file.stat().st_size
    file.write_text("not a record")
    assert status(url) == 500


def test_mistakes_are_told_without_a_traceback(tmp_path):
    other, missing = tmp_path / "other.txt", tmp_path / "no" / "page.html"
    other.write_text("text")
    for words, expected in [
        (["report", other], "other.txt: not a record"),
        (["watch", other], "other.txt: not a record"),
        (["report", EXAMPLE, "-o", missing], "page.html: cannot be written (No such file"),
    ]:
        found = run(*words)
        assert found.returncode == 2
        # However long the names are, and wherever the lines break.
        assert expected.replace(" ", "") in "".join(found.stderr.split())
        assert "Traceback" not in found.stderr
    assert other.read_text() == "text"
