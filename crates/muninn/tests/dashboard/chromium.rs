//! A browser without a screen, driven through two pipes by its own protocol for that.

use crate::common::PATIENCE;
use muninn_testing::skip;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let all = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.into_iter().find(|path| path.is_file())
}

/// The browser with one page. Dropping it ends all of its processes.
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// What went wrong in the page: exceptions, refused files, breaches of its policy.
    pub complaints: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Browser {
    /// None, counted as a skip, only where no such browser is installed.
    pub fn start() -> Option<Browser> {
        let Some(program) = find() else {
            skip("there is no chromium here");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = dir.path().join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            path
        };
        let (to, from) = (pipe("to"), pipe("from"));
        // It reads what to do from descriptor 3 and answers at 4.
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec 3<\"$1\" 4>\"$2\"; shift 2; exec \"$@\"", "sh"])
            .args([&to, &from])
            .arg(&program)
            .args([
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-first-run",
                "--no-default-browser-check",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--disable-sync",
                "--disable-breakpad",
                "--password-store=basic",
                "--window-size=1200,900",
            ])
            .arg(format!(
                "--user-data-dir={}",
                dir.path().join("data").display()
            ))
            .env("HOME", dir.path())
            .env_remove("XDG_RUNTIME_DIR")
            .current_dir(dir.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("log")).unwrap());
        if rustix::process::getuid().is_root() {
            // Its sandbox wants an ordinary user; the page here is our own.
            command.arg("--no-sandbox");
        }
        command.arg("about:blank");
        let child = command.spawn().unwrap();
        let writing = open(&to, OpenOptions::new().write(true));
        let reading = BufReader::new(open(&from, OpenOptions::new().read(true)));
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let messages = reading.split(0).map_while(Result::ok);
            for message in messages.filter_map(|bytes| serde_json::from_slice(&bytes).ok()) {
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            to: writing,
            from: receive,
            next: 1,
            session: None,
            complaints: Vec::new(),
            _dir: dir,
        };
        browser.open_page();
        Some(browser)
    }

    fn open_page(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = &target["targetId"];
        let wanted = json!({"targetId": target, "flatten": true});
        let attached = self.call("Target.attachToTarget", wanted);
        self.session = Some(attached["sessionId"].as_str().unwrap().to_string());
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Asks, and waits for the answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(mut answer) = self.from.recv_timeout(left) else {
                panic!("the browser does not answer {method}");
            };
            self.listen(&answer);
            if answer["id"] == json!(id) {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    fn listen(&mut self, message: &Value) {
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => &message["params"]["exceptionDetails"],
            Some("Log.entryAdded") if message["params"]["entry"]["level"] == "error" => {
                &message["params"]["entry"]
            }
            _ => return,
        };
        self.complaints.push(complaint.to_string());
    }

    pub fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    pub fn size(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// The value of an expression in the page; what it promises is waited for.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].take()
    }

    pub fn text(&mut self, selector: &str) -> String {
        let selector = json!(selector);
        let text = self.value(&format!(
            "document.querySelector({selector})?.innerText ?? ''"
        ));
        text.as_str().unwrap_or_default().to_string()
    }

    /// Waits until an expression is true in the page.
    pub fn until(&mut self, condition: &str) {
        let ms = PATIENCE.as_millis() / 2;
        let waited = self.value(&format!(
            "new Promise((done) => {{ const end = Date.now() + {ms}; (function look() {{ \
             let is = false; try {{ is = Boolean({condition}); }} catch (e) {{}} \
             if (is || Date.now() > end) done(is); else setTimeout(look, 20); }})(); }})"
        ));
        if waited != json!(true) {
            let page = self.text("body");
            panic!("not in time: {condition}\n{page}\n{:?}", self.complaints);
        }
    }

    /// A click of the mouse on the middle of an element, wherever that is.
    pub fn click(&mut self, selector: &str) {
        let selector = json!(selector);
        let at = self.value(&format!(
            "(() => {{ const e = document.querySelector({selector}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// A key by its name, such as `Tab`; `Enter` is also a character.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            _ => (0, key),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Goes from thing to thing with the keyboard alone until this one has the focus.
    pub fn tab_to(&mut self, selector: &str) {
        let quoted = json!(selector);
        for _ in 0..200 {
            let there = self.value(&format!(
                "document.activeElement?.matches({quoted}) ?? false"
            ));
            if there == json!(true) {
                return;
            }
            self.press("Tab");
        }
        panic!("{selector} is not reached by the tab key");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Opens a pipe once somebody has its other end, which the shell does at once or never.
fn open(path: &Path, options: &OpenOptions) -> File {
    let (send, receive) = channel();
    let (path, options) = (path.to_path_buf(), options.clone());
    std::thread::spawn(move || send.send(options.open(path)));
    receive
        .recv_timeout(PATIENCE)
        .expect("the browser did not start")
        .unwrap()
}
