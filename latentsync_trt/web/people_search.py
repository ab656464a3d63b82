"""Searches for the people of videos that browsers have sent."""

from pathlib import Path
from weakref import WeakValueDictionary

from latentsync_trt.bundle.machine import machine_bytes
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import Pool
from latentsync_trt.types import Progress
from latentsync_trt.web.uploads import Upload, UploadAnalysis, analyze_upload

_SEARCHES = 2
"""Searches at once."""

_SEARCH_BYTES = 2.5e9
"""How much memory a search may take."""


class PeopleSearch:
    """Searches in child processes, one video of each browser at a time, so that none takes all the
    room.
    """

    def __init__(self, limits: Limits) -> None:
        most_bytes = min(_SEARCH_BYTES, machine_bytes() / 4)
        self._pool = Pool("search for faces", _SEARCHES, most_bytes)
        self._limits = limits
        self._latest = WeakValueDictionary[str, Upload]()
        self.close = self._pool.close

    def begin(self, browser: str, upload: Upload) -> None:
        """Lets a search take the place of the browser's earlier one."""
        upload.state = "searching"
        earlier = self._latest.get(browser)
        if earlier is not None and earlier.state == "searching":
            earlier.state = "replaced"
        if browser:
            self._latest[browser] = upload

    def run(self, upload: Upload) -> UploadAnalysis:
        """Returns the people of a video; what becomes known on the way is in the upload."""

        def watch(news: Path | Progress | None) -> None:
            if upload.state != "searching":
                raise LatentSyncError("search: is not wanted any longer")
            if isinstance(news, Progress):
                upload.progress = news
            elif news is not None:
                upload.playable = news

        analysis: UploadAnalysis = self._pool.call(
            analyze_upload, upload.video, self._limits, watch=watch
        )
        upload.analysis = analysis
        return analysis
