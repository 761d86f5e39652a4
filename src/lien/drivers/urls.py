"""Database URLs: refuse those that would be misread, and never show a password.

A raw ``@`` or ``/`` in a password makes libpq read a part of it as the host or the port and print it in its message.
Such a URL is refused here, before any driver sees it, so that what is left can be masked exactly.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from lien.errors import UsageError

_POSTGRES = frozenset({"postgresql", "postgres", "postgresql+psycopg", "postgres+psycopg"})
_SECRET_KEYS = frozenset({"password", "sslpassword", "passwd"})
_SHORTEST = 3  # replacing shorter pieces everywhere would garble the message and tell the password
_ENCODE = "percent-encode it (@ is %40, / is %2F, : is %3A, ? is %3F, % is %25)"


def checked_url(url: object, origin: str) -> str:
    """The URL, if Lien can read it as its writer meant it. ``origin`` says where it stands.

    Raises:
        UsageError: it cannot; the message has no part of it but the scheme.
    """
    if not isinstance(url, str) or "://" not in url:
        raise UsageError(f"{origin} is not a database URL: write postgresql://user@host/database or sqlite:///file.db")
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return url
    if scheme not in _POSTGRES:
        raise UsageError(f"{origin} is a URL of another kind of database: Lien works with postgresql:// and sqlite:///")
    credentials, remaining = _credentials(rest)
    if "@" in remaining.partition("?")[0]:
        raise UsageError(f"{origin} has an @ too many: if it is part of the password, {_ENCODE}")
    if re.search(r"%(?![0-9A-Fa-f]{2})", url):
        raise UsageError(f"{origin} has a stray %: if it is part of the password, {_ENCODE}")
    _parsed(f"postgresql://{rest}", origin, secret=":" in credentials)
    return url


def _parsed(url: str, origin: str, *, secret: bool) -> None:
    """Let libpq read it: a misspelt parameter is the caller's mistake, not the database's."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise UsageError(f"postgresql:// needs psycopg 3: pip install 'lien[postgres]' ({error})") from None
    try:
        port = str(conninfo_to_dict(url).get("port") or "")
    except psycopg.Error as error:
        # libpq quotes the piece that it could not read, which may be a piece of the password.
        text = re.sub(r'"[^"]*"?', '"…"', str(error)) if secret else str(error)
        raise UsageError(f"{origin} is not a URL that PostgreSQL can read: {text.strip()}") from None
    if not re.fullmatch(r"[0-9,]*", port):
        raise UsageError(f"{origin} has a port that is no number; if it is the password, {_ENCODE}")


def _credentials(rest: str) -> tuple[str, str]:
    """What stands before the @, as libpq looks for it: up to the first ``@`` unless a ``/`` comes earlier."""
    stop = re.search(r"[@/]", rest)
    if stop is None or stop[0] == "/":
        return "", rest
    return rest[: stop.start()], rest[stop.end() :]


def masked(url: str) -> str:
    """A checked URL without its secrets."""
    scheme, _, rest = url.partition("://")
    credentials, remaining = _credentials(rest)
    if scheme == "sqlite":
        netloc = rest.partition("/")[0]
        return url if "@" not in netloc else f"sqlite://***@{rest.rpartition('@')[2]}"
    user, colon, _ = credentials.partition(":")
    hidden = f"{user}:***@" if colon else f"{credentials}@" if credentials else ""
    place, question, query = remaining.partition("?")
    pairs = [_masked_pair(pair) for pair in query.split("&")]
    return f"{scheme}://{hidden}{place}{question}{'&'.join(pairs)}"


def _masked_pair(pair: str) -> str:
    key, _, _ = pair.partition("=")
    return f"{key}=***" if unquote(key).lower() in _SECRET_KEYS else pair


def secrets(text: str) -> set[str]:
    """Passwords in a URL or a connection string, as written and decoded, good or bad URL alike."""
    found = set(re.findall(r"://[^:/@]*:(.*)@", text)) | set(re.findall(r"://[^:/@]*:([^@]*)@", text))
    keys = "|".join(_SECRET_KEYS)
    found |= set(re.findall(rf"(?i)[?&](?:{keys})=([^&\s]+)", text))
    for quoted, bare in re.findall(rf"(?i)\b(?:{keys})\s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s&']+))", text):
        found.add(quoted or bare)
    found |= {unquote(secret) for secret in found}
    return {secret for secret in found if len(secret) >= _SHORTEST}
