"""The inner loops of the kernels keep their vectors in registers.

QUIRE_BINARY names the program whose build folder has the kernels' objects. The counts below are of GCC 12, the compiler
that releases are built with: another one's objects are not judged.
"""
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from codegen.stack_loops import disassemble, loops_of

# What computes: tiles of matrix products, scores, values, softmax and the whole of an attention chunk, and the recurrence
# of a key head.
KERNELS = {
    "avx2/gemm_float": {"chain_tile", "block_tile"},
    "avx2/gemm_integer": {"run_pass"},
    "avx2/gemm_integer_vnni": {"run_pass"},
    "avx2/attention": {"scores", "values", "softmax", "chunk"},
    "avx2/gated_delta": {"key_head"},
    "avx2/latent": {"product_tile"},
    "avx2/index": {"product_tile"},
    "avx512/gemm_float": {"chain_tile", "block_tile"},
    "avx512/gemm_bf16": {"block_tile"},
    "avx512/gemm_integer": {"pass"},
    "avx512/gemm_amx": {"pass", "unpack"},
    "avx512/attention": {"scores", "values", "softmax", "chunk"},
    "avx512/attention_bf16": {"scores", "values", "softmax", "chunk"},
    "avx512/gated_delta": {"key_head"},
    "avx512/latent": {"product_tile"},
    "avx512/index": {"product_tile"},
}

LAYOUT_ENUM = re.compile(r"enum class Layout : uint8_t \{(.*?)\};", re.S)
LAYOUT_HEADER = Path(__file__).parents[2] / "src" / "kernels" / "gemm_layout.h"
LAYOUTS = re.findall(r"^ *k(\w+)", LAYOUT_ENUM.search(LAYOUT_HEADER.read_text())[1], re.M)
SOURCES = ["panel", "unpacked"]

