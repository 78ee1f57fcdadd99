"""The version, alone in a file so that `--version` and the build read it without importing anything else."""

from __future__ import annotations

VERSION = "0.1.0"
