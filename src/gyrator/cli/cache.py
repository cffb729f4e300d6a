"""`python -m gyrator cache`: what the cache on disk holds, and how to empty it."""

import shutil

import typer
from rich.console import Console

from gyrator.config import Config
from gyrator.runtime.entries import KINDS

app = typer.Typer(help="What the cache on disk holds.", no_args_is_help=True)


@app.command()
def info() -> None:
    """Show the cache's folder, and files and bytes of each kind."""
    folder, console = Config.from_options().cache_folder, Console()
    console.print(str(folder), highlight=False)
    for kind in KINDS:
        sizes = [p.stat().st_size for p in (folder / kind).rglob("*") if p.is_file()]
        console.print(f"  {kind}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB", highlight=False)


@app.command()
def clear() -> None:
    """Remove what the cache keeps, and nothing else in its folder. Running processes keep what they have loaded."""
    folder = Config.from_options().cache_folder
    for path in map(folder.joinpath, KINDS):
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    Console().print(f"{folder} is cleared", highlight=False)