# Stack accesses in innermost loops that are known: a rise fails. In <> are the layout, whether weights are unpacked,
# rows, and vectors of columns.
KNOWN = {
    # 4 rows of 2 vectors need 8 sums of integers and 8 of floats, and there are 16 registers: what is left on the stack
    # are sums of floats, touched once a group of 32 inputs. 3 rows would read the weights a third more often. Upper
    # bits, and factors of half a group, take more.
    "avx2/gemm_integer": {
        "run_pass<Int2Sub, panel, 1, 4>": 28,
        "run_pass<Int2Sub, panel, 2, 2>": 19,
        "run_pass<Int2Sub, panel, 3, 2>": 46,
        "run_pass<Int2Sub, panel, 4, 2>": 80,
        "run_pass<Int2Sub, unpacked, 1, 4>": 19,
        "run_pass<Int2Sub, unpacked, 2, 2>": 16,
        "run_pass<Int2Sub, unpacked, 3, 2>": 40,
        "run_pass<Int2Sub, unpacked, 4, 2>": 78,
        "run_pass<Int3Sub, panel, 1, 4>": 62,
        "run_pass<Int3Sub, panel, 2, 2>": 45,
        "run_pass<Int3Sub, panel, 3, 2>": 70,
        "run_pass<Int3Sub, panel, 4, 2>": 87,
        "run_pass<Int3Sub, unpacked, 1, 4>": 10,
        "run_pass<Int3Sub, unpacked, 2, 2>": 10,
        "run_pass<Int3Sub, unpacked, 3, 2>": 32,
        "run_pass<Int3Sub, unpacked, 4, 2>": 68,
        "run_pass<Int4, panel, 3, 2>": 2,
        "run_pass<Int4, panel, 4, 2>": 10,
        "run_pass<Int4Min, panel, 3, 2>": 2,
        "run_pass<Int4Min, panel, 4, 2>": 10,
        "run_pass<Int4Super, panel, 3, 2>": 2,
        "run_pass<Int4Super, panel, 4, 2>": 10,
        "run_pass<Int4Table, panel, 1, 4>": 12,
        "run_pass<Int4Table, panel, 2, 2>": 4,
        "run_pass<Int4Table, panel, 3, 2>": 12,
        "run_pass<Int4Table, panel, 4, 2>": 22,
        "run_pass<Int4Table, unpacked, 3, 2>": 1,
        "run_pass<Int4Table, unpacked, 4, 2>": 9,
        "run_pass<Int4TableSuper, panel, 1, 4>": 12,
        "run_pass<Int4TableSuper, panel, 2, 2>": 4,
        "run_pass<Int4TableSuper, panel, 3, 2>": 12,
        "run_pass<Int4TableSuper, panel, 4, 2>": 22,
        "run_pass<Int4TableSuper, unpacked, 3, 2>": 1,
        "run_pass<Int4TableSuper, unpacked, 4, 2>": 9,
        "run_pass<Int4Mx, panel, 1, 4>": 2,
        "run_pass<Int4Mx, panel, 3, 2>": 6,
        "run_pass<Int4Mx, panel, 4, 2>": 14,
        "run_pass<Int4Mx, unpacked, 4, 2>": 8,
        "run_pass<Int5, panel, 1, 4>": 18,
        "run_pass<Int5, panel, 2, 2>": 4,
        "run_pass<Int5, panel, 3, 2>": 10,
        "run_pass<Int5, panel, 4, 2>": 18,
        "run_pass<Int5, unpacked, 4, 2>": 8,
        "run_pass<Int5Min, panel, 1, 4>": 18,
        "run_pass<Int5Min, panel, 2, 2>": 4,
        "run_pass<Int5Min, panel, 3, 2>": 10,
        "run_pass<Int5Min, panel, 4, 2>": 18,
        "run_pass<Int5Min, unpacked, 4, 2>": 8,
        "run_pass<Int5Super, panel, 1, 4>": 18,
        "run_pass<Int5Super, panel, 2, 2>": 4,
        "run_pass<Int5Super, panel, 3, 2>": 10,
        "run_pass<Int5Super, panel, 4, 2>": 18,
        "run_pass<Int5Super, unpacked, 4, 2>": 8,
        "run_pass<Int6Sub, panel, 1, 4>": 57,
        "run_pass<Int6Sub, panel, 2, 2>": 26,
        "run_pass<Int6Sub, panel, 3, 2>": 48,
        "run_pass<Int6Sub, panel, 4, 2>": 77,
        "run_pass<Int6Sub, unpacked, 1, 4>": 10,
        "run_pass<Int6Sub, unpacked, 2, 2>": 12,
        "run_pass<Int6Sub, unpacked, 3, 2>": 32,
        "run_pass<Int6Sub, unpacked, 4, 2>": 72,
        "run_pass<Int8, panel, 3, 2>": 1,
        "run_pass<Int8, panel, 4, 2>": 9,
    },
    # The same.
    "avx2/gemm_integer_vnni": {
        "run_pass<Int2Sub, panel, 1, 4>": 28,
        "run_pass<Int2Sub, panel, 2, 2>": 17,
        "run_pass<Int2Sub, panel, 3, 2>": 36,
        "run_pass<Int2Sub, panel, 4, 2>": 65,
        "run_pass<Int2Sub, unpacked, 1, 4>": 14,
        "run_pass<Int2Sub, unpacked, 2, 2>": 12,
        "run_pass<Int2Sub, unpacked, 3, 2>": 26,
        "run_pass<Int2Sub, unpacked, 4, 2>": 47,
        "run_pass<Int3Sub, panel, 1, 4>": 66,
        "run_pass<Int3Sub, panel, 2, 2>": 24,
        "run_pass<Int3Sub, panel, 3, 2>": 56,
        "run_pass<Int3Sub, panel, 4, 2>": 74,
        "run_pass<Int3Sub, unpacked, 3, 2>": 12,
        "run_pass<Int3Sub, unpacked, 4, 2>": 22,
        "run_pass<Int4, panel, 3, 2>": 1,
        "run_pass<Int4, panel, 4, 2>": 5,
        "run_pass<Int4Min, panel, 3, 2>": 1,
        "run_pass<Int4Min, panel, 4, 2>": 5,
        "run_pass<Int4Super, panel, 3, 2>": 1,
        "run_pass<Int4Super, panel, 4, 2>": 5,
        "run_pass<Int4Table, panel, 3, 2>": 2,
        "run_pass<Int4Table, panel, 4, 2>": 6,
        "run_pass<Int4Table, unpacked, 4, 2>": 2,
        "run_pass<Int4TableSuper, panel, 3, 2>": 2,
        "run_pass<Int4TableSuper, panel, 4, 2>": 7,
        "run_pass<Int4TableSuper, unpacked, 4, 2>": 2,
        "run_pass<Int4Mx, panel, 3, 2>": 2,
        "run_pass<Int4Mx, panel, 4, 2>": 6,
        "run_pass<Int4Mx, unpacked, 4, 2>": 2,
        "run_pass<Int5, panel, 1, 4>": 18,
        "run_pass<Int5, panel, 2, 2>": 2,
        "run_pass<Int5, panel, 3, 2>": 8,
        "run_pass<Int5, panel, 4, 2>": 16,
        "run_pass<Int5, unpacked, 4, 2>": 2,
        "run_pass<Int5Min, panel, 1, 4>": 18,
        "run_pass<Int5Min, panel, 2, 2>": 2,
        "run_pass<Int5Min, panel, 3, 2>": 9,
        "run_pass<Int5Min, panel, 4, 2>": 16,
        "run_pass<Int5Min, unpacked, 4, 2>": 2,
        "run_pass<Int5Super, panel, 1, 4>": 18,
        "run_pass<Int5Super, panel, 2, 2>": 2,
        "run_pass<Int5Super, panel, 3, 2>": 9,
        "run_pass<Int5Super, panel, 4, 2>": 16,
        "run_pass<Int5Super, unpacked, 4, 2>": 2,
        "run_pass<Int6Sub, panel, 1, 4>": 60,
        "run_pass<Int6Sub, panel, 2, 2>": 16,
        "run_pass<Int6Sub, panel, 3, 2>": 30,
        "run_pass<Int6Sub, panel, 4, 2>": 55,
        "run_pass<Int6Sub, unpacked, 3, 2>": 12,
        "run_pass<Int6Sub, unpacked, 4, 2>": 22,
        "run_pass<Int8, panel, 4, 2>": 2,
    },
    # The mask of the odd inputs.
    "avx2/gemm_float": {"block_tile<4>": 1, "block_tile<5>": 1, "block_tile<6>": 1},
    # Tiles reach vector registers through memory alone: each vector of products is read once from where they were put.
    "avx512/gemm_amx": {f"pass<{layout}, {rows}>": 4 * rows for layout in LAYOUTS for rows in (8, 16)}
    | {"pass<Int2Sub, 16>": 116},  # minimums of halves take sums of their own
    # Constants of exp2, and masks, loaded again for every 16 keys.
    "avx2/attention": {
        "softmax<Tile<Bf16Words, 6, 1>>": 18,
        "softmax<Tile<F32Words, 6, 1>>": 15,
        "softmax<Tile<I8Words, 6, 1>>": 18,
    },
    # A third of the changes of 64 values, which with their sums fill the registers; they are read where they are used.
    "avx2/gated_delta": {"key_head": 6},
    # Masks of a row's first and last key.
    "avx512/attention": {"chunk<Tile<Bf16Words, 6, 4>>": 1},
    "avx512/attention_bf16": {"chunk<Tile<NativeBf16Words, 6, 4>>": 1},
    # 24 sums and their scales are just above 32 registers: 2 and 4 accesses among some 250 instructions.
    "avx512/gemm_integer": {
        "pass<Int2Sub, panel, 4, 2>": 8,
        "pass<Int3Sub, panel, 4, 2>": 8,
        "pass<Int4Min, panel, 6, 2>": 2,
        "pass<Int4Super, panel, 6, 2>": 8,
        "pass<Int5Min, panel, 6, 2>": 4,
        "pass<Int5Super, panel, 6, 2>": 6,
        "pass<Int6Sub, panel, 4, 2>": 2,
    },
}


