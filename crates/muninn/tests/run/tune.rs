//! `--tune` and virtual machines: what is open is chosen, what the user set stays, wherever he set it.

use crate::common::{Place, place};
use crate::harness::{Ran, cannot_run, plainly, program, run};
use std::os::unix::fs::PermissionsExt;

/// Starts machines in many ways, and prints of each its collector, its nursery and how it ended.
const CASES: &str = r##"
show() {
    case $1 in $wanted) ;; *) return ;; esac
    echo "== $1"
    shift
    "$@" -XX:+PrintFlagsFinal -version 2>err >out
    code=$?
    awk '$2 ~ /^Use(Serial|Parallel|G1|Shenandoah|Z)GC$/ && $4 == "true" { print $2 } $2 == "MaxNewSize" { print $2, $4 }' out
    grep -v 'Picked up' err | grep -iE 'multiple|conflict|unmatched|error'
    echo "code $code"
}
echo '-XX:+UseG1GC' > g1.args
printf '# the heap\n"-Dpath=a b" -XX:NewSize=9m\n' > heap.args
printf -- '+UseG1GC\n' > flags
java=$(command -v java)
ln -sf "$java" linked
big=-Xmx800m
show tuned java $big
show tuned-script ./script $big
show tuned-link ./linked $big
show tuned-grandchild sh -c 'sh -c "java \"\$@\"; exit \$?" sh "$@"; exit $?' sh $big
show tuned-quotes env JAVA_TOOL_OPTIONS="-Da='b c'	-Db=\"d 'e'\"" java $big
show tuned-property java $big -Da=@nothing -Db=-XX:+UseG1GC
show serial-nursery env JAVA_TOOL_OPTIONS=-XX:NewRatio=5 java $big
show serial-file java $big @heap.args
show nursery java $big -XX:+UseSerialGC
show left-line java $big -XX:+UseG1GC
show left-parallel java $big -Xmn21m -XX:+UseParallelGC
show left-tool env JAVA_TOOL_OPTIONS="-Da='b c' '-XX:+UseG1GC'" java $big
show left-jdk env JDK_JAVA_OPTIONS='"-XX:+UseG1GC"' java $big
show left-last env _JAVA_OPTIONS=-XX:+UseG1GC java $big
show left-args java $big @g1.args
show left-jdk-args env JDK_JAVA_OPTIONS=@g1.args java $big
show left-flags java $big -XX:Flags=flags
show left-wish java $big -XX:MaxGCPauseMillis=90
show left-two java $big -XX:+UseSerialGC -XX:+UseG1GC
show left-quote env JAVA_TOOL_OPTIONS="-Da='b" java $big
show left-long env JAVA_TOOL_OPTIONS="-Da=$(printf '%01000d' 1)" java $big
show left-fits java -Xmx64m
"##;

/// Looks at what it inherits to its children, and starts one.
const PARENT: &str = r#"
public class Parent {
    public static void main(String[] args) throws Exception {
        System.out.println(System.getenv("JAVA_TOOL_OPTIONS"));
        var child = new ProcessBuilder("java", "-XX:+UseG1GC", "-version");
        child.redirectError(ProcessBuilder.Redirect.DISCARD);
        System.out.println(child.start().waitFor());
        for (var bean : java.lang.management.ManagementFactory.getGarbageCollectorMXBeans())
            System.out.println(bean.getName());
    }
}
"#;

fn with_java() -> Option<Place> {
    if cannot_run() || program(&["java"]).is_none() {
        return None;
    }
    let place = place();
    place.write("cases", CASES);
    place.write("Parent.java", PARENT);
    place.write("script", "#!/bin/sh\nexec java \"$@\"\n");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path("script"), mode).unwrap();
    Some(place)
}

/// What each case printed.
fn cases(out: &str) -> Vec<(&str, Vec<&str>)> {
    out.split("== ")
        .skip(1)
        .map(|part| {
            let mut lines = part.lines();
            (lines.next().unwrap_or(""), lines.collect())
        })
        .collect()
}

