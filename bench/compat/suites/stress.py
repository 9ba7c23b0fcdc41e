"""stress-ng's memory and process stressors, each alone, with their own verification on.

It stands in for the Linux Test Project's mm and fork tests, which Debian does not have.
"""

import os

import packages

SECONDS = 3
# Sizes that are larger than the least limit, and small enough for every machine.
SIZES = {
    "bigheap": ["--bigheap-growth", "1M"],
    "malloc": ["--malloc-bytes", "64M"],
    "mmap": ["--mmap-bytes", "64M"],
    "mremap": ["--mremap-bytes", "32M"],
    "memfd": ["--memfd-bytes", "32M"],
    "vm": ["--vm-bytes", "64M"],
    "vm-rw": ["--vm-rw-bytes", "32M"],
    "vm-splice": ["--vm-splice-bytes", "1M"],
    "shm": ["--shm-bytes", "8M"],
}
# What `bigheap` and `brk` take without end is bounded by the number of their operations.
OPERATIONS = {"bigheap": 200, "brk": 60000}

# These refuse to be root; userfaultfd asks for one right then.
NOT_ROOT = {"exec", "spawn"}
AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
             "--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]


class StressNg:
    name = "stress-ng"
    about = f"stress-ng's memory and process stressors, {SECONDS} s each, with --verify"
    units = ["mmap", "mmapaddr", "mmapfixed", "mmapmany", "mremap", "madvise", "mprotect",
             "mlock", "munmap", "msync", "mincore", "remap", "brk", "bigheap", "stack",
             "stackmmap", "malloc", "memcpy", "memfd", "zero", "vm", "vm-addr", "vm-rw", "vm-segv",
             "vm-splice", "fault", "pageswap", "rmap", "shm", "shm-sysv", "fork", "vfork", "vforkmany",
             "clone", "exec", "spawn", "daemon", "zombie", "wait", "switch", "pthread", "pipe",
             "splice", "tee", "sigsegv", "sigsuspend", "context", "tlb-shootdown", "userfaultfd",
             "resources", "sendfile", "sockmany", "zlib", "qsort", "tree", "radixsort"]
    deadline_s = 90

    def prepare(self, sources):
        packages.need("stress-ng")
        return packages.installed_version("stress-ng")

    def execute(self, unit, run):
        operations = OPERATIONS.get(unit)
        bound = ["--timeout", "60", f"--{unit}-ops", str(operations)] if operations else \
            ["--timeout", str(SECONDS)]
        prefix = []
        if unit in NOT_ROOT and os.geteuid() == 0:
            prefix = AS_NOBODY
            os.chown(run.folder, 65534, 65534)
        run.exit_code = run.call(["stress-ng", f"--{unit}", "1", "--verify", "--oomable",
                                  "--temp-path", run.folder, *SIZES.get(unit, []), *bound],
                                 wrapped=True, prefix=prefix)
        if run.exit_code is None:
            return {}
        if "No stress workers invoked" in run.text():
            return {unit: "skipped"}
        # 3 and 4: not enough of a resource, not implemented on this machine.
        status = {0: "ok", 3: "skipped", 4: "skipped"}.get(run.exit_code, "failed")
        return {unit: status}
