"""NumPy on far memory.    python3 arena.py unix:/run/muninn/muninn.sock"""

import sys

import numpy

import muninn

url = sys.argv[1] if len(sys.argv) > 1 else "unix:/run/muninn/muninn.sock"
arena = muninn.Arena(url, size=64 << 20, local=8 << 20)
numbers = arena.array((2048, 4096), "int64")  # 64 MiB
numbers[:] = numpy.arange(2048)[:, None]
total = int(numbers.sum())
stats = arena.stats()
right = total == 4096 * 2047 * 2048 // 2 and int(numbers[::-1, 17].max()) == 2047 and stats["lost"] == 0
here = "at most 8 MiB" if stats["near_bytes"] <= 8 << 20 else "TOO MUCH"
print(f"the sum is {'right' if right else 'WRONG'}; {arena.size >> 20} MiB of numbers, {here} of them here")
