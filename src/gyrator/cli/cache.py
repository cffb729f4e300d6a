"""`python -m gyrator cache`: what the cache on disk holds, and how to empty it."""

import shutil

import typer
from rich.console import Console

from gyrator.config import Config

app = typer.Typer(help="What the cache on disk holds.", no_args_is_help=True)


@app.command()
def info() -> None:
    """Show the cache's folder, and files and bytes of each kind."""
    folder, console = Config.from_options().cache_folder, Console()
    console.print(str(folder), highlight=False)
    kinds = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for kind in kinds:
        sizes = [p.stat().st_size for p in kind.rglob("*") if p.is_file()]
        console.print(f"  {kind.name}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB", highlight=False)
    if not kinds:
        console.print("  empty")


@app.command()
def clear() -> None:
    """Remove everything in the cache. Running processes keep what they have loaded."""
    folder = Config.from_options().cache_folder
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    Console().print(f"{folder} is empty", highlight=False)
