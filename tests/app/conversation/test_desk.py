"""The desk: the same releases at the same indices, whatever the threads do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

from app.conversation.costs import CostTable, KindCost, load_costs, measured_costs, zero_costs
from app.conversation.desk import (
    ChargedRelease,
    Delivery,
    Desk,
    Done,
    Failure,
    LiveRelease,
    Release,
    ReplayError,
    ReplayRelease,
    Work,
)
from app.errors import AgentError
from audio.block import HOP_SAMPLES, ms_to_samples

TABLE = CostTable(
    "test",
    {
        "turn": KindCost(75, 0),
        "asr": KindCost(20, 30),
        "llm": KindCost(80, 1, each_ms=25),
        "tts": KindCost(50, 2),
    },
)


@pytest.fixture
def opened() -> Iterator[list[Desk]]:
    desks: list[Desk] = []
    yield desks
    for desk in desks:
        assert desk.close()


def make(opened: list[Desk], release: Release, table: CostTable = TABLE) -> Desk:
    desk = Desk(release, table)
    opened.append(desk)
    return desk


def values(*items: object, delay_s: float = 0.0) -> Work:
    def work(cancelled: object) -> Iterable[object]:
        for item in items:
            time.sleep(delay_s)
            yield item

    return work


def drain(desk: Desk, now: int) -> list[Delivery]:
    out = []
    while (delivery := desk.next_due(now)) is not None:
        out.append(delivery)
    return out


def run_hops(desk: Desk, hops: int, start: int = 0) -> list[tuple[int, int, int]]:
    """(index, job, sequence) of everything released in so many hops."""
    out = []
    for hop in range(start + 1, start + hops + 1):
        out += [(hop * HOP_SAMPLES, d.job, d.sequence) for d in drain(desk, hop * HOP_SAMPLES)]
    return out


def test_charged_release_is_request_plus_cost(opened: list[Desk]) -> None:
    desk = make(opened, ChargedRelease(TABLE, is_paced=False))
    desk.submit("llm", values("a", "b", "c"), size=20, now_samples=0)
    got = run_hops(desk, 40)
    assert [index for index, _, _ in got] == [ms_to_samples(ms) for ms in (100, 130, 150, 180)]
    assert [sequence for _, _, sequence in got] == [0, 1, 2, 3]
    assert desk.is_idle()


def test_jobs_of_one_kind_follow_each_other_and_kinds_do_not(opened: list[Desk]) -> None:
    desk = make(opened, ChargedRelease(TABLE, is_paced=False))
    for _ in range(2):
        desk.submit("asr", values("x"), size=1, now_samples=0)
    desk.submit("turn", values(0.5), size=0, now_samples=0)
    firsts = [(index, job) for index, job, sequence in run_hops(desk, 40) if sequence == 0]
    assert firsts == [(ms_to_samples(50), 1), (ms_to_samples(80), 3), (ms_to_samples(100), 2)]


def scenario(desk: Desk, seed: int) -> list[tuple[int, int, int]]:
    """Random submissions and cancellations, random work times; the log of releases."""
    plan, jitter = random.Random(seed), random.Random()
    log: list[tuple[int, int, int]] = []
    live: list[int] = []
    for hop in range(1, 120):
        now = hop * HOP_SAMPLES
        if plan.random() < 0.15:
            kind = plan.choice(["turn", "asr", "llm", "tts"])
            items = list(range(plan.randint(1, 6))) if kind == "llm" else [0]
            work = values(*items, delay_s=jitter.random() * 0.004)
            live.append(desk.submit(kind, work, size=plan.randint(0, 10), now_samples=now))
        if live and plan.random() < 0.05:
            desk.cancel(live.pop(plan.randrange(len(live))), now)
        log += [(now, d.job, d.sequence) for d in drain(desk, now)]
    return log


@pytest.mark.parametrize("seed", range(4))
def test_thread_timing_does_not_change_the_log(opened: list[Desk], seed: int) -> None:
    logs = [scenario(make(opened, ChargedRelease(TABLE, is_paced=False)), seed) for _ in range(3)]
    assert logs[0] == logs[1] == logs[2]
    assert logs[0]


def test_a_log_replays(opened: list[Desk]) -> None:
    log = scenario(make(opened, ChargedRelease(TABLE, is_paced=False)), 9)
    assert scenario(make(opened, ReplayRelease(log)), 9) == log


def test_replay_of_a_foreign_log_is_refused(opened: list[Desk]) -> None:
    desk = make(opened, ReplayRelease([(HOP_SAMPLES, 5, 0)]))
    with pytest.raises(ReplayError, match="job 5"):
        desk.next_due(HOP_SAMPLES)


def test_paced_run_goes_on_without_a_late_result_and_says_how_late(opened: list[Desk]) -> None:
    gate = threading.Event()

    def work(cancelled: object) -> Iterable[object]:
        gate.wait(5)
        yield "late"

    desk = make(opened, ChargedRelease(zero_costs(), is_paced=True), zero_costs())
    desk.submit("asr", work, size=1, now_samples=0)
    assert run_hops(desk, 10) == []
    gate.set()
    deadline = time.monotonic() + 5
    while (delivery := desk.next_due(10 * HOP_SAMPLES)) is None:
        assert time.monotonic() < deadline
        desk.wait(0.01)
    assert (delivery.value, delivery.late_ms) == ("late", 100.0)


def test_waiting_waits_although_results_lie_there_for_later(opened: list[Desk]) -> None:
    desk = make(opened, ChargedRelease(TABLE, is_paced=True))
    desk.submit("asr", values("x"), size=1, now_samples=0)
    deadline = time.monotonic() + 5
    while len(desk.find(1).results) < 2:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
    desk.wait(0.0)
    begun = time.monotonic()
    desk.wait(0.2)
    assert time.monotonic() - begun > 0.15


def test_measured_cost_is_the_work_time(opened: list[Desk]) -> None:
    table = measured_costs()
    desk = make(opened, ChargedRelease(table, is_paced=False), table)
    desk.submit("asr", values("x", delay_s=0.05), size=1, now_samples=0)
    (index, _, _), *_ = run_hops(desk, 100)
    assert ms_to_samples(50) <= index < ms_to_samples(900)


def test_live_release_is_in_order_of_completion(opened: list[Desk]) -> None:
    first = threading.Event()

    def slow(cancelled: object) -> Iterable[object]:
        first.wait(5)
        yield "slow"

    def fast(cancelled: object) -> Iterable[object]:
        yield "fast"

    desk = make(opened, LiveRelease())
    desk.submit("asr", slow, size=1, now_samples=0)
    desk.submit("tts", fast, size=1, now_samples=0)
    seen: list[object] = []
    deadline = time.monotonic() + 5
    while not desk.is_idle() and time.monotonic() < deadline:
        desk.wait(0.01)
        seen += [d.value for d in drain(desk, HOP_SAMPLES)]
        if "fast" in seen:
            first.set()
    assert [value for value in seen if not isinstance(value, Done)] == ["fast", "slow"]


def test_cancelled_job_delivers_nothing_and_stops_within_one_result(opened: list[Desk]) -> None:
    produced: list[int] = []
    step = threading.Semaphore(0)

    def work(cancelled: object) -> Iterable[object]:
        for number in range(100):
            step.acquire(timeout=5)
            produced.append(number)
            yield number

    desk = make(opened, LiveRelease())
    job = desk.submit("llm", work, size=1, now_samples=0)
    step.release()
    deadline = time.monotonic() + 5
    while desk.next_due(0) is None:
        assert time.monotonic() < deadline
        desk.wait(0.01)
    desk.cancel(job, 0)
    step.release(5)
    assert desk.close()
    assert desk.next_due(0) is None
    assert len(produced) <= 2


def test_a_job_that_raises_delivers_its_failure_and_the_worker_lives(opened: list[Desk]) -> None:
    def broken(cancelled: object) -> Iterable[object]:
        raise RuntimeError("no weights")

    desk = make(opened, ChargedRelease(TABLE, is_paced=False))
    desk.submit("asr", broken, size=1, now_samples=0)
    desk.submit("asr", values("next"), size=1, now_samples=0)
    deliveries = drain(desk, 10**6)
    assert isinstance(deliveries[0].value, Failure)
    assert str(deliveries[0].value.error) == "no weights"
    assert deliveries[1].value == "next"


def test_cost_table_errors_name_file_and_fix(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "costs.toml"
    with pytest.raises(AgentError, match=r"costs\.toml"):
        load_costs(path)
    path.write_text("[asr]\nbase_ms = 1\n")
    with pytest.raises(AgentError, match="per_unit_ms"):
        load_costs(path)
    path.write_text("".join(f"[{kind}]\nbase_ms = 1\nper_unit_ms = 2\n" for kind in ("turn", "asr", "llm", "tts")))
    assert load_costs(path).charge("asr", 3).first_ms == 7
