"""The page: its components, and what happens when they are used."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.limits import NotNow, UnknownJob
from latentsync_trt.serve.service import Job, Service
from latentsync_trt.web import jobs, options, show
from latentsync_trt.web.people import People, Searches

_POLL_S = 1.0
_MOST_JOBS = 20
"""Of a browser's history."""
_OPEN = "waiting", "running"
