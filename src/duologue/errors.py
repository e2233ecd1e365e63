"""The errors that reach a user: each message says what is wrong and what to do about it."""

from __future__ import annotations


class DuologueError(Exception):
    """Base of every error that duologue raises on purpose."""


class ModelLoadError(DuologueError):
    """A model cannot be found, fetched, read or packed."""


class UnsupportedModelError(ModelLoadError):
    """A model file is sound but describes something that this version does not run."""


class SettingError(DuologueError):
    """The configuration file or an environment variable says something that cannot be used."""


class TemplateError(DuologueError):
    """A chat template does not compile, or raises while rendering."""


class CapacityError(DuologueError):
    """A budget (KV memory, queue length) is too small for what was asked."""


class InvalidRequestError(DuologueError):
    """A request is malformed.

    `param` names the offending field in OpenAI's terms, `code` is OpenAI's machine-readable code.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineStoppedError(DuologueError):
    """The engine was closed, or its step loop failed; no request can be served any more."""
