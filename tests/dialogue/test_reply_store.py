from __future__ import annotations

import threading
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import PromptDigest, ReplyStore, prompt_digest
from duologue.dialogue.tokenizer import Tokenizer
from tests.dialogue.recut import recut


@pytest.fixture(scope="module")
def pieces(smollm2: Tokenizer) -> PieceEncoder:
    return PieceEncoder(smollm2)


@pytest.fixture
def replies(pieces: PieceEncoder) -> ReplyStore:
    return ReplyStore(pieces)


def found(
    replies: ReplyStore, text: str, prompt: tuple[int, ...] = (), salt: bytes = b""
) -> list[int] | None:
    ids = replies.find(salt, text, prompt_digest(prompt))
    return None if ids is None else ids.tolist()


def test_the_digest_of_a_prompt_is_of_its_ids_alone() -> None:
    ids = [5, 70_000, 1]
    grown = PromptDigest()
    grown.update(array("i", ids[:1]))
    forms = (ids, tuple(ids), array("i", ids), np.array(ids, dtype=np.int32), np.array(ids))
    assert {prompt_digest(form) for form in forms} == {grown.after(array("i", ids[1:]))}
    assert prompt_digest(ids) != prompt_digest(ids[:2])


def test_a_reply_cut_by_a_stop_string_keeps_its_ids_as_far_as_they_were_shown(
    smollm2: Tokenizer, replies: ReplyStore
) -> None:
    ids = recut(smollm2, "It is so, my friend. END of it")
    shown = "It is so, my friend. E"
    replies.remember(b"", [], shown, ids)
    kept = found(replies, shown)
    assert kept is not None
    assert smollm2.decode(kept) == shown
    common = next(i for i, pair in enumerate(zip(kept, ids, strict=False)) if pair[0] != pair[1])
    assert len(smollm2.decode(ids[: common + 1])) > len(shown)


@settings(deadline=None, max_examples=200)
@given(
    text=st.text("aé\U0001f600 \n<|im_end|>", min_size=1, max_size=12),
    cut=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_stored_ids_always_spell_what_was_shown(
    smollm2: Tokenizer, pieces: PieceEncoder, text: str, cut: int, seed: int
) -> None:
    replies = ReplyStore(pieces)
    ids = recut(smollm2, text, seed)
    shown = smollm2.decode(ids)[:cut]
    replies.remember(b"", [], shown, ids)
    kept = found(replies, shown)
    if kept is not None:
        assert smollm2.decode(kept) == shown
    else:
        first = smollm2.decode(ids[:1])
        assert not shown.strip() or not shown.startswith(first) or "\ufffd" in first


def test_a_reply_that_ends_within_a_character(smollm2: Tokenizer, replies: ReplyStore) -> None:
    ids = [*smollm2.encode("Look: "), *smollm2.encode("\U0001f600")[:1]]
    text = smollm2.decode(ids)
    assert text.endswith("\ufffd")
    replies.remember(b"", [], text, ids)
    assert found(replies, text) == ids


def test_what_is_not_kept(smollm2: Tokenizer, replies: ReplyStore) -> None:
    replies.remember(b"", [], " \n", smollm2.encode(" \n"))
    replies.remember(b"", [], "", [])
    replies.remember(b"", [], "abc", smollm2.encode("xyz"))
    assert len(replies) == 0
    assert replies.used_bytes == 0


@pytest.mark.parametrize(
    ("asked", "same"),
    [(" \n Hi \n", True), ("Hi", True), (" Hi", True), ("Hi \n", True), ("Hi\n", False), ("\nHi", False),
     ("  Hi", False), ("hi", False), (" \n Hi \n ", False)],
)  # fmt: skip
def test_trimming_is_not_changing(smollm2: Tokenizer, replies: ReplyStore, asked: str, same: bool) -> None:
    text = " \n Hi \n"
    replies.remember(b"", [], text, recut(smollm2, text))
    assert (found(replies, asked) is not None) == same
    assert (found(replies, asked, (9,)) is not None) == same
    assert replies.knows(b"", asked) == (asked != "hi")


def test_the_same_prompt_beats_newer_and_more_exact_text(smollm2: Tokenizer, replies: ReplyStore) -> None:
    replies.remember(b"", [1], "Hi ", recut(smollm2, "Hi ", 1))
    for other in range(2, 30):
        replies.remember(b"", [other], "Hi", [*smollm2.encode("H"), *smollm2.encode("i")])
    assert found(replies, "Hi", (1,)) == recut(smollm2, "Hi ", 1)
    assert found(replies, "Hi", (99,)) == [*smollm2.encode("H"), *smollm2.encode("i")]


def test_forgetting(smollm2: Tokenizer, replies: ReplyStore) -> None:
    ids = smollm2.encode("Hi")
    for salt, prompt, key in (
        (b"a", 1, "k"),
        (b"a", 2, "k"),
        (b"a", 2, "other"),
        (b"b", 1, "k"),
        (b"a", 3, None),
    ):
        replies.remember(salt, [prompt], "Hi", ids, key)
    assert len(replies) == 4
    replies.forget_key(b"a", "k")
    assert len(replies) == 3
    replies.forget_key(b"a", "other")
    assert len(replies) == 2
    replies.forget(b"a")
    assert found(replies, "Hi", (1,), b"a") is None
    assert not replies.knows(b"a", "Hi")
    assert found(replies, "Hi", (1,), b"b") == ids
    replies.forget(b"b")
    replies.forget(b"never seen")
    assert (len(replies), replies.used_bytes) == (0, 0)


def test_the_budget_holds_and_the_least_recently_used_go(smollm2: Tokenizer, pieces: PieceEncoder) -> None:
    replies = ReplyStore(pieces, budget_bytes=20_000)
    ids = smollm2.encode("Hi")
    replies.remember(b"", [], "kept", ids * 0 or smollm2.encode("kept"))
    for number in range(200):
        replies.remember(b"", [], f"reply {number}", smollm2.encode(f"reply {number}"))
        assert replies.used_bytes <= 20_000
        assert found(replies, "kept") is not None
    assert 10 < len(replies) < 40
    assert not replies.knows(b"", "reply 0")
    assert replies.knows(b"", "reply 199")
    huge = "word " * 10_000
    replies.remember(b"", [], huge, smollm2.encode(huge))
    assert not replies.knows(b"", huge)
    assert found(replies, "kept") is not None
    assert len(ReplyStore(pieces, budget_bytes=0)) == 0


def test_threads_remember_find_and_forget_at_once(smollm2: Tokenizer, pieces: PieceEncoder) -> None:
    replies = ReplyStore(pieces, budget_bytes=30_000)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                text = f"reply {i % 50}"
                replies.remember(b"s", [number], text, smollm2.encode(text), str(number))
                kept = replies.find(b"s", text, prompt_digest([number]))
                assert kept is None or smollm2.decode(kept.tolist()) == text
                if i % 40 == 0:
                    replies.forget_key(b"s", str(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert replies.used_bytes <= 30_000
    replies.forget(b"s")
    assert (len(replies), replies.used_bytes) == (0, 0)


def test_piece_encoder_gives_what_the_tokenizer_gives(smollm2: Tokenizer, corpus: list[str]) -> None:
    small = PieceEncoder(smollm2, budget_bytes=2_000)
    for text in corpus[:100] * 2:
        assert small.encode(text).tolist() == smollm2.encode(text)
