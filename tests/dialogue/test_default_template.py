"""The template of models without one."""

from __future__ import annotations

import pytest

from duologue.dialogue.default_template import DEFAULT_STOPS
from duologue.dialogue.encoder import DialogueEncoder
from duologue.dialogue.stop import StopMatcher
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.truncation import Truncation

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
    text = "User: Who are you?\nAssistant: A sailor.\nUser: And then?"
    assert template.render(DIALOGUE) == f"{text}\nAssistant:"
    assert template.render(DIALOGUE, add_generation_prompt=False) == text
    assert template.render([SYSTEM, *DIALOGUE]) == f"A talk by the sea.\n\n{text}\nAssistant:"
    late = template.render([*DIALOGUE, SYSTEM])
    assert late == f"{text}\nSystem: A talk by the sea.\nAssistant:"


def test_a_template_of_the_models_own_has_no_stops(smollm2: Tokenizer) -> None:
    own = ChatTemplate.for_tokenizer("{{ messages[0].content }}", smollm2)
    assert not own.is_default
    assert own.stops == ()


@pytest.mark.parametrize("end", ["\nUser: More", "\n\nUser: More", "\n\nAssistant: More", "\nSystem:"])
def test_a_reply_ends_at_the_next_speakers_name(end: str) -> None:
    matcher = StopMatcher(DEFAULT_STOPS)
    shown = "".join(matcher.push(letter)[0] for letter in f"Yes: the User: is\n\nright.{end}")
    assert shown == "Yes: the User: is\n\nright."


@pytest.mark.parametrize("trims", [False, True])
def test_a_dialogue_grows_at_its_end_only(smollm2: Tokenizer, trims: bool) -> None:
    template = ChatTemplate.for_tokenizer(None, smollm2)
    encoder = DialogueEncoder(template, smollm2, Truncation.of_context(4096))
    messages = [SYSTEM, DIALOGUE[0]]
    before: list[int] = []
    for reply in (" A sailor.", " I sail\n\nand sail.", " No."):
        encoded = encoder.encode(messages)
        ids = encoded.ids.tolist()
        assert ids[: len(before)] == before
        spelled = [i for letter in reply for i in smollm2.encode(letter)]  # as no tokenizer would do it
        encoder.remember(encoded, reply, spelled)
        before = ids + spelled
        sent_back = reply.strip() if trims else reply
        messages += [{"role": "assistant", "content": sent_back}, DIALOGUE[2]]
    assert smollm2.decode(before).endswith("\nUser: And then?\nAssistant: No.")
