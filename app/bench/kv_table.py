"""`bench kv` for the eye: a line for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.bench.document import Row
from app.bench.kv_graph import tail_p99
from app.histogram import quantiles


def table(rows: Sequence[Row]) -> Iterator[str]:
    """What was measured, in the order in which it was; scenes that failed and arms that were left out too."""
    for row in rows:
        if row["scene"] in ("append", "flat") and "arm" in row:
            yield _append_line(row)
        elif "tail_us" in row:
            yield "  ".join(f"{name} {value}" for name, value in row.items() if name != "tail_us") + _tail(row)
        elif row["scene"] != "clock":
            yield "  ".join(f"{name} {_shown(value)}" for name, value in row.items())


def _append_line(row: Row) -> str:
    wall, gpu = quantiles(row["wall_us"]), quantiles(row["gpu_us"])
    line = f"{row['scene']:6} {row['shape']:5} {row['tokens']:6} {row['arm']:16}"
    line += f" wall {wall.p50:10.1f} p95 {wall.p95:10.1f} p99 {wall.p99:10.1f} us"
    on_gpu = f"  gpu {gpu.p50:10.1f} us" if gpu.count else ""
    busy_us = gpu.p50 if gpu.count else wall.p50
    return f"{line}{on_gpu}  {row['moved_bytes'] / busy_us / 1000:8.2f} GB/s"


def _tail(row: Row) -> str:
    return f"  p99_us {tail_p99(row):.1f}  max_us {row['tail_us'][0]:.1f}"


def _shown(value: object) -> str:
    """Lists of measurements as quantiles."""
    if isinstance(value, list) and value and all(isinstance(entry, float | int) for entry in value):
        found = quantiles(value)
        return f"{found.p50:.2f} (p95 {found.p95:.2f}, p99 {found.p99:.2f}, n {found.count})"
    return str(value)
