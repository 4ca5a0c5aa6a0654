"""The viewer, in a real browser."""

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gofer
from gofer import trace
from gofer._trace.serve import Page, Viewer
from gofer._trace.summary import summarise
from tests import trace_support
from tests.browser import CHROMIUM, Browser
from tests.support import SANITIZED, TINY, parked, spin
from tests.trace_support import ping_pong

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or SANITIZED,
    reason="Chromium is not installed"
    if CHROMIUM is None
    else "the sanitizer would be loaded into Chromium, which does not start then",
)

# A promise that is kept when what was asked for has been drawn.
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

EVIL = "<script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"


def program() -> None:
    async def waiter(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def sender(ch: gofer.Chan[int]) -> None:
        spin(0.004)
        await ch.send(1)

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        g = gofer.go(waiter, ch, name="waiter")
        await parked(g)
        with trace.task(EVIL), trace.region(EVIL):
            await gofer.go(sender, ch, name=EVIL)
        trace.log(EVIL, EVIL)
        await g

    gofer.run(main, procs=2)
    trace_support.many(2)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("viewer") / "x.trace"
    with trace.recording(file):
        program()
    return file


@pytest.fixture
def viewer(file: Path) -> Iterator[Viewer]:
    with Viewer(trace.load(file)) as v:
        v.start()
        yield v


@pytest.fixture
def page(viewer: Viewer) -> Iterator[Browser]:
    """The page, opened; at the end it must not have complained."""
    with Browser() as browser:
        browser.goto(viewer.url)
        browser.wait("window.viewer && viewer.timeline.frames > 0")
        yield browser
        assert browser.errors() == []


def index_of(viewer: Viewer, name: str) -> int:
    return next(g.index for g in viewer.trace.goroutines if g.name == name)


# --- The server ----------------------------------------------------------------------------------


def ask(
    viewer: Viewer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    assert viewer.server is not None
    connection = http.client.HTTPConnection(
        "127.0.0.1", viewer.server.server_address[1], timeout=30
    )
    try:
        connection.request(method, path, headers={"Host": host} if host is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_it_listens_on_the_loopback_interface_only(viewer: Viewer) -> None:
    assert viewer.server is not None
    assert viewer.server.server_address[0] == "127.0.0.1"


def test_other_hosts_and_paths_are_refused(viewer: Viewer) -> None:
    assert viewer.server is not None
    port = viewer.server.server_address[1]
    assert ask(viewer, "/")[0] == 200
    assert ask(viewer, "/", f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "", "127.0.0.1.evil.example"):
        for path in ("/", "/data"):
            status, body, _ = ask(viewer, path, host)
            assert status == 403
            assert b"waiter" not in body
    for path in ("/nothing", "/../../etc/passwd", "/data/x"):
        assert ask(viewer, path)[0] == 404
    assert ask(viewer, "/", method="POST")[0] == 501
    status, body, headers = ask(viewer, "/data", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == len(viewer.data)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = Page()
    text = page.html.decode()
    for word in ("http://", "https://", "@import", "url(", "innerHTML", "document.write", "eval("):
        assert word not in text, word
    assert "'unsafe" not in page.policy
    assert "default-src 'none'" in page.policy


def test_serving_needs_a_start(file: Path) -> None:
    with Viewer(trace.load(file)) as v, pytest.raises(RuntimeError, match="not been started"):
        v.url


# --- In the browser ------------------------------------------------------------------------------


@needs_browser
def test_it_opens_and_shows_the_right_figures(page: Browser, viewer: Viewer) -> None:
    summary = summarise(viewer.trace, top=50)
    facts = page.js("document.getElementById('facts').innerText")
    assert f"{summary.goroutines} goroutines" in facts
    assert f"{summary.events:,} events" in facts
    rows = page.js(
        "[...document.querySelectorAll('#table .vt-row')]"
        ".map(r => [...r.children].map(c => c.innerText))"
    )
    assert [(r[0], r[1]) for r in rows] == [(f.name, f"{f.count:,}") for f in summary.functions]
    model = page.js(
        "(() => { const m = viewer.model, t = [0, 0, 0, 0, 0];"
        " for (let i = 0; i < m.nspans; i++) t[m.span_state[i]] += m.span_end[i] - m.span_start[i];"
        " return [m.nspans, m.ng, t, m.ps.length]; })()"
    )
    goroutines = viewer.trace.goroutines
    assert model[0] == len(viewer.trace.spans["g"])
    assert model[1] == len(goroutines)
    assert model[2][2] == sum(g.running for g in goroutines)
    assert model[2][1] == sum(g.runnable for g in goroutines)
    assert model[2][4] == sum(g.waiting for g in goroutines)
    assert model[3] == len(summary.ps)


@needs_browser
def test_names_are_shown_not_run(page: Browser, viewer: Viewer) -> None:
    page.js(f"viewer.timeline.select({index_of(viewer, EVIL)}, -1)")
    assert page.js("document.getElementById('g-name').textContent") == EVIL
    for tab in range(page.js("viewer.tabs.length")):
        page.js(f"viewer.openTab({tab})")
    page.js(f"viewer.filter({EVIL!r})")
    assert page.js("document.querySelectorAll('#table .vt-row').length") == 1
    left, top, width, height = page.box("#timeline")
    for k in range(40):  # tool tips too
        page.mouse("mouseMoved", left + 120 + (width - 130) * k / 40, top + height * (k % 10) / 10)
    assert page.js("window.evil") is None
    assert page.js("document.querySelectorAll('#stage img, #lower img, #details img').length") == 0


@needs_browser
def test_the_wheel_zooms_at_the_pointer_and_dragging_moves(page: Browser) -> None:
    left, top, width, height = page.box("#timeline")
    x, y = left + 112 + (width - 112) / 4, top + height / 2
    before = page.js("viewer.timeline.view")
    under = page.js(f"viewer.timeline.time({x - left})")
    page.wheel(x, y, -600)
    half = (before["to"] - before["from"]) / 2
    page.wait(f"viewer.timeline.view.to - viewer.timeline.view.from < {half}")
    assert page.js(f"viewer.timeline.time({x - left})") == pytest.approx(under, rel=1e-6)
    zoomed = page.js("viewer.timeline.view")
    page.drag(x + 200, y, x + 100, y)
    moved = page.js("viewer.timeline.view")
    assert moved["from"] > zoomed["from"]
    assert moved["to"] - moved["from"] == pytest.approx(zoomed["to"] - zoomed["from"])
    page.key("0")
    assert page.js("viewer.timeline.view") == pytest.approx(before)
    page.drag(left + 300, top + 10, left + 500, top + 10)  # in the ruler
    ruled = page.js("viewer.timeline.view")
    share = (ruled["to"] - ruled["from"]) / (before["to"] - before["from"])
    assert share == pytest.approx(200 / (width - 112), rel=0.02)
    page.press("#zoom-out")
    page.press("#zoom-all")
    assert page.js("viewer.timeline.view") == pytest.approx(before)


@needs_browser
def test_a_click_on_a_slice_shows_its_goroutine(page: Browser, viewer: Viewer) -> None:
    spin_span = page.js(
        "(() => { const m = viewer.model; let best = 0;"
        " for (let i = 0; i < m.nspans; i++) if (m.span_state[i] === 2 &&"
        " m.span_end[i] - m.span_start[i] > m.span_end[best] - m.span_start[best]) best = i;"
        " return best; })()"
    )
    page.js(f"viewer.timeline.reveal({spin_span}, true), viewer.timeline.select(-1, -1)")
    x, y = page.js(
        f"(() => {{ const t = viewer.timeline, m = viewer.model, i = {spin_span};"
        " const row = t.rows.find(r => r.kind === 'p' && r.row.key === m.span_p[i]);"
        " return [t.x((m.span_start[i] + m.span_end[i]) / 2), row.y + row.height / 2]; })()"
    )
    left, top, _, _ = page.box("#timeline")
    page.click(left + x, top + y)
    span = viewer.trace.span(spin_span)
    g = viewer.trace.goroutines[span.goroutine]
    assert page.js("document.getElementById('g-name').textContent") == g.name
    assert page.js("viewer.timeline.span") == spin_span
    shown = page.js("document.querySelector('[data-state=running]').textContent")
    assert shown == page.js(f"showNs({g.running})")
    page.key("Escape")
    assert page.js("document.getElementById('details').hidden")


@needs_browser
def test_a_wait_shows_its_stack_and_who_ended_it(page: Browser, viewer: Viewer) -> None:
    page.js("viewer.openTab(4)")  # stalls
    waiter = index_of(viewer, "waiter")
    page.js(f"viewer.table.rows.findIndex(r => r.goroutine === {waiter})")
    page.js(f"viewer.table.onclick(viewer.table.rows.find(r => r.goroutine === {waiter}))")
    text = page.js("document.getElementById('details').innerText")
    assert "chan receive" in page.js("document.getElementById('span-title').innerText")
    assert __file__ in text
    assert EVIL in page.js("document.getElementById('woken-by').textContent")
    view = page.js("viewer.timeline.view")
    (wait,) = [s for s in viewer.trace.life(waiter) if s.state == 4]
    assert view["from"] < wait.start < wait.end < view["to"]
    page.press("#woken-by button")
    assert page.js("document.getElementById('g-name').textContent") == EVIL
    page.wait("viewer.timeline.frames > 3")


@needs_browser
def test_an_arrow_leads_from_who_woke_it(page: Browser, viewer: Viewer) -> None:
    woken = next(s for s in viewer.trace.life(index_of(viewer, "waiter"))[1:] if s.state == 1)
    page.js(f"viewer.timeline.show({woken.start - 20_000}, {woken.end + 20_000})")
    assert page.js(f"{DRAWN}.then(() => viewer.timeline.arrows)") >= 1
    page.js("viewer.timeline.show(viewer.timeline.all.from, viewer.timeline.all.to)")
    assert page.js(f"{DRAWN}.then(() => viewer.timeline.arrows)") == 0


@needs_browser
def test_tables_sort_and_search_finds(page: Browser, viewer: Viewer) -> None:
    page.press("#tab-1")
    first = "document.querySelector('#table .vt-row').children[0].innerText"
    page.js("viewer.table.sort(0)")
    highest = max(g.id for g in viewer.trace.goroutines)
    assert page.js(first) == str(highest)
    page.press("#search")
    for ch in "waiter":
        page.key(ch)
    page.wait("viewer.filtered && viewer.filtered.length === 1")
    assert page.js("document.querySelector('#table .vt-row').children[1].innerText") == "waiter"
    page.key("Enter")
    page.wait("!document.getElementById('details').hidden")


@needs_browser
def test_a_place_can_be_kept_in_the_address(page: Browser, viewer: Viewer) -> None:
    waiter = index_of(viewer, "waiter")
    page.goto("about:blank")
    page.goto(f"{viewer.url}#t=1000,900000&g={waiter}")
    page.wait("window.viewer && viewer.timeline.selected >= 0")
    assert page.js("document.getElementById('g-name').textContent") == "waiter"
    view = page.js("viewer.timeline.view")
    assert (round(view["from"]), round(view["to"])) == (1000, 900000)


@needs_browser
def test_an_empty_trace_can_be_shown(tmp_path: Path) -> None:
    with trace.recording(tmp_path / "x"):
        pass
    with Viewer(trace.load(tmp_path / "x")) as v, Browser() as browser:
        v.start()
        browser.goto(v.url)
        browser.wait("window.viewer && viewer.timeline.frames > 0")
        for tab in range(browser.js("viewer.tabs.length")):
            browser.js(f"viewer.openTab({tab})")
        assert browser.errors() == []


@needs_browser
def test_a_million_events_open_soon_and_pan_smoothly(tmp_path: Path) -> None:
    file = tmp_path / "x.trace"
    with trace.recording(file):
        ping_pong(1, 5_000 if TINY else 170_000)
    begun = time.perf_counter()
    with Viewer(trace.load(file)) as v, Browser() as browser:
        v.start()
        browser.goto(v.url)
        browser.wait("window.viewer && viewer.timeline.frames > 0")
        opened = time.perf_counter() - begun
        times = browser.js(
            f"""(async () => {{
                const times = [], t = viewer.timeline;
                for (const factor of [1, 0.5, 0.1, 0.01, 0.001]) {{
                    const span = (t.all.to - t.all.from) * factor;
                    for (let k = 0; k < 12; k++) {{
                        const from = t.all.from + (t.all.to - t.all.from - span) * k / 12;
                        t.show(from, from + span);
                        await {DRAWN};
                        times.push(t.drawTime);
                    }}
                }}
                return times;
            }})()"""
        )
        assert browser.errors() == []
    times.sort()
    assert opened < 3 * 5  # the bar is 3 s; the machine may be busy
    assert times[len(times) // 2] < 50
