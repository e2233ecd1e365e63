"""The page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue import Engine
from duologue.api.keys import KeyEntry, append_key, key_digest, new_key
from duologue.api.tenants import KeyFileTenants
from tests.server.chromium import EXECUTABLE, Page
from tests.server.conftest import RunningServer, running_server, unique

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
    # A random model may end its reply with the first token, which has no speed.
    page.wait_for(
        "document.querySelectorAll('.figures')[1].textContent.includes('tokens/s')"
        " || document.getElementById('stop').hidden"
    )
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


def bars(page: Page) -> list[dict[str, object]]:
    """The numbers in words, and the widths of memory and computed, of each reply's bar."""
    return list(
        page.run(
            "[...document.querySelectorAll('.prompt')].map(box => ({ words: box.querySelector('.legend').innerText,"
            " title: box.querySelector('.bar').title, widths: Object.fromEntries([...box.querySelectorAll('.bar span')]"
            ".map(part => [part.className, part.getBoundingClientRect().width])) }))"
        )
    )


def test_each_prompt_is_a_bar_of_what_was_stored_and_what_was_computed(page: Page) -> None:
    for turn in (1, 2):
        page.type(f"{unique()} and then some more words to make a prompt")
        page.press(*_ENTER)
        page.wait_for(f"document.querySelectorAll('.assistant').length === {turn}")
        page.wait_for(f"document.querySelectorAll('.prompt').length === {turn}")
    first, second = bars(page)
    assert re.search(r"Prompt \d+ tokens:\s*\d+ from memory\s*\d+ computed", str(first["words"]))
    memory, computed = map(
        int, re.findall(r"(\d+) (?:from memory|computed)", str(second["words"]).replace(",", ""))
    )
    assert memory > 0
    assert computed > 0
    widths = second["widths"]
    assert isinstance(widths, dict)
    assert widths["memory"] / widths["computed"] == pytest.approx(memory / computed, rel=0.1)
    assert "came from memory" in str(second["title"])


def test_a_key_is_asked_for_and_kept_for_the_tab(tiny_engine: Engine, tmp_path: Path) -> None:
    good = new_key()
    append_key(tmp_path / "keys", KeyEntry(key_digest(good), "acme"))
    page = Page(tmp_path / "profile")
    with running_server(tiny_engine, tenants=KeyFileTenants(tmp_path / "keys")) as server:
        page.open(server.url)
        page.wait_for("!document.getElementById('access').hidden")
        page.wait_for("document.activeElement.id === 'key'")
        page.type("wrong")
        page.press(*_ENTER)
        page.wait_for("document.getElementById('access-fault').textContent.includes('does not know')")
        page.type(good)
        page.press(*_ENTER)
        page.wait_for(f"document.getElementById('model').textContent === '{tiny_engine.model_name}'")
        assert page.run("document.getElementById('access').hidden")
        page.run("document.getElementById('text').focus()")
        page.type("Hello")
        page.press(*_ENTER)
        page.wait_for("document.querySelectorAll('.figures').length === 2")
        page.wait_for("document.querySelectorAll('.figures')[1].textContent.includes('first token')")
        page.open(server.url)
        page.wait_for(f"document.getElementById('model').textContent === '{tiny_engine.model_name}'")
        page.close()


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
