"""Runs the service as a Ray Serve deployment, whose workers are actors of the cluster.

One replica answers, on the machine where the command runs, since the jobs' folder and ledger are there. Workers on
other machines reach the files of jobs only if that folder is one which all machines share.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from latentsync_trt.batch.tasks import WorkerHandle
from latentsync_trt.errors import LatentSyncError, MissingDependency
from latentsync_trt.serve.limits import Limits

NAME = "latentsync-trt"
_MOST_REQUESTS = 200
_POLL_S = 1.0
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


def run(
    make_handles: Callable[[], Sequence[WorkerHandle]],
    folder: Path,
    limits: Limits,
    key: str | None,
    address: tuple[str, int],
    on_ready: Callable[[], None],
) -> None:
    """Deploys the service on the cluster that this process is connected to, until a signal raises KeyboardInterrupt.

    `make_handles` is called in the replica. `address`: where Ray Serve listens, if it does not yet.
    """
    try:
        import ray
        from ray import serve
    except ImportError as error:
        message = f'serve --ray: needs the extra cluster; pip install "latentsync-trt[cluster]" ({error})'
        raise MissingDependency(message) from error

    def build() -> Any:
        from latentsync_trt.serve.app import create_app, is_loopback
        from latentsync_trt.serve.service import Service

        service = Service(folder, make_handles(), limits)
        return create_app(service, key, own_hosts=is_loopback(address[0]))

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    node = ray.get_runtime_context().get_node_id()
    here = next(each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node)
    deployment = serve.deployment(
        serve.ingress(build)(),
        name="service",
        num_replicas=1,
        max_ongoing_requests=_MOST_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": {f"node:{here}": 0.001}},
    )
    serve.start(http_options={"host": address[0], "port": address[1]}, logging_config=_LOGGING)
    try:
        try:
            serve.run(deployment.bind(), name=NAME, route_prefix="/", logging_config=_LOGGING)
        except RuntimeError as error:  # its message does not say why
            traceback = serve.status().applications[NAME].deployments["service"].message
            raise LatentSyncError(
                f"serve --ray: did not start: {(traceback.strip() or str(error)).splitlines()[-1]}"
            ) from error
        on_ready()
        while True:
            time.sleep(_POLL_S)
    finally:
        serve.delete(NAME)
