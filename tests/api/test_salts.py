"""Salts: the same in every process, and different for whoever must not share."""

from __future__ import annotations

import itertools

from duologue.api.salts import SALT_BYTES, cache_salt


def test_salts_are_the_same_in_every_process() -> None:
    # Stored KV and other servers depend on these values.
    assert cache_salt("").hex() == "f8682321d28d7c28a86fd4d822bcc69bdb2a3c6e58104da8c552d465329acf57"
    assert cache_salt("acme").hex() == "24159ea71919a4e6631ec19443f610e5a2f153d1a508faeede1ea1703457d91b"
    assert (
        cache_salt("acme", "user-7").hex()
        == "228b8c51f8df21bbca59d5559026c7cce87509d20b1412e4b46d3ac09df9e29a"
    )


def test_no_two_pairs_share_a_salt() -> None:
    names = ["", "a", "ab", "acme", "a.b"]
    salts = [None, "", "a", "b", "ab", "acme", "\x01", "\x00", "é", "e\u0301"]
    made = {cache_salt(tenant, salt) for tenant, salt in itertools.product(names, salts)}
    assert len(made) == len(names) * len(salts)
    assert {len(salt) for salt in made} == {SALT_BYTES}


def test_a_client_cannot_reach_another_tenant_s_salt() -> None:
    for forged in ("acme", cache_salt("acme").hex(), cache_salt("acme").decode("latin-1"), "\x01acme"):
        assert cache_salt("other", forged) not in (cache_salt("acme"), cache_salt("acme", forged))
