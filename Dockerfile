# Calibrant in a container: no root, no home folder, and nothing is written outside /tmp and the working folder.
#   docker build -t calibrant .
#   docker run --rm --read-only --tmpfs /tmp -v "$PWD:/work" calibrant evaluate test.npz
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
# The CPU build of PyTorch; empty for the one with CUDA.
ARG INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=plots,report,tables
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/calibrant \
    && /opt/calibrant/bin/pip install --no-cache-dir --extra-index-url "${INDEX}" -c constraints.txt ".[${EXTRAS}]"
# What is made once and then read: the script that draws reports, and the list of fonts.
ENV XDG_CACHE_HOME=/opt/cache MPLCONFIGDIR=/opt/cache/matplotlib
RUN /opt/calibrant/bin/calibrant demo --out /tmp/demo \
    && /opt/calibrant/bin/calibrant plot reliability \
        /opt/calibrant/lib/python3*/site-packages/calibrant/data/bundled/cifar10_val.npz --out /tmp/figure.png

FROM python:${PYTHON}-slim
COPY --from=build /opt /opt
ENV PATH=/opt/calibrant/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/opt/cache \
    MPLCONFIGDIR=/tmp
WORKDIR /work
# A number, so that Kubernetes can check runAsNonRoot; it needs no name and no home.
USER 10001:10001
ENTRYPOINT ["calibrant"]
CMD ["--help"]
