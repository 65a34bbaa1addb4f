"""Quire with and without KV cache groups in equal memory: what the groups give to chats over long documents."""
import contextlib

import load
from engines import Quire
from tables import in_turn

BYTES = 300_000_000  # five contexts of load.chats() in one group, all 16 in groups


def pair(binary, threads):
    flags = ("--max-model-len", 4096, "--kv-cache-memory-bytes", BYTES)
    return [
        Quire(binary, threads, "groups", flags),
        Quire(binary, threads, "one group", (*flags, "--disable-hybrid-kv-cache-manager")),
    ]


def measure(engines, model, rounds, say):
    """Both servers up and asked in turn: {measure: {name: [value]}}. A single client's chats are short, so there are several
    in a round."""
    results = {}
    with contextlib.ExitStack() as stack:
        servers = {engine.name: stack.enter_context(engine.serve(model, 16)) for engine in engines}
        for server in servers.values():
            load.stream(server.port, load.random_ids(1 << 20, 16), 8)
        chats = [clients for _ in range(rounds) for clients in (1, 1, 1, 1, 1, 16)]
        for index, clients in enumerate(chats):
            for engine in in_turn(engines, index):
                rates = load.chats(servers[engine.name].port, index + 1, clients)
                who = f"{clients} clients" if clients > 1 else "one client"
                for answers, rate in zip(("first", "later"), rates):
                    values = results.setdefault(f"{who}: {answers} answers", {e.name: [] for e in engines})
                    values[engine.name].append(rate)
                say(f"{who}, {engine.name}: first answers {rates[0]:.1f}, later ones {rates[1]:.1f} tokens/s")
    return results
