"""Structured output: grammars compiled by llguidance for one tokenizer, and where each reply stands in its own.

A token is allowed when its bytes keep the reply a beginning of something that the grammar takes. Control tokens never are, but for
the marks of tool calls in a grammar of these; end tokens are where the grammar may end. llguidance walks the vocabulary as a tree
of bytes, so a step costs some tens of microseconds.

Grammars come from clients: what one may cost is bounded by `_limits`. One that passes them while it is compiled, or in its first
mask, is refused; a reply that passes them on the way ends with an error, and others are not touched.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from duologue.dialogue.grammar import Grammar
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.schema_cost import refuse_costly_lark, refuse_costly_schema
from duologue.errors import CapacityError, InvalidRequestError
from duologue.kernels.sampling import mask_words

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

KEPT_GRAMMARS = 32
"""Compiled ones that are kept, the last used: a hostile one may take `_MAX_LEXER_STATES` of about 1.5 kB each."""

_MAX_LEXER_STATES = 20_000
_INITIAL_LEXER_FUEL = (
    200_000  # nested counted repetitions take seconds and hundreds of megabytes at the default of a million
)
_STEP_LEXER_FUEL = 50_000  # a few milliseconds, for which the streams of others wait
_MAX_ITEMS = 10_000  # an object of a thousand optional properties takes four thousand
_COMPILE_S = 20.0
_MOST_COMPILING = 4
_STACK_BYTES = 256 << 20
"""llguidance recurses along chains of rules, and a stack that overflows takes the process with it. Only what is touched becomes
resident."""
_MESSAGE_CHARS = 400
_DEAD_END = "what it asks for is no token of this model that text can have"
# A small model may choose white space for ever where any amount of it is allowed.
_WHITE_SPACE = r"[ \t\r\n]{1,32}"

_stack_size_lock = threading.Lock()  # it is the process's, and so are several models


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=_MAX_LEXER_STATES,
        initial_lexer_fuel=_INITIAL_LEXER_FUEL,
        step_lexer_fuel=_STEP_LEXER_FUEL,
        max_items_in_row=_MAX_ITEMS,
        verbose_errors=False,
    )


class ReplyGrammar:
    """Where one reply stands in its grammar. For one thread at a time."""

    def __init__(
        self, matcher: LLMatcher, permitted: npt.NDArray[np.uint32], *, has_end_token: bool = True
    ) -> None:
        """`permitted` [mask_words(vocab)] has a bit for each token that this grammar may ask for."""
        self._matcher = matcher
        self._permitted = permitted
        self._has_end_token = has_end_token
        self._dead_end = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing may follow but an end token."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str:
        """Why it cannot be followed; empty while it can."""
        return self._matcher.get_error()

    @property
    def ends_reply(self) -> bool:
        """Whether the reply is over although the model has no token to say so."""
        return not self._has_end_token and self.has_ended

    def fill(self, mask: npt.NDArray[np.uint32], drafted: Sequence[int] = ()) -> bool:
        """Set the bits [mask_words(vocab)] of the tokens that may follow the reply and `drafted`; False when none may.

        Whatever is sampled behind the reply then is refused by `accept`. Drafts leave no trace: a limit that they pass is not the
        reply's.
        """
        matcher = self._matcher.deep_copy() if drafted else self._matcher
        if (drafted and matcher.try_consume_tokens(list(drafted)) < len(drafted)) or matcher.is_error():
            mask.fill(0)
        else:
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            mask &= self._permitted
        followed = bool(mask.any()) and not matcher.is_error()
        if not drafted:
            self._dead_end = not followed
        return followed

    def allowed(self, drafted: Sequence[int]) -> int:
        """How many of these tokens, from the first, may follow the reply."""
        return self._matcher.deep_copy().validate_tokens(list(drafted))

    def accept(self, token: int) -> str | None:
        """Go on by a token. Returns why that cannot be: a limit is passed, or no token of the vocabulary could follow."""
        error = self.error or (_DEAD_END if self._dead_end else "")
        if not error:
            if self._matcher.consume_token(token):
                return None
            error = self.error
        return f"the grammar cannot be followed any further: {_short(error)}"


class Grammars:
    """Compiles grammars for a tokenizer and keeps the last used. From any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._native: LLTokenizer | None = None
        self._permitted = _permitted(tokenizer, vocab_size)
        self._compiling: list[threading.Thread] = []
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()

    def start(self, grammar: Grammar, *, param: str | None = None) -> ReplyGrammar:
        """The beginning of a reply, compiled if need be: some milliseconds, the first grammar of all up to a second.

        Raises InvalidRequestError naming `param` for a grammar that is wrong, unsupported or beyond the limits, CapacityError
        while too many others are being compiled.
        """
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
                return self._begin(grammar, compiled)
        compiled = self._compile(grammar, param)
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
            return self._begin(grammar, compiled)

    def _begin(self, grammar: Grammar, compiled: LLMatcher) -> ReplyGrammar:
        has_end_token = bool(self._tokenizer.eos_ids)
        return ReplyGrammar(compiled.deep_copy(), self._permitted_by(grammar), has_end_token=has_end_token)

    def _permitted_by(self, grammar: Grammar) -> npt.NDArray[np.uint32]:
        if not grammar.control_ids:
            return self._permitted
        permitted: npt.NDArray[np.uint32] = self._permitted.copy()
        for token in grammar.control_ids:
            if token < self._vocab_size:
                permitted[token // 32] |= np.uint32(1 << token % 32)
        return permitted

    def _compile(self, grammar: Grammar, param: str | None) -> LLMatcher:
        """On a thread of its own, for the stack and for the time limit; one that passes the latter is left to itself."""
        done: queue.SimpleQueue[LLMatcher | str] = queue.SimpleQueue()
        with self._lock:
            self._compiling = [thread for thread in self._compiling if thread.is_alive()]
            if len(self._compiling) >= _MOST_COMPILING:
                raise CapacityError("too many grammars are being compiled; try again later")
            thread = threading.Thread(
                target=lambda: done.put(self._compiled_or_why(grammar)), name="duologue-grammar", daemon=True
            )
            with _stack_size_lock:
                before = threading.stack_size(_STACK_BYTES)
                try:
                    thread.start()
                finally:
                    threading.stack_size(before)
            self._compiling.append(thread)
        try:
            result = done.get(timeout=_COMPILE_S)
        except queue.Empty:
            result = f"it takes more than {_COMPILE_S:g} seconds to compile"
        if isinstance(result, str):
            raise InvalidRequestError(
                f"the {grammar.kind.replace('_', ' ')} cannot be used: {_short(result)}; correct or simplify it",
                param=param,
                code="invalid_grammar",
            )
        return result

    def _compiled_or_why(self, grammar: Grammar) -> LLMatcher | str:
        from llguidance import LLMatcher

        try:
            matcher = LLMatcher(self._llguidance_tokenizer(), _source(grammar), log_level=0, limits=_limits())
            if not matcher.is_error():
                return self._why_it_cannot_begin(grammar, matcher.deep_copy()) or matcher
            return matcher.get_error()
        except RecursionError:
            return "it is nested too deeply"
        except Exception as error:
            return str(error)

    def _why_it_cannot_begin(self, grammar: Grammar, matcher: LLMatcher) -> str:
        """Much of the work is put off until the first mask and the first token: better here than on the engine's thread."""
        mask = np.empty_like(self._permitted)
        ReplyGrammar(matcher, self._permitted_by(grammar)).fill(mask)
        if matcher.is_error():
            return matcher.get_error()
        if not mask.any():
            return _DEAD_END
        word = int(np.flatnonzero(mask)[0])
        matcher.consume_token(32 * word + (int(mask[word]) & -int(mask[word])).bit_length() - 1)
        return matcher.get_error()

    def _llguidance_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._native is None:
                from llguidance import LLTokenizer, TokenizerWrapper

                vocabulary = _ByteVocabulary(self._tokenizer, self._vocab_size)
                self._native = LLTokenizer(
                    TokenizerWrapper(vocabulary),
                    n_vocab=self._vocab_size,
                    eos_token=vocabulary.eos_token_ids,
                )
            return self._native


class _ByteVocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_tokens.values())
        self.bos_token_id = tokenizer.bos_id
        # A model without an end token lends another one, which is masked away: the reply ends when its grammar does.
        self.eos_token_ids = sorted(tokenizer.eos_ids) or self.special_token_ids[:1]
        if not self.eos_token_ids:
            raise ValueError("this model has no special token at all, so no grammar can end")
        self.eos_token_id = self.eos_token_ids[0]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text, not bytes")  # how llguidance learns what this takes
        return self._tokenizer.encode_inner(text)


