# An image with the program weft and its Python package, for the CPU (docs/python.md has how a wheel for GPUs is made):
#
#   docker build -t weft .
#   docker run --rm -v "$PWD:/data" weft generate --model MODEL --input requests.jsonl --output answers.jsonl
#
# scripts/dev/dockerfile_steps.py runs these steps without Docker.
FROM debian:bookworm-slim AS build
WORKDIR /weft
COPY . .
RUN scripts/wheel.sh

FROM debian:bookworm-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
COPY --from=build /weft/build/wheel/*.whl /tmp/
RUN python3 -m venv /opt/weft && /opt/weft/bin/pip install --no-index /tmp/*.whl && rm /tmp/*.whl
ENV PATH=/opt/weft/bin:/usr/bin:/bin
WORKDIR /data
ENTRYPOINT ["weft"]
