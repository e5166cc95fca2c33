#!/usr/bin/env bash
# Decoders under AddressSanitizer and UndefinedBehaviorSanitizer against hostile streams.
#   VENV=.venv STREAMS=1000000 bash fuzz/run.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "${VENV:-.venv}")
streams=${STREAMS:-1000000}
export PATH="$venv/bin:$PATH"
python -c "import cmake, nanobind, ninja" 2>/dev/null || pip install -q cmake nanobind ninja

cmake -S . -B build/sanitize -G Ninja -DENCKE_SANITIZE=ON \
  -DPython_EXECUTABLE="$venv/bin/python" >/dev/null
cmake --build build/sanitize --target _native

# A copy of the package whose native module is the sanitized one.
rm -rf build/sanitize/package
mkdir -p build/sanitize/package
cp -r src/encke build/sanitize/package/encke
rm -f build/sanitize/package/encke/ops/native/_native*.so
cp build/sanitize/_native*.so build/sanitize/package/encke/ops/native/

# Python itself is not instrumented: the runtime is preloaded, and leaks that the
# interpreter leaves at its end are not of interest.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_segv=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export PYTHONPATH=build/sanitize/package PYTHONSAFEPATH=1 OMP_NUM_THREADS=1
for isa in avx2 portable; do
  ENCKE_ISA=$isa python fuzz/streams.py --streams $((streams / 2)) --seed 1
done
