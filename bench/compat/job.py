"""Runs of commands that may hang, die or leave children behind.

Every process started here is a descendant of this one: the runner takes in orphans (subreaper), so
whatever a suite leaves behind is found below it and ended, and nothing else ever is.
"""

import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
# A suite's last children get this long to end by themselves before they are ended.
LINGER_S = 5
# How often the memory of a plain run is looked at.
SAMPLE_S = 0.05


def take_in_orphans():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def as_from_a_terminal():
    """Started in the background, this process ignores some signals; suites test what they do."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def descendants():
    """All processes below this one, the zombies left out. One whose first thread has ended is shown
    as a zombie, too, while others of its threads run."""
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
        except OSError:
            continue
        fields = stat.rsplit(")", 1)[1].split()
        state, parent, threads = fields[0], int(fields[1]), int(fields[17])
        children.setdefault(parent, []).append((int(entry), state != "Z" or threads > 1))
    found, look = [], [os.getpid()]
    while look:
        for pid, lives in children.get(look.pop(), []):
            look.append(pid)
            if lives:
                found.append(pid)
    return found


def reap():
    """Takes the exit codes of orphans, so that no zombies pile up."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def describe(pid):
    """What a process that did not end was doing."""
    def read(name):
        try:
            return pathlib.Path("/proc", str(pid), name).read_text(errors="replace").strip()
        except OSError:
            return "?"
    command = read("cmdline").replace("\0", " ")[:160]
    lines = [f"  {pid} {command}"]
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        threads = []
    for thread in threads[:12]:
        name, where = read(f"task/{thread}/comm"), read(f"task/{thread}/wchan")
        call = read(f"task/{thread}/syscall").split(" ")[0]
        state = read(f"task/{thread}/stat").rsplit(")", 1)[-1].split()[:1]
        lines.append(f"    thread {thread} {name}: {' '.join(state)} in {where}, system call {call}")
    return "\n".join(lines)


def end_all(log, patience_s):
    """Ends what is left of a run. Returns how many processes had to be ended."""
    until = time.monotonic() + patience_s
    while descendants() and time.monotonic() < until:
        reap()
        time.sleep(0.02)
    left = descendants()
    if left:
        with open(log, "a") as out:
            print(f"\ncompat: {len(left)} processes are left and will be ended:", file=out)
            for pid in left:
                print(describe(pid), file=out)
    while pids := descendants():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        time.sleep(0.02)
    reap()
    return len(left)


def anonymous_bytes():
    """Anonymous memory of all that runs below this process, each page counted once."""
    total = 0
    for pid in descendants():
        try:
            rollup = pathlib.Path("/proc", str(pid), "smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"^Pss_Anon: +(\d+) kB", rollup, re.M)
        total += int(found.group(1)) << 10 if found else 0
    return total


class Run:
    """One run of a unit: `plain`, or under Muninn with a limit. What the unit starts through
    `call(wrapped=True)` or `start(wrapped=True)` is the part that is put on far memory."""

    def __init__(self, mode, muninn, limit_bytes, folder, deadline_s, extra=()):
        self.mode = mode
        self.muninn = muninn
        self.limit_bytes = limit_bytes
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.log = self.folder / "log"
        self.report = self.folder / "muninn.json"
        self.deadline_s = deadline_s
        self.extra = list(extra)
        self.began = time.monotonic()
        self.timed_out = False
        self.exit_code = None
        self.left_over = 0
        self.sampled_peak_bytes = 0
        self.over = threading.Event()
        if mode == "plain":
            threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self):
        while not self.over.wait(SAMPLE_S):
            self.sampled_peak_bytes = max(self.sampled_peak_bytes, anonymous_bytes())

    def wrap(self, command):
        if self.mode == "plain":
            return list(command)
        return [str(self.muninn), "run", "--local", str(self.limit_bytes), "--json", str(self.report),
                *self.extra, "--", *command]

    def time_left_s(self):
        return max(1.0, self.deadline_s - (time.monotonic() - self.began))

    def start(self, command, wrapped=False, prefix=(), cwd=None, env=None, output=None):
        """Starts a command whose output goes to the log or a file. `prefix` stands before Muninn."""
        command = [str(word) for word in command]
        full = [*prefix, *(self.wrap(command) if wrapped else command)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MUNINN_")}
        clean.update(LC_ALL="C.UTF-8", **(env or {}))
        with open(output or self.log, "ab") as out:
            out.write(f"compat: {' '.join(full)}\n".encode())
            out.flush()
            return subprocess.Popen(full, cwd=cwd or self.folder, env=clean, stdout=out,
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                    start_new_session=True, preexec_fn=as_from_a_terminal)

    def call(self, command, **how):
        """Runs a command to its end or to the deadline. Returns its exit code, None if it hangs."""
        child = self.start(command, **how)
        return self.wait(child)

    def wait(self, child):
        try:
            return child.wait(self.time_left_s())
        except subprocess.TimeoutExpired:
            self.timed_out = True
            return None

    def finish(self):
        self.over.set()
        self.seconds = time.monotonic() - self.began
        self.left_over = end_all(self.log, 0 if self.timed_out else LINGER_S)

    def text(self):
        return self.log.read_text(errors="replace")

    def messages(self):
        """What Muninn itself said."""
        said = (line for line in self.text().splitlines() if "muninn:" in line[:40])
        return list(dict.fromkeys(line.strip()[:300] for line in said))[:20]

    def reported(self):
        """The peak, and how many pages left; nothing of a plain run or of one without a report."""
        try:
            report = json.loads(self.report.read_text())
            return report["peak_bytes"], report["counters"]["evicted"]
        except (OSError, ValueError, KeyError):
            return None, None
