#!/usr/bin/env python3
"""Which innermost loops of an object file keep vector registers on the stack.

    tests/codegen/stack_loops.py build/release/src/kernels/CMakeFiles/quire_kernels.dir/avx2/*.o

A compiler that cannot keep a kernel's accumulators in registers spills them, and the kernel runs at a fraction of its
speed with the right results. So this disassembles, finds the natural loops of every function, and counts in those that
hold no other loop every load or store of a vector or tile register at an address that starts from the stack pointer, or
from the frame pointer. Arrays reached through another register are not seen, and loops that call (for a ragged end) keep
nothing in vector registers anyway.
"""
import argparse
import re
import subprocess
import sys
from collections import namedtuple

Instruction = namedtuple("Instruction", "address name operands")
# `vectors`: instructions that name a vector register; `spills`: those of them that touch the stack.
Loop = namedtuple("Loop", "function first last vectors spills")

SYMBOL = re.compile(r"^[0-9a-f]+ <(.*)>:$")
LINE = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")
JUMP = re.compile(r"^([0-9a-f]+)\b")
VECTOR = re.compile(r"%[xyz]mm\d+|%tmm\d")
# Padding behind a jump would pass for a block that is entered from outside.
PADDING = re.compile(r"\bnop[wl]?\b|xchg +%ax,%ax")
FROM_STACK = re.compile(r"\(%rsp\b")
FROM_FRAME = re.compile(r"\(%r[sb]p\b")
SETS_FRAME = re.compile(r"^%rsp,%rbp$")


def functions(listing):
    """(name, instructions) of each function in what objdump printed."""
    name, body = None, []
    for line in listing.splitlines():
        if symbol := SYMBOL.match(line):
            if body:
                yield name, body
            name, body = symbol[1], []
        elif instruction := LINE.match(line):
            mnemonic, _, operands = instruction[2].split("#")[0].strip().partition(" ")
            if not PADDING.search(instruction[2]):
                body.append(Instruction(int(instruction[1], 16), mnemonic, operands.strip()))
    if body:
        yield name, body


def blocks_of(body):
    """Basic blocks as ranges of indices into the body, and for each the blocks that may follow it."""
    index = {instruction.address: i for i, instruction in enumerate(body)}
    targets = {}
    for i, instruction in enumerate(body):
        address = JUMP.match(instruction.operands) if instruction.name.startswith("j") else None
        if address and int(address[1], 16) in index:
            targets[i] = index[int(address[1], 16)]
    ends = {i for i, instruction in enumerate(body) if instruction.name.startswith(("j", "ret", "notrack"))}
    starts = sorted({0} | set(targets.values()) | {i + 1 for i in ends if i + 1 < len(body)})
    block_at = {start: number for number, start in enumerate(starts)}
    ranges = [range(start, end) for start, end in zip(starts, starts[1:] + [len(body)])]
    following = []
    for block in ranges:
        last = block[-1]
        after = [block_at[targets[last]]] if last in targets else []
        falls_through = not body[last].name.startswith(("jmp", "ret", "notrack", "ud2"))
        if falls_through and last + 1 < len(body):
            after.append(block_at[last + 1])
        following.append(after)
    return ranges, following


def dominators(following, before):
    """For each block the blocks on every way to it. Blocks that nobody jumps to (of jump tables) are entries as well."""
    everything = set(range(len(following)))
    entries = {0} | {block for block in everything if not before[block]}
    found = [{block} if block in entries else everything for block in everything]
    changed = True
    while changed:
        changed = False
        for block in everything - entries:
            now = set.intersection(*(found[other] for other in before[block])) | {block}
            if now != found[block]:
                found[block], changed = now, True
    return found


def innermost(body):
    """The natural loops that hold no other, as lists of instructions. Ways back to one block are one loop."""
    ranges, following = blocks_of(body)
    before = [[] for _ in ranges]
    for block, after in enumerate(following):
        for other in after:
            before[other].append(block)
    found = dominators(following, before)
    loops = {}
    for block, after in enumerate(following):
        for header in set(after) & found[block]:
            members = loops.setdefault(header, {header})
            waiting = [block]
            while waiting:
                member = waiting.pop()
                if member not in members:
                    members.add(member)
                    waiting += before[member]
    for header, members in loops.items():
        if not any(other in members for other in loops if other != header):
            yield [body[i] for block in sorted(members) for i in ranges[block]]


def loops_of(listing):
    for name, body in functions(listing):
        frame = any(i.name == "mov" and SETS_FRAME.match(i.operands) for i in body)
        stack = FROM_FRAME if frame else FROM_STACK
        for loop in innermost(body):
            if any(i.name == "call" for i in loop):
                continue
            vectors = [i for i in loop if VECTOR.search(i.operands)]
            yield Loop(name, loop[0].address, loop[-1].address, len(vectors), [i for i in vectors if stack.search(i.operands)])


def disassemble(path):
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description="innermost loops that keep vector registers on the stack")
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--verbose", action="store_true", help="print the instructions too")
    arguments = parser.parse_args()
    found = 0
    for path in arguments.objects:
        for loop in loops_of(disassemble(path)):
            if not loop.spills:
                continue
            found += 1
            print(f"{path}: {loop.function}: {loop.first:x}-{loop.last:x}: {len(loop.spills)} of {loop.vectors}")
            for spill in loop.spills if arguments.verbose else []:
                print(f"    {spill.address:x}: {spill.name} {spill.operands}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
