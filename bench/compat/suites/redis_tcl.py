"""redis' own Tcl suite from Debian's source package, against Debian's redis-server.

The whole of it is one job: the Tcl interpreters and all servers they start share the limit.
"""

import os
import re

import packages

from .naming import numbered

PROGRAMS = ["redis-server", "redis-cli", "redis-benchmark", "redis-check-rdb", "redis-check-aof"]


class RedisTcl:
    name = "redis"
    about = "redis' own Tcl tests (source package redis)"
    units = ["unit/type/string", "unit/type/incr", "unit/type/list", "unit/type/list-2",
             "unit/type/list-3", "unit/type/hash", "unit/type/set", "unit/type/zset",
             "unit/type/stream", "unit/type/stream-cgroups", "unit/dump", "unit/keyspace",
             "unit/scan", "unit/expire", "unit/sort", "unit/bitops", "unit/hyperloglog", "unit/multi",
             "unit/scripting", "unit/functions", "unit/other", "unit/aofrw", "unit/lazyfree",
             "unit/maxmemory", "integration/aof", "integration/rdb", "integration/dismiss-mem",
             "integration/replication"]
    deadline_s = 600

    def prepare(self, sources):
        packages.need("redis-server", "redis-tools", "tcl")
        version = packages.installed_version("redis-server")
        self.folder = sources.unpacked("redis", version)
        for program in PROGRAMS:
            link = self.folder / "src" / program
            if not link.is_symlink():
                os.symlink(f"/usr/bin/{program}", link)
        return version

    def execute(self, unit, run):
        run.exit_code = run.call(
            ["tclsh", "tests/test_helper.tcl", "--clients", "1", "--timeout",
             str(int(run.deadline_s * 0.9)), "--single", unit],
            wrapped=True, cwd=self.folder)
        return results(run.text())


def results(text):
    found = []
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    for word, name in re.findall(r"^\[(ok|err|exception|ignore|skip)\]: (.*)$", text, re.M):
        name = re.sub(r" \(\d+ ms\)$| in tests/\S+\.tcl$", "", name)
        status = {"ok": "ok", "err": "failed", "exception": "failed"}.get(word, "skipped")
        # Some names hold a number of this run: a seed, a port, a digest.
        found.append((re.sub(r"\d{4,}", "N", name), status))
    return numbered(found)
