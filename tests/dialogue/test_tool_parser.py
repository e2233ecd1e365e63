"""Calls out of a reply's text: however it is cut, the same calls and text come out, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.dialogue.tool_parser import CallMarkers, ToolCallParser

_HERMES = CallMarkers("<tool_call>", "</tool_call>")
_MISTRAL = CallMarkers("[TOOL_CALLS]", in_list=True)
_LLAMA = CallMarkers("")
_TWO = (
    'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": "}{\\"", "b": {"c": [1]}}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {"x": 1}, "name": "g"}\n</tool_call>'
)


def read(markers: CallMarkers, pieces: list[str], **options: int) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser(markers, "fg", **options)
    text, calls = "", []
    for item in [*(item for piece in pieces for item in parser.push(piece)), *parser.flush()]:
        if isinstance(item, str):
            text += item
        elif item.name is not None:
            assert item.number == len(calls)
            calls.append((item.name, item.arguments))
        else:
            name, arguments = calls[item.number]
            calls[item.number] = (name, arguments + item.arguments)
    assert parser.count == len(calls)
    return text, calls


@pytest.mark.parametrize(
    ("markers", "reply", "text", "calls"),
    [
        (_HERMES, _TWO, "Well.\n", [("f", '{"a": "}{\\"", "b": {"c": [1]}}'), ("g", '{"x": 1}')]),
        (_HERMES, "<tool_call>\nnot json</tool_call> x", "<tool_call>\nnot json</tool_call> x", []),
        (_HERMES, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        (_HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
        (_HERMES, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_c', "", [("f", "{}")]),
        (_HERMES, '<tool_call>{"na', '<tool_call>{"na', []),
        (_HERMES, '<tool_call>{"name": "f", "arguments": "{}"}', "", [("f", "{}")]),
        (_HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (_HERMES, " a < b <tool", " a < b <tool", []),
        (_HERMES, "  \n", "  \n", []),
        (
            _MISTRAL,
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        (_MISTRAL, "hi [TOOL_CALLS] what", "hi [TOOL_CALLS] what", []),
        (
            _LLAMA,
            '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        (_LLAMA, 'hello {"name": "f"}', 'hello {"name": "f"}', []),
        (_LLAMA, '{"a": 1} rest', '{"a": 1} rest', []),
        (_LLAMA, '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', []),
        (_LLAMA, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
        (_LLAMA, '{"name": "f"} so', '{"name": "f"} so', []),
        (_LLAMA, '{"parameters": {}, "name": "Ada"}', '{"parameters": {}, "name": "Ada"}', []),
        (_LLAMA, '{"parameters": {}, "name": "g"}', "", [("g", "{}")]),
        (_HERMES, '<tool_call>{"name": "other", "arguments": {}}', "", [("other", "{}")]),
    ],
)
def test_replies_cut_anywhere(
    markers: CallMarkers, reply: str, text: str, calls: list[tuple[str, str]]
) -> None:
    for size in (1, 2, 3, 7, len(reply)):
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        assert read(markers, pieces) == (text, calls), size


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCallParser(_HERMES, "fg")
    list(parser.push('<tool_call>\n{"name": "f", "arguments": {"a'))
    (more,) = parser.push('": 12')
    assert (more.number, more.name, more.arguments) == (0, None, '": 12')  # type: ignore[union-attr]


def test_calls_that_were_not_asked_for_are_dropped() -> None:
    first = [("f", '{"a": "}{\\"", "b": {"c": [1]}}')]
    for size in (1, 5, 500):
        reply = _TWO + "\nThat is <b>all</b>."
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        assert read(_HERMES, pieces, max_calls=1) == ("Well.\n\nThat is <b>all</b>.", first)
    two = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": [1]}}] Done.'
    assert read(_MISTRAL, [two], max_calls=1) == ("Done.", [("f", "{}")])


@pytest.mark.parametrize("opening", ['{"a":', '{"name": "f", "x": [', '{"arguments": ' + '{"a":'])
@pytest.mark.parametrize("markers", [_HERMES, _MISTRAL, _LLAMA])
def test_nesting_without_end_is_text(markers: CallMarkers, opening: str) -> None:
    head, _, inner = opening.rpartition("{") if opening.endswith(":") else opening.rpartition("[")
    inner = ("{" if opening.endswith(":") else "[") + inner
    ends = "}" if opening.endswith(":") else "]"
    depth = 50_000
    reply = markers.open + head + inner * depth + "1" + ends * depth + "}" * head.count("{")
    assert read(markers, [reply]) == (reply, [])


@given(st.text(alphabet='<tool_cal>/{}"name: f,argumets\n1', max_size=60), st.integers(1, 9))
def test_any_text_is_given_back_or_called(reply: str, size: int) -> None:
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    text, calls = read(_HERMES, pieces)
    assert read(_HERMES, [reply]) == (text, calls)
    if not calls:
        assert text == reply
