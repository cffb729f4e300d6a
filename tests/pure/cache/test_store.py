"""The store: whole entries or none whatever happens to writers; damage is found; only the user's folder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from gyrator.cache.store import MANIFEST, Content, Store

KEY = "ab" + "0" * 62


def test_entry_is_found_again_by_another_store(tmp_path: Path) -> None:
    source = tmp_path / "library"
    source.write_bytes(b"\x7fELF")
    Store(tmp_path / "root", "graphs").put(KEY, {"a.py": "x = 1\n", "b.so": source}, {"facts": ["s0 > 3"]})
    entry = Store(tmp_path / "root", "graphs").find(KEY, pytest.fail)
    assert entry is not None
    assert entry.text("a.py") == "x = 1\n"
    assert (entry.folder / "b.so").read_bytes() == b"\x7fELF"
    assert entry.notes["facts"] == ["s0 > 3"]


def test_absent_key_is_none(tmp_path: Path) -> None:
    assert Store(tmp_path, "graphs").find(KEY, pytest.fail) is None


def test_an_entry_that_another_writer_finishes_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is there when the reader, who saw no manifest, asks whether one is damaged."""
    store, read = Store(tmp_path, "graphs"), Path.read_text

    def late(path: Path, *args: str) -> str:
        monkeypatch.setattr(Path, "read_text", read)
        store.put(KEY, {"a.py": "x = 1\n"}, {})
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", late)
    entry = store.find(KEY, pytest.fail)
    assert entry is not None and entry.text("a.py") == "x = 1\n"


@pytest.mark.parametrize(
    "damage", ["changed", "missing file", "no manifest", "cut manifest", "wrong type", "changed notes"]
)
def test_damage_is_reported_once_and_removed(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path, "graphs")
    entry = store.put(KEY, {"a.py": "x = 1\n"}, {"facts": ["s0 > 3"]})
    manifest = entry.folder / MANIFEST
    match damage:
        case "changed":
            (entry.folder / "a.py").write_text("x = 2\n")
        case "missing file":
            (entry.folder / "a.py").unlink()
        case "no manifest":
            manifest.unlink()
        case "cut manifest":
            manifest.write_text(manifest.read_text()[:20])
        case "changed notes":
            manifest.write_text(manifest.read_text().replace("s0 > 3", "s0 > 2"))
        case "wrong type":
            manifest.write_text("[]")
    warnings: list[str] = []
    assert store.find(KEY, warnings.append) is None
    assert len(warnings) == 1 and "is damaged" in warnings[0]
    assert store.find(KEY, pytest.fail) is None
    assert store.put(KEY, {"a.py": "x = 3\n"}, {}).text("a.py") == "x = 3\n"


def test_an_entry_of_another_format_is_absent_and_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path, "graphs")
    manifest = store.put(KEY, {"a": "old"}, {}).folder / MANIFEST
    manifest.write_text('{"files": {}, "format": 0, "notes": {}}')
    assert store.find(KEY, pytest.fail) is None
    store.put(KEY, {"a": "new"}, {})
    found = store.find(KEY, pytest.fail)
    assert found is not None and found.text("a") == "new"


def test_first_writer_wins(tmp_path: Path) -> None:
    store = Store(tmp_path, "graphs")
    store.put(KEY, {"a": "first"}, {})
    assert store.put(KEY, {"a": "second"}, {}).text("a") == "first"


def test_what_a_folder_cannot_take_the_spare_one_does(tmp_path: Path) -> None:
    told: list[OSError] = []

    def spare(problem: OSError) -> Store:
        told.append(problem)
        return Store(tmp_path / "spare", "graphs")

    store = Store(tmp_path / "root", "graphs", spare=spare)
    (tmp_path / "root" / "graphs" / KEY[:2]).write_text("")  # as root, a test may write wherever there is room
    store.remove(KEY)
    assert store.find(KEY, pytest.fail) is None
    assert store.put(KEY, {"a": "kept"}, {}).text("a") == "kept"
    assert len(told) == 1 and not list((tmp_path / "root" / "graphs").glob("draft-*"))


