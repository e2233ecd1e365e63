"""Greedy replies of the int8 engine, judged by the float model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from duologue.bench.logit_reader import LogitReader
from duologue.dialogue.template import ChatTemplate
from duologue.models.checkpoint import Checkpoint
from duologue.models.packed_model import PackedModel
from duologue.models.reference import head_logits, reference_hidden

REPLY_TOKENS = 20
"""Tokens of a greedy reply that are compared."""

NEAR_TIE = 0.1
"""A difference between logits below which the float model itself is all but undecided."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GreedyReply:
    """One prompt's greedy reply by the engine, judged by the float model.

    `equal_tokens` of `tokens` come before the first at which the float model would have chosen otherwise; `gap` is by how much
    its logit of its own choice is above that of the engine's there, None where no token differs.
    """

    prompt: str
    tokens: int
    equal_tokens: int
    gap: float | None

    @property
    def is_equal(self) -> bool:
        """Whether the whole reply is what the float model says."""
        return self.gap is None

    @property
    def near_tie(self) -> bool:
        """Whether the first difference is one that the float model barely decides."""
        return self.gap is not None and self.gap < NEAR_TIE


def chat_prompts() -> list[str]:
    """The 50 prompts that ship with the package."""
    prompts: list[str] = json.loads((files("duologue.bench") / "data" / "prompts.json").read_text("utf-8"))
    return prompts


def measure_greedy(
    model: PackedModel,
    reference: Checkpoint,
    prompts: Sequence[str],
    *,
    threads: int | None = None,
    isa: str = "",
    on_progress: Callable[[str], None] = lambda message: None,
) -> list[GreedyReply]:
    """Greedy replies of the engine to chat prompts, each judged by one pass of the float model over it.

    That pass is enough: as long as the tokens are equal, the float model would have read the same ones. A reply ends early at
    an end of text. Raises TemplateError when the model's chat template fails.
    """
    reader = LogitReader(model, threads=threads, isa=isa)
    template = ChatTemplate.for_tokenizer(model.chat_template, reader.tokenizer)
    replies = []
    for i, prompt in enumerate(prompts):
        on_progress(f"prompt {i + 1} of {len(prompts)}")
        ids = template.encode_chat(reader.tokenizer, [{"role": "user", "content": prompt}])
        reply = reader.greedy(ids, REPLY_TOKENS)
        hidden = reference_hidden(reference.spec, reference.weights, [*ids, *reply[:-1]])[-len(reply) :]
        replies.append(_judge(prompt, reply, head_logits(reference.spec, reference.weights, hidden)))
    return replies


def _judge(prompt: str, reply: Sequence[int], logits: Floats) -> GreedyReply:
    """`logits` [tokens of the reply, vocab] are the float model's, of the rows that predict the reply."""
    for i, (token, row) in enumerate(zip(reply, logits, strict=True)):
        if row.argmax() != token:
            return GreedyReply(prompt, len(reply), i, float(row.max() - row[token]))
    return GreedyReply(prompt, len(reply), len(reply), None)
