"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.chromium import EXECUTABLE, Page
from tests.server.conftest import RunningServer

pytestmark = [pytest.mark.browser, pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed")]

_ENTER, _ESCAPE = ("Enter", 13), ("Escape", 27)


@pytest.fixture(params=[1100, 390], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, served: RunningServer, tmp_path: Path) -> Iterator[Page]:
    page = Page(tmp_path, width=request.param)
    page.open(served.url)
    page.wait_for(f"document.getElementById('model').textContent === '{served.engine.model_name}'")
    yield page
    assert page.problems == []
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    page.close()


def figures(page: Page) -> str:
    return str(page.run("[...document.querySelectorAll('.figures')].at(-1).textContent"))


def test_a_dialogue(page: Page, served: RunningServer) -> None:
    page.type("Hello\nthere")
    page.press(*_ENTER)
    page.wait_for("!document.getElementById('stop').hidden")
    assert page.run("document.querySelector('.user .body').textContent") == "Hello\nthere"
    page.wait_for("document.querySelectorAll('.figures')[1].textContent.includes('tokens/s')")
    page.press(*_ESCAPE)
    page.wait_for("document.getElementById('stop').hidden")
    served.wait_idle()
    shown = figures(page)
    assert "first token" in shown
    page.type("And again")
    page.press("Enter", 13, shift=True)
    assert page.run("document.getElementById('text').value") == "And again\n"
    page.press(*_ENTER)
    page.wait_for("document.querySelectorAll('.assistant').length === 2")
    page.run("document.getElementById('new').click()")
    page.wait_for("document.querySelectorAll('#dialogue li').length === 0")
    served.wait_idle()
    assert page.run("!document.getElementById('welcome').hidden")


def test_an_error_is_shown(page: Page, served: RunningServer) -> None:
    page.type("word " * served.engine.context_tokens)
    page.press(*_ENTER)
    page.wait_for("document.querySelector('.failure') !== null")
    assert "context" in page.run("document.querySelector('.failure').textContent")
    page.problems.clear()  # the browser reports the 400 as well
    page.type("Short")
    page.press(*_ENTER)
    page.wait_for("document.querySelectorAll('.figures')[3].textContent.includes('first token')")


def test_model_text_stays_text(page: Page) -> None:
    source = (
        "Hi <img src=x onerror=alert(1)> **bold** `a < b`\\n\\n"
        "```js\\nlet x = '</code>';\\n```\\n- one\\n- two"
    )
    html = page.run(
        "import('/static/render.js').then(({ render }) => { const box = document.createElement('div');"
        f' render(box, "{source}"); return box.innerHTML; }})'
    )
    assert html == (
        "<p>Hi &lt;img src=x onerror=alert(1)&gt; <strong>bold</strong> <code>a &lt; b</code></p>"
        "<pre><code>let x = '&lt;/code&gt;';</code></pre><ul><li>one</li><li>two</li></ul>"
    )
