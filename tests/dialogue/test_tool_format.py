"""Which format a template writes calls in."""

from __future__ import annotations

import pytest

from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tool_format import find_tool_format

_SHOWN = "{% if tools %}{{ tools | tojson }}{% endif %}"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ messages[0].content }}", None),
        (_SHOWN, None),
        (_SHOWN + "<tool_call>", "hermes"),
        ("<tool_call>", None),
        (_SHOWN + "<tool_call><function=f>", None),
        (_SHOWN + "[TOOL_CALLS]", "mistral"),
        (_SHOWN + "[TOOL_CALLS]f[ARGS]", None),
        (_SHOWN + "<|python_tag|>", "llama3"),
    ],
)
def test_a_format_is_told_by_the_source(source: str, name: str | None) -> None:
    found = find_tool_format(ChatTemplate(source))
    assert (found and found.name) == name
