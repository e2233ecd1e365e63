"""Calls where the marks around them are control tokens, as models that are trained to call have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duologue import Engine, SamplingParams
from duologue.dialogue.tool_format import ToolFormat, find_tool_format
from duologue.models.random_model import write_random_llama
from tests.engine.driving import Listener
from tests.engine.oracle import OracleSpeculation
from tests.server.conftest import RunningServer, running_server
from tests.server.test_completions import stream
from tests.server.test_tools import TIME, WEATHER, check_call
from tests.server.tool_template import HERMES, give_template

_SHOWN = "{% if tools %}{{ tools | tojson }}{% endif %}"
_PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n"
_FORMATS = {
    "hermes": (HERMES, ("<tool_call>", "</tool_call>")),
    "mistral": (_SHOWN + _PLAIN + "{% if false %}[TOOL_CALLS]{% endif %}", ("[TOOL_CALLS]",)),
    "llama3": (_SHOWN + _PLAIN + "{% if false %}ipython{% endif %}", ("<|python_tag|>",)),
}


def give_control_tokens(folder: Path, spellings: tuple[str, ...]) -> None:
    """The last tokens of a random model's vocabulary become control tokens."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    model = tokenizer["model"]
    for spelling in spellings:
        last = "".join(model["merges"].pop())
        token = model["vocab"].pop(last)
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": token, "content": spelling})
    file.write_text(json.dumps(tokenizer))


@pytest.fixture(scope="module", params=list(_FORMATS))
def marked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    template, spellings = _FORMATS[request.param]
    folder = write_random_llama(tmp_path_factory.mktemp("marks") / request.param, kv_heads=2, seed=3)
    give_control_tokens(folder, spellings)
    give_template(folder, template)
    with (
        Engine.load(folder, kv_memory_bytes=8 << 20, threads=1, speculation_tokens=6) as engine,
        running_server(engine) as server,
    ):
        assert set(spellings) <= set(engine.tokenizer.special_tokens)
        assert found_format(engine).name == request.param
        yield server


def found_format(engine: Engine) -> ToolFormat:
    found = find_tool_format(engine.template)
    assert found is not None
    return found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_one(marked: RunningServer, choice: Any) -> None:
    fields = {
        "tools": [WEATHER, TIME],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 300,
    }
    response = marked.post(seed=4, **fields)
    assert response.status_code == 200, response.text
    reply = response.json()["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    assert reply["message"]["content"] is None
    (call,) = reply["message"]["tool_calls"]
    check_call(call)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(marked, seed=4, **fields)]
    assert not any(delta.get("content") for delta in deltas)
    pieces = [piece["function"] for delta in deltas for piece in delta.get("tool_calls", [])]
    assert "".join(piece["arguments"] for piece in pieces) == call["function"]["arguments"]


def test_several_tokens_at_once_spell_the_same_text(marked: RunningServer) -> None:
    engine = marked.engine
    made = found_format(engine)
    grammar = made.grammar([TIME], engine.tokenizer, one=True)
    shown = made.control_ids(engine.tokenizer)
    params = SamplingParams(temperature=0.0, max_tokens=250, grammar=grammar)
    ids = engine.tokenizer.encode("Hello")
    plain = Listener()
    engine.submit(ids, params, plain, shown_ids=shown)
    assert plain.last().finish_reason == "stop"
    tokens = [token for event in plain.events for token in event.token_ids]
    text = "".join(event.text for event in plain.events)
    kept = [token for token in tokens if token not in engine.tokenizer.eos_ids]
    assert text == engine.tokenizer.decode(kept, skip_special=False)
    assert text.startswith(made.markers.open)
    scheduler, together = engine._scheduler, 0
    usual = scheduler.speculation
    for seed in range(8):
        number = engine._next_number
        scheduler.speculation = OracleSpeculation(
            engine.cache, 6, {number: [*ids, *tokens]}, vocab=engine.spec.vocab_size, seed=seed, spoil=0.0
        )
        drafted = Listener()
        engine.submit(ids, params, drafted, shown_ids=shown)
        assert drafted.last().finish_reason == "stop"
        scheduler.speculation = usual
        assert "".join(event.text for event in drafted.events) == text
        several = [event.token_ids for event in drafted.events if len(event.token_ids) > 1]
        assert several
        together += sum(not shown.isdisjoint(token_ids) for token_ids in several)
    assert together > 0 or not made.markers.close  # an opening mark comes first, and alone


def test_other_replies_do_not_spell_the_marks(marked: RunningServer) -> None:
    engine = marked.engine
    marks = sorted(found_format(engine).control_ids(engine.tokenizer))
    bias = {str(token): 100 for token in marks}
    if not marks:
        return
    reply = marked.post(max_tokens=5, logit_bias=bias).json()["choices"][0]
    assert reply["message"]["content"] == ""
    with_tools = marked.post(max_tokens=5, logit_bias=bias, tools=[WEATHER]).json()["choices"][0]
    assert any(
        engine.tokenizer.special_tokens[s] in marks and s in with_tools["message"]["content"]
        for s in engine.tokenizer.special_tokens
    )
