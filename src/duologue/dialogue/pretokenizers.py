r"""Word splitting before BPE, per `tokenizer.ggml.pre` name.

A GGUF file names its pre-tokenizer and does not describe it, so the patterns live here. They are spelled to
give what llama.cpp gives, which is the reference: a list of patterns is applied in turn, each splitting the
pieces left by the one before it into matches and gaps.

Two things are not plain `\p{...}`:

- llama.cpp's character tables are of Unicode 15.1, the regex engine inside `tokenizers` has 16.0. The
  letters, numbers and punctuation that 16.0 added are taken out again (`_NEW_*`); the peers test walks every
  code point.
- Contractions are spelled `'[sS]` and not `(?i:'s)`, because case folding would also accept U+017F for s.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.errors import UnsupportedModelError

_NEW_LETTERS = (
    r"\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65}"
    r"\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}"
    r"\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}"
    r"\x{1E5D0}-\x{1E5ED}\x{1E5F0}"
)
_NEW_NUMBERS = (
    r"\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{16130}-\x{16139}\x{16D70}-\x{16D79}"
    r"\x{1CCF0}-\x{1CCF9}\x{1E5F1}-\x{1E5FA}"
)
_NEW_PUNCTUATION = (
    r"\x{1B4E}-\x{1B4F}\x{1B7F}\x{10D6E}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8}\x{11BE1}"
    r"\x{16D6D}-\x{16D6F}\x{1E5FF}"
)
_NEW = _NEW_LETTERS + _NEW_NUMBERS

_L = rf"[\p{{L}}&&[^{_NEW_LETTERS}]]"
_N = rf"[\p{{N}}&&[^{_NEW_NUMBERS}]]"
_P = rf"[\p{{P}}&&[^{_NEW_PUNCTUATION}]]"
_NOT_SPACE_LETTER_NUMBER = rf"[[^\s\p{{L}}\p{{N}}]{_NEW}]"
_NOT_LINE_LETTER_NUMBER = rf"[[^\r\n\p{{L}}\p{{N}}]{_NEW}]"
# The reference has no tables for case, so "not lower case" means "not a-z", and the other way round.
_NOT_LOWER = rf"[\p{{L}}&&[^a-z{_NEW_LETTERS}]]"
_NOT_UPPER = rf"[\p{{L}}&&[^A-Z{_NEW_LETTERS}]]"

_SPACES = r"\s+(?!\S)|\s+"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

_GPT2_WORDS = rf"'s|'t|'re|'ve|'m|'ll|'d| ?{_L}+| ?{_N}+| ?{_NOT_SPACE_LETTER_NUMBER}+|{_SPACES}"


def _cl100k_words(numbers: str) -> str:
    return (
        rf"{_CONTRACTION}|{_NOT_LINE_LETTER_NUMBER}?{_L}+|{numbers}| ?{_NOT_SPACE_LETTER_NUMBER}+[\r\n]*"
        rf"|\s*[\r\n]+|{_SPACES}"
    )


def _cased_words(suffix: str, numbers: str) -> str:
    return (
        rf"{_NOT_LINE_LETTER_NUMBER}?{_NOT_LOWER}*{_NOT_UPPER}+{suffix}"
        rf"|{_NOT_LINE_LETTER_NUMBER}?{_NOT_LOWER}+{_NOT_UPPER}*{suffix}"
        rf"|{numbers}| ?{_NOT_SPACE_LETTER_NUMBER}+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut into words: `patterns` in turn; `ignore_merges`: a word that is itself a token stays
    whole; `adds_bos`: what holds when the file does not say `add_bos_token`."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = PreTokenizer((_GPT2_WORDS,))
_SINGLE_DIGITS = PreTokenizer((_N, _GPT2_WORDS))
_LLAMA3 = PreTokenizer((_cl100k_words(_N + "{1,3}"),), ignore_merges=True, adds_bos=True)
_QWEN2 = PreTokenizer((_cl100k_words(_N),))

_BY_NAME: dict[str, PreTokenizer] = {
    "default": PreTokenizer((rf"(?:{_P}|[\$\+<=>\^~\|])+", _GPT2_WORDS, rf"{_N}+", "[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((rf"(?:{_P}|[\$\+<=>\^~\|`])+", _GPT2_WORDS, "[0-9][0-9][0-9]")),
    "dbrx": PreTokenizer(_LLAMA3.patterns),
    "smaug-bpe": PreTokenizer(_LLAMA3.patterns),
    "chatglm-bpe": PreTokenizer(_LLAMA3.patterns),
    "glm4": PreTokenizer(_LLAMA3.patterns, ignore_merges=True),
    "minicpm5": PreTokenizer((_N + "{1,3}", _cl100k_words(_N + "+")), ignore_merges=True),
    "tekken": PreTokenizer((_cased_words("", _N),), ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer((_cased_words(_CONTRACTION + "?", _N + "{1,3}"),)),
    "llama4": PreTokenizer((_cased_words(_CONTRACTION + "?", _N + "{1,3}"),)),
}
for _names, _pre in (
    ("gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion", _GPT2),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", _SINGLE_DIGITS),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", _LLAMA3),
    ("qwen2 stablelm2 deepseek-r1-qwen megrez hunyuan kormo grok-2 solar-open", _QWEN2),
):
    _BY_NAME.update(dict.fromkeys(_names.split(), _pre))

SUPPORTED_PRE_TOKENIZERS: tuple[str, ...] = tuple(sorted(_BY_NAME))


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer that GGUF's `tokenizer.ggml.pre` calls `name`; `UnsupportedModelError` if unknown."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedModelError(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported are "
            f"{', '.join(SUPPORTED_PRE_TOKENIZERS)}. Use another model, or this one's Hugging Face folder."
        ) from None
