"""The same data in another process: a run says what it reads, and whoever opens that makes sure that it is the same."""

from __future__ import annotations

import json
from functools import lru_cache

from streamrf.data.open import open_source
from streamrf.data.source import Source
from streamrf.support import __version__
from streamrf.support.errors import MismatchError, StorageError


def identity_of(source: Source, session: str) -> str:
    """What another process needs to open the same data; no row is among it.

    It does so once in each ``session``: a later one sees data that was stored again meanwhile.
    """
    known = {"spec": source.spec(), "fingerprint": source.fingerprint(), "version": __version__}
    return json.dumps({**known, "session": session}, sort_keys=True)


@lru_cache(maxsize=4)
def open_same(identity: str, here: str) -> Source:
    """The source of a run, opened once by the worker at ``here``; it must be the data that the run was planned for."""
    wanted = json.loads(identity)
    if wanted["version"] != __version__:
        raise MismatchError(
            f"worker {here} has streamrf {__version__} and the run was started by {wanted['version']}:"
            " install the same version on both sides"
        )
    try:
        source = open_source(**wanted["spec"])
    except StorageError as error:
        raise StorageError(f"on worker {here}, {error}: the data must be at the same place for every worker") from error
    if source.fingerprint() != wanted["fingerprint"]:
        raise MismatchError(
            f"worker {here} finds other data at that place (fingerprint {source.fingerprint()[:12]}, expected"
            f" {wanted['fingerprint'][:12]}): every worker must see the same files"
        )
    return source
