#!/usr/bin/env python3
"""Waits until the server with process id PID answers, then prints its URL and one curl line to try it.

usage: announce.py PID {chat,completion}

The address is read from the sockets that the process itself listens on, so that a server of somebody else on the same
port is never announced. Ends silently when the process ends.
"""
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

LISTEN = "0A"


def sockets_of(pid):
    """The inodes of the sockets that the process has open."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return inodes


def listening_address(pid):
    """host:port to reach the process at, or None while it listens nowhere."""
    inodes = sockets_of(pid)
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] != LISTEN or fields[9] not in inodes:
                    continue
                address, port = fields[1].split(":")
                if table == "tcp6":
                    return f"[::1]:{int(port, 16)}"
                octets = [str(b) for b in reversed(bytes.fromhex(address))]
                host = ".".join(octets)
                return f"{'127.0.0.1' if host == '0.0.0.0' else host}:{int(port, 16)}"
    return None


def get(url):
    # The certificate may be for a name that others reach the server by; nothing is told to it.
    with urllib.request.urlopen(url, timeout=2, context=ssl._create_unverified_context()) as reply:
        return reply.read()


def wait_until_ready(pid):
    while True:
        address = listening_address(pid)
        for scheme in ("http", "https") if address else ():
            try:
                get(f"{scheme}://{address}/health")
                return f"{scheme}://{address}"
            except (urllib.error.URLError, OSError):
                pass
        time.sleep(0.1)


def curl_line(url, kind):
    model = json.loads(get(f"{url}/v1/models"))["data"][0]["id"]
    question = "What is a quire of paper?"
    if kind == "chat":
        path, body = "chat/completions", {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 64}
    else:
        path, body = "completions", {"model": model, "prompt": "A quire of paper is", "max_tokens": 64}
    return f"curl -s {url}/v1/{path} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def main():
    pid, kind = int(sys.argv[1]), sys.argv[2]
    try:
        url = wait_until_ready(pid)
        line = curl_line(url, kind)
    except (OSError, ValueError, LookupError):
        return  # the server ended or refuses to be asked (an API key); its own lines say why
    print(f"\nQuire is ready at {url}/ (Ctrl-C stops it)\n{line}\n", flush=True)


if __name__ == "__main__":
    main()
