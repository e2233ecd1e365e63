"""Whether a chat template is append-only: whether a prompt and its reply are the beginning of the next prompt.
Where they are not, what is cached of a dialogue ends there, and each turn computes the rest again.

The template is tried on small dialogues, the plainest first, and a construct is named by what a dialogue needed
to show it: one that differs from the plain one by tools points to the tools. Where the plain one fails already,
the place at which two prompts part has to show the construct, too. Dialogues are tried as they are sent: a
prompt ends where a reply begins. What a template refuses to render is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import TemplateError

_Message: TypeAlias = dict[str, Any]
_Tools: TypeAlias = "Sequence[Mapping[str, Any]] | None"

_TURNS = 6
_TIMES = datetime(2026, 1, 2, 3, 4, 5), datetime(2031, 11, 19, 16, 47, 58)  # a Friday and a Wednesday
_TOOLS: _Tools = [
    {
        "type": "function",
        "function": {
            "name": "zx_lookup",
            "description": "Looks a zx up.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        },
    }
]


class Construct(str, Enum):
    """What in a template keeps prompts from growing at their end only."""

    DATE = "date"
    LAST_MESSAGE = "last_message"
    GENERATION_PROMPT = "generation_prompt"
    SYSTEM = "system"
    TOOLS = "tools"
    TOOL_CALLS = "tool_calls"
    REASONING = "reasoning"
    TOKENS = "tokens"


_WARNINGS = {
    Construct.DATE: "writes the current time ({detail}) into the prompt; whenever it changes, everything after "
    "it is computed again in every dialogue",
    Construct.LAST_MESSAGE: "writes a message otherwise when it is the last one ({detail}); each turn computes "
    "the previous reply again",
    Construct.GENERATION_PROMPT: "begins a reply otherwise than it shows it later ({detail}); each turn computes "
    "the previous reply again",
    Construct.SYSTEM: "moves the system message as the dialogue grows ({detail}); each turn computes what lies "
    "between its old and its new place again",
    Construct.TOOLS: "moves the list of tools as the dialogue grows ({detail}); each turn with tools computes "
    "what lies between its old and its new place again",
    Construct.TOOL_CALLS: "writes tool calls or their results otherwise later on ({detail}); the turn after a "
    "tool call computes that call again",
    Construct.REASONING: "leaves out or changes the reasoning (<think>) of earlier replies ({detail}); each turn after a "
    "reply with reasoning computes that reply again",
    Construct.TOKENS: "joins a reply and the text next to it into common tokens ({detail}); each turn computes "
    "the previous reply again",
}


@dataclass(frozen=True)
class TemplateFinding:
    """One way in which a template is not append-only. `detail` quotes where two renderings part."""

    construct: Construct
    detail: str

    @property
    def warning(self) -> str:
        """One line for the log."""
        return "the model's chat template " + _WARNINGS[self.construct].format(detail=self.detail)


@dataclass(frozen=True)
class _Scenario:
    """A dialogue that shows `construct`: if it fails at all, or, where one of the `simpler` constructs makes it
    fail anyway, if `sign` is found where two prompts part."""

    construct: Construct
    messages: Sequence[_Message]
    tools: _Tools
    sign: str
    simpler: tuple[Construct, ...] = (Construct.LAST_MESSAGE, Construct.GENERATION_PROMPT)


def lint_template(source: str, tokenizer: Tokenizer, bos: str = "", eos: str = "") -> list[TemplateFinding]:
    """What keeps dialogues in this template from being cached to their end, in the order of `Construct`.

    `bos` and `eos` as for `ChatTemplate`. Raises `TemplateError` if the template does not compile.
    """
    found: dict[Construct, str] = {}
    partings: dict[Construct, _Parting] = {}
    clock = _Clock()
    template = ChatTemplate(source, bos, eos, strftime_now=clock.strftime)
    scenarios = _scenarios()
    for scenario in scenarios:
        detail = _date(template, clock, scenario)
        if detail is not None:
            found.setdefault(Construct.DATE, detail)
        for construct, parting in _growth(template, scenario):
            simpler = [partings[c] for c in scenario.simpler if c in partings]
            if construct not in partings and (not simpler or _is_other(scenario, parting, simpler)):
                partings[construct] = parting
                found[construct] = parting.quoted
    if not found.keys() & {Construct.LAST_MESSAGE, Construct.GENERATION_PROMPT}:
        detail = _token_growth(template, tokenizer, scenarios[0].messages)
        if detail is not None:
            found[Construct.TOKENS] = detail
    return [TemplateFinding(construct, found[construct]) for construct in Construct if construct in found]


@dataclass(frozen=True)
class _Parting:
    """`texts`: a prompt with its reply, and the prompt one turn later; equal up to `at`. `reply` is the place of
    the reply in the dialogue; `[begin, end)` the generation prompt."""

    texts: tuple[str, str]
    reply: int = 0
    begin: int = 0
    end: int = 0

    @cached_property
    def at(self) -> int:
        pairs = enumerate(zip(*self.texts, strict=False))
        return next((i for i, (one, other) in pairs if one != other), min(map(len, self.texts)))

    @property
    def in_generation_prompt(self) -> bool:
        return self.begin <= self.at < self.end

    @property
    def quoted(self) -> str:
        text, later = self.texts
        before = text[max(self.at - 24, 0) : self.at]
        end = self.at + 40
        return f"after {before!r} comes {text[self.at : end]!r}, one turn later {later[self.at : end]!r}"


def _is_other(scenario: _Scenario, parting: _Parting, simpler: Sequence[_Parting]) -> bool:
    """Whether prompts part for another reason than in simpler dialogues."""
    text, later = parting.texts
    if scenario.construct is Construct.REASONING:
        return _reasoning(parting.reply) not in later
    if parting.in_generation_prompt and any(other.in_generation_prompt for other in simpler):
        return False
    after = text[parting.at :][:8]
    for other in simpler:
        same = other.texts[0][other.at :][: len(after)]
        if after and after.startswith(same):
            return False
    return any(scenario.sign in t[max(parting.at - 100, 0) : parting.at + 300] for t in parting.texts)


class _Clock:
    """Stands still until it is set; remembers the patterns that were asked for."""

    def __init__(self) -> None:
        self.now = _TIMES[0]
        self.patterns: dict[str, None] = {}

    def strftime(self, pattern: str) -> str:
        self.patterns[pattern] = None
        return self.now.strftime(pattern)


def _date(template: ChatTemplate, clock: _Clock, scenario: _Scenario) -> str | None:
    texts = []
    for clock.now in _TIMES:
        texts.append(_render(template, scenario.messages, scenario.tools))
    clock.now = _TIMES[0]
    if None in texts or texts[0] == texts[1]:
        return None
    return ", ".join(f"strftime_now({pattern!r})" for pattern in clock.patterns)


def _growth(template: ChatTemplate, scenario: _Scenario) -> Iterator[tuple[Construct, _Parting]]:
    """Where a prompt with its reply is not the beginning of the prompt one turn later."""
    messages, tools = scenario.messages, scenario.tools
    replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    for at in replies:
        prompt = _render(template, messages[:at], tools)
        follow = next((i for i in replies if i > at), len(messages))
        later = _render(template, messages[:follow], tools)
        if prompt is None or later is None:
            continue
        if not later.startswith(prompt + messages[at]["content"]):
            bare = _render(template, messages[:at], tools, add_generation_prompt=False) or prompt
            texts = prompt + messages[at]["content"], later
            construct = scenario.construct
            if construct is Construct.LAST_MESSAGE and later.startswith(bare):
                construct = Construct.GENERATION_PROMPT
            yield construct, _Parting(texts, at, len(bare), len(prompt))


def _token_growth(template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[_Message]) -> str | None:
    pieces = PieceEncoder(tokenizer, budget_bytes=1 << 20)
    replies = ReplyStore(pieces, budget_bytes=1 << 20)
    before: list[int] = []
    for at in (*(i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages)):
        try:
            encoded = encode_dialogue(template, pieces, messages[:at], replies=replies)
        except TemplateError:
            continue
        ids = encoded.ids.tolist()
        if ids[: len(before)] != before:
            texts = (tokenizer.decode(before, skip_special=False), tokenizer.decode(ids, skip_special=False))
            return _Parting(texts).quoted
        if at < len(messages):
            # Letter by letter, as no tokenizer would do it, so that only a splice gives the same ids.
            reply = [i for letter in messages[at]["content"] for i in tokenizer.encode(letter)]
            replies.remember(b"", ids, tokenizer.decode(reply), reply)
            before = ids + reply
    return None


def _render(
    template: ChatTemplate, messages: Sequence[_Message], tools: _Tools, add_generation_prompt: bool = True
) -> str | None:
    try:
        return template.render(messages, add_generation_prompt, tools)
    except TemplateError:
        return None


def _reasoning(place: int) -> str:
    return f"zr{place}z"


def _scenarios() -> list[_Scenario]:
    plain: list[_Message] = []
    for turn in range(_TURNS):
        plain.append({"role": "user", "content": f"Question number {turn}?"})
        plain.append({"role": "assistant", "content": f"Reply number {turn}."})
    plain.append({"role": "user", "content": "And then?"})
    system: _Message = {"role": "system", "content": "Zs is the system."}
    calls = list(plain)
    arguments = {"name": "zc"}
    call = {"id": "callzc000", "type": "function", "function": {"name": "zx_lookup", "arguments": arguments}}
    calls[3:3] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "zc is here", "tool_call_id": "callzc000", "name": "zx_lookup"},
    ]
    reasoning = [
        {**m, "content": f"<think>\n{_reasoning(i)}\n</think>\n\n{m['content']}"}
        if m["role"] == "assistant"
        else m
        for i, m in enumerate(plain)
    ]
    with_tools = (Construct.LAST_MESSAGE, Construct.GENERATION_PROMPT, Construct.TOOLS)
    return [
        _Scenario(Construct.LAST_MESSAGE, plain, None, "", ()),
        _Scenario(Construct.SYSTEM, [system, *plain], None, "Zs"),
        _Scenario(Construct.TOOLS, plain, _TOOLS, "zx"),
        _Scenario(Construct.TOOL_CALLS, calls, _TOOLS, "zc", with_tools),
        _Scenario(Construct.REASONING, reasoning, None, ""),
    ]
