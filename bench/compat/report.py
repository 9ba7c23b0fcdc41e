"""From the runs to what is said about them: JSON for machines, a table in Markdown for people."""

import fnmatch
import json
import pathlib
import tomllib

MIB = 1 << 20
MODES = ("plain", "roomy", "tight")
# Of one unit, so many tests are named in the table.
NAMED_MAX = 8


def reasons():
    path = pathlib.Path(__file__).with_name("reasons.toml")
    return tomllib.loads(path.read_text())


def compare(record, known):
    """The tests that are good in all plain runs and not under Muninn."""
    runs = record["runs"]
    plain = runs["plain"]["results"]
    different = []
    for test, status in plain.items():
        if status != "ok" or test in record["unsteady"]:
            continue
        under = {mode: runs[mode]["results"].get(test, "not reached") for mode in MODES[1:]
                 if mode in runs}
        bad = {mode: word for mode, word in under.items() if word != "ok"}
        if bad:
            name = f"{record['suite']}:{record['unit']}:{test}"
            why = next((text for pattern, text in known.items() if fnmatch.fnmatch(name, pattern)), None)
            different.append({"test": test, **under, "reason": why})
    for mode in MODES[1:]:
        run = runs.get(mode)
        if not run or different:
            continue
        if run["timed_out"] or run["exit_code"] != runs["plain"]["exit_code"]:
            name = f"{record['suite']}:{record['unit']}:exit"
            why = next((text for pattern, text in known.items() if fnmatch.fnmatch(name, pattern)), None)
            different.append({"test": "exit code", mode: str(run["exit_code"]), "reason": why})
    return different


def passed(run):
    return sum(status == "ok" for status in run["results"].values())


def size(count):
    return "?" if count is None else f"{count / MIB:.0f}"


def line_of(record):
    plain, tight = record["runs"]["plain"], record["runs"].get("tight")
    text = f"{record['suite']}:{record['unit']}: plain {passed(plain)} passed in {plain['seconds']:.1f} s"
    for mode in MODES[1:]:
        if run := record["runs"].get(mode):
            text += f"; {mode} ({size(run['limit_bytes'])} MiB) {passed(run)} in {run['seconds']:.1f} s"
            if run["timed_out"]:
                text += ", TIMED OUT"
    if not passed(plain):
        return f"{text}; NOTHING PASSED PLAINLY"
    if tight:
        text += f"; {'same' if not record['different'] else 'DIFFERENT'}"
    return text


def markdown(records, missing, command, share, floor_bytes):
    out = ["# Compatibility", "",
           "Test suites that others wrote, run plainly and under `muninn run`, test by test. Made by", "",
           "```console", f"$ {command}", "```", "",
           "Each unit runs three times: plainly; under `muninn run` with room for all of it; and with a limit",
           f"of {share} % of its peak, at least {floor_bytes // MIB} MiB. The peak is the smaller one of what"
           " Muninn reports (pages", "that processes share may be counted in each) and of samples of the plain run"
           " (a short peak is missed).", "A test counts as different if it passed plainly and did not pass under"
           " Muninn, in either run.", ""]
    suites = list(dict.fromkeys(record["suite"] for record in records))
    out += ["| suite | version | units | passed plain | passed with room | passed at the limit | different |",
            "|---|---|--:|--:|--:|--:|--:|"]
    for suite in suites:
        mine = [record for record in records if record["suite"] == suite]
        sums = [sum(passed(r["runs"][mode]) for r in mine if mode in r["runs"]) for mode in MODES]
        differ = sum(len(r["different"]) for r in mine)
        out.append(f"| {mine[0]['about']} | {mine[0]['version']} | {len(mine)} | {sums[0]} | {sums[1]} "
                   f"| {sums[2]} | {differ} |")
    out += ["", "## Not run", ""] + [f"- {name}: {why}" for name, why in missing.items()]
    for suite in suites:
        out += ["", f"## {suite}", "",
                "| unit | peak MiB | limit MiB | pages out | passed plain | with room | at the limit "
                "| seconds plain / at the limit | different |",
                "|---|--:|--:|--:|--:|--:|--:|--:|---|"]
        for record in (r for r in records if r["suite"] == suite):
            out.append(row(record))
    unsteady = [f"- {r['suite']}:{r['unit']}: {', '.join(sorted(r['unsteady']))}" for r in records
                if r["unsteady"]]
    if unsteady:
        out += ["", "## Left out", "", "Tests that do not pass every time in plain runs either:", "",
                *unsteady]
    return "\n".join(out) + "\n"


def row(record):
    runs = record["runs"]
    counts = [str(passed(runs[mode])) if mode in runs else "–" for mode in MODES]
    tight = runs.get("tight")
    limit = size(tight["limit_bytes"]) if tight else "–"
    times = f"{runs['plain']['seconds']:.1f} / {tight['seconds']:.1f}" if tight else "–"
    out = "–" if not tight or tight.get("pages_out") is None else tight["pages_out"]
    words = [] if passed(runs["plain"]) else ["nothing passes plainly on this machine"]
    for mode in MODES[1:]:
        if mode in runs and runs[mode]["timed_out"]:
            words.append(f"{'with room' if mode == 'roomy' else 'at the limit'} not done in time")
    by_reason = {}
    for entry in record["different"]:
        by_reason.setdefault(entry["reason"], []).append(entry["test"])
    for why, tests in by_reason.items():
        names = ", ".join(f"`{test.split('.', 2)[-1]}`" for test in tests[:NAMED_MAX])
        more = f" and {len(tests) - NAMED_MAX} more" if len(tests) > NAMED_MAX else ""
        words.append(f"{names}{more}: {why or 'no reason known yet'}")
    text = "; ".join(words).replace("|", "\\|")
    return (f"| {record['unit']} | {size(record['peak_bytes'])} | {limit} | {out} | {' | '.join(counts)} | {times} "
            f"| {text} |")


def write_json(path, records, missing):
    pathlib.Path(path).write_text(json.dumps({"units": records, "missing": missing}, indent=1) + "\n")