/// The cases whose names the shell finds to be like `wanted`: few at a time, so that it is done in good time
/// on a busy machine as well. How they came out alone, and tuned.
fn both(place: &Place, wanted: &str, count: usize) -> (String, Ran) {
    let variable = format!("wanted={wanted}");
    let words = ["env", &variable, "sh", "cases"];
    let alone = plainly(place, &words);
    let tuned = run(place, &["--local", "200MiB", "--tune"], &words);
    assert_eq!(tuned.code, 0, "{tuned:#?}");
    assert_eq!(cases(&tuned.out).len(), count, "{tuned:#?}");
    (alone, tuned)
}

fn nursery() -> String {
    format!("MaxNewSize {}", 33 << 20)
}

#[test]
fn a_virtual_machine_gets_what_its_user_left_open() {
    let Some(place) = with_java() else {
        return;
    };
    let (_, tuned) = both(&place, "tuned*", 6);
    for (name, mut lines) in cases(&tuned.out) {
        lines.sort_unstable();
        let wanted = [&nursery(), "UseSerialGC", "code 0"];
        assert_eq!(lines, wanted, "{name} {tuned:#?}");
    }
    let told = |line: &str| {
        line.starts_with("muninn: java was given -XX:+UseSerialGC -XX:MaxNewSize=33m")
            && line.ends_with(": its heap may become 800MiB, and 200MiB may be local")
    };
    assert!(tuned.err.lines().any(told), "{tuned:#?}");
    assert_eq!(tuned.report["tuned"], true);

    let (_, tuned) = both(&place, "serial*", 2);
    for (name, lines) in cases(&tuned.out) {
        assert!(lines.contains(&"UseSerialGC"), "{name}: {tuned:#?}");
        assert!(!lines.contains(&nursery().as_str()), "{name}: {tuned:#?}");
        assert_eq!(lines.last(), Some(&"code 0"), "{name}: {tuned:#?}");
    }
    let (_, tuned) = both(&place, "nursery", 1);
    assert!(tuned.out.contains(&nursery()), "{tuned:#?}");
}

#[test]
fn what_the_user_of_a_virtual_machine_set_stays() {
    let Some(place) = with_java() else {
        return;
    };
    for (wanted, count) in [("left-[a-j]*", 5), ("left-l*", 3), ("left-[p-z]*", 5)] {
        let (alone, tuned) = both(&place, wanted, count);
        assert_eq!(tuned.out, alone, "{tuned:#?}");
    }
}

#[test]
fn a_virtual_machines_children_and_variables_are_its_own() {
    let Some(place) = with_java() else {
        return;
    };
    let words = ["java", "-Xmx800m", "Parent.java"];
    let tuned = run(&place, &["--local", "200MiB", "--tune"], &words);
    assert_eq!(tuned.out, "null\n0\nCopy\nMarkSweepCompact\n", "{tuned:#?}");
    // The child's collector was chosen by the program.
    let left = "muninn: java is left as it is: you chose its collector, and nothing else is open";
    assert!(tuned.err.lines().any(|line| line == left), "{tuned:#?}");

    // Without --tune nothing changes, and the end says what would have.
    let words = [
        "java",
        "-Xms9m",
        "-Xmx800m",
        "-XX:TieredStopAtLevel=1",
        "Parent.java",
    ];
    let ran = run(&place, &["--local", "40MiB"], &words);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(!ran.out.contains("Copy"), "{ran:#?}");
    let advice = "with --tune, java would be given -XX:+UseSerialGC -XX:MaxNewSize=6m: its heap may become \
                  800MiB, and 40.0MiB may be local";
    assert_eq!(ran.report["advice"], advice);
    let line = format!("muninn: {advice}");
    let far = ran.counter("adopted_bytes") > 0;
    assert_eq!(ran.err.lines().any(|said| said == line), far, "{ran:#?}");
    assert!(!ran.err.contains("Picked up"), "{ran:#?}");
}
