"""Credentials in addresses: found, so that they are refused, and taken out of everything that is said or written."""

from __future__ import annotations

import re

_SECRET_WORDS = "sig|token|secret|passw|credential|key|auth|jwt"
_SECRET_KEY = rf"[^=&?;\s]*(?:{_SECRET_WORDS})[^=&?;\s]*|code|pass|pwd|sas|session"
_SECRET_VALUE = re.compile(rf"([?&;](?:{_SECRET_KEY})=)[^&;\s'\"#]+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """The text without any ``user:password@`` of a URL, and without the values of secret keys in its query."""
    return _SECRET_VALUE.sub(r"\1***", re.sub(r"://[^/@\s]*@", "://", text))


def holds_credentials(url: str) -> bool:
    """Whether an address names a password, a token or a signature. A user alone is no secret, but over HTTP it is."""
    scheme, _, rest = url.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    secret_user = bool(at) and (":" in user or scheme.lower() in ("http", "https"))
    return secret_user or _SECRET_VALUE.search(url) is not None
