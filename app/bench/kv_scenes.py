"""What `bench kv` measures beside appends: rollback, fork, persona switch, sleep, sharing, windows, policies, files."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench.kv_bed import Bed, Shape
from app.bench.kv_graph import Token, to_length

if TYPE_CHECKING:
    from gpu.kv.arena import Arena
    from gpu.kv.prefix import Prefix
    from gpu.kv.session import Session
    from gpu.kv.window import WindowSession

_SLEEP_BYTES = 512 << 20
_SHARERS = 8
_ROLLBACK = 1000


def _rounded(values: Sequence[float], digits: int = 3) -> list[float]:
    return [round(value, digits) for value in values]


def rollback_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """`truncate_to` 1,000 tokens back: the call, and until the device has the registers too."""
    for shape in bed.shapes:
        with bed.arena(shape, 4 * _ROLLBACK) as arena:
            session = arena.session()
            call_us, done_us = [], []
            for number in range(55):
                to_length(session, 3 * _ROLLBACK)
                bed.clock.sync()
                begun = time.perf_counter()
                session.truncate_to(2 * _ROLLBACK)
                called = time.perf_counter()
                bed.clock.sync()
                done = time.perf_counter()
                if number >= 5:  # warm
                    call_us.append((called - begun) * 1e6)
                    done_us.append((done - begun) * 1e6)
            session.check()
        row = {"scene": "rollback", "shape": shape.name, "tokens": _ROLLBACK}
        yield {**row, "call_us": _rounded(call_us), "done_us": _rounded(done_us)}


def fork_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """`Session.fork`, until the device is idle."""
    for shape in bed.shapes:
        for tokens in bed.fork_tokens:
            with bed.arena(shape, tokens + 64) as arena:
                session = filled(bed, arena, Token(bed, shape), tokens)
                times_ms, close_ms = [], []
                for _ in range(21 if tokens <= 2000 else 6):
                    fork_ms, made = bed.clock.once(session.fork)
                    times_ms.append(fork_ms)
                    close_ms.append(bed.clock.once(made.close)[0])
                arena.check()
            row = {"scene": "fork", "shape": shape.name, "tokens": tokens}
            yield {**row, "ms": _rounded(times_ms[1:]), "close_ms": _rounded(close_ms[1:])}


def persona_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """From one persona's session to the first view of every layer of another's; both prefixes are kept."""
    for shape in bed.shapes:
        tokens = bed.persona_tokens
        with bed.arena(shape, tokens + 256) as arena:
            contents = [Token(bed, shape) for _ in range(2)]
            prefixes = [
                _prefix(bed, arena, content, range(number, number + tokens)) for number, content in enumerate(contents)
            ]
            session = arena.session(prefix=prefixes[0])
            close_ms, open_ms, is_exact = [], [], True
            for number in range(1, 22):
                close_ms.append(bed.clock.once(session.close)[0])
                took_ms, session = bed.clock.once(_viewed, arena, prefixes[number % 2])
                open_ms.append(took_ms)
                is_exact = is_exact and contents[number % 2].is_in(session.rows())
            arena.check()
        row = {"scene": "persona", "shape": shape.name, "tokens": tokens, "is_exact": is_exact}
        yield {**row, "open_ms": _rounded(open_ms[1:]), "close_ms": _rounded(close_ms[1:])}


def _viewed(arena: Arena, prefix: Prefix) -> Session:
    session = arena.session(prefix=prefix)
    for layer in range(arena.spec.layers):
        session.keys(layer)
        session.values(layer)
    return session


def _prefix(bed: Bed, arena: Arena, token: Token, ids: Sequence[int]) -> Prefix:
    session = filled(bed, arena, token, len(ids))
    prefix = arena.prefixes.add(ids, session)
    session.close()
    return prefix


def filled(bed: Bed, arena: Arena, token: Token, tokens: int) -> Session:
    """A session of that many times the same token."""
    session = arena.session()
    keys, values = (part.unsqueeze(0).expand(tokens, -1, -1, -1) for part in (token.keys, token.values))
    session.append(keys, values)
    bed.clock.sync()
    return session


def sleep_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """512 MiB to the host and back; the first time the host's pinned memory is taken from the system."""
    import torch

    for shape in bed.shapes:
        token = Token(bed, shape)
        tokens = _SLEEP_BYTES // token.row_bytes
        with bed.arena(shape, tokens, watermark="inline") as arena:
            session = filled(bed, arena, token, tokens)
            sleep_ms, wake_ms = [], []
            for _ in range(8):
                free = torch.cuda.mem_get_info()[0]
                sleep_ms.append(bed.clock.once(arena.sleep)[0])
                freed = torch.cuda.mem_get_info()[0] - free
                wake_ms.append(bed.clock.once(arena.wake)[0])
            arena.check()
            is_exact = token.is_in(session.rows())
        yield {
            "scene": "sleep",
            "shape": shape.name,
            "bytes": tokens * token.row_bytes,
            "freed_bytes": freed,
            "is_exact": is_exact,
            "first_sleep_ms": round(sleep_ms[0], 2),
            "first_wake_ms": round(wake_ms[0], 2),
            "sleep_ms": _rounded(sleep_ms[1:]),
            "wake_ms": _rounded(wake_ms[1:]),
        }


def sharing_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """Eight sessions on one persona of 2,000 tokens, each with a token of its own, as the GPU's free memory tells."""
    for shape in bed.shapes:
        _shared(bed, shape)  # what the driver and torch take once, they have now
        yield _shared(bed, shape)


