//! The examples in C and Python, word for word, against a server; and what a careless program does.

use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_sys::uffd::{Features, Userfaultfd};
use muninn_testing::skip;
use muninn_types::Bytes;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// A server, and a folder with the library as a package installs it.
struct Stage {
    dir: tempfile::TempDir,
    server: Server,
    url: String,
}

fn stage() -> Stage {
    let dir = tempfile::tempdir().unwrap();
    // Beside this test: cargo builds the library of a package for its tests.
    let deps = std::env::current_exe().unwrap();
    let built = deps.parent().unwrap().join("libmuninn_c.so");
    assert!(built.exists(), "{} was not built", built.display());
    for name in ["libmuninn.so", "libmuninn.so.0"] {
        std::os::unix::fs::symlink(&built, dir.path().join(name)).unwrap();
    }
    let address = Address::unix(dir.path().join("m.sock")).unwrap();
    let url = address.to_string();
    let server = Server::start(ServerConfig {
        memory: Bytes::mib(160),
        listen: vec![address],
        keep_awake: false,
        ..ServerConfig::default()
    });
    Stage {
        dir,
        server: server.unwrap(),
        url,
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn arena_possible() -> bool {
    match Userfaultfd::open(Features::MOVE, Features::NONE) {
        Ok(_) => true,
        Err(error) => {
            skip(error);
            false
        }
    }
}

impl Stage {
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.dir.path())
            .env("MUNINN_LIBRARY", self.dir.path().join("libmuninn.so.0"))
            .env("PYTHONPATH", repository().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Compiles an example as its first lines say, and runs it.
    fn c(&self, source: &Path) -> String {
        let program = self.dir.path().join("program");
        let mut compile = Command::new("cc");
        compile
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-std=gnu11", "-o"])
            .args([&program, source])
            .arg("-I")
            .arg(repository().join("crates/capi/include"))
            .arg("-L")
            .arg(self.dir.path())
            .arg("-lmuninn");
        good(&compile.output().unwrap());
        good(&self.command(&program).arg(&self.url).output().unwrap())
    }

    fn python(&self, args: &[&str]) -> String {
        // Debian's own, so that what a developer has in his environment plays no part.
        let python = match Path::new("/usr/bin/python3").exists() {
            true => "/usr/bin/python3",
            false => "python3",
        };
        good(&self.command(python).args(args).output().unwrap())
    }

    fn example(&self, name: &str) -> String {
        let path = repository().join("examples/python").join(name);
        self.python(&[path.to_str().unwrap(), &self.url])
    }

    fn granted(&self) -> Bytes {
        self.server.pool().granted
    }
}

fn good(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out
}

#[test]
fn a_pool_from_c() {
    if !is_there("cc") {
        return skip("cc is not installed");
    }
    let stage = stage();
    assert_eq!(
        stage.c(&repository().join("examples/c/pool.c")),
        "kept far away\nthe counter stood at 42\nrefused: 13B at offset 1048576 go past the end of a grant of 1MiB\n"
    );
}

#[test]
fn an_arena_from_c() {
    if !is_there("cc") {
        return skip("cc is not installed");
    }
    if !arena_possible() {
        return;
    }
    let stage = stage();
    assert_eq!(
        stage.c(&repository().join("examples/c/arena.c")),
        "wrong 0, written 64 of 64\nhere at most 8 MiB: yes; far: the rest; lost 0\n"
    );
}

#[test]
fn pools_and_stores_from_python() {
    if !is_there("python3") {
        return skip("python3 is not installed");
    }
    let stage = stage();
    assert_eq!(
        stage.example("pool.py"),
        "kept far away\nthe counter stands at 42\n"
    );
    assert_eq!(
        stage.example("store.py"),
        "2000 values, 31.2 MiB of them far; all as they were\n"
    );
}

#[test]
fn numpy_on_far_memory() {
    if !is_there("python3") {
        return skip("python3 is not installed");
    }
    if !arena_possible() {
        return;
    }
    let stage = stage();
    let has = stage
        .command("/usr/bin/python3")
        .args(["-c", "import numpy"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        return skip("python3-numpy is not installed");
    }
    let out = stage.example("arena.py");
    assert_eq!(
        out,
        "the sum is right; 64 MiB of numbers, at most 8 MiB of them here\n"
    );
}

/// What goes wrong is said, and nothing ends the program that does it.
#[test]
fn mistakes_from_python() {
    if !is_there("python3") {
        return skip("python3 is not installed");
    }
    let stage = stage();
    let script = format!(
        r#"
import muninn, os, sys
def refused(action):
    try: action()
    except (muninn.MuninnError, ValueError, IndexError, TypeError, KeyError) as error: print(f"{{type(error).__name__}}: {{error}}")
    else: print("NOT REFUSED")
refused(lambda: muninn.Pool("unix:/not/there.sock"))
refused(lambda: muninn.Pool("no address"))
refused(lambda: muninn.Pool("{url}", key_file="/not/there.key"))
refused(lambda: muninn.Arena("{url}", size=0, local=1 << 20))
pool = muninn.Pool("{url}")
refused(lambda: pool.grant(1 << 40))
grant = pool.grant(5000)
refused(lambda: grant.read(4999, 2))
refused(lambda: grant.read(-1, 2))
refused(lambda: grant.__setitem__(slice(0, 3), b"four"))
refused(lambda: grant.fetch_add(3, 1))
grant[0:5] = b"hello"; grant.write(5, memoryview(b" far")); print(grant[0:9])
store = muninn.Store(pool, block=4096)
refused(lambda: store["none"])
store["a"] = b"x" * 4096; store["b"] = b""; store["a"] = b"y"; del store["b"]
print(store.items(), len(store))
refused(lambda: store.__delitem__("b"))
pid = os.fork()
if pid == 0:
    refused(lambda: pool.grant(4096)); sys.stdout.flush(); os._exit(0)
os.waitpid(pid, 0)
store.close(); pool.close(); pool.close()
refused(lambda: pool.grant(4096))
"#,
        url = stage.url
    );
    let out = stage.python(&["-u", "-c", &script]);
    let kinds: Vec<&str> = out
        .lines()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "MuninnError",
            "MuninnError",
            "MuninnError",
            "MuninnError",
            "MuninnError",
            "IndexError",
            "IndexError",
            "ValueError",
            "MuninnError",
            "b'hello far'",
            "KeyError",
            "[('a', b'y')] 1",
            "KeyError",
            "MuninnError",
            "ValueError",
        ],
        "{out}"
    );
    assert!(out.contains("it was opened before a fork"), "{out}");
    let ends = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while stage.granted() > Bytes::ZERO {
        assert!(
            std::time::Instant::now() < ends,
            "a pool that was closed gives all back"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
