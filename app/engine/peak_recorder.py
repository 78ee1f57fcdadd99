"""What this session's models really took, for the plan of the next one: once a session, after the first replies."""

from __future__ import annotations

from collections.abc import Mapping

from app.engine.tended_model import TendedModel
from gpu.memory.host_peak import HostPeak
from gpu.memory.peaks import Peaks
from gpu.memory.preflight import Plan
from gpu.memory.record import record_host_workspace, record_stages, record_workspace

_FIRST_REPLIES = 3


class PeakRecorder:
    """Made when everything has loaded and nothing was asked yet."""

    def __init__(
        self, model: TendedModel, peaks: Peaks, plan: Plan, device: str, grown_bytes: Mapping[str, int]
    ) -> None:
        """`device`: where the language model was loaded; `grown_bytes`: by how much RAM grew with each stage."""
        self._model = model
        self._peaks = peaks
        self._plan = plan
        self._device = device
        self._grown_bytes = grown_bytes
        self._host = HostPeak()
        self._pages_bytes = model.page_bytes(device)
        self._is_done = False

    def begin(self) -> int:
        """Record what loading took; returns how many stages were."""
        return record_stages(self._peaks, self._plan, self._grown_bytes)

    def look(self) -> bool:
        """Record once the first replies are over; whether it did."""
        self._host.look()
        return self._model.replies >= _FIRST_REPLIES and self._record()

    def close(self) -> bool:
        """Record what a short session took; whether it did."""
        return self._model.replies > 0 and self._record()

    def _record(self) -> bool:
        if self._is_done:
            return False
        self._is_done = True
        if self._plan.request.kind != self._device.partition(":")[0]:
            return False  # it was planned for a GPU that then did not start
        if self._plan.request.kind == "cuda":
            has_own_pages = self._model.page_bytes(self._device) > 0
            return record_workspace(self._peaks, self._plan, arena_is_torchs=not has_own_pages)
        pages_bytes = self._model.page_bytes(self._device) - self._pages_bytes
        return record_host_workspace(self._peaks, self._plan, self._host.look() - max(0, pages_bytes))
