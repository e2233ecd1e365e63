from __future__ import annotations

import pytest

from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.template_lint import Construct, TemplateFinding, lint_template
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import TemplateError
from tests.dialogue.test_template import CHATML

CONTENT = "m['content']"
TOOL_LIST = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
NOT_APPEND_ONLY = {
    # As in Llama 3.2: the day, in the system message.
    "date": (Construct.DATE, "{{ strftime_now('%d %b %Y') }}" + CHATML),
    # As in Qwen3: reasoning is shown after the last user message only.
    "reasoning": (Construct.REASONING, CHATML.replace(CONTENT, f"{CONTENT}.split('</think>')[-1].strip()")),
    # As in Mistral: the system message and the tools stand before the last user message.
    "system": (
        Construct.SYSTEM,
        "{% set ns = namespace(system='') %}{% if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}"
        "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if loop.last and m.role == 'user' %}"
        "{{ ns.system }}{% endif %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
    ),
    "tools": (
        Construct.TOOLS,
        "{% for m in messages %}{% if loop.last and m.role == 'user' %}" + TOOL_LIST + "{% endif %}"
        "{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
    ),
    "tool_calls": (
        Construct.TOOL_CALLS,
        CHATML.replace(
            "{% for m in messages %}", "{% for m in messages %}{% if m.role != 'tool' or loop.last %}"
        ).replace("{% endfor %}", "{% endif %}{% endfor %}"),
    ),
    "last_message": (
        Construct.LAST_MESSAGE,
        CHATML.replace(CONTENT, f"{CONTENT} + (' (last)' if loop.last else '')"),
    ),
    "generation_prompt": (Construct.GENERATION_PROMPT, CHATML.replace("assistant\n", "assistant\n<think>\n")),
}


@pytest.mark.parametrize("name", NOT_APPEND_ONLY)
def test_each_construct_is_named_and_no_other(smollm2: Tokenizer, name: str) -> None:
    construct, source = NOT_APPEND_ONLY[name]
    findings = lint_template(source, smollm2)
    assert [finding.construct for finding in findings] == [construct]
    warning = findings[0].warning
    assert warning.startswith("the model's chat template ")
    assert "\n" not in warning
    assert "comput" in warning


def test_the_warning_quotes_what_changes(smollm2: Tokenizer) -> None:
    (date,) = lint_template(NOT_APPEND_ONLY["date"][1], smollm2)
    assert "strftime_now('%d %b %Y')" in date.warning
    (last,) = lint_template(NOT_APPEND_ONLY["last_message"][1], smollm2)
    assert "(last)" in last.warning


def test_two_constructs_are_two_findings(smollm2: Tokenizer) -> None:
    source = "{{ strftime_now('%H') }}" + CHATML.replace(
        CONTENT, f"{CONTENT}.split('</think>')[-1].strip()"
    ).replace("assistant\n", "assistant\n<think>\n")
    assert [finding.construct for finding in lint_template(source, smollm2)] == [
        Construct.DATE, Construct.GENERATION_PROMPT, Construct.REASONING
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        CHATML,
        "{{ '' if strftime_now('%d') else '' }}" + CHATML,
        TOOL_LIST + CHATML,
        CHATML.replace(CONTENT, f"({CONTENT} | trim)"),
        # As in Gemma: no system messages, and roles must alternate.
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
        "{{ raise_exception('nothing pleases it') }}",
    ],
)
def test_append_only_templates_are_clean(smollm2: Tokenizer, source: str) -> None:
    assert lint_template(source, smollm2) == []


def test_smollm2_is_clean(smollm2: Tokenizer, smollm2_template: ChatTemplate) -> None:
    assert lint_template(smollm2_template.source, smollm2, smollm2_template.bos, smollm2_template.eos) == []


def test_without_splices_the_tokens_would_not_be_append_only(
    smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.dialogue.reply_store.ReplyStore.knows", lambda *_: False)
    assert [finding.construct for finding in lint_template(CHATML, smollm2)] == [Construct.TOKENS]


def test_a_template_that_does_not_compile(smollm2: Tokenizer) -> None:
    with pytest.raises(TemplateError, match="line 1"):
        lint_template("{% if %}", smollm2)


def test_findings_compare_by_value() -> None:
    assert TemplateFinding(Construct.DATE, "x") == TemplateFinding(Construct.DATE, "x")
    assert TemplateFinding(Construct.DATE, "x") != TemplateFinding(Construct.TOOLS, "x")
