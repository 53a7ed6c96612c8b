"""What goes wrong in a page is noticed: else a test that finds nothing would prove nothing."""

from collections.abc import Iterator

import psutil
import pytest

from bdfl.node.http import Page as Answer, StatusServer
from tests.browser.looking import find_accessibility, find_overflow, open_look, walk_by_keyboard

HTML = "text/html; charset=utf-8"
HEAD = "<!doctype html><html lang=en><head><meta charset=utf-8><title>t</title>"
STYLE = "<style>a:focus { outline: 2px solid }</style>"
GOOD = f"{HEAD}{STYLE}</head><body><main><h1>t</h1><a href='/'>home</a></main></body></html>"
PAGES = {
    "/": GOOD,
    "/console": GOOD.replace("</main>", "</main><script>console.error('lost')</script>"),
    "/error": GOOD.replace("</main>", "</main><script>nothing.at.all</script>"),
    "/dialog": GOOD.replace("</main>", "</main><script>alert('hello')</script>"),
    "/missing": GOOD.replace("</main>", "</main><script>fetch('/none')</script>"),
    "/elsewhere": GOOD.replace("</main>", "</main><script>fetch('http://127.0.0.1:9/').catch(() => 0)</script>"),
    "/policy": GOOD.replace(
        "</head>", "<meta http-equiv='Content-Security-Policy' content=\"img-src 'none'\"></head>"
    ).replace("</main>", "<img alt='' src='/x.png'></main>"),
    "/wide": GOOD.replace("</main>", "<p style='width: 3000px'>far</p></main>"),
    "/clipped": GOOD.replace(
        "</main>", "<p style='width: 20px; overflow: hidden; white-space: nowrap'>cut off here</p></main>"
    ),
    "/contrast": GOOD.replace("</main>", "<p style='color: #ccc; background: #fff'>pale</p></main>"),
    "/hidden-focus": GOOD.replace("outline: 2px solid", "outline: none"),
    "/unreachable": GOOD.replace("</main>", "</main><script>addEventListener('keydown', (e) => "
        "{ if (document.activeElement.tagName === 'A') e.preventDefault(); })</script><button>late</button>"),
}  # fmt: skip


@pytest.fixture(scope="module")
def origin(chromium) -> Iterator[str]:
    def answer(html: str):
        return lambda: Answer(html.encode(), HTML)

    window = StatusServer({path: answer(html) for path, html in PAGES.items()})
    yield f"http://{window.address}"
    window.close()


@pytest.fixture
def stub(browser, origin):
    look = open_look(browser, origin)
    look.allow("favicon.ico")
    yield look
    look.page.context.close()


def test_a_good_page_gives_no_complaint(stub):
    page = stub.open("/").page
    assert stub.unexpected == []
    assert find_overflow(page) == []
    assert find_accessibility(page) == []
    assert walk_by_keyboard(page) == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/console", "console error: lost"),
        ("/error", "error in the page"),
        ("/dialog", "dialog: hello"),
        ("/missing", "answer 404"),
        ("/elsewhere", "request elsewhere: http://127.0.0.1:9/"),
        ("/policy", "content security policy: img-src"),
    ],
)
def test_a_page_tells_on_itself(stub, path, expected):
    stub.open(path)
    stub.wait_until(lambda: any(expected in text for text in stub.unexpected), expected)


def test_what_a_person_would_notice_is_noticed(stub):
    assert "p ends at 3008 px: far" in find_overflow(stub.open("/wide").page)
    assert "p is clipped: cut off here" in find_overflow(stub.open("/clipped").page)
    assert find_accessibility(stub.open("/contrast").page)[0].startswith("color-contrast")
    assert walk_by_keyboard(stub.open("/hidden-focus").page) == ["no visible focus: a home"]
    assert "not reached: <button>late</button>" in walk_by_keyboard(stub.open("/unreachable").page)


_plays: list[str] = []


def test_a_browser_that_dies_is_started_anew_and_the_test_played_again(stub):
    """Played for the first time this test ends its browser; what counts is the second time."""
    _plays.append("this test")
    if len(_plays) == 1:
        end_browser()
    stub.open("/")
    assert len(_plays) == 2


def end_browser() -> None:
    """Ends the browser that this process has started."""
    family = psutil.Process().children(recursive=True)
    arguments = {one: " ".join(one.cmdline()) for one in family}
    (main,) = (one for one, text in arguments.items() if "--remote-debugging-pipe" in text and "--type=" not in text)
    main.kill()
    main.wait()
