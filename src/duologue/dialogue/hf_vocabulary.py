"""From a Hugging Face folder (`tokenizer.json` and the configuration beside it) to a `Vocabulary`.

The file already describes a `tokenizers` object. What is taken out of it: added tokens, which `Tokenizer`
finds itself, and the post-processor, which would add special tokens behind the template's back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from duologue.dialogue.vocabulary import END_OF_TURN_TEXTS, SpecialToken, Vocabulary
from duologue.errors import ModelLoadError, UnsupportedModelError


def vocabulary_from_hf_folder(folder: Path) -> Vocabulary:
    """Reads `tokenizer.json`, and from `tokenizer_config.json`, `generation_config.json` and `config.json`
    what begins and ends a text. Raises `ModelLoadError` (missing or damaged) or `UnsupportedModelError`."""
    description = read_json(folder / "tokenizer.json")
    if description is None:
        raise ModelLoadError(f"{folder} has no tokenizer.json; save the model with its fast tokenizer")
    try:
        return _vocabulary(folder, description)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{folder / 'tokenizer.json'} is damaged: {error!r}") from error


def read_json(path: Path) -> Any:
    """The file's content, None if there is no such file, `ModelLoadError` if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _vocabulary(folder: Path, description: dict[str, Any]) -> Vocabulary:
    model = description["model"]
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedModelError(
            f"{folder / 'tokenizer.json'} is of type {model['type']!r}; only BPE tokenizers are supported"
        )
    coding: Literal["byte_level", "spm"] = "byte_level" if _holds_type(description, "ByteLevel") else "spm"
    specials = tuple(_special_token(folder, entry) for entry in description.get("added_tokens") or ())
    if coding == "spm":  # Gemma's runs of spaces: what finds them in text are the merges
        specials = tuple(
            t for t in specials if t.control or "▁" not in t.text or t.text not in model["vocab"]
        )
    control = {t.text for t in specials if t.control}
    ids = model["vocab"] | {t.text: t.id for t in specials}
    if not ids:
        raise ModelLoadError(f"{folder / 'tokenizer.json'} has an empty vocabulary")
    config = read_json(folder / "tokenizer_config.json") or {}
    bos_id = _id_of_text(config.get("bos_token"), ids)
    eos_id = _id_of_text(config.get("eos_token"), ids)
    stops = {eos_id}
    for name in ("generation_config.json", "config.json"):
        settings = read_json(folder / name) or {}
        if not isinstance(settings, dict):
            raise ModelLoadError(f"{folder / name} is not a JSON object")
        stops.update(_ids(folder / name, settings, "eos_token_id"))
        bos_id = bos_id if bos_id is not None else next(_ids(folder / name, settings, "bos_token_id"), None)
    stops |= {t.id for t in specials if t.control and t.text in END_OF_TURN_TEXTS}
    adds_bos = _template_adds(description.get("post_processor"), bos_id, ids)
    adds_bos = bool(config.get("add_bos_token", adds_bos))

    description.update(added_tokens=[], post_processor=None, decoder=None, truncation=None, padding=None)
    model["vocab"] = {text: i for text, i in model["vocab"].items() if text not in control}
    model["merges"] = [m for m in model["merges"] if _merged(m) not in control]
    if model.get("unk_token") in control:
        model["unk_token"] = None
    prefix, doubles = _take_space_prefix(description) if coding == "spm" else ("never", True)
    return Vocabulary(
        backend_json=json.dumps(description, ensure_ascii=False),
        vocab_size=max(ids.values()) + 1,
        coding=coding,
        special_tokens=specials,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(i for i in stops if i is not None),
        adds_bos=bos_id is not None and adds_bos,
        space_prefix=prefix,
        prefix_doubles=doubles,
    )


def _special_token(folder: Path, entry: Mapping[str, Any]) -> SpecialToken:
    if entry.get("single_word"):
        raise UnsupportedModelError(
            f"{folder / 'tokenizer.json'}: added token {entry['content']!r} is marked single_word, "
            "which is not supported"
        )
    if type(entry["id"]) is not int or not 0 <= entry["id"] < 2**31:
        raise ModelLoadError(
            f"{folder / 'tokenizer.json'}: added token {entry['content']!r} has the id {entry['id']!r}"
        )
    return SpecialToken(
        id=entry["id"],
        text=entry["content"],
        control=bool(entry.get("special")),
        lstrip=bool(entry.get("lstrip")),
        rstrip=bool(entry.get("rstrip")),
    )


def _merged(merge: str | list[str]) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _id_of_text(token: Any, ids: Mapping[str, int]) -> int | None:
    return ids.get(token["content"] if isinstance(token, dict) else token)


def _ids(file: Path, settings: Mapping[str, Any], name: str) -> Iterator[int]:
    value = settings.get(name)
    for token in value if isinstance(value, list) else () if value is None else (value,):
        if type(token) is not int:
            raise ModelLoadError(
                f"{file}: {name} is {json.dumps(value)}, neither a token id nor a list of them"
            )
        if token >= 0:  # -1 is how some say that there is none
            yield token


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """The component and everything it is a sequence of."""
    if isinstance(component, dict):
        yield component
        for name in ("normalizers", "pretokenizers", "processors", "decoders"):
            for part in component.get(name) or ():
                yield from _parts(part)


def _holds_type(description: Mapping[str, Any], kind: str) -> bool:
    places = (description.get("pre_tokenizer"), description.get("decoder"))
    return any(part.get("type") == kind for place in places for part in _parts(place))


def _template_adds(post_processor: Any, bos_id: int | None, ids: Mapping[str, int]) -> bool:
    for part in _parts(post_processor):
        first = (part.get("single") or [{}])[0] if part.get("type") == "TemplateProcessing" else {}
        if bos_id is not None and ids.get(first.get("SpecialToken", {}).get("id")) == bos_id:
            return True
    return False


def _take_space_prefix(description: dict[str, Any]) -> tuple[Literal["never", "each", "first"], bool]:
    """Removes from the description whatever puts a space before the text and says what it did: where, and
    whether also before text that begins with a space. `Tokenizer` does it, since only it knows which piece is
    first."""
    for part in _parts(description.get("normalizer")):
        if part.get("type") == "Prepend":
            part.clear()
            part.update(type="Strip", strip_left=False, strip_right=False)  # does nothing
            return "each", True
    for part in _parts(description.get("pre_tokenizer")):
        if part.get("type") == "Metaspace":
            always = "always" if part.pop("add_prefix_space", True) else "never"
            scheme = part.get("prepend_scheme") or always
            part["prepend_scheme"] = "never"
            return ("each" if scheme == "always" else "first" if scheme == "first" else "never"), False
    return "never", True
