"""Entries of the cache that machines share through a Redis server. An entry is one value: a signature, then a ZIP
archive of its files. Built code runs, so the signature is an HMAC-SHA256 (RFC 2104) of name and archive by a secret
that the machines have in a file: what others put there counts as absent."""

import hmac
import io
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from gyrator.config import Config
from gyrator.errors import CacheCorrupt, GyratorWarning, InvalidOption
from gyrator.optional import require

MOST_BYTES, SECONDS = 1 << 28, 2.0
"""Of an entry that is sent (larger ones, of frozen weights, stay here), and that a server may take to answer."""


class Remote:
    """A server of entries. After it failed once it is asked no more, so that no compilation waits for it again."""

    def __init__(self, url: str, secret: bytes) -> None:
        """Connects when it is first asked. Raises: ValueError for a URL of another kind; ToolchainMissing."""
        redis, retry, backoff = (require("redis", module) for module in ("", "retry", "backoff"))
        once = retry.Retry(backoff.NoBackoff(), 0)
        self._server = redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=once)
        self._failure: type[Exception] = redis.RedisError
        self._secret, self._failed, self._sender = secret, False, ThreadPoolExecutor(1, "gyrator-remote-cache")

    def fetch(self, name: str, folder: Path) -> None:
        """Write the files of an entry into a folder; none if there is no entry, or it has another signature."""
        value = self._ask(lambda: self._server.get(name)) or b""
        signature, archive = value[:32], value[32:]
        if hmac.compare_digest(signature, self._signature(name, archive)):
            with ZipFile(io.BytesIO(archive)) as files:
                files.extractall(folder)
        elif value:
            why = CacheCorrupt(name, "what signed it was not this machine's remote_cache_secret")
            warnings.warn(str(why), GyratorWarning, stacklevel=2)

    def send(self, name: str, folder: Path) -> None:
        """Put an entry on the server, while the process goes on; one that ends waits for it."""
        if not self._failed:
            self._sender.submit(self._send, name, folder)

    def _send(self, name: str, folder: Path) -> None:
        if sum(file.stat().st_size for file in folder.iterdir()) > MOST_BYTES:
            return
        packed = io.BytesIO()
        with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
            for file in folder.iterdir():
                archive.write(file, file.name)
        content = packed.getvalue()
        self._ask(lambda: self._server.set(name, self._signature(name, content) + content))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """What the server answers; None, with a warning the first time, if it does not."""
        try:
            return None if self._failed else question()
        except self._failure as problem:
            self._failed = True
            warnings.warn(f"the remote cache is not used: {problem}", GyratorWarning, stacklevel=2)

    def _signature(self, name: str, archive: bytes) -> bytes:
        return hmac.digest(self._secret, name.encode() + b"\0" + archive, "sha256")


def remote_of(config: Config, known: dict[tuple[str, bytes], Remote]) -> Remote | None:
    """The server that the options name, if any; from those `known`, to which a new one is added.

    Raises: InvalidOption for a URL or a secret that is of no use; ToolchainMissing without the client."""
    url, file = config.remote_cache, config.remote_cache_secret
    if url is None:
        return None
    secret = file.expanduser().read_bytes().strip() if file is not None and file.expanduser().is_file() else b""
    if len(secret) < 16:
        raise InvalidOption("remote_cache_secret", file and str(file), "a file of 16 bytes or more, for remote_cache")
    try:
        return known.get((url, secret)) or known.setdefault((url, secret), Remote(url, secret))
    except ValueError as problem:
        raise InvalidOption("remote_cache", url, f"the URL of a Redis server ({problem})") from problem
