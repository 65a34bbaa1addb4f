# docker build -t quire .
# docker run --rm -p 8000:8000 -v /path/to/models:/models:ro quire /models/model.gguf
FROM debian:bookworm AS build
COPY . /quire
WORKDIR /quire
RUN ./run --build-only

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      libedit2 libfmt9 libsimdjson14 libspdlog1.10 libssl3 libstdc++6 libyaml-cpp0.7 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /quire/build/release/quire /usr/local/bin/quire
USER nobody
EXPOSE 8000
# SIGTERM lets running answers end: give `docker stop` a --time above --drain-timeout.
ENTRYPOINT ["quire", "serve", "--host", "0.0.0.0"]
