"""The template of models without one."""

from __future__ import annotations

import pytest

from duologue.dialogue.default_template import DEFAULT_STOPS, DEFAULT_TEMPLATE
from duologue.dialogue.stop import StopMatcher
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.template_lint import lint_template
from duologue.dialogue.tokenizer import Tokenizer

SYSTEM = {"role": "system", "content": "A talk by the sea.\n"}
DIALOGUE = [
    {"role": "user", "content": " Who are you? "},
    {"role": "assistant", "content": "A sailor."},
    {"role": "user", "content": "And then?"},
]


def test_messages_stand_under_their_speakers_names(smollm2: Tokenizer) -> None:
    template = ChatTemplate.for_tokenizer(None, smollm2)
    assert template.is_default
    assert template.stops == DEFAULT_STOPS
    text = "User:\nWho are you?\n\nAssistant:\nA sailor.\n\nUser:\nAnd then?"
    assert template.render(DIALOGUE) == f"{text}\n\nAssistant:\n"
    assert template.render(DIALOGUE, add_generation_prompt=False) == text
    assert template.render([SYSTEM, *DIALOGUE]) == f"A talk by the sea.\n\n{text}\n\nAssistant:\n"
    late = template.render([*DIALOGUE, SYSTEM])
    assert late == f"{text}\n\nSystem:\nA talk by the sea.\n\nAssistant:\n"


def test_a_template_of_the_models_own_has_no_stops(smollm2: Tokenizer) -> None:
    own = ChatTemplate.for_tokenizer("{{ messages[0].content }}", smollm2)
    assert not own.is_default
    assert own.stops == ()


@pytest.mark.parametrize("end", ["\nUser:\nMore", "\n\nUser: More", "\n\nAssistant:\nMore", "\nSystem:"])
def test_a_reply_ends_at_the_next_speakers_name(end: str) -> None:
    matcher = StopMatcher(DEFAULT_STOPS)
    shown = "".join(matcher.push(letter)[0] for letter in f"Yes: the User: is\n\nright.{end}")
    assert shown == "Yes: the User: is\n\nright."


def test_it_can_be_cached_to_the_end(smollm2: Tokenizer) -> None:
    assert lint_template(DEFAULT_TEMPLATE, smollm2) == []
