# Run-time image: `docker build -t latentsync-trt .`; docs/cluster.md says how to run it.
# Plain Debian, whose own Python runs the package: scripts/fresh_debian.py can then run every line below without Docker.
FROM debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f AS system
# wget: health checks, of compose.yaml and of KubeRay before 1.6.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 wget \
    && rm -rf /var/lib/apt/lists/*

# The libraries, gigabytes with TensorRT: this layer changes only with them, whatever changes in the code.
FROM system AS libraries
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && python3 -m venv /opt/pip \
    && python3 -m venv --without-pip /opt/latentsync-trt
# tensorrt, cuda (without TensorRT) or none (no GPU).
ARG GPU=tensorrt
WORKDIR /requirements
COPY pyproject.toml requirements.lock requirements-cuda.lock ./
# Exactly the files of the lock (`make lock`).
RUN case "${GPU}" in none) lock=requirements.lock ;; *) lock=requirements-cuda.lock ;; esac \
    && /opt/pip/bin/pip --python /opt/latentsync-trt/bin/python install --no-cache-dir --require-hashes --requirement "${lock}"
# TensorRT comes from NVIDIA, fetched by a source package that names no hashes. An empty package asks for what is missing.
RUN test "${GPU}" != tensorrt || { mkdir latentsync_trt \
    && touch README.md latentsync_trt/__init__.py \
    && /opt/pip/bin/pip --python /opt/latentsync-trt/bin/python install --no-cache-dir ".[tensorrt]" \
    && /opt/pip/bin/pip --python /opt/latentsync-trt/bin/python uninstall --yes latentsync-trt; }

FROM libraries AS package
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY latentsync_trt latentsync_trt
RUN /opt/pip/bin/pip --python /opt/latentsync-trt/bin/python install --no-cache-dir --no-deps --root /package .

FROM system
# Folders that any user may write, so that `--user` works, too. Login shells, as KubeRay's, set their own PATH.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp latentsync \
    && mkdir -m 1777 /cache /data \
    && mkdir /checkpoints \
    && echo 'PATH=/opt/latentsync-trt/bin:$PATH' > /etc/profile.d/latentsync-trt.sh
COPY --from=libraries /opt/latentsync-trt /opt/latentsync-trt
COPY --from=package /package /
# HOME: of the container alone, since libraries that write to it fail in the home of another user. ORT_DISABLE_TELEMETRY: ONNX
# Runtime would report its runs to Microsoft. video: the GPU's encoder.
ENV PATH=/opt/latentsync-trt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    CUDA_CACHE_PATH=/cache/cuda \
    LATENTSYNC_TRT_CACHE_DIR=/cache/engines \
    LATENTSYNC_TRT_CHECKPOINTS=/checkpoints \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,video,utility
VOLUME ["/cache", "/data"]
WORKDIR /data
USER 10001
EXPOSE 8000
ENTRYPOINT ["latentsync-trt"]
CMD ["--help"]