def _source(grammar: Grammar) -> str:
    """In llguidance's own terms. Raises ValueError for text that is not JSON where it must be."""
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind in ("lark", "choice", "call"):
        refuse_costly_lark(grammar.text)
        return LLMatcher.grammar_from_lark(grammar.text)
    schema = {"type": "object"} if grammar.kind == "json_object" else json.loads(grammar.text)
    if not isinstance(schema, dict):
        raise ValueError("a schema is a JSON object")
    refuse_costly_schema(schema)
    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_pattern": _WHITE_SPACE}
    )


def _permitted(tokenizer: Tokenizer, vocab_size: int) -> npt.NDArray[np.uint32]:
    """Bits of all tokens but control tokens; end tokens have theirs."""
    bits = np.zeros(32 * mask_words(vocab_size), dtype=np.uint8)
    bits[:vocab_size] = 1
    bits[[token for token in tokenizer.special_tokens.values() if token < vocab_size]] = 0
    bits[[token for token in tokenizer.eos_ids if token < vocab_size]] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _short(message: str) -> str:
    message = message.replace("NoExtensionBias", "no text at all would satisfy it")
    text = " ".join(message.replace("<non-verbose/>", "").split()).rstrip(".")
    return text if len(text) <= _MESSAGE_CHARS else text[:_MESSAGE_CHARS] + "..."
