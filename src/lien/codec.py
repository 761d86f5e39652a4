"""Payloads as JSON text that every engine stores the same way, and error texts that every engine can store.

A bad value is found here, before any SQL sees it, and the error names the path to it.
"""

from __future__ import annotations

import json
import math
import traceback as tracebacks
from collections.abc import Callable, Mapping
from typing import Any

from lien.errors import PayloadError

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_ERROR_CHARS = 2_000
MAX_TRACEBACK_CHARS = 20_000
_MAX_DEPTH = 100
_MAX_INT_DIGITS = 4_000  # below the limit of int(), which the reader would hit
_INT_BOUND = 10**_MAX_INT_DIGITS

Encoder = Callable[[Any], Any]


class Codec:
    """Encodes arguments and results as JSON text.

    Args:
        max_bytes: the largest encoded payload accepted, in bytes.
    """

    def __init__(self, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_bytes = max_bytes
        self._encoders: list[tuple[type, Encoder]] = []

    def register(self, cls: type, encode: Encoder) -> None:
        """Store values of a class as what ``encode`` makes of them (which must be JSON again)."""
        self._encoders.insert(0, (cls, encode))

    def encode(self, value: object, what: str) -> str:
        """JSON text of a value.

        Raises:
            PayloadError: a value inside cannot be stored on every engine, or the text is too long.
        """
        text = json.dumps(self._plain(value, what, 0), ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode("utf-8"))
        if size > self.max_bytes:
            raise PayloadError(
                f"{what} is {size} bytes of JSON, more than the limit of {self.max_bytes}: "
                "store the data elsewhere and pass its key, or raise max_payload_bytes"
            )
        return text

    def _plain(self, value: object, path: str, depth: int) -> object:  # noqa: PLR0911 - one per type
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return checked_text(value, path)  # type: ignore[arg-type]
        if kind is int:
            return _checked_int(value, path)  # type: ignore[arg-type]
        if kind is float:
            return _checked_float(value, path)  # type: ignore[arg-type]
        if depth > _MAX_DEPTH:
            raise PayloadError(f"{path} is nested deeper than {_MAX_DEPTH} levels or contains itself")
        if kind is dict:
            return {
                self._key(key, path): self._plain(item, f"{path}[{key!r}]", depth + 1)
                for key, item in value.items()  # type: ignore[attr-defined]
            }
        if kind is list:
            return [self._plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]  # type: ignore[var-annotated,arg-type]
        for cls, encode in self._encoders:
            if isinstance(value, cls):
                return self._plain(encode(value), path, depth + 1)
        raise PayloadError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which is not JSON: "
            "pass str, int, float, bool, None, list or dict, or register an encoder with codec.register()"
        )

    @staticmethod
    def _key(key: object, path: str) -> str:
        if type(key) is not str:
            raise PayloadError(f"{path} has the key {key!r}: JSON keys are strings; write str(key) yourself")
        return checked_text(key, f"key {key!r} of {path}")

    @staticmethod
    def decode(text: str) -> Any:
        """What ``encode`` was given.

        Raises:
            PayloadError: the stored text is not JSON.
        """
        try:
            return _DECODER.decode(text)
        except (ValueError, RecursionError, TypeError) as error:
            raise PayloadError(f"stored payload is not JSON: {error}") from error


def checked_text(text: str, path: str) -> str:
    """The text itself, or an error when some engine could not store it.

    Raises:
        PayloadError: it contains NUL or a lone surrogate.
    """
    if "\x00" in text:
        raise PayloadError(f"{path} contains NUL (\\x00), which databases cannot store as text: remove it")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise PayloadError(
                f"{path} contains a lone surrogate, which is not Unicode text: decode the bytes it came from properly"
            ) from None
    return text


def _checked_int(value: int, path: str) -> int:
    if not -_INT_BOUND < value < _INT_BOUND:
        raise PayloadError(f"{path} is an integer of more than {_MAX_INT_DIGITS} digits: pass it as text")
    return value


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large a number")
    return number


def _checked_float(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise PayloadError(f"{path} is {value!r}, which JSON has no word for: pass None or text")
    return value


def describe_error(error: BaseException) -> tuple[str, str]:
    """One line and a traceback for a failed attempt, as text that any engine stores.

    Never raises: an exception whose own ``str`` or traceback fails is described by its type.
    """
    name = type(error).__qualname__
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the failure path must not fail
        text = "(its str() raised)"
    line = " ".join(storable(f"{name}: {text}" if text else name, MAX_ERROR_CHARS).splitlines())
    try:
        trace = "".join(tracebacks.format_exception(error))
    except BaseException:  # noqa: BLE001 - the failure path must not fail
        trace = line
    return line, storable(trace, MAX_TRACEBACK_CHARS)


def storable(text: str, limit: int) -> str:
    """Text cleaned of NUL and lone surrogates and cut in the middle to ``limit`` characters."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > limit:
        half = (limit - 40) // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return text


def as_object(value: Any) -> Mapping[str, Any]:
    """Decoded arguments, which must be a JSON object.

    Raises:
        PayloadError: it is something else.
    """
    if not isinstance(value, dict):
        raise PayloadError(f"stored arguments are a JSON {type(value).__name__}, not an object")
    return value


# Made once: json.loads() with these would make a new one for each call.
_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
