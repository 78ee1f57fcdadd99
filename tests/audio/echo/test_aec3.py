"""What is AEC3's own, beyond the contract of stages."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from audio.echo.webrtc_aec3 import WebRtcAec3

pytest.importorskip("livekit")


def test_louder_than_full_scale_saturates(speech) -> None:
    stage = WebRtcAec3()
    loud = speech("jfk/jfk")[: 2 * 16000] * 20
    out = np.concatenate([stage.process(hop, np.zeros(160, np.float32)) for hop in loud.reshape(-1, 160)])
    assert np.abs(out).max() <= 1.0
    assert np.corrcoef(np.sign(out[128:]), np.sign(loud[:-128]))[0, 1] > 0.5  # no wrap-around


@pytest.mark.parametrize("delay_ms", [-1, 501])
def test_impossible_delays_are_refused(delay_ms: int) -> None:
    with pytest.raises(ValueError, match="0 to 500"):
        WebRtcAec3().set_delay_ms(delay_ms)


def test_same_bits_in_another_process() -> None:
    program = (
        "import hashlib, numpy as np\n"
        "from audio.echo.webrtc_aec3 import WebRtcAec3\n"
        "noise = np.random.default_rng(5).standard_normal((2, 200, 160)).astype(np.float32) * 0.1\n"
        "stage = WebRtcAec3()\n"
        "out = [stage.process(near + far, far) for near, far in zip(*noise)]\n"
        "print(hashlib.sha256(np.concatenate(out).tobytes()).hexdigest())\n"
    )
    digests = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in "ab"}
    assert len(digests) == 1
