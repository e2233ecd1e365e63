from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from duologue.dialogue.detokenizer import Detokenizer
from duologue.dialogue.tokenizer import Tokenizer

SMOLLM2_IDS = st.integers(0, 49151)


def stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@settings(deadline=None)
@given(st.lists(SMOLLM2_IDS), st.booleans())
def test_pieces_join_to_the_decoded_whole(smollm2: Tokenizer, ids: list[int], skip_special: bool) -> None:
    pieces = stream(smollm2, ids, skip_special=skip_special)
    assert "".join(pieces) == smollm2.decode(ids, skip_special=skip_special)


@settings(deadline=None)
@given(st.lists(st.integers(0, 255).map(lambda b: bytes((b,))), max_size=12))
@example([b"\xf0", b"\x9f", b"\x98"])
@example([b"\xed", b"\xa0", b"\x80", b"a"])
@example([b"\xc3", b"(", b"\xe2", b"\x82", b"\xac"])
def test_single_bytes_decode_as_python_replaces(
    smollm2: Tokenizer, smollm2_bytes: dict[bytes, int], data: list[bytes]
) -> None:
    kept = [byte for byte in data if byte in smollm2_bytes]
    joined = "".join(stream(smollm2, [smollm2_bytes[byte] for byte in kept]))
    assert joined == b"".join(kept).decode("utf-8", errors="replace")


def test_a_character_comes_out_whole_with_its_last_byte(smollm2: Tokenizer) -> None:
    for text in ("😀", "👨‍👩‍👧", "日本", "é", "한국어"):
        ids = smollm2.encode(text)
        pieces = stream(smollm2, ids)
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
    assert stream(smollm2, smollm2.encode("😀"))[0] == ""  # its first token is only a part of it


def test_an_unfinished_character_is_replaced_at_the_end(smollm2: Tokenizer) -> None:
    detokenizer = Detokenizer(smollm2)
    first = smollm2.encode("😀")[0]
    assert detokenizer.push(first) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert "".join(map(detokenizer.push, smollm2.encode("again"))) == "again"


def test_control_tokens_are_silent_unless_asked_for(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("a<|im_end|>b", parse_special=True)
    assert stream(smollm2, ids) == ["a", "", "b", ""]
    assert "".join(stream(smollm2, ids, skip_special=False)) == "a<|im_end|>b"
