"""Requests whose replies repeat their prompt, and requests that are free chat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SpeculationCase:
    """One request. `kind` is what its figures are added up under; `reply_tokens` at most."""

    kind: str
    prompt: str
    temperature: float = 0.0
    reply_tokens: int = 160


_PASSAGE = (
    "The harbour master keeps a ledger of every boat that enters before the first bell. Each line holds the name of the boat, "
    "the name of its owner, the hour, and what it carries. On the second of March the Grey Heron came in at a quarter past five "
    "with forty crates of lemons, two barrels of olive oil and a letter for the harbour master himself. He read the letter, "
    "folded it twice, and put it between the last two pages of the ledger, where nobody would look for it before the end of "
    "the year. The Grey Heron left again at noon with an empty hold."
)

_JSON = """[
  {"id": 101, "name": "Ada Marsh", "email": "ada.marsh@example.org", "city": "Leeds", "active": true},
  {"id": 102, "name": "Ben Okoro", "email": "ben.okoro@example.org", "city": "Lagos", "active": false},
  {"id": 103, "name": "Chloe Lindqvist", "email": "chloe.lindqvist@example.org", "city": "Malmo", "active": true},
  {"id": 104, "name": "Dario Conti", "email": "dario.conti@example.org", "city": "Turin", "active": true}
]"""

_CODE = """def mean_of_readings(readings):
    total = 0
    count = 0
    for reading in readings:
        if reading is None:
            continue
        total = total + reading
        count = count + 1
    if count == 0:
        return None
    return total / count


def largest_of_readings(readings):
    largest = None
    for reading in readings:
        if reading is None:
            continue
        if largest is None or reading > largest:
            largest = reading
    return largest
"""

_CHAT = (
    "Tell me about the history of the bicycle.",
    "I feel tired today and do not know what to cook. Any ideas?",
    "Write a short story about a lighthouse keeper and a storm.",
    "Why is the sky blue, and why is the sunset red?",
    "Give me some advice for my first day at a new job.",
    "What is the difference between a violin and a viola?",
)

CASES: tuple[SpeculationCase, ...] = (
    SpeculationCase("copy", f"Repeat the following text word for word.\n\n{_PASSAGE}"),
    SpeculationCase("copy", f"Repeat this JSON exactly as it is.\n\n{_JSON}"),
    SpeculationCase(
        "edit", f"Rewrite the following text, but replace every 'Grey Heron' by 'White Swan'.\n\n{_PASSAGE}"
    ),
    SpeculationCase("edit", f"Correct the spelling of this text and give me the whole text.\n\n{_PASSAGE}"),
    SpeculationCase("json", f'Here is a list. Write it again, with "active": true for everybody.\n\n{_JSON}'),
    SpeculationCase("json", f"Write this list again as JSON with one key per line.\n\n{_JSON}"),
    SpeculationCase(
        "code", f"Rename `readings` to `values` in this Python code. Write the whole code again.\n\n{_CODE}"
    ),
    SpeculationCase("code", f"Add a docstring to each function of this Python code.\n\n{_CODE}"),
    SpeculationCase(
        "quote", f"{_PASSAGE}\n\nWhat did the Grey Heron carry, and where is the letter? Quote the text."
    ),
    SpeculationCase(
        "quote", f"{_PASSAGE}\n\nSummarise the text and quote the sentence about the letter in full."
    ),
    *(SpeculationCase("chat, greedy", prompt) for prompt in _CHAT),
    *(SpeculationCase("chat, t = 0.8", prompt, temperature=0.8) for prompt in _CHAT),
)