def short_name(function):
    """`void quire::...::run_pass<(quire::kernels::Layout)3, 4, 2>(...) [clone]` as `run_pass<Int4, 4, 2>`."""
    name = re.sub(r"\(anonymous namespace\)::", "", function)
    name = re.sub(r"\([\w:]*Layout\)(\d+)", lambda m: LAYOUTS[int(m[1])], name)
    name = re.sub(r"\([\w:]*Source\)(\d)", lambda m: SOURCES[int(m[1])], name)
    name = re.sub(r"\b(?:\w+::)+|^\w+ (?=\w)", "", name)
    name = re.sub(r"^(?:void|SoftmaxState) ", "", name)
    return re.sub(r"\(.*|\[clone.*", "", name).strip().replace("> >", ">>")


def objects():
    binary = os.environ.get("QUIRE_BINARY")
    if not binary:
        pytest.skip("QUIRE_BINARY names no built program")
    if not shutil.which("objdump"):
        pytest.skip("objdump is not installed")
    return Path(binary).parent / "src" / "kernels" / "CMakeFiles" / "quire_kernels.dir"


@pytest.mark.parametrize("name", KERNELS)
def test_innermost_loops_keep_vectors_in_registers(name):
    path = objects() / f"{name}.cc.o"
    comment = subprocess.run(["readelf", "-p", ".comment", path], check=True, capture_output=True, text=True).stdout
    if not re.search(r"GCC: .* 12\.", comment):
        pytest.skip("not built with GCC 12")
    counts, seen = Counter(), Counter()
    for loop in loops_of(disassemble(path)):
        function = short_name(loop.function)
        family = function.split("<")[0]
        if family in KERNELS[name] and loop.vectors:
            seen[family] += 1
            counts[function] += len(loop.spills)
    # A softmax may be inlined into its chunk; every other kernel must be there to be judged.
    assert KERNELS[name] - set(seen) <= {"softmax", "chunk"}
    known = KNOWN.get(name, {})
    risen = {function: (known.get(function, 0), now) for function, now in counts.items() if now > known.get(function, 0)}
    assert not risen, f"stack accesses in innermost loops, known and now: {risen}"


