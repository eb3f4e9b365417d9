# The command `freshet` with everything it needs. See docs/deployment.md.
#
#   docker build -t freshet-search .
#   docker build -t freshet-search:gpu --build-arg EXTRA=gpu --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
# `full` holds FAISS for CPUs, `gpu` FAISS for CUDA.
ARG EXTRA=full
# The CPU build of torch. PyPI has the one with CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source

RUN python -m venv /opt/freshet
# Torch goes first: other packages would take a build with several GB of CUDA libraries.
COPY requirements.lock ./
RUN /opt/freshet/bin/pip install --constraint requirements.lock torch --extra-index-url "${TORCH_INDEX}"
COPY pyproject.toml README.md LICENSE ./
COPY freshet freshet
COPY model_code model_code
COPY assets assets
COPY orchestration orchestration
RUN /opt/freshet/bin/pip install --constraint requirements.lock ".[${EXTRA},postgres]"

FROM python:${PYTHON_VERSION}-slim-bookworm
# `freshet init` makes a git repository.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 freshet && mkdir /project && chown freshet:freshet /project
COPY --from=build /opt/freshet /opt/freshet
ENV PATH=/opt/freshet/bin:$PATH FRESHET_PROJECT=/project PYTHONUNBUFFERED=1
USER 10001
WORKDIR /project
VOLUME /project
EXPOSE 8765 3000 5000
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-m", "orchestration.health_check", "http://127.0.0.1:8765/health/live"]
ENTRYPOINT ["freshet"]
CMD ["serve", "--host", "0.0.0.0"]
