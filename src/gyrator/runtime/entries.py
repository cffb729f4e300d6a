"""Compiled graphs in the cache: where they lie, whether one fits a graph at hand, and keeping a new one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator.cache.guards import all_hold, new_facts
from gyrator.cache.key import Key, differing
from gyrator.cache.remote import Remote
from gyrator.cache.store import Content, Entry, Json, Store
from gyrator.origin import Origin, origin_of
from gyrator.session import Count, Session

KINDS = ("programs", "graphs", "kernels", "times")  # the folders that the cache keeps


@dataclass(frozen=True, slots=True)
class Stores:
    """Where what is compiled, and times of candidates, lie in `root`; `uncached` takes the graphs that have no key."""

    root: Path
    programs: Store
    graphs: Store
    kernels: Store
    times: Store
    uncached: Store


def open_stores(session: Session, scratch: Path, remote: Remote | None) -> Stores:
    """The stores in the user's folder; in the folder `scratch` if that is not wanted or not safe."""
    root = session.config.cache_folder if session.config.cache else scratch
    try:
        return _stores(root, scratch, remote)
    except OSError as problem:
        session.warn(f"compiled code is not kept: {problem}")
        return _stores(scratch, scratch, remote)


def _stores(root: Path, scratch: Path, remote: Remote | None) -> Stores:
    programs, graphs, kernels, times = (Store(root, kind, remote) for kind in KINDS)
    return Stores(root, programs, graphs, kernels, times, Store(scratch, "uncached"))


def find(key: Key | None, store: Store, example_inputs: Sequence[object], session: Session) -> Entry | None:
    """The stored entry of a key, if the facts about sizes that it relies on hold; counts hits and misses."""
    if key is None:
        return None
    entry = store.find(key.digest, session.warn)
    if entry is not None and all_hold(as_list(entry.notes.get("facts")), key.symbols, example_inputs):
        session.counters.add(Count.GRAPH_CACHE_HITS)
        return entry
    session.counters.add(Count.GRAPH_CACHE_MISSES)
    explain_miss(key, store, session, damaged_or_guarded=entry is not None)
    return None


def explain_miss(key: Key, store: Store, session: Session, *, damaged_or_guarded: bool = False) -> None:
    """Say in what the key differs from the most similar one stored, if that is asked for."""
    if not (session.why_missed or "cache" in session.config.logs):
        return
    others = [notes["key"] for notes in store.newest(20)]
    names = differing(key, [fields for fields in others if isinstance(fields, dict)])
    if damaged_or_guarded:
        session.missed = "facts about sizes that the stored code relies on do not hold"
    elif not others:
        session.missed = "the cache is empty"
    else:
        session.missed = f"new compared with it: {', '.join(names)}"
    if "cache" in session.config.logs:
        print(f"gyrator: {session.name} is not in the cache; {session.missed}")


def facts_of(shape_env: ShapeEnv | None, before: int, key: Key | None) -> list[Json] | None:
    """What compiling found out about sizes and relies on; None if that cannot be written down."""
    if shape_env is None or key is None:
        return []
    try:
        return [*new_facts(shape_env, before, {old: new for new, old in key.symbols.items()})]
    except ValueError:
        return None


def keep(key: Key | None, files: Mapping[str, Content], notes: Mapping[str, Json], stores: Stores) -> Entry:
    """Store a compiled graph: its wrapper, kernels and constants, so that it can be loaded from its folder alone, and
    whatever else is said of it.

    Without a key, or facts about sizes that can be written down, nobody will find it again.
    """
    if key is None or notes["facts"] is None:
        return stores.uncached.put_anonymous(files)
    return stores.graphs.put(key.digest, files, {"key": dict(key.fields), **notes})


def numbered_places(graph: fx.GraphModule, wanted: Collection[Origin]) -> list[Json]:
    """The places that index errors may name, each with the position of a node that comes from there."""
    if not wanted:
        return []
    positions = {origin_of(node): position for position, node in enumerate(graph.graph.nodes)}
    found = [(place, positions[place]) for place in wanted if place in positions]
    return [[*astuple(place), at] for place, at in sorted(found, key=str)]


def moved_places(entry: Entry, graph: fx.GraphModule) -> dict[Origin, Origin]:
    """Where the places that an entry names lie now: the user's lines may have moved since it was written."""
    places, nodes = as_list(entry.notes.get("places")), list(graph.graph.nodes)
    return {Origin(*place[:4]): origin_of(nodes[place[4]]) for place in places if isinstance(place, list)}


def as_list(value: object) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
