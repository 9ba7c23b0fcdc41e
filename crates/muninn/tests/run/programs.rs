//! Programs of other people: the same output with and without Muninn.

use crate::common::{Place, place};
use crate::harness::{cannot_run, full, plainly, program, run, run_far};

/// The output is that of the program alone, and much of its memory was far.
fn same(place: &Place, local: &str, words: &[&str]) {
    let alone = plainly(place, words);
    let ran = run_far(place, &["--local", local], words);
    assert_eq!(ran.out, alone, "{ran:#?}");
    ran.assert_good_and_far();
}

/// The system's own first: another may have been put before it for other ends.
const PYTHON: &[&str] = &["/usr/bin/python3", "python3"];

#[test]
fn python() {
    let Some(python) = program(PYTHON).filter(|_| !cannot_run()) else {
        return;
    };
    let script = r#"
import hashlib, random
random.seed(1)
words = {i: random.randbytes(100) for i in range(300_000)}
order = list(words)
random.shuffle(order)
total = hashlib.sha256()
for key in order:
    total.update(words[key])
text = bytearray(random.randbytes(8 << 20))
text.reverse()
total.update(text)
print(total.hexdigest(), len(words))
"#;
    same(&place(), "32MiB", &[python, "-c", script]);
}

#[test]
fn python_multiprocessing() {
    let Some(python) = program(PYTHON).filter(|_| !cannot_run()) else {
        return;
    };
    let script = r#"
import hashlib, multiprocessing, random
random.seed(2)
data = [random.randbytes(1000) for _ in range(60_000)]
def work(part):
    own = [piece[::-1] for piece in data[part::8]]
    return hashlib.sha256(b"".join(own)).hexdigest()
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for line in pool.map(work, range(8)):
            print(line)
    print(hashlib.sha256(b"".join(data)).hexdigest())
"#;
    same(&place(), "40MiB", &[python, "-c", script]);
}

/// A shell that starts processes at the very moment when its pager gets to work, and they others.
#[test]
fn shells_that_fork_while_they_grow() {
    if cannot_run() {
        return;
    }
    let script = r#"
for i in 1 2 3 4 5 6 7 8; do
    x="$x$(head -c 1000000 /dev/zero | tr '\0' a)"
    for j in 1 2 3; do y="$y$(echo $(echo $i))"; done
done
echo ${#x} $y
"#;
    let place = place();
    for _ in 0..3 {
        let ran = run(&place, &["--local", "64MiB"], &["sh", "-c", script]);
        assert_eq!(ran.out, "8000000 111222333444555666777888\n", "{ran:#?}");
        assert_eq!(ran.code, 0, "{ran:#?}");
    }
}

/// Lines in an order that only sorting finds.
fn write_lines(place: &Place, count: u64) {
    let mut text = String::new();
    let mut dice = muninn_types::SplitMix64::new(9);
    for n in 0..count {
        text += &format!("{:016x} {n}\n", dice.next_u64());
    }
    place.write("lines", &text);
}

#[test]
fn sort() {
    if cannot_run() {
        return;
    }
    let place = place();
    write_lines(&place, if full() { 8_000_000 } else { 800_000 });
    let script = "LC_ALL=C sort --parallel=2 -S 4G lines | sha256sum";
    same(&place, "16MiB", &["sh", "-c", script]);
}

#[test]
fn pipelines() {
    if cannot_run() {
        return;
    }
    let place = place();
    write_lines(&place, 400_000);
    // Several programs share the limit, and one keeps everything. It goes through it in order: at
    // random, such a test would measure the patience of whoever waits for it.
    let script = "cut -c1-3 lines | LC_ALL=C sort -S 1G | uniq -c | LC_ALL=C sort -rn -S 1G | \
                  tee counts | sha256sum; awk '{ line[NR] = $0 } END { for (n = NR; n > 0; n--) \
                  print line[n] }' lines | sha256sum; wc -l < counts";
    same(&place, "24MiB", &["sh", "-c", script]);
}

#[test]
fn make() {
    if cannot_run() || program(&["make"]).is_none() || program(&["gcc"]).is_none() {
        return;
    }
    let place = place();
    let mut parts = String::new();
    for part in 0..4 {
        let mut text = String::from("const unsigned table[] = {\n");
        for n in 0..20_000u64 {
            text += &format!("{}u,\n", (n * 2_654_435_761 + part) % 1_000_003);
        }
        text += &format!(
            "}};\nunsigned part{part}(void) {{ unsigned sum = 0; for (unsigned n = 0; n < 20000; n++) \
             sum = sum * 31 + table[n]; return sum; }}\n"
        );
        text = text.replace("const unsigned table", "static const unsigned table");
        place.write(&format!("part{part}.c"), &text);
        parts += &format!(" part{part}.o");
    }
    place.write(
        "main.c",
        "#include <stdio.h>\nunsigned part0(void), part1(void), part2(void), part3(void);\n\
         int main(void) { printf(\"%u %u %u %u\\n\", part0(), part1(), part2(), part3()); }\n",
    );
    let makefile = format!(
        "all: program\n\t./program\n\tsha256sum *.o\nprogram: main.o{parts}\n\tgcc -o $@ $^\n\
         %.o: %.c\n\tgcc -O1 -c -o $@ $<\nclean:\n\trm -f *.o program\n"
    );
    place.write("Makefile", &makefile);
    // In what order two jobs say what they do is theirs to choose.
    let script = "make -s clean && make -s -j2 | sort";
    same(&place, "24MiB", &["sh", "-c", script]);
}

#[test]
fn java() {
    if cannot_run() || program(&["java"]).is_none() || program(&["javac"]).is_none() {
        return;
    }
    let place = place();
    let source = include_str!("../../src/cmd/bench/apps/Graph.java");
    place.write("Graph.java", source);
    plainly(&place, &["javac", "-d", ".", "Graph.java"]);
    let collectors: &[&str] = if full() {
        &["-XX:+UseG1GC", "-XX:+UseShenandoahGC", "-XX:+UseSerialGC"]
    } else {
        &["-XX:+UseG1GC"]
    };
    for collector in collectors {
        let words = [
            "java",
            collector,
            "-Xms160m",
            "-Xmx160m",
            "-XX:-UsePerfData",
            "-cp",
            ".",
            "Graph",
            "600000",
            "3",
        ];
        same(&place, "80MiB", &words);
    }
}
