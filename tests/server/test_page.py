"""The page's files: complete, self-contained, and under a strict policy."""

from __future__ import annotations

import re

import httpx

from tests.server.conftest import RunningServer


def test_the_page_and_everything_it_refers_to(served: RunningServer) -> None:
    page = httpx.get(served.url)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in page.text
    assert not re.search(r"\son\w+=|style=|<script(?![^>]*src=)", page.text)
    paths = set(re.findall(r'(?:href|src)="([^"]+)"', page.text))
    for script in [path for path in paths if path.endswith(".js")]:
        source = httpx.get(served.url + script.lstrip("/")).text
        paths |= {"/static/" + name for name in re.findall(r'from "\./([^"]+)"', source)}
    assert len(paths) == 7
    for path in paths:
        response = httpx.get(served.url + path.lstrip("/"))
        assert response.status_code == 200, path
        assert response.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", response.text), path


def test_an_unchanged_file_is_not_sent_again(served: RunningServer) -> None:
    first = httpx.get(served.url)
    again = httpx.get(served.url, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(served.url, headers={"if-none-match": '"other"'}).status_code == 200


def test_head_has_no_body(served: RunningServer) -> None:
    response = httpx.head(served.url)
    assert response.status_code == 200
    assert response.content == b""
