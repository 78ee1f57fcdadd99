"""What the driver says of the GPUs; on a machine without one, a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpu.telemetry as telemetry
from gpu.telemetry import TelemetryError, has_gpu_files, probe_cuda, read_gpus


def test_nothing_heavy_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, gpu.telemetry; assert not {'torch', 'pycuda', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_the_drivers_library_it_is_one_sentence_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_library", lambda name: None)
    with pytest.raises(TelemetryError, match=r"management library is missing. Install the NVIDIA driver") as caught:
        read_gpus()
    assert caught.value.fix == "Install the NVIDIA driver"


def test_a_driver_that_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of the driver without a restart: NVML loads and does not start."""

    class Refusing:
        class nvmlErrorString:
            restype: object = None

            def __new__(cls, code: int) -> bytes:  # type: ignore[misc]
                assert code == 18
                return b"Driver/library version mismatch"

        def nvmlInit_v2(self) -> int:
            return 18

    monkeypatch.setattr(telemetry, "_library", lambda name: Refusing())
    with pytest.raises(TelemetryError, match="does not answer: Driver/library version mismatch"):
        read_gpus()


@pytest.mark.skipif(has_gpu_files(), reason="this machine has an NVIDIA GPU")
def test_cuda_without_a_gpu_has_a_reason() -> None:
    state = probe_cuda()
    assert state.problem
    assert state.vmm == ()
    assert not state.torch_sees_gpu


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu_files(), reason="this machine has no NVIDIA GPU")
def test_driver_and_torch_agree() -> None:
    torch = pytest.importorskip("torch")
    driver = read_gpus()
    assert len(driver.gpus) == torch.cuda.device_count() > 0
    assert driver.gpus[0].name == torch.cuda.get_device_name(0)
    major, minor = torch.cuda.get_device_capability(0)
    assert driver.gpus[0].compute_capability == f"{major}.{minor}"
    assert 0 < driver.gpus[0].free_bytes <= driver.gpus[0].total_bytes
    before_bytes = driver.gpus[0].free_bytes
    held = torch.ones(64 << 20, device="cuda")
    torch.cuda.synchronize()
    assert before_bytes - read_gpus().gpus[0].free_bytes >= held.nbytes
    state = probe_cuda()
    assert (state.problem, state.torch_sees_gpu) == ("", True)
    assert len(state.vmm) == len(driver.gpus)
