"""The programs of two processes, with a GPU each."""

import pytest
import torch

from tests.cpu import test_distributed

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

test_two_processes_find_what_one_does = test_distributed.test_two_processes_find_what_one_does
