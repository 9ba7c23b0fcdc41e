"""PostgreSQL's regression tests from Debian's source package, against Debian's server.

The server and all its backends are the job; the driver and its psql processes run plainly beside
it. The server refuses to be root, so it runs as the user `postgres`, with the one right that
userfaultfd asks for.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import packages

HOME = pathlib.Path("/usr/lib/postgresql/15")
DRIVER = HOME / "lib/pgxs/src/test/regress/pg_regress"
AS_POSTGRES = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
WITH_UFFD = [*AS_POSTGRES, "--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]
PORT = "54329"


class Postgres:
    name = "postgres"
    about = "PostgreSQL's regression tests (source package postgresql-15), 8 at a time"
    units = ["regress"]
    deadline_s = 1200

    def prepare(self, sources):
        if os.geteuid() != 0:
            raise packages.Missing("the server is started as the user postgres: run as root")
        packages.need("build-essential", "postgresql-15", "postgresql-client-15",
                      "postgresql-server-dev-15")
        version = packages.installed_version("postgresql-15")
        self.tests = sources.unpacked("postgresql-15", version) / "src/test/regress"
        include = subprocess.run([HOME / "bin/pg_config", "--includedir-server"], check=True,
                                 capture_output=True, text=True).stdout.strip()
        library = self.tests / "regress.so"
        if not library.exists():
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-I", include, "-o", library,
                            self.tests / "regress.c"], check=True, capture_output=True)
            for name in ("refint.so", "autoinc.so"):
                shutil.copy(HOME / "lib" / name, self.tests / name)
        return version

    def execute(self, unit, run):
        # The path of a socket is short, that of the work folder may not be.
        place = pathlib.Path(tempfile.mkdtemp(prefix="compat-"))
        try:
            return self._execute(run, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _execute(self, run, place):
        for folder in (place, run.folder):
            shutil.chown(folder, "postgres", "postgres")
        data, output = place / "data", place / "out"
        run.call([*AS_POSTGRES, HOME / "bin/initdb", "-D", data, "-A", "trust", "--no-locale",
                  "-E", "UTF8", "-U", "postgres", "--no-sync"], cwd=place)
        server = run.start([HOME / "bin/postgres", "-D", data, "-k", place, "-p", PORT,
                            "-c", "listen_addresses=", "-c", "fsync=off"],
                           wrapped=True, prefix=WITH_UFFD, cwd=place)
        results = {}
        if self._wait_ready(run, server, place):
            output.mkdir()
            # Apart from the log: the server writes there, in the middle of the driver's lines.
            driver_says = run.folder / "driver"
            shutil.chown(output, "postgres", "postgres")
            run.call([*AS_POSTGRES, DRIVER, f"--inputdir={self.tests}", f"--outputdir={output}",
                      f"--dlpath={self.tests}", f"--bindir={HOME}/bin", f"--host={place}",
                      f"--port={PORT}", "--user=postgres", "--max-connections=8",
                      f"--schedule={self.tests}/parallel_schedule"], cwd=place, output=driver_says)
            results = from_text(driver_says.read_text())
            if (output / "regression.diffs").exists():
                shutil.copy(output / "regression.diffs", run.folder)
        run.call([*AS_POSTGRES, HOME / "bin/pg_ctl", "-D", data, "-m", "fast", "-t", "60", "stop"],
                 cwd=place)
        if not run.timed_out:
            run.exit_code = run.wait(server)
        return results

    def _wait_ready(self, run, server, place):
        while server.poll() is None and run.time_left_s() > 1:
            asked = subprocess.run([HOME / "bin/pg_isready", "-q", "-h", place, "-p", PORT])
            if asked.returncode == 0:
                return True
            time.sleep(0.1)
        return False


def from_text(text):
    found = re.findall(r"^(?:test|    ) ?([\w.]+) +\.\.\. (ok|FAILED|failed)", text, re.M)
    return {name: "ok" if word == "ok" else "failed" for name, word in found}
