"""The worker: claims jobs, runs their handlers, acknowledges, keeps leases, drains."""

from __future__ import annotations

from lien.worker.collector import tune_collector
from lien.worker.events import Event, Hook, What, describe
from lien.worker.settings import Settings
from lien.worker.worker import Worker

__all__ = ["Event", "Hook", "Settings", "What", "Worker", "describe", "tune_collector"]
