"""Addresses of files on Hugging Face, or on a mirror of it (`HF_ENDPOINT`), and the user's token."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from app.models.catalog import HubSource

_ENDPOINT = "https://huggingface.co"


def file_url(source: HubSource, file_name: str, env: Mapping[str, str]) -> str:
    """Where the member `file_name` lies; large files redirect from there to their store."""
    endpoint = (env.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    path = quote(source.paths[file_name])
    return f"{endpoint}/{source.repository}/resolve/{quote(source.revision, safe='')}/{path}"


def token(env: Mapping[str, str]) -> str:
    """For private and gated repositories; "" where there is none."""
    return env.get("HF_TOKEN", "").strip()
