"""The desk: hands jobs to one worker thread per kind and releases their results on the sample clock.

The turn machine never sees a result before the desk releases it, and every release is an `arrival`
event with its index. Three ways to release, one interface:

- *live*: when the result is there, in order of completion;
- *charged*: at request index + cost. An unpaced run waits for the result, so the clock never overtakes
  it; a paced one releases a result that is behind its index as soon as it comes and says how late;
- *replay*: at the index and in the order of a log.

Workers do the same work in all three, so a decision depends on the release index alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.conversation.costs import Charge, CostTable
from app.errors import AgentError
from audio.block import HOP_SAMPLES, ms_to_samples, samples_to_ms

Cancelled = Callable[[], bool]
Work = Callable[[Cancelled], Iterable[object]]
KINDS = ("turn", "asr", "llm", "tts")


@dataclass(frozen=True, slots=True)
class Failure:
    """The job raised; its last result."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Done:
    """The job has no further results; its last result."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One released result."""

    job: int
    kind: str
    sequence: int
    value: object
    late_ms: float


@dataclass(eq=False, slots=True)
class _Job:
    id: int
    kind: str
    work: Work
    requested_samples: int
    charge: Charge
    cancel_flag: threading.Event = field(default_factory=threading.Event)
    results: deque[tuple[object, float]] = field(default_factory=deque)
    """(value, milliseconds of work since the result before)"""
    released: int = 0
    start_samples: int | None = None
    next_release_samples: int = 0
    is_timed: bool = False


class Release(Protocol):
    """When results leave the desk."""

    def submitted(self, job: _Job) -> None:
        """A job was handed in."""
        ...

    def cancelled(self, job: _Job, now_samples: int) -> None:
        """A job is not wanted any more."""
        ...

    def pick(self, now_samples: int, desk: Desk) -> tuple[_Job, float] | None:
        """The job whose next result (it is there) is released now, and how late it is in ms; None if none is."""
        ...

    def released(self, job: _Job, now_samples: int, *, is_last: bool) -> None:
        """The result that `pick` named has left."""
        ...


class Desk:
    """Jobs in, deliveries out. Not thread-safe towards its caller; the workers are its own."""

    def __init__(self, release: Release, costs: CostTable) -> None:
        self._release = release
        self._costs = costs
        self._jobs: dict[int, _Job] = {}
        self._next_id = 1
        self.changed = threading.Condition()
        self._completed: deque[_Job] = deque()
        self._has_news = False
        self._queues: dict[str, queue.SimpleQueue[_Job | None]] = {kind: queue.SimpleQueue() for kind in KINDS}
        self._threads = [
            threading.Thread(target=self._serve, args=(kind,), name=f"worker-{kind}", daemon=True) for kind in KINDS
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, kind: str, work: Work, *, size: float, now_samples: int) -> int:
        """Queue `work` on the worker of `kind`; `size` is what the cost table charges by. Returns the job id."""
        job = _Job(self._next_id, kind, work, now_samples, self._costs.charge(kind, size))
        self._next_id += 1
        self._jobs[job.id] = job
        self._release.submitted(job)
        self._queues[kind].put(job)
        return job.id

    def cancel(self, job_id: int, now_samples: int) -> None:
        """Nothing more of this job is released; its worker stops at its next look at the flag."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            job.cancel_flag.set()
            self._release.cancelled(job, now_samples)

    def next_due(self, now_samples: int) -> Delivery | None:
        """The next result released up to `now_samples`; None when there is none left.

        One at a time, because what the caller does with one may cancel or ask for others.
        """
        picked = self._release.pick(now_samples, self)
        if picked is None:
            return None
        job, late_ms = picked
        with self.changed:
            value, _ = job.results.popleft()
        delivery = Delivery(job.id, job.kind, job.released, value, late_ms)
        job.released += 1
        is_last = isinstance(value, Done | Failure)
        if is_last:
            self._jobs.pop(job.id, None)
        self._release.released(job, now_samples, is_last=is_last)
        return delivery

    @property
    def is_live(self) -> bool:
        """Results are released as they come, so there is a point in looking between two hops."""
        return isinstance(self._release, LiveRelease)

    def is_idle(self) -> bool:
        """No job is outstanding."""
        return not self._jobs

    @property
    def outstanding(self) -> int:
        """Jobs that have more results to come, in work or in line."""
        return len(self._jobs)

    def wait(self, timeout_s: float) -> None:
        """Sleep until some worker has a result, or the time is over."""
        with self.changed:
            if not self._has_news:
                self.changed.wait(timeout_s)
            self._has_news = False

    def close(self, timeout_s: float = 2.0) -> bool:
        """Cancel everything and join the workers. Returns whether all of them ended in time."""
        for job in self._jobs.values():
            job.cancel_flag.set()
        for jobs in self._queues.values():
            jobs.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # -- for release policies --

    def pop_completed(self) -> _Job | None:
        """The live job whose result came first; each result is named once."""
        with self.changed:
            while self._completed:
                job = self._completed.popleft()
                if job.id in self._jobs:
                    return job
        return None

    def has_result(self, job: _Job) -> bool:
        """Whether the job's next result is there."""
        with self.changed:
            return bool(job.results)

    def wait_for(self, job: _Job) -> float:
        """Block until the job's next result is there. Returns the milliseconds of work it took."""
        with self.changed:
            self.changed.wait_for(lambda: bool(job.results))
            return job.results[0][1]

    def find(self, job_id: int) -> _Job | None:
        """A live job by id."""
        return self._jobs.get(job_id)

    # -- workers --

    def _serve(self, kind: str) -> None:
        while (job := self._queues[kind].get()) is not None:
            if not job.cancel_flag.is_set():
                self._work(job)

    def _work(self, job: _Job) -> None:
        begun = time.perf_counter()
        try:
            for value in job.work(job.cancel_flag.is_set):
                begun = self._finish(job, value, begun)
                if job.cancel_flag.is_set():
                    return
            last: object = Done()
        except Exception as error:
            last = Failure(error)
        self._finish(job, last, begun)

    def _finish(self, job: _Job, value: object, begun: float) -> float:
        now = time.perf_counter()
        with self.changed:
            job.results.append((value, (now - begun) * 1000))
            if self.is_live:
                self._completed.append(job)
            self._has_news = True
            self.changed.notify_all()
        return now


