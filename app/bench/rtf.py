"""How fast one model runs on this machine, measured in a second or two; for `vivavoce doctor`.

`measure` runs in a short-lived child, one for each model: a file that ends its process ends only that child, the
memory that the child grew to is the model's, and thread counts are those of a conversation.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.errors import AgentError
from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ, Float32Array
from audio.ear import EarSpec
from audio.errors import AudioError
from gpu.errors import GpuError

_REPEATS = 3
_HOPS = 200
_SENTENCE = "The longest night of the year is only a few days away."
_QUESTION = "Why is the sky blue in the daytime?"
_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Job:
    """One model to be measured. Plain values: it travels to a child."""

    role: str
    """`ear`, `vad`, `denoise`, `turn`, `asr`, `tts` or `llm`."""
    name: str
    engine: str
    parts: Mapping[str, Path]
    cache: Path
    is_configured: bool
    """A conversation would use it."""
    threads: int = 1
    ear: EarSpec | None = None
    """For `ear`."""
    llm: Mapping[str, Any] | None = None
    """For `llm`: device, precision, context_tokens, kv_dtype, and the persona's prompt."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured: medians of a few runs."""

    role: str
    name: str
    is_configured: bool
    threads: int
    audio_s: float = 0.0
    """What one run takes in or gives out; 0 for a language model."""
    wall_s: float = 0.0
    """How long one run takes."""
    first_ms: float = 0.0
    """Language model: from the question to the first token."""
    tokens_per_s: float = 0.0
    backend: str = ""
    peak_bytes: int = 0
    """What a process grew to that did nothing but this."""
    problem: str = ""
    """Why nothing was measured, with the fix."""

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work for a second of audio."""
        return self.wall_s / self.audio_s if self.audio_s else 0.0


def measure(job: Job) -> Speed:
    """Load, warm up, time. What does not work is told in `Speed.problem`."""
    empty = Speed(job.role, job.name, job.is_configured, job.threads)
    try:
        return replace(_WORK[job.role](job, empty), peak_bytes=_peak_bytes())
    except (AgentError, AudioError, GpuError) as error:
        return replace(empty, problem=str(error))
    except Exception as error:  # a bug of ours or of a library: the report goes on, and shows it
        return replace(empty, problem=f"unexpected {type(error).__name__}: {error}")


def _question_clip() -> Float32Array:
    """A few seconds of speech at 16 kHz."""
    from app.samples import sample_questions
    from audio.files import read_audio
    from audio.resample import resample

    return resample(*read_audio(sample_questions()[0].path), SAMPLE_RATE_HZ)


def _timed(empty: Speed, audio_s: float, work: Callable[[], object], backend: str) -> Speed:
    """Median of `_REPEATS` runs after one that warms up."""
    work()
    times_s = []
    for _ in range(_REPEATS):
        begun_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begun_s)
    return replace(empty, audio_s=audio_s, wall_s=statistics.median(times_s), backend=backend)


def _hops(empty: Speed, process: Callable[[Float32Array], object], backend: str) -> Speed:
    """`_HOPS` hops of speech through a stage."""
    import numpy as np

    hops = np.resize(_question_clip(), (_HOPS, HOP_SAMPLES))

    def work() -> None:
        for hop in hops:
            process(hop)

    return _timed(empty, _HOPS * HOP_SAMPLES / SAMPLE_RATE_HZ, work, backend)


def _ear(job: Job, empty: Speed) -> Speed:
    """The whole hop loop, at the rate that most devices have, with a reply sounding."""
    import numpy as np

    from audio.ear import Ear
    from audio.io.records import FLAG_REPLY, block_dtype

    assert job.ear is not None
    rate_hz = 48_000
    ear = Ear(job.ear, rate_hz)
    block = np.zeros(1, block_dtype(rate_hz // 100))[0]
    block["flags"] = FLAG_REPLY

    def process(hop: Float32Array) -> None:
        block["near"] = block["far"] = np.repeat(hop, rate_hz // SAMPLE_RATE_HZ)
        ear.process(block)
        block["index"] += 1

    return _hops(empty, process, "+".join(job.ear.chain))


def _vad(job: Job, empty: Speed) -> Speed:
    from audio.vad.silero import SileroVad

    return _hops(empty, SileroVad(job.parts["model"]).process, job.engine)


def _denoise(job: Job, empty: Speed) -> Speed:
    from audio.ear import STAGES

    stage = STAGES["denoise"]()
    return _hops(empty, lambda hop: stage.process(hop, hop), job.engine)


def _turn(job: Job, empty: Speed) -> Speed:
    from audio.turn.smart_turn import SmartTurn

    model, clip = SmartTurn(job.parts["model"]), _question_clip()
    return _timed(empty, len(clip) / SAMPLE_RATE_HZ, lambda: model.predict(clip), model.backend)


def _asr(job: Job, empty: Speed) -> Speed:
    from audio.asr.registry import create

    asr, clip = create(job.engine, job.parts, threads=job.threads), _question_clip()
    return _timed(empty, len(clip) / SAMPLE_RATE_HZ, lambda: asr.transcribe(clip), job.engine)


def _tts(job: Job, empty: Speed) -> Speed:
    from audio.tts.registry import create

    tts = create(job.engine, job.parts)
    spoken = tts.synthesize(_SENTENCE)
    return _timed(empty, len(spoken.samples) / spoken.rate_hz, lambda: tts.synthesize(_SENTENCE), job.engine)


def _llm(job: Job, empty: Speed) -> Speed:
    from app.conversation.history import History
    from gpu.device import choose_device
    from gpu.llm.model import open_language_model
    from gpu.llm.protocol import SamplingParams

    settings = dict(job.llm or {})
    prompt, wanted = settings.pop("prompt"), settings.pop("device")
    device, _ = choose_device(wanted)
    model = open_language_model(job.parts["model"], device=device, cache_dir=job.cache, threads=job.threads, **settings)
    history = History(prompt)
    model.warm(history.messages("")[:-1])

    def reply(question: str) -> list[float]:
        begun_s = time.perf_counter()
        pieces = model.generate(
            history.messages(question), SamplingParams(), max_tokens=_TOKENS, cancelled=lambda: False
        )
        return [time.perf_counter() - begun_s for _ in pieces]

    reply(_QUESTION)
    runs = [reply(f"{number}. {_QUESTION}") for number in range(_REPEATS)]
    each_s = statistics.median(after - before for run in runs for before, after in pairwise(run))
    return replace(
        empty,
        wall_s=statistics.median(run[-1] for run in runs),
        first_ms=statistics.median(run[0] for run in runs) * 1000,
        tokens_per_s=1 / each_s,
        backend=model.backend,
    )


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


_WORK: Mapping[str, Callable[[Job, Speed], Speed]] = {
    "ear": _ear,
    "vad": _vad,
    "denoise": _denoise,
    "turn": _turn,
    "asr": _asr,
    "tts": _tts,
    "llm": _llm,
}
