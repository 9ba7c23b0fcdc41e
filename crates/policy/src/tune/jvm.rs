//! A Java virtual machine (HotSpot, any version): collector, nursery, first size of the heap.
//!
//! Options come from five places, and the machine reads them in this order, the last word counting:
//! what was put into an image by `jlink`, `JAVA_TOOL_OPTIONS`, the command line (with
//! `JDK_JAVA_OPTIONS` before it and argument files in it), `_JAVA_OPTIONS`. So what is put before
//! `JAVA_TOOL_OPTIONS` never overrides a *value* that the user set. A *collector* is another matter: two
//! of them are an error, wherever they were named. And a nursery of fixed size makes `NewRatio` count for
//! nothing. So all five are looked at first, and whatever hints at a wish is one.
//!
//! Known limit: options that a program gives to a machine that it carries in itself (JNI) cannot be
//! seen; such programs are left alone by those who ask here.

use super::Advice;
use muninn_types::Bytes;

/// Of the limit, this part is the nursery: it stays near, and so do those pages of the old that are
/// written while it is collected.
const NURSERY_PART: u64 = 6;
/// Of the largest heap it is no larger part, so that as much as ever can be old.
const NURSERY_OF_HEAP: u64 = 8;
const NURSERY_MIN: Bytes = Bytes::mib(4);
const NURSERY_MAX: Bytes = Bytes::mib(256);
/// What the machine needs beside its heap: code, classes, stacks, and tables as long as the heap.
const BESIDE: Bytes = Bytes::mib(64);
const BESIDE_PART: u64 = 8;
/// A heap of which nothing is said may become this part of the memory, and begins with that.
const HEAP_OF_MEMORY: u64 = 4;
const INITIAL_OF_MEMORY: u64 = 64;
/// A smaller one may begin as it likes.
const HEAP_MIN: Bytes = Bytes::mib(32);

/// What is known of a machine that is about to start.
#[derive(Clone, Debug)]
pub struct Jvm {
    /// Everything that was said to it, in the order in which it is read.
    pub words: Vec<String>,
    /// Memory as the machine sees it: that of the computer, or of the container.
    pub memory: Bytes,
    /// Whether this build has the serial collector.
    pub has_serial: bool,
    /// Whether memory that is asked for and never touched costs nothing (`vm.overcommit_memory` is not 2).
    pub may_commit: bool,
}

