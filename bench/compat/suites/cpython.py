"""CPython's own tests, as Debian packages them, run by Debian's interpreter."""

import re
import xml.etree.ElementTree

import packages

PYTHON = "/usr/bin/python3"


# Tests that hang without Muninn, too: in a virtual machine, sockets to its host.
LEFT_OUT = ["*VSOCK*"]


class CPython:
    name = "cpython"
    about = "CPython's own tests (libpython3.11-testsuite)"
    units = ["test_mmap", "test_multiprocessing_fork", "test_subprocess", "test_io", "test_socket",
             "test_threading", "test_os", "test_signal", "test_gc", "test_ctypes", "test_json",
             "test_fork1", "test_wait4", "test_posix", "test_thread", "test_faulthandler",
             "test_memoryio", "test_bigmem"]
    deadline_s = 600

    def prepare(self, sources):
        packages.need("python3", "libpython3.11-testsuite")
        return packages.installed_version("libpython3.11-testsuite")

    def execute(self, unit, run):
        xml_file = run.folder / "junit.xml"
        # A test that hangs is shown with the stack of each thread before the deadline ends all.
        run.exit_code = run.call(
            [PYTHON, "-m", "test", "-v", "--timeout", str(int(run.deadline_s * 0.9)),
             "--junit-xml", xml_file, "--tempdir", run.folder,
             *(word for pattern in LEFT_OUT for word in ("--ignore", pattern)), unit], wrapped=True)
        text = run.text()
        results = from_xml(xml_file) if xml_file.exists() else from_text(text)
        # A test that failed in one of its parts only is not in the report at all.
        for name in re.findall(r"^(?:ERROR|FAIL): \w+ \(([\w.]+)\)", text, re.M):
            results[name] = "failed"
        return results


def from_xml(path):
    results = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        status = "ok"
        if case.find("error") is not None or case.find("failure") is not None:
            status = "failed"
        elif case.find("skipped") is not None:
            status = "skipped"
        results[case.get("name")] = status
    return results


def from_text(text):
    """When the interpreter did not live to write its report: what it printed on the way."""
    results, current = {}, None
    for line in text.splitlines():
        if begin := re.match(r"(?:test\w*) \(([\w.]+)\)", line):
            current = begin.group(1)
        if current and (end := re.search(r"(?:^|\.\.\. )(ok|FAIL|ERROR|skipped .*)$", line)):
            word = end.group(1)
            results[current] = {"o": "ok", "s": "skipped"}.get(word[0], "failed")
            current = None
    return results
