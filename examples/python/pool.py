"""Memory at a server, by calls.    python3 pool.py unix:/run/muninn/muninn.sock"""

import sys

import muninn

with muninn.Pool(sys.argv[1] if len(sys.argv) > 1 else "unix:/run/muninn/muninn.sock") as pool:
    grant = pool.grant(1 << 20)
    grant[4096:4109] = b"kept far away"
    print(grant[4096:4109].decode())
    for _ in range(3):
        grant.fetch_add(0, 14)
    print("the counter stands at", grant.fetch_add(0, 0))
