"""A dictionary whose values are far.    python3 store.py unix:/run/muninn/muninn.sock"""

import hashlib
import sys

import muninn


def value(n):
    return hashlib.sha256(str(n).encode()).digest() * 512  # 16 KiB


with muninn.Pool(sys.argv[1] if len(sys.argv) > 1 else "unix:/run/muninn/muninn.sock") as pool:
    store = muninn.Store(pool)
    for n in range(2000):
        store[n] = value(n)
    far = sum(len(store[n]) for n in store)
    same = all(store[n] == value(n) for n in store)
    print(f"{len(store)} values, {far / 2**20:.1f} MiB of them far;", "all as they were" if same else "WRONG")
