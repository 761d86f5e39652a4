"""What one call of the command line was given, wherever on the line it stood."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lien.drivers import urls
from lien.drivers.classify import mask_secrets


@dataclass(slots=True)
class Invocation:
    """The global options, and the secrets that no message may hold."""

    app: str | None = None
    url: str | None = None
    schema: str | None = None
    json: bool = False
    verbose: bool = False
    no_color: bool = False
    secrets: set[str] = field(default_factory=set)

    @property
    def color(self) -> bool | None:
        """As click wants it: False for never, None for a terminal only."""
        return False if self.no_color else None

    def know(self, url: str) -> None:
        """Remember the secrets of a URL, but for a password that is also its user's or database's name."""
        visible = urls.masked(url)
        self.secrets |= {secret for secret in urls.secrets(url) if secret not in visible}

    def scrub(self, text: str) -> str:
        """The text without any secret known."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
        return mask_secrets(text)
