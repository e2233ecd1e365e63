"""The page's files: complete, self-contained, and under a strict policy."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

import duologue.server.page
from tests.server.conftest import RunningServer

_FOLDER = Path(duologue.server.page.__file__).parent / "static"


def test_the_page_and_everything_it_refers_to(served: RunningServer) -> None:
    page = httpx.get(served.url)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in page.text
    assert not re.search(r"\son\w+=|style=|<script(?![^>]*src=)", page.text)
    assert "require-trusted-types-for 'script'" in policy
    paths = set(re.findall(r'(?:href|src)="(/[^"]+)"', page.text))
    todo = [path for path in paths if path.endswith(".js")]
    while todo:
        source = httpx.get(served.url + todo.pop().lstrip("/")).text
        found = {"/static/" + name for name in re.findall(r'from "\./([^"]+)"', source)} - paths
        paths |= found
        todo += found
    # What the page refers to is what there is: nothing is missing, and nothing lies about unused.
    assert paths == {"/static/" + path.name for path in _FOLDER.iterdir() if path.name != "page.html"}
    for path in paths:
        response = httpx.get(served.url + path.lstrip("/"))
        assert response.status_code == 200, path
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[path.rsplit(".", 1)[1]]
        assert response.headers["content-type"].split(";")[0] == kind
        assert response.headers["content-security-policy"] == policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", response.text), path
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", response.text), path


def test_every_id_that_a_script_asks_for_is_in_the_page_once(served: RunningServer) -> None:
    ids = re.findall(r'\sid="([^"]+)"', httpx.get(served.url).text)
    assert len(ids) == len(set(ids))
    for path in _FOLDER.glob("*.js"):
        asked = set(re.findall(r'\bat\("([^"]+)"\)', path.read_text()))
        assert asked <= set(ids), path.name


def test_an_unchanged_file_is_not_sent_again(served: RunningServer) -> None:
    first = httpx.get(served.url)
    again = httpx.get(served.url, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(served.url, headers={"if-none-match": '"other"'}).status_code == 200
    among = {"if-none-match": '"other", W/' + first.headers["etag"]}
    assert httpx.get(served.url, headers=among).status_code == 304


def test_head_has_no_body(served: RunningServer) -> None:
    response = httpx.head(served.url)
    assert response.status_code == 200
    assert response.content == b""
