"""Memory that launches on a GPU use beside their arguments."""

import torch

RESERVE = 1 << 14


class Workspaces:
    """Gives memory for one launch: any, or such that is 0 at first, of which launches leave all bits as they were but
    for signs.

    Launches on one stream share the latter. One that is recorded has its own, as recordings may be replayed on several
    streams at once; it comes from a reserve that was zeroed before, so that zeroing is not recorded."""

    def __init__(self) -> None:
        self._of_stream: dict[int, torch.Tensor] = {}
        self._reserves = [torch.empty(0, dtype=torch.uint8)]  # all are kept: recordings hold addresses in them
        self._used = 0

    def __call__(self, nbytes: int, zeroed: bool, stream: int) -> torch.Tensor:
        """``nbytes`` on the current GPU."""
        if not zeroed:
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        rest = self._reserves[-1][self._used :]
        if torch.cuda.is_current_stream_capturing():
            if nbytes > rest.numel():
                return torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
            self._used += -(-nbytes // 16) * 16
            return rest[:nbytes]
        kept = self._of_stream.get(stream)
        if kept is None or kept.numel() < nbytes:
            kept = self._of_stream[stream] = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        if rest.numel() < nbytes:
            self._reserves.append(torch.zeros(max(RESERVE, nbytes), dtype=torch.uint8, device="cuda"))
            self._used = 0
        return kept
