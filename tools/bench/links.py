# SPDX-License-Identifier: Apache-2.0
"""What vs-nixl and vs-mooncake share: the memory and the pieces that a peer moves, its two processes,
`halyard bench link` beside it, alternated rounds and the table of medians."""
import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time

SIZES = (16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20)
POOL, REQUEST, AHEAD = 256 << 20, 8 << 20, 3


def pool():
    """Memory as the benchmark's: huge pages where the system gives them. Its address, and a handle."""
    import numpy
    m = mmap.mmap(-1, POOL)
    m.madvise(14)  # MADV_HUGEPAGE
    a = numpy.frombuffer(m, dtype=numpy.uint8)
    a[:] = 1
    return a.ctypes.data, (m, a)


def requests(size):
    """Offsets of the pieces of each request: strewn as the benchmark's."""
    per = REQUEST // size
    return [[(r * per + i) * 7 % (POOL // size) * size for i in range(per)] for r in range(POOL // REQUEST)]


def rate(handles, total, begin, settled):
    """GB/s of total bytes in requests, at most AHEAD at a time. begin(handle) -> what settled() asks about."""
    n, begun, busy = total // REQUEST, 0, []
    start = time.perf_counter()
    while begun < n or busy:
        while begun < n and len(busy) < AHEAD:
            busy.append(begin(handles[begun % len(handles)]))
            begun += 1
        busy = [b for b in busy if not settled(b)]
    return n * REQUEST / (time.perf_counter() - start) / 1e9


def start_target(kind):
    """The other process, and the words that it says once it is ready (libraries may print before)."""
    p = subprocess.Popen([sys.executable, sys.argv[0], "--target", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for line in p.stdout:
        w = line.split()
        if w and w[0] == b"READY":
            return p, w[1:]
    sys.exit("the target gave up")


def figures(move, total):
    """Called by the initiator: move(size, bytes) -> GB/s."""
    move(1 << 20, REQUEST * 4)  # connects
    print("RESULT", json.dumps([move(s, total // 4 if s < 65536 else total) for s in SIZES]), flush=True)


def ip_bytes():
    """What IP has carried on this machine so far."""
    with open("/proc/net/netstat") as f:
        names, values = [line.split() for line in f if line.startswith("IpExt:")]
    return int(values[names.index("OutOctets")])


def peer(kind, total, env, tcp):
    """Its figures; whether the bytes went by TCP is looked at, not believed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("UCX_", "MC_"))}
    before = ip_bytes()
    r = subprocess.run([sys.executable, sys.argv[0], "--initiator", kind, "--mib", str(total >> 20)],
                       env={**clean, **env}, capture_output=True, text=True, timeout=170)
    sent = ip_bytes() - before
    for line in r.stdout.splitlines():
        if line.startswith("RESULT "):
            if (sent > total) != tcp:
                sys.exit(f"{kind}: {sent >> 20} MiB went over IP, of more than {total >> 20} in all")
            return json.loads(line[7:])
    sys.exit(f"{kind} gave no result:\n" + r.stdout[-800:] + r.stderr[-1500:])


def ours(halyard, mib, names):
    r = subprocess.run([halyard, "bench", "link", "--json", "--reps", "1", "--mib", str(mib), "--rows",
                        ",".join(names)], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(r.stdout)


def show(name, per_round):
    cols = list(zip(*per_round))
    print(f"{name:28}" + "".join(f"{statistics.median(c):6.2f} ({min(c):.2f}-{max(c):.2f})" for c in cols))


def main(target, initiator, kinds, names, ratios, over_tcp):
    """kinds: {name: environment} of the peer, over_tcp: those whose bytes go by TCP; names: our rows; ratios: pairs of
    names of both."""
    p = argparse.ArgumentParser()
    p.add_argument("--halyard", default="build/release/halyard")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--mib", type=int, default=128)
    p.add_argument("--target")
    p.add_argument("--initiator")
    o = p.parse_args()
    if o.target is not None:
        target(o.target)
    if o.initiator is not None:
        initiator(o.initiator, o.mib << 20)
    rows = {k: [] for k in (*kinds, *names)}
    for r in range(o.rounds):
        for k in list(kinds)[:: 1 if r % 2 == 0 else -1]:
            rows[k].append(peer(k, o.mib << 20, kinds[k], k in over_tcp))
        mine = ours(o.halyard, o.mib, names)
        for k in names:
            rows[k].append(mine[k.replace(" ", "_")])
    print(f"# provider {mine['provider']}, GB/s, medians of {o.rounds} rounds (min-max)")
    print(f"{'piece':28}" + "".join(f"{s >> 10:14d} K  " for s in SIZES))
    for name, v in rows.items():
        show(name, v)
    for num, den in ratios:
        show(f"{num} / {den}"[:28], [[a / b for a, b in zip(x, y)] for x, y in zip(rows[num], rows[den])])
