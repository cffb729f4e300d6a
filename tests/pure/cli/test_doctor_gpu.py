"""What `doctor` says of Triton and GPUs that are not as they should be."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
import torch

from gyrator.cli import doctor
from gyrator.cli.doctor import Finding, findings
from gyrator.config import Config
from gyrator.errors import DeviceUnsupported
from gyrator.runtime import triton_build


def finding(topic: str) -> Finding:
    return next(found for found in findings(Config()) if found.topic == topic)


def test_an_old_triton_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version
    old = lambda package: "3.1.0" if package == "triton" else installed(package)  # noqa: E731
    monkeypatch.setattr(importlib.metadata, "version", old)
    for module in (doctor, triton_build):
        monkeypatch.setattr(module, "available", lambda package: True)
    found = finding("Triton")
    assert found.advice and found.found == "3.1.0; 3.6 or later is needed"


def test_a_gpu_without_its_driver_or_too_old_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DeviceUnsupported("no usable CUDA driver", "CUDA 12", "install it")

    monkeypatch.setattr(doctor, "cuda_driver", missing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    card = SimpleNamespace(multi_processor_count=40, name="Tesla T4", major=7, minor=5, total_memory=16 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert finding("CUDA driver").advice == "install it"
    assert finding("GPU 0").advice
