"""Memory that launches on a GPU use beside their arguments."""

from __future__ import annotations

from typing import final

import torch

RESERVE = 1 << 16


@final
class Workspaces:
    """Gives memory for one launch: any, or memory that is 0 and that the launch leaves so.

    Launches on one stream share the latter. A launch that is recorded gets its own, since recordings may be replayed
    on several streams at once; it is cut from a reserve that was zeroed before, for nothing else need be recorded.
    """

    def __init__(self) -> None:
        self._of_stream: dict[int, torch.Tensor] = {}
        self._reserve = torch.empty(0, dtype=torch.uint8)
        self._kept: list[torch.Tensor] = []

    def __call__(self, nbytes: int, zeroed: bool, stream: int) -> torch.Tensor:
        """``nbytes`` on the current GPU."""
        if not zeroed:
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        if torch.cuda.is_current_stream_capturing():
            if nbytes > self._reserve.numel():
                return _zeros(nbytes)
            whole = -(-nbytes // 16) * 16
            found, self._reserve = self._reserve[:nbytes], self._reserve[whole:]
            return found
        kept = self._of_stream.get(stream)
        if kept is None or kept.numel() < nbytes:
            kept = self._of_stream[stream] = _zeros(nbytes)
            if self._reserve.numel() < nbytes:
                self._reserve = _zeros(max(RESERVE, nbytes))
                self._kept.append(self._reserve)  # recordings hold addresses in it
        return kept


def _zeros(nbytes: int) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
