"""The kernel's own selftests of memory, clone and exec, from Debian's linux-source package."""

import re
import subprocess

import packages

from .naming import numbered

PACKAGE = "linux-source-6.1"
# Folder of the selftests, program, other files and flags.
PROGRAMS = {
    "mremap_test": ("vm", []),
    "mremap_dontunmap": ("vm", []),
    "map_fixed_noreplace": ("vm", []),
    "map_populate": ("vm", []),
    "madv_populate": ("vm", ["vm_util.c"]),
    "mlock-random-test": ("vm", ["-lcap"]),
    "mlock2-tests": ("vm", []),
    "on-fault-limit": ("vm", []),
    "memfd_secret": ("vm", ["-lcap"]),
    "mrelease_test": ("vm", []),
    "soft-dirty": ("vm", ["vm_util.c"]),
    "split_huge_page_test": ("vm", ["vm_util.c"]),
    "virtual_address_range": ("vm", []),
    "mincore_selftest": ("mincore", []),
    "clone3": ("clone3", []),
    "clone3_clear_sighand": ("clone3", []),
    "clone3_set_tid": ("clone3", ["-lcap"]),
    "close_range_test": ("core", []),
    "null-argv": ("exec", []),
    "recursion-depth": ("exec", []),
    "pidfd_test": ("pidfd", ["-lpthread"]),
    "pidfd_wait": ("pidfd", ["-lpthread"]),
    "pidfd_getfd_test": ("pidfd", []),
    "membarrier_test_multi_thread": ("membarrier", ["-lpthread"]),
}


class Kernel:
    name = "kernel"
    about = f"the kernel's selftests of memory, clone and exec ({PACKAGE})"
    units = list(PROGRAMS)
    deadline_s = 120

    def prepare(self, sources):
        packages.need("build-essential", "xz-utils", "libcap-dev", "linux-libc-dev")
        package = sources.downloaded(PACKAGE)
        version = package.name.split("_")[1]
        self.tests = sources.work / f"{PACKAGE}-{version}"
        if not self.tests.exists():
            self._unpack(package, sources.work)
        self.tests = self.tests / "tools/testing/selftests"
        for program, (folder, extra) in PROGRAMS.items():
            self._build(self.tests / folder, program, extra)
        return version

    def _unpack(self, package, work):
        print("compat: unpacking the kernel's selftests", flush=True)
        partial = work / "linux.partial"
        subprocess.run(["rm", "-rf", partial], check=True)
        partial.mkdir()
        wanted = " ".join(f"'*/tools/testing/selftests/{folder}/*'"
                          for folder in sorted({folder for folder, _ in PROGRAMS.values()}))
        subprocess.run(["bash", "-c", f"set -o pipefail; dpkg-deb --fsys-tarfile {package} "
                        f"| tar -xO ./usr/src/{PACKAGE}.tar.xz | xz -dc "
                        f"| tar -x -C {partial} --strip-components=1 --wildcards {wanted} "
                        "'*/tools/testing/selftests/*.h'"], check=True)
        partial.rename(self.tests)

    def _build(self, folder, program, extra):
        if (folder / program).exists():
            return
        sources = [word for word in extra if word.endswith(".c")]
        flags = [word for word in extra if not word.endswith(".c")]
        done = subprocess.run(["gcc", "-O2", "-w", "-D_GNU_SOURCE", "-o", program, f"{program}.c",
                               *sources, *flags], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"compat: kernel:{program} cannot be built: {done.stderr.strip()[:200]}")

    def execute(self, unit, run):
        folder = self.tests / PROGRAMS[unit][0]
        if not (folder / unit).exists():
            return {}
        run.exit_code = run.call([folder / unit], wrapped=True, cwd=folder)
        found = from_tap(run.text())
        if not found and run.exit_code is not None:
            # Older tests speak by their exit code alone; 4 means that something is not here.
            found = {unit: {0: "ok", 4: "skipped"}.get(run.exit_code, "failed")}
        return found


def from_tap(text):
    found = []
    for no, number, rest in re.findall(r"^(not )?ok (\d+)(.*)$", text, re.M):
        name, _, directive = rest.strip(" -").partition("#")
        status = "failed" if no else "skipped" if "SKIP" in directive else "ok"
        # Pids and addresses are another ones in each run.
        name = re.sub(r"0x[0-9a-f]+|\d{3,}", "N", name).strip()
        found.append((name[:100] or number, status))
    return numbered(found)
