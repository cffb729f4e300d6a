"""Entries go through a server to machines that have its secret; nothing else on it is taken."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from gyrator.cache import remote as module
from gyrator.cache.remote import Remote, remote_of
from gyrator.cache.store import FORMAT, Store
from gyrator.config import Config
from gyrator.errors import GyratorWarning, InvalidOption
from tests.redis_server import serving

KEY, SECRET = "ab" + "0" * 62, b"sixteen bytes or"
NAME = f"gyrator:{FORMAT}:graphs:{KEY}"


@pytest.fixture
def url() -> Iterator[str]:
    with serving() as found:
        yield found


def store(folder: Path, url: str, secret: bytes = SECRET) -> Store:
    return Store(folder, "graphs", Remote(url, secret))


def until(true: Callable[[], object]) -> None:
    """Entries are sent while the process goes on."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def shared(folder: Path, url: str) -> Store:
    """A store that has put an entry, which is on the server by now."""
    found = store(folder, url)
    found.put(KEY, {"a.py": "x = 1\n"}, {"facts": ["s0 > 3"]})
    until(lambda: redis.Redis.from_url(url).exists(NAME))
    return found


def test_an_entry_comes_from_another_machine_and_stays(tmp_path: Path, url: str) -> None:
    shared(tmp_path / "one", url)
    entry = store(tmp_path / "two", url).find(KEY, pytest.fail)
    assert entry is not None
    assert entry.text("a.py") == "x = 1\n" and entry.notes["facts"] == ["s0 > 3"]
    assert Store(tmp_path / "two", "graphs").find(KEY, pytest.fail) == entry
    assert [p.name for p in (tmp_path / "two/graphs").iterdir()] == [KEY[:2]]  # no draft is left


def test_what_the_server_lacks_is_absent(tmp_path: Path, url: str) -> None:
    assert store(tmp_path, url).find(KEY, pytest.fail) is None
    assert not any(tmp_path.rglob("draft-*"))


@pytest.mark.parametrize("change", ["another secret", "another content", "another entry", "cut"])
def test_what_has_another_signature_is_absent(tmp_path: Path, url: str, change: str) -> None:
    shared(tmp_path / "one", url)
    server, secret, key = redis.Redis.from_url(url), SECRET, KEY
    value = server.get(NAME)
    assert isinstance(value, bytes)
    match change:
        case "another secret":
            secret = SECRET[::-1]
        case "another content":
            server.set(NAME, value[:-1] + b"\1")
        case "another entry":
            key = KEY[::-1]
            server.set(NAME.replace(KEY, key), value)
        case "cut":
            server.set(NAME, value[:20])
    with pytest.warns(GyratorWarning, match="is damaged: what signed it was not this machine's remote_cache_secret"):
        assert store(tmp_path / "two", url, secret).find(key, pytest.fail) is None
    assert not any(tmp_path.rglob("two/graphs/*/*"))


def test_a_server_that_is_away_is_told_once_and_asked_no_more(tmp_path: Path) -> None:
    with serving() as url:
        pass
    alone = store(tmp_path, url)
    with pytest.warns(GyratorWarning, match="the remote cache is not used: .*refused") as told:
        assert alone.find(KEY, pytest.fail) is None
        alone.put(KEY, {}, {})
        assert alone.find(KEY, pytest.fail) is not None
        assert alone.find(KEY[::-1], pytest.fail) is None
    assert len(told) == 1


def test_large_entries_stay_here(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 300)
    here = store(tmp_path, url)
    here.put(KEY, {"a.py": "#" * 300}, {})
    here.put(KEY[::-1], {}, {})
    until(lambda: redis.Redis.from_url(url).exists(NAME.replace(KEY, KEY[::-1])))
    assert not redis.Redis.from_url(url).exists(NAME)


def test_the_secret_is_needed_and_a_url_of_a_server(tmp_path: Path, url: str) -> None:
    secret = tmp_path / "secret"

    def asked(url: str = url, file: Path | None = secret) -> Remote | None:
        return remote_of(Config(remote_cache=url, remote_cache_secret=file), {})

    for file, named in ((None, "None"), (secret, "'.*/secret'")):
        with pytest.raises(
            InvalidOption, match=rf"'remote_cache_secret' must be a file of 16 bytes or more.* not {named}"
        ):
            asked(file=file)
    secret.write_bytes(b"short" + b"\n" * 20)
    with pytest.raises(InvalidOption, match="must be a file of 16 bytes or more"):
        asked()
    secret.write_bytes(SECRET)
    with pytest.raises(InvalidOption, match="'remote_cache' must be the URL of a Redis server"):
        asked("http://somewhere")
    assert remote_of(Config(), {}) is None


def test_a_process_asks_a_server_over_one_connection(tmp_path: Path, url: str) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    config, known = Config(remote_cache=url, remote_cache_secret=tmp_path / "secret"), dict[tuple[str, bytes], Remote]()
    assert remote_of(config, known) is remote_of(config, known) is not None
