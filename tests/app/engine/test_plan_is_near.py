"""What the plan says of the starter set's models, against what a process that works with them really takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.models.store import Store

_ROOT = Path(__file__).parents[3]
_SCRIPT = """
import json, sys
import numpy as np
import onnxruntime, sherpa_onnx, tokenizers, torch
from app.config.load import load_config
from app.engine.builder import load_engines, places
from app.engine.memory_plan import open_peaks
from gpu.llm.protocol import Message, SamplingParams
from gpu.memory.host_peak import HostPeak
from gpu.memory.record import record_host_workspace, record_stages

def held(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

config = load_config(file=None, env={}, overrides=sys.argv[1:]).config
where, files = places(config, {}), held("RssFile")
whole = HostPeak()
loaded = load_engines(config, where)
engines, peaks = loaded.engines, open_peaks(where)
loading, pages = whole.look(), held("RssShmem")
work = HostPeak()
engines.asr.transcribe(np.zeros(48_000, np.float32))
engines.turn.predict(np.zeros(48_000, np.float32))
question = [Message("user", "word " * 900)]
text = "".join(engines.llm.generate(question, SamplingParams(), max_tokens=4, cancelled=lambda: False))
engines.tts.synthesize("One moment, please.")
rows = {row.name: row.size_bytes for row in loaded.plan.ledgers[0].rows}
used = work.look()
recorded = record_stages(peaks, loaded.plan, loaded.grown_bytes)
recorded += record_host_workspace(peaks, loaded.plan, used - (held("RssShmem") - pages))
took = max(loading, work.begin_bytes + used - whole.begin_bytes) - (held("RssFile") - files)
print(json.dumps({"took": took, "rows": rows, "recorded": recorded}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a process's peak")
def test_models_take_what_was_planned_for_them_by_estimate_and_by_record(model_store: Store, tmp_path: Path) -> None:
    """Without pages of libraries, which belong to the program's row, and without the ear's detector."""
    if any(model_store.state(model) != "in place" for model in model_store.catalog.starters()):
        pytest.skip("the starter set is not in the store")
    overrides = [f"paths.store={model_store.root}", f"paths.data={tmp_path}", "llm.device=cpu"]
    planned = []
    for _ in range(2):  # estimated, the language model converted on the way; then by what was recorded
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, *overrides],
            capture_output=True,
            text=True,
            check=True,
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        found = json.loads(done.stdout.splitlines()[-1])
        rows = found["rows"]
        planned.append(sum(size for name, size in rows.items() if name not in ("program", "reserve", "vad")))
        assert 0.95 < planned[-1] / found["took"] < 1.5, found
        assert found["recorded"] == 4
    assert planned[-1] > found["took"]