def test_an_entry_for_other_facts_takes_the_place_of_one_that_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path, "graphs")
    store.put(KEY, {"a": "first"}, {"facts": ["s_0 >= 30"]})
    assert store.put(KEY, {"a": "second"}, {"facts": ["s_0 < 30"]}).text("a") == "second"
    found = store.find(KEY, pytest.fail)
    assert found is not None and found.notes == {"facts": ["s_0 < 30"]}
    assert not list((tmp_path / "graphs").glob("draft-*"))


def test_a_writer_for_other_facts_who_was_first_meanwhile_has_not_written_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = Store(tmp_path, "graphs"), Store(tmp_path, "graphs")

    def overtaken(path: Path, content: Content) -> None:
        monkeypatch.undo()
        other.put(KEY, {"a": "first"}, {"facts": ["s_0 >= 30"]})
        path.write_text(str(content))

    monkeypatch.setattr("gyrator.cache.store._write", overtaken)
    assert store.put(KEY, {"a": "second"}, {"facts": ["s_0 < 30"]}).text("a") == "second"
    there = store.find(KEY, pytest.fail)
    assert there is not None and there.text("a") == "first"


def test_an_entry_stays_until_another_one_is_whole(tmp_path: Path) -> None:
    store = Store(tmp_path, "graphs")
    first = store.put(KEY, {"a": "first"}, {"facts": ["s_0 >= 30"]})
    with pytest.raises(FileNotFoundError):
        store.put(KEY, {"a": tmp_path / "nowhere"}, {"facts": ["s_0 < 30"]})
    assert first.text("a") == "first"


def test_folder_is_the_users_own(tmp_path: Path) -> None:
    Store(tmp_path / "mine", "graphs")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError):
        Store(tmp_path / "open", "graphs")


def test_an_entry_that_nobody_looks_up_has_its_notes(tmp_path: Path) -> None:
    entry = Store(tmp_path, "graphs").put_anonymous({"a.txt": "text"}, {"recorded": [0, 1]})
    assert (entry.text("a.txt"), entry.notes, entry.key) == ("text", {"recorded": [0, 1]}, None)


@pytest.mark.parametrize("damage", ["null", "[]", "{", '{"notes": {}}', '{"notes": {"key": 3}, "digest": ""}'])
def test_damaged_entries_are_not_among_the_newest(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path, "graphs")
    (store.put("cd" + KEY, {}, {"key": {}}).folder / MANIFEST).write_text(damage)
    store.put(KEY, {}, {"key": {"graph": "a"}})
    assert [*store.newest(2)] == [{"key": {"graph": "a"}}]


def test_newest_entries_come_first(tmp_path: Path) -> None:
    store = Store(tmp_path, "graphs")
    for number in range(3):
        entry = store.put(f"{number:064d}", {}, {"number": number})
        os.utime(entry.folder / MANIFEST, (number, number))
    assert [notes["number"] for notes in store.newest(2)] == [2, 1]


def _write_for_ever(root: Path) -> None:
    store = Store(root, "graphs")
    number = 0
    while True:
        number += 1
        store.put(f"{number % 50:064d}", {f"f{k}": str(number) * 20_000 for k in range(4)}, {"number": number})
        store.remove(f"{number % 50:064d}") if number % 3 == 0 else None


def test_killed_writers_leave_whole_entries(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_for_ever, args=(tmp_path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("graphs/??/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    for writer in writers:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    store = Store(tmp_path, "graphs")
    found = [store.find(f"{number:064d}", pytest.fail) for number in range(50)]
    whole = [entry for entry in found if entry is not None]
    assert whole
    for entry in whole:
        assert entry.text("f0") == str(entry.notes["number"]) * 20_000
