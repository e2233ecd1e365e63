"""Authentication: every wrong key is one 401, and a key file may change under a running server."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import duologue.api.tenants as module
from duologue.api.errors import HttpError, error_response
from duologue.api.keys import KeyFileError, key_digest
from duologue.api.tenants import ANONYMOUS, AnonymousTenants, KeyFileTenants


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    write(file, one="acme", two="beta")
    return file


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the file at every request instead of once a second."""
    monkeypatch.setattr(module, "_CHECK_INTERVAL_S", 0.0)


def write(file: Path, mode: int = 0o600, **tenants: str) -> None:
    file.write_text("".join(f"{key_digest(key).hex()} {tenant}\n" for key, tenant in tenants.items()))
    file.chmod(mode)


def test_bearer_keys_name_tenants(file: Path) -> None:
    tenants = KeyFileTenants(file)
    assert tenants.names == {"acme", "beta"}
    assert tenants.authenticate([b"Bearer one"]) == "acme"
    assert tenants.authenticate([b"bearer  two "]) == "beta"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [b""],
        [b"one"],
        [b"Bearer"],
        [b"Bearer "],
        [b"Basic one"],
        [b"Bearer three"],
        [b"Bearer one two"],
        [b"Bearer \xff\x00"],
        [b"Bearer one", b"Bearer two"],
        [b"Bearer " + b"x" * 100_000],
    ],
)
def test_everything_else_is_a_401(file: Path, headers: list[bytes]) -> None:
    with pytest.raises(HttpError) as caught:
        KeyFileTenants(file).authenticate(headers)
    response = error_response(caught.value)
    assert (response.status, response.type, response.param, response.code) == (
        401,
        "invalid_request_error",
        None,
        "invalid_api_key",
    )
    assert "three" not in response.message


def test_without_keys_there_is_one_tenant() -> None:
    tenants = AnonymousTenants()
    assert tenants.authenticate([]) == tenants.authenticate([b"Bearer anything"]) == ANONYMOUS
    assert tenants.names == {ANONYMOUS}


@pytest.mark.usefixtures("eager")
def test_a_changed_file_is_read_again(file: Path) -> None:
    tenants = KeyFileTenants(file)
    write(file, two="beta", three="gamma")
    assert tenants.authenticate([b"Bearer three"]) == "gamma"
    with pytest.raises(HttpError):
        tenants.authenticate([b"Bearer one"])
    file.write_text("")  # taking the last key away is a way to lock everyone out
    with pytest.raises(HttpError):
        tenants.authenticate([b"Bearer two"])


def test_changes_wait_for_the_next_look_or_a_reload(file: Path) -> None:
    tenants = KeyFileTenants(file)
    write(file, three="gamma")
    assert tenants.authenticate([b"Bearer one"]) == "acme"
    assert tenants.reload()
    assert tenants.authenticate([b"Bearer three"]) == "gamma"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("how", ["broken", "gone"])
def test_a_broken_file_leaves_the_keys_as_they_were(
    file: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    tenants = KeyFileTenants(file)
    if how == "broken":
        file.write_text("half of a li")
    else:
        file.unlink()
    for _ in range(3):
        assert tenants.authenticate([b"Bearer one"]) == "acme"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "one error for one broken file, not one per request"
    assert str(file) in errors[0].getMessage()
    assert not tenants.reload()
    write(file, three="gamma")
    assert tenants.authenticate([b"Bearer three"]) == "gamma"


def test_a_file_that_is_broken_at_the_start_is_an_error(file: Path) -> None:
    file.write_text("nonsense")
    with pytest.raises(KeyFileError):
        KeyFileTenants(file)


@pytest.mark.parametrize(
    ("mode", "says"),
    [(0o600, None), (0o640, None), (0o644, "read by everyone"), (0o622, "written by others")],
)
def test_open_permissions_are_warned_about(
    file: Path, mode: int, says: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    os.chmod(file, mode)
    KeyFileTenants(file)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert (says is None) == (warnings == [])
    if says is not None:
        assert says in warnings[0]
        assert "600" in warnings[0]


def test_a_file_without_keys_is_warned_about(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(file)
    tenants = KeyFileTenants(file)
    assert "holds no key" in caplog.text
    with pytest.raises(HttpError):
        tenants.authenticate([b"Bearer one"])