/// What the user has settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settled {
    collector: Collector,
    nursery: bool,
    initial: bool,
    /// Why nothing at all is to be set.
    everything: Option<String>,
    heap: HeapSize,
    /// The smallest that was named, be it the heap's or a word of the program's own: a heap that begins
    /// larger than it may become is an error.
    smallest: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Collector {
    #[default]
    Open,
    /// One that has a nursery of a size that can be set.
    WithNursery(&'static str),
    /// Any other, or options that only make sense with one.
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeapSize {
    #[default]
    Open,
    Bytes(Bytes),
    /// Thousandths of a percent of the memory.
    Share(u64),
}

/// What to set with so much local memory.
pub fn advise(jvm: &Jvm, limit: Bytes) -> Advice {
    let settled = Settled::of(&jvm.words);
    let heap = match settled.heap {
        HeapSize::Open => Bytes(jvm.memory.0 / HEAP_OF_MEMORY),
        HeapSize::Bytes(bytes) => bytes,
        HeapSize::Share(share) => {
            Bytes((u128::from(jvm.memory.0) * u128::from(share) / 100_000) as u64)
        }
    };
    let wanted = heap
        .0
        .saturating_add(heap.0 / BESIDE_PART)
        .saturating_add(BESIDE.0);
    if wanted <= limit.0 {
        return Advice::Fits;
    }
    if let Some(reason) = settled.everything {
        return Advice::Leave(reason);
    }
    let mut options = Vec::new();
    let collector = match settled.collector {
        Collector::Open if jvm.has_serial => {
            options.push("-XX:+UseSerialGC".to_string());
            "Serial"
        }
        Collector::Open => {
            return Advice::Leave("it was built without the serial collector".into());
        }
        Collector::WithNursery(name) => name,
        Collector::Other => {
            return Advice::Leave("you chose its collector, and nothing else is open".into());
        }
    };
    if !settled.nursery
        && let Some(nursery) = nursery(heap.min(settled.smallest.unwrap_or(heap)), limit)
    {
        options.push(format!("-XX:MaxNewSize={}m", nursery.0 >> 20));
    }
    // One that grows step by step is collected as a whole before each step.
    if let Some(smallest) = settled.smallest
        && collector == "Serial"
        && !settled.initial
        && jvm.may_commit
        && smallest.0 > jvm.memory.0 / INITIAL_OF_MEMORY
        && smallest >= HEAP_MIN
    {
        options.push(format!("-XX:InitialHeapSize={}m", smallest.0 >> 20));
    }
    if options.is_empty() {
        return Advice::Leave("you chose all that is chosen here".into());
    }
    let kept = match (settled.collector, settled.nursery) {
        (Collector::WithNursery(_), _) => format!("; you chose {collector}"),
        (_, true) => "; you chose the nursery".to_string(),
        _ => String::new(),
    };
    let reason = format!(
        "its heap may become {}, and {} may be local{kept}",
        heap.rounded(),
        limit.rounded()
    );
    Advice::Set { options, reason }
}

/// As a maximum: a heap that begins smaller than a nursery of fixed size makes the machine complain. Whole
/// MiB, or nothing where a heap is too small to be divided.
fn nursery(heap: Bytes, limit: Bytes) -> Option<Bytes> {
    let by_limit = (limit.0 / NURSERY_PART).clamp(NURSERY_MIN.0, NURSERY_MAX.0);
    let whole = by_limit.min(heap.0 / NURSERY_OF_HEAP) >> 20 << 20;
    (whole > 0).then_some(Bytes(whole))
}

impl Settled {
    fn of(words: &[String]) -> Settled {
        let mut settled = Settled::default();
        // The memory that shares are of.
        let mut base = None;
        for word in words {
            settled.hear(word, &mut base);
        }
        if let (Some(base), HeapSize::Share(share)) = (base, settled.heap) {
            let bytes = u128::from(base) * u128::from(share) / 100_000;
            settled.heap = HeapSize::Bytes(Bytes(bytes as u64));
        } else if let (Some(base), HeapSize::Open) = (base, settled.heap) {
            settled.heap = HeapSize::Bytes(Bytes(base / HEAP_OF_MEMORY));
        }
        settled
    }

    fn hear(&mut self, word: &str, base: &mut Option<u64>) {
        // A tool of the JDK passes on what comes behind -J.
        let word = word.strip_prefix("-J").unwrap_or(word);
        // As it was written before there was an X.
        let old = |name| word.strip_prefix(name);
        if word.starts_with("-Xmn") {
            self.nursery = true;
        } else if let Some(size) = old("-Xmx").or(old("-mx")) {
            self.set_heap(size);
        } else if old("-Xms").or(old("-ms")).is_some() {
            self.initial = true;
        } else if word == "-Xincgc" || word == "-Xconcgc" || word.starts_with("-Xgc") {
            self.collector = Collector::Other;
        } else if matches!(
            word,
            "-client" | "-minimal" | "-zero" | "-dcevm" | "-hotspot" | "-jvmci"
        ) {
            self.leave("you chose another virtual machine");
        } else if let Some(option) = word.strip_prefix("-XX:") {
            self.hear_option(option, base);
        }
    }

    fn hear_option(&mut self, option: &str, base: &mut Option<u64>) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let (on, name) = match name.as_bytes().first() {
            Some(b'+') => (true, &name[1..]),
            Some(b'-') => (false, &name[1..]),
            _ => (true, name),
        };
        match name {
            "Flags" | "VMOptionsFile" | "ReadVMOptionsFile" => {
                self.leave("a file of options may settle what would be set");
            }
            "AggressiveHeap" if on => self.leave("you chose AggressiveHeap"),
            "MaxHeapSize" => self.set_heap(value),
            "MaxRAM" => *base = size(value).map(|bytes| bytes.0).or(*base),
            "MaxRAMPercentage" => self.set_share(value.parse().ok()),
            "MaxRAMFraction" => {
                self.set_share(value.parse().ok().map(|n: f64| 100.0 / n.max(1.0)));
            }
            "InitialHeapSize" | "MinHeapSize" | "InitialRAMPercentage" | "InitialRAMFraction" => {
                self.initial = true;
            }
            "NewSize" | "MaxNewSize" | "NewRatio" | "NewSizeThreadIncrease" => self.nursery = true,
            "UseSerialGC" if on => self.collect("Serial"),
            "UseParallelGC" if on => self.collect("Parallel"),
            _ if (name.starts_with("Use") && name.ends_with("GC"))
                || name == "MaxGCPauseMillis"
                || name == "GCTimeRatio"
                || [
                    "G1",
                    "Shenandoah",
                    "CMS",
                    "Parallel",
                    "ParGC",
                    "Epsilon",
                    "ConcGC",
                ]
                .iter()
                .any(|of| name.starts_with(of))
                || is_of_z(name) =>
            {
                self.collector = Collector::Other;
            }
            _ => {}
        }
    }

    fn collect(&mut self, name: &'static str) {
        // Of two the machine says no; that is for the user to see as it is.
        self.collector = match self.collector {
            Collector::Open => Collector::WithNursery(name),
            Collector::WithNursery(same) if same == name => self.collector,
            _ => Collector::Other,
        };
    }

    fn leave(&mut self, why: &str) {
        self.everything.get_or_insert_with(|| why.to_string());
    }

    fn set_heap(&mut self, text: &str) {
        if let Some(bytes) = size(text) {
            self.heap = HeapSize::Bytes(bytes);
            self.smallest = Some(self.smallest.map_or(bytes, |smallest| smallest.min(bytes)));
        }
    }

    fn set_share(&mut self, percent: Option<f64>) {
        if let (Some(percent), HeapSize::Open | HeapSize::Share(_)) = (percent, self.heap) {
            self.heap = HeapSize::Share((percent.clamp(0.0, 100.0) * 1000.0) as u64);
        }
    }
}

/// Whether an option begins with the Z of that collector, as `ZCollectionInterval`.
fn is_of_z(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next() == Some('Z') && chars.next().is_some_and(|c| c.is_ascii_uppercase())
}

/// A size as the machine reads it: `800m`, `1g`, `4096`, `0x1000`.
fn size(text: &str) -> Option<Bytes> {
    let (number, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        b't' | b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = match number.strip_prefix("0x").or(number.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    number.checked_mul(1 << shift).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn jvm(words: &str) -> Jvm {
        Jvm {
            words: words.split_whitespace().map(str::to_string).collect(),
            memory: Bytes::gib(24),
            has_serial: true,
            may_commit: true,
        }
    }

    /// What a heap of 800 MiB gets with 200.
    const BIG: &str = "-XX:+UseSerialGC -XX:MaxNewSize=33m -XX:InitialHeapSize=800m";

    fn options(words: &str, limit: u64) -> String {
        match advise(&jvm(words), Bytes::mib(limit)) {
            Advice::Set { options, .. } => options.join(" "),
            Advice::Fits => "fits".to_string(),
            Advice::Leave(reason) => reason,
        }
    }

    #[test]
    fn what_is_open_is_chosen_by_the_limit() {
        assert_eq!(options("-Xmx800m Main", 200), BIG);
        assert_eq!(
            options("-Xmx800m Main", 400),
            "-XX:+UseSerialGC -XX:MaxNewSize=66m -XX:InitialHeapSize=800m"
        );
        assert_eq!(options("-Xmx800m Main", 1024), "fits");
        assert_eq!(
            options("Main", 1024),
            "-XX:+UseSerialGC -XX:MaxNewSize=170m"
        );
        assert_eq!(options("Main", 16), "-XX:+UseSerialGC -XX:MaxNewSize=4m");
        assert_eq!(
            options("-Xmx16m Main", 16),
            "-XX:+UseSerialGC -XX:MaxNewSize=2m"
        );
        assert_eq!(options("-Xmx4m Main", 16), "-XX:+UseSerialGC");
        assert_eq!(options("Main", 64 << 10), "fits");
        assert_eq!(
            options("-Xmx40g Main", 32 << 10),
            "-XX:+UseSerialGC -XX:MaxNewSize=256m -XX:InitialHeapSize=40960m"
        );
        assert_eq!(
            options("-XX:MaxRAMPercentage=50 Main", 8192),
            "-XX:+UseSerialGC -XX:MaxNewSize=256m"
        );
        assert_eq!(options("-XX:MaxRAMPercentage=1 Main", 512), "fits");
        assert_eq!(
            options("-XX:MaxRAM=1g -XX:MaxRAMFraction=2 Main", 700),
            "fits"
        );
        assert_eq!(options("-XX:MaxRAM=1g Main", 400), "fits");
        assert_eq!(
            options("-Xmx4g -Xmx100m Main", 256),
            "fits",
            "the last counts"
        );
        assert_eq!(options("-J-Xmx100m Main.java", 256), "fits");
        let serial = "-XX:+UseSerialGC -XX:MaxNewSize=33m";
        assert_eq!(
            options("-Xmx300m Main", 200),
            serial,
            "it begins with 384 MiB"
        );
        for said in [
            "-Xms9m",
            "-ms9m",
            "-XX:InitialHeapSize=9m",
            "-XX:InitialRAMPercentage=1",
        ] {
            assert_eq!(options(&format!("-mx800m {said}"), 200), serial, "{said}");
        }
        assert_eq!(
            options("-Xmx500m Main -Xmx900m", 200),
            "-XX:+UseSerialGC -XX:MaxNewSize=33m -XX:InitialHeapSize=500m",
            "whichever is the program's own"
        );
        let strict = Jvm {
            may_commit: false,
            ..jvm("-Xmx800m")
        };
        assert!(
            matches!(advise(&strict, Bytes::mib(200)), Advice::Set { options, .. } if options.len() == 2)
        );
    }

    #[test]
    fn the_line_says_what_and_why() {
        let advice = advise(&jvm("-Xmx800m"), Bytes::mib(200));
        assert_eq!(
            advice.line("java", true).unwrap(),
            "java was given -XX:+UseSerialGC -XX:MaxNewSize=33m -XX:InitialHeapSize=800m: its heap may become 800MiB, and \
             200MiB may be local"
        );
        assert_eq!(
            advice.line("java", false).unwrap(),
            "with --tune, java would be given -XX:+UseSerialGC -XX:MaxNewSize=33m -XX:InitialHeapSize=800m: its heap may become 800MiB, \
             and 200MiB may be local"
        );
        let advice = advise(&jvm("-Xmx800m -XX:+UseZGC"), Bytes::mib(200));
        assert_eq!(advice.line("java", false), None);
        assert_eq!(
            advice.line("java", true).unwrap(),
            "java is left as it is: you chose its collector, and nothing else is open"
        );
    }

    #[test]
    fn what_the_user_set_stays() {
        let none = "you chose its collector, and nothing else is open";
        for said in [
            "-XX:+UseG1GC",
            "-XX:+UseShenandoahGC",
            "-XX:+UseZGC",
            "-XX:+UseEpsilonGC",
            "-XX:+UseConcMarkSweepGC",
            "-XX:+UseParNewGC",
            "-XX:-UseSerialGC",
            "-XX:-UseG1GC",
            "-XX:G1HeapRegionSize=1m",
            "-XX:MaxGCPauseMillis=50",
            "-XX:ShenandoahGCHeuristics=compact",
            "-XX:ZCollectionInterval=5",
            "-XX:ParallelGCThreads=2",
            "-Xincgc",
            "-J-XX:+UseG1GC",
            "-XX:+UseSerialGC -XX:+UseParallelGC",
        ] {
            assert_eq!(
                options(&format!("-Xmx800m {said} Main"), 200),
                none,
                "{said}"
            );
        }
        assert_eq!(
            options("-Xmx800m -XX:+UseSerialGC", 200),
            "-XX:MaxNewSize=33m -XX:InitialHeapSize=800m"
        );
        assert_eq!(
            options("-Xmx800m -XX:+UseParallelGC", 200),
            "-XX:MaxNewSize=33m"
        );
        for said in [
            "-Xmn9m",
            "-XX:NewSize=9m",
            "-XX:MaxNewSize=9m",
            "-XX:NewRatio=3",
        ] {
            assert_eq!(
                options(&format!("-Xms9m -Xmx800m {said}"), 200),
                "-XX:+UseSerialGC",
                "{said}"
            );
            assert_eq!(
                options(&format!("-ms9m -Xmx800m -XX:+UseSerialGC {said}"), 200),
                "you chose all that is chosen here"
            );
        }
        for said in [
            "-XX:Flags=f",
            "-XX:VMOptionsFile=f",
            "-XX:+ReadVMOptionsFile",
        ] {
            assert_eq!(
                options(&format!("{said} -Xmx800m"), 200),
                "a file of options may settle what would be set"
            );
        }
        assert_eq!(
            options("-minimal", 200),
            "you chose another virtual machine"
        );
        assert_eq!(
            options("-XX:+AggressiveHeap", 200),
            "you chose AggressiveHeap"
        );
        // What says nothing of these.
        for said in [
            "-XX:+UseNUMA",
            "-XX:ZombieFlag=1",
            "-Da=-XX:+UseG1GC",
            "-XX:+ScavengeBeforeFullGC",
        ] {
            assert_eq!(options(&format!("-Xmx800m {said}"), 200), BIG, "{said}");
        }
        let old = Jvm {
            has_serial: false,
            ..jvm("-Xmx800m")
        };
        assert_eq!(
            advise(&old, Bytes::mib(200)),
            Advice::Leave("it was built without the serial collector".to_string())
        );
    }

    #[test]
    fn sizes_are_read_as_the_machine_does() {
        assert_eq!(size("800m"), Some(Bytes::mib(800)));
        assert_eq!(size("0x10M"), Some(Bytes::mib(16)));
        assert_eq!(size("4096"), Some(Bytes(4096)));
        assert_eq!(size("1T"), Some(Bytes::gib(1024)));
        for bad in ["", "m", "-1", "1.5g", "99999999999999g", "é"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_words_get_an_answer_that_leaves_room(
            words in proptest::collection::vec("(-J)?(-XX:[+-]?)?[A-Za-z]{0,8}(=[0-9a-zé]{0,4})?", 0..6),
            heap in 1u64..1 << 44, limit in 1u64 << 24..1 << 44,
        ) {
            let mut words = words;
            words.push(format!("-Xmx{heap}"));
            let jvm = Jvm { words, memory: Bytes::gib(8), has_serial: true, may_commit: true };
            if let Advice::Set { options, .. } = advise(&jvm, Bytes(limit)) {
                let nursery = options.iter().find_map(|option| size(option.strip_prefix("-XX:MaxNewSize=")?));
                prop_assert!(!options.is_empty());
                prop_assert!(nursery.is_none_or(|n| n.0 > 0 && n.0 <= heap / 8));
            }
        }
    }
}