class LiveRelease:
    """Results leave as they complete."""

    def submitted(self, job: _Job) -> None:
        """Nothing to schedule."""

    def cancelled(self, job: _Job, now_samples: int) -> None:
        """Nothing was scheduled."""

    def pick(self, now_samples: int, desk: Desk) -> tuple[_Job, float] | None:
        """Whichever completed first."""
        job = desk.pop_completed()
        return None if job is None else (job, 0.0)

    def released(self, job: _Job, now_samples: int, *, is_last: bool) -> None:
        """Nothing to keep."""


class ChargedRelease:
    """Results leave at request index + cost; jobs of one kind follow each other as they do on their worker."""

    def __init__(self, costs: CostTable, *, is_paced: bool) -> None:
        self._costs = costs
        self._is_paced = is_paced
        self._lines: dict[str, deque[_Job]] = {kind: deque() for kind in KINDS}
        self._free_at_samples = dict.fromkeys(KINDS, 0)

    def submitted(self, job: _Job) -> None:
        """Stand in line."""
        self._lines[job.kind].append(job)

    def cancelled(self, job: _Job, now_samples: int) -> None:
        """Leave the line; a job that had begun holds its worker until its next result: nothing interrupts a model."""
        line = self._lines[job.kind]
        if job not in line:
            return
        line.remove(job)
        if job.start_samples is not None and job.start_samples <= now_samples:
            self._free_at_samples[job.kind] = max(self._free_at_samples[job.kind], job.next_release_samples)

    def pick(self, now_samples: int, desk: Desk) -> tuple[_Job, float] | None:
        """The head of a line with the smallest (index, job); an unpaced run waits until it is there."""
        indexed = [(self._index(line[0], desk), line[0].id, line[0]) for line in self._lines.values() if line]
        if self._is_paced:
            indexed = [entry for entry in indexed if desk.has_result(entry[2])]
        index, _, job = min(indexed, key=lambda entry: entry[:2], default=(now_samples + 1, 0, None))
        if job is None or index > now_samples:
            return None
        desk.wait_for(job)
        late_samples = now_samples - index
        return job, samples_to_ms(late_samples) if late_samples >= HOP_SAMPLES else 0.0

    def released(self, job: _Job, now_samples: int, *, is_last: bool) -> None:
        """The next result of the job, or the next job of its line, counts from this one's index."""
        index = job.next_release_samples
        job.next_release_samples = index + ms_to_samples(job.charge.each_ms)
        job.is_timed = False
        if is_last:
            self._lines[job.kind].popleft()
            self._free_at_samples[job.kind] = max(self._free_at_samples[job.kind], index)

    def _index(self, job: _Job, desk: Desk) -> int:
        """Release index of the job's next result."""
        if job.start_samples is None:
            job.start_samples = max(job.requested_samples, self._free_at_samples[job.kind])
            job.next_release_samples = job.start_samples + ms_to_samples(job.charge.first_ms)
        if self._costs.is_measured and not job.is_timed:
            job.next_release_samples += ms_to_samples(desk.wait_for(job))
            job.is_timed = True
        return job.next_release_samples


class ReplayRelease:
    """Results leave at the index, and in the order, of a log's `arrival` events."""

    def __init__(self, arrivals: Sequence[tuple[int, int, int]]) -> None:
        """`arrivals`: (at_samples, job, sequence) in log order."""
        self._arrivals = deque(arrivals)

    def submitted(self, job: _Job) -> None:
        """The log says when."""

    def cancelled(self, job: _Job, now_samples: int) -> None:
        """The log has none of its later results."""

    def pick(self, now_samples: int, desk: Desk) -> tuple[_Job, float] | None:
        """The log's next arrival, if it is due; waits for its result.

        Raises:
            ReplayError: the log delivers a result that this run did not ask for.
        """
        if not self._arrivals or self._arrivals[0][0] > now_samples:
            return None
        _, job_id, sequence = self._arrivals.popleft()
        job = desk.find(job_id)
        if job is None or job.released != sequence:
            raise ReplayError(job_id, sequence, now_samples)
        desk.wait_for(job)
        return job, 0.0

    def released(self, job: _Job, now_samples: int, *, is_last: bool) -> None:
        """The log knows the next."""


class ReplayError(AgentError):
    """The log and the run have parted ways."""

    def __init__(self, job: int, sequence: int, at_samples: int) -> None:
        super().__init__(
            f"at sample {at_samples} the log delivers result {sequence} of job {job}, which this run did not ask for",
            fix="Replay with the input, the models and the configuration of the log",
        )