SPILLS = """
#include <immintrin.h>
void %s(const float* x, const float* y, long n, float* out) {
  __m256 sums[kSums];
#pragma GCC unroll 32
  for (int s = 0; s < kSums; s++) sums[s] = _mm256_setzero_ps();
  for (long i = 0; i < n; i++) {
    const __m256 a = _mm256_loadu_ps(x + 8 * i);
#pragma GCC unroll 32
    for (int s = 0; s < kSums; s++) sums[s] = _mm256_fmadd_ps(a, _mm256_broadcast_ss(y + i * kSums + s), sums[s]);
  }
#pragma GCC unroll 32
  for (int s = 0; s < kSums; s++) _mm256_storeu_ps(out + 8 * s, sums[s]);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Loops of one function, by how many sums it keeps in 16 registers."""
    if not shutil.which("objdump") or not shutil.which("g++"):
        pytest.skip("needs g++ and objdump")

    def build(sums):
        folder = tmp_path_factory.mktemp("codegen")
        source, binary = folder / "kernel.cc", folder / "kernel.o"
        source.write_text(SPILLS % "kernel")
        subprocess.run(["g++", "-O3", "-mavx2", "-mfma", f"-DkSums={sums}", "-c", source, "-o", binary], check=True)
        return list(loops_of(disassemble(binary)))

    return build


def test_sums_that_fit_the_registers_stay_there(compiled):
    loops = [loop for loop in compiled(8) if loop.vectors]
    assert loops
    assert not any(loop.spills for loop in loops)


def test_sums_that_do_not_fit_are_seen(compiled):
    loops = [loop for loop in compiled(30) if loop.vectors]
    assert max(len(loop.spills) for loop in loops) >= 14


LISTING = """
0000000000000000 <nest()>:
   0:\tvmovaps %ymm0,0x20(%rsp)
   6:\tvaddps 0x20(%rsp),%ymm0,%ymm1
   c:\tmov    0x8(%rsp),%rax
  11:\tjne    6 <nest()+0x6>
  13:\tjmp    1a <nest()+0x1a>
  15:\tvmovaps %ymm1,0x40(%rsp)
  1a:\tdec    %rdx
  1d:\tjne    15 <nest()+0x15>
  1f:\tjne    0 <nest()>
  21:\tret

0000000000000030 <calls()>:
  30:\tvmovaps %ymm0,0x20(%rsp)
  36:\tcall   100 <other()>
  3b:\tjne    30 <calls()>
  3d:\tvmovaps %ymm0,0x20(%rbp)
  43:\tjne    3d <calls()+0xd>
  45:\tret
"""


def test_only_innermost_loops_that_call_nothing_count():
    found = [(loop.function, loop.first, len(loop.spills)) for loop in loops_of(LISTING)]
    # The outer loop of nest() has a store of its own, which does not count. %rbp is no frame pointer in calls().
    assert sorted(found) == [("calls()", 0x3D, 0), ("nest()", 0x6, 1), ("nest()", 0x15, 1)]


def test_names_are_those_of_the_table():
    pass_name = "void quire::kernels::avx512::(anonymous namespace)::pass<(quire::kernels::Layout)4, 6, 2>(quire::kernels::TileArgs const&, int) [clone .constprop.0]"
    assert short_name(pass_name) == f"pass<{LAYOUTS[4]}, 6, 2>"
    softmax = "quire::kernels::SoftmaxState quire::kernels::(anonymous namespace)::softmax<quire::kernels::(anonymous namespace)::Tile<quire::kernels::(anonymous namespace)::I8Words, 3, 1> >(float*)"
    assert short_name(softmax) == "softmax<Tile<I8Words, 3, 1>>"
