from __future__ import annotations

from dataclasses import replace

import pytest

from duologue.bench.greedy_replies import GreedyReply, chat_prompts, measure_greedy
from duologue.bench.logit_reader import LogitReader
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import InvalidRequestError
from duologue.models.checkpoint import Checkpoint
from duologue.models.packed_model import PackedModel
from duologue.models.reference import reference_logits


def test_greedy_replies_are_judged_as_token_by_token(
    tiny_packed: PackedModel, tiny_checkpoint: Checkpoint
) -> None:
    prompts = chat_prompts()[:6]
    replies = measure_greedy(tiny_packed, tiny_checkpoint, prompts, threads=1)
    tokenizer = Tokenizer.from_bytes(tiny_packed.tokenizer)
    template = ChatTemplate.for_tokenizer(tiny_packed.chat_template or "", tokenizer)
    reader = LogitReader(tiny_packed, threads=1)
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = template.encode_chat(tokenizer, [{"role": "user", "content": prompt}])
        ours = reader.greedy(ids, 20)
        equal = 0
        for token in ours:
            logits = reference_logits(tiny_checkpoint.spec, tiny_checkpoint.weights, [*ids, *ours[:equal]])[
                -1
            ]
            if int(logits.argmax()) != token:
                assert reply.gap == pytest.approx(logits.max() - logits[token], abs=1e-4)
                break
            equal += 1
        assert (reply.prompt, reply.tokens, reply.equal_tokens) == (prompt, len(ours), equal)
        assert reply.is_equal == (equal == len(ours))


def test_near_ties() -> None:
    assert GreedyReply("p", 20, 3, 0.05).near_tie
    assert not GreedyReply("p", 20, 3, 0.5).near_tie
    assert not GreedyReply("p", 20, 20, None).near_tie


def test_a_model_without_a_template_is_asked_in_the_default_one(
    tiny_packed: PackedModel, tiny_checkpoint: Checkpoint
) -> None:
    (reply,) = measure_greedy(replace(tiny_packed, chat_template=None), tiny_checkpoint, ["Hi"])
    assert reply.tokens > 0


def test_a_prompt_longer_than_a_window_is_refused(tiny_packed: PackedModel) -> None:
    with pytest.raises(InvalidRequestError, match="1025 tokens exceed the 1024"):
        LogitReader(tiny_packed, threads=1).greedy([1] * 1025, 1)


def test_the_prompts_are_fifty_different_ones() -> None:
    assert len(set(chat_prompts())) == 50
