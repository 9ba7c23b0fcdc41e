"""SQLite's own Tcl tests, built from Debian's source package."""

import re
import subprocess

import packages

from .naming import numbered


class Sqlite:
    name = "sqlite"
    about = "SQLite's own Tcl tests (source package sqlite3)"
    units = ["select1", "select2", "insert", "update", "delete", "index", "join", "where", "trans",
             "sort", "sort2", "sort3", "sort4", "memdb", "mmap1", "mmap2", "mmap3", "mmap4", "pager1",
             "wal", "wal2", "walshared", "shared", "thread001", "thread002", "thread003", "thread1",
             "malloc", "malloc3", "blob", "vacuum", "backup", "bigrow", "memsubsys1",
             "multiplex", "savepoint", "zeroblob", "window1", "with1", "fuzz"]
    deadline_s = 600

    def prepare(self, sources):
        packages.need("build-essential", "tcl-dev", "zlib1g-dev", "libsqlite3-0")
        version = packages.installed_version("libsqlite3-0")
        self.folder = sources.unpacked("sqlite3", version)
        self.build = self.folder.with_name(self.folder.name + ".build")
        if not (self.build / "testfixture").exists():
            print("compat: building SQLite's testfixture", flush=True)
            self.build.mkdir(exist_ok=True)
            with open(self.build / "compat.log", "wb") as log:
                for command in ([self.folder / "configure", "--with-tcl=/usr/lib/tcl8.6"],
                                ["make", "testfixture"]):
                    done = subprocess.run(["nice", "-n", "10", *command], cwd=self.build, stdout=log,
                                          stderr=log)
                    if done.returncode != 0:
                        raise packages.Missing(f"SQLite cannot be built: see {log.name}")
        return version

    def execute(self, unit, run):
        run.exit_code = run.call(
            [self.build / "testfixture", self.folder / "test" / f"{unit}.test"], wrapped=True)
        return results(run.text())


def results(text):
    found = []
    failed = set(re.findall(r"^! (\S+) expected:", text, re.M))
    failed |= set(re.findall(r"^! (\S+) (?:got|raised|error)", text, re.M))
    # Threads print dots before the names.
    for name, word in re.findall(r"^\.*(\w\S*)\.\.\.(?: (Ok|Omitted|\S+).*)?$", text, re.M):
        status = {"Ok": "ok", "Omitted": "skipped"}.get(word)
        if status is None and name not in failed:
            continue  # the end of the output: this test was begun and never ended
        found.append((name, status or "failed"))
    found = numbered(found)
    for name in failed:
        found[name] = "failed"
    return found