def _shared(bed: Bed, shape: Shape) -> dict[str, Any]:
    token, tokens = Token(bed, shape), bed.persona_tokens
    prefix_bytes = tokens * token.row_bytes
    with bed.arena(shape, tokens + 256) as arena:
        page = arena.backend.page_bytes
        arena.session().close()
        free = _free_bytes(bed)
        prefix = _prefix(bed, arena, token, range(tokens))
        after_prefix = _free_bytes(bed)
        sessions = [arena.session(prefix=prefix) for _ in range(_SHARERS)]
        for session in sessions:
            session.append(token.keys.unsqueeze(0), token.values.unsqueeze(0))
        used, in_books = free - _free_bytes(bed), arena.stats().used_bytes
        arena.check()
    tail = -(-(prefix_bytes % page + token.row_bytes) // page) * page
    return {
        "scene": "sharing",
        "shape": shape.name,
        "tokens": tokens,
        "sessions": _SHARERS,
        "prefix_bytes": prefix_bytes,
        "prefix_used_bytes": free - after_prefix,
        "used_bytes": used,
        "in_books_bytes": in_books,
        "ideal_bytes": -(-prefix_bytes // page) * page + _SHARERS * tail,
        "unshared_bytes": _SHARERS * -(-(prefix_bytes + token.row_bytes) // page) * page,
    }


def _free_bytes(bed: Bed) -> int:
    """Of the GPU, without what torch only keeps for later."""
    import torch

    gc.collect()
    bed.clock.sync()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def window_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """An endless session for 10 times its window, after it was full once; times of whole window steps."""
    from gpu.kv.window import WindowSpec

    shape, spec = bed.shapes[0], WindowSpec(window=bed.window)
    with bed.arena(shape, bed.window) as arena:
        token, session = Token(bed, shape), arena.session(window=spec)
        filling_us = _window_us(bed, session, token, bed.window + spec.sinks + spec.chunk)  # round the ring
        first_us = _window_us(bed, session, token, bed.window)
        first = _held(bed, arena)
        middle_us = _window_us(bed, session, token, 8 * bed.window)
        last_us = _window_us(bed, session, token, bed.window)
        last = _held(bed, arena)
        arena.check()
        position = session.position
    yield {
        "scene": "window",
        "shape": shape.name,
        "window": bed.window,
        "position": position,
        "pages_first": first[0],
        "pages_last": last[0],
        "free_bytes_first": first[1],
        "free_bytes_last": last[1],
        "filling_us": _rounded(filling_us),
        "first_tenth_us": _rounded(first_us),
        "middle_us": _rounded(middle_us[:: len(middle_us) // 64 or 1]),
        "last_tenth_us": _rounded(last_us),
    }


def _held(bed: Bed, arena: Arena) -> tuple[int, int | None]:
    return arena.stats().pages_in_use, _free_bytes(bed) if bed.on_gpu else None


def _window_us(bed: Bed, session: WindowSession, token: Token, tokens: int) -> list[float]:
    """Wall microseconds an append, each the mean of the tokens by which the window moves at a time."""
    keys, values, step = token.keys.unsqueeze(0), token.values.unsqueeze(0), session.shape.step
    return [bed.clock.time(lambda: session.append(keys, values), step)[0] for _ in range(tokens // step)]


def policy_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """Half of a session evicted in place, scoring included."""
    from gpu.kv.policies import KeyDiff, KeyNorm, SinkWindow, SnapKV, evict

    for shape in bed.shapes:
        tokens = bed.policy_tokens
        queries = [bed.noise(shape.heads, 32, shape.head_dim) for _ in range(shape.layers)]
        with bed.arena(shape, tokens + 16) as arena:
            session = filled(bed, arena, Token(bed, shape), tokens)
            for policy in (SinkWindow(), KeyNorm(), KeyDiff(), SnapKV(queries)):
                times_ms = []
                for _ in range(6):
                    session.truncate_to(0)
                    session.extend(tokens)
                    address = session.keys(0).data_ptr()
                    times_ms.append(bed.clock.once(evict, session, policy, tokens // 2)[0])
                    moved = session.keys(0).data_ptr() != address
                row = {"scene": "policy", "shape": shape.name, "policy": type(policy).__name__, "tokens": tokens}
                yield {**row, "kept": session.length, "moved": moved, "ms": _rounded(times_ms[1:])}
            arena.check()


def snapshot_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """A session to a file and back, checksum and disk included."""
    from gpu.kv.snapshot import restore, save

    shape, tokens = bed.shapes[0], bed.snapshot_tokens
    with bed.arena(shape, tokens) as arena, tempfile.TemporaryDirectory(prefix="vivavoce-kv-") as folder:
        token, path = Token(bed, shape), Path(folder) / "session.kv"
        session = filled(bed, arena, token, tokens)
        write_ms, restore_ms, is_exact = [], [], True
        for _ in range(3):
            took_ms, size = bed.clock.once(lambda: save(session, path, model="bench"))
            write_ms.append(took_ms)
            took_ms, restored = bed.clock.once(lambda: restore(arena, path, model="bench"))
            restore_ms.append(took_ms)
            is_exact = is_exact and token.is_in(restored.session.rows())
            restored.session.close()
    yield {
        "scene": "snapshot",
        "shape": shape.name,
        "bytes": size,
        "is_exact": is_exact,
        "write_ms": _rounded(write_ms),
        "restore_ms": _rounded(restore_ms),
    }
