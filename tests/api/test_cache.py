"""Cache keys in paths, and the objects of `/v1/cache`."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from duologue.api.cache import deletion_object, key_in_path, lookup_object
from duologue.api.errors import error_response
from duologue.errors import InvalidRequestError


@pytest.mark.parametrize("key", ["a", "a/b", "..", "Gespräch 7", "?#%", "日本語😀", "k" * 1024])
def test_keys_survive_their_encoding(key: str) -> None:
    assert key_in_path(quote(key, safe="").encode()) == key


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"%FF%FE", "not UTF-8"),
        (b"\xff", "not UTF-8"),
        (b"%ED%A0%80", "not UTF-8"),  # half of a surrogate pair
        (b"a%00b", "control characters"),
        (b"a%0Ab", "control characters"),
        (b"k" * 1025, "1,025 characters"),
        (b"k" * (1 << 20), "1,048,576 characters"),
    ],
)
def test_keys_that_cannot_be(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        key_in_path(raw)
    response = error_response(caught.value)
    assert (response.status, response.param, response.code) == (400, "key", "invalid_value")
    assert says in response.message
    assert len(response.message) < 200


def test_the_objects() -> None:
    assert lookup_object("m", 10, 4, 64) == {
        "object": "cache.lookup",
        "model": "m",
        "prompt_tokens": 10,
        "matched_tokens": 4,
        "matched_tokens_details": {"memory": 4},
        "page_tokens": 64,
    }
    assert deletion_object(None, 2, 100) == {
        "object": "cache.deleted",
        "key": None,
        "deleted": True,
        "pages": 2,
        "tokens": 100,
    }
