"""Where gyrator keeps files of the user."""

from pathlib import Path

import platformdirs

from gyrator.config import Config


def cache_folder(config: Config) -> Path:
    """The folder of built kernels and compiled graphs: the option `cache_dir`, or the user's cache folder.
    May not exist yet; who creates it gives it mode 0700.
    """
    return config.cache_dir or Path(platformdirs.user_cache_dir("gyrator", appauthor=False))
