"""Paths and URLs: which is which, what may be in one, and the fsspec file system behind it."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from streamrf.support.errors import InputError, MissingDependencyError

_PACKAGES = {"s3": "'streamrf[s3]'", "s3a": "'streamrf[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp"}
_PACKAGES |= {"https": "aiohttp", "abfs": "adlfs", "az": "adlfs"}
_SECRET_WORDS = ("sig", "token", "secret", "password", "credential", "key")


def is_url(location: str) -> bool:
    return "://" in location


def is_pattern(location: str) -> bool:
    """Whether this is a glob; a file whose name happens to hold a bracket is not, nor is an address with a query."""
    if _is_http(location):
        path = without_query(location).partition("://")[2].partition("/")[2]
        return any(mark in path for mark in "*[")
    return any(mark in location for mark in "*?[") and (is_url(location) or not os.path.exists(location))


def without_query(location: str) -> str:
    """What the name and the ending of a location are to be told from."""
    return location.partition("?")[0] if _is_http(location) else location


def _is_http(location: str) -> bool:
    return location.lower().startswith(("http://", "https://"))


def absolute(location: str) -> str:
    """A location that means the same in another process; ``file://`` is a plain path."""
    if location.startswith("file://"):
        location = unquote(location.removeprefix("file://"))
    if not is_url(location):
        return os.path.abspath(os.path.expanduser(location))
    _refuse_secrets(location)
    return location.rstrip("/")


def _refuse_secrets(url: str) -> None:
    parts = urlsplit(url)
    query = (key.lower() for key, _ in parse_qsl(parts.query))
    if parts.password or any(word in key for key in query for word in _SECRET_WORDS):
        raise InputError(
            f"the {parts.scheme}:// address holds a credential, and addresses are written into checkpoints and models:"
            " give credentials through the environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path within it."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise missing_package(url) from error
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {error}") from error


def missing_package(url: str) -> MissingDependencyError:
    """What to install for this kind of address."""
    scheme = url.partition("://")[0]
    package = _PACKAGES.get(scheme, f"the fsspec package for {scheme}")
    return MissingDependencyError(
        f"reading {scheme}:// addresses needs a package that is missing: pip install {package}"
    )
