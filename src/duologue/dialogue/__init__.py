"""Messages to token ids and token ids to text: tokenizer, chat template, streaming detokenizer, stop
strings."""

from __future__ import annotations
