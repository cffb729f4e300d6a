"""`python -m gyrator cache`: what the cache on disk holds, and how to empty it."""

import shutil
from pathlib import Path

from rich.console import Console


def show_cache(folder: Path, console: Console) -> None:
    """Print the cache's folder and what it holds: files and bytes of each kind (subfolder)."""
    console.print(str(folder), highlight=False)
    kinds = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for kind in kinds:
        sizes = [p.stat().st_size for p in kind.rglob("*") if p.is_file()]
        console.print(f"  {kind.name}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB", highlight=False)
    if not kinds:
        console.print("  empty")


def clear_cache(folder: Path, console: Console) -> None:
    """Remove everything in the cache's folder. Running processes keep what they have loaded."""
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    console.print(f"{folder} is empty", highlight=False)
