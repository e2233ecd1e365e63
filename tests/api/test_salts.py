"""Salts: the same in every process, and different for whoever must not share."""

from __future__ import annotations

import itertools

from duologue.api.salts import SALT_BYTES, SaltRegister, cache_salt


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


def test_a_register_knows_the_salts_of_each_tenant() -> None:
    register = SaltRegister()
    for tenant, salt in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("a", b"1")):
        assert register.note(tenant, salt) is None
    assert (register.of("a"), register.of("b"), register.of("c")) == ([b"1", b"2"], [b"1"], [])
    register.forget("a")
    assert (register.of("a"), register.of("b")) == ([], [b"1"])


def test_a_tenant_that_makes_up_salts_loses_its_own_oldest_only() -> None:
    register = SaltRegister(limit=3)
    register.note("quiet", b"q")
    gone = [register.note("loud", bytes([n % 7])) for n in range(20)]
    assert gone[:3] == [None] * 3
    assert all(salt is not None for salt in gone[3:])
    assert len(register.of("loud")) == 3
    assert register.of("quiet") == [b"q"]
    register.note("loud", register.of("loud")[-1])  # the oldest, used again, outlives the others
    kept = register.of("loud")[0]
    register.note("loud", b"x")
    assert kept in register.of("loud")
