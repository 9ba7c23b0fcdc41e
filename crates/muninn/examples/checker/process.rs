//! What a process does with itself: becomes another, ends, closes everything, goes away.

use crate::args::Args;
use crate::calls;
use crate::span::{Dice, Span, whole};
use crate::{Outcome, ok};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// Becomes a fresh checker with these arguments; returns only if that fails.
pub fn become_checker(words: &[&str]) -> String {
    let Ok(program) = std::env::current_exe() else {
        return "our own path is not known".to_string();
    };
    let text = |bytes: &[u8]| CString::new(bytes).expect("no argument has a zero byte");
    let program = text(program.as_os_str().as_bytes());
    let list: Vec<CString> = words.iter().map(|word| text(word.as_bytes())).collect();
    let mut pointers = vec![program.as_ptr()];
    pointers.extend(list.iter().map(|word| word.as_ptr()));
    pointers.push(std::ptr::null());
    // SAFETY: a list of strings that ends with a null pointer, all of them alive.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    format!("exec: {}", std::io::Error::last_os_error())
}

/// Twice the same program, the second with a marker from the first.
pub fn exec(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.verify(0)?;
    span.write(1);
    span.verify_random(1, &mut Dice::new(args.seed))?;
    if let Some(marker) = &args.marker {
        let expected = format!("{}", args.seed.wrapping_sub(1) * 3 + 7);
        if *marker != expected {
            return Err(format!("the marker is '{marker}' instead of '{expected}'"));
        }
        return ok(format!(
            "{} pages before and after, marker {marker}",
            span.pages()
        ));
    }
    let size = format!("{}KiB", args.size >> 10);
    let (seed, marker) = ((args.seed + 1).to_string(), (args.seed * 3 + 7).to_string());
    Err(become_checker(&[
        "exec", "--size", &size, "--seed", &seed, "--marker", &marker,
    ]))
}

pub fn exit(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    let code = args.code;
    // Threads that are still at work when the process ends.
    for n in 0..2 {
        std::thread::spawn(move || {
            for round in 0.. {
                let part = span.part(n * whole(span.len / 2), whole(span.len / 2));
                part.write(round % 1000 + 2);
            }
        });
    }
    let line = format!("ok exit: code {code} by '{}'\n", args.how);
    calls::say(1, &line);
    match args.how.as_str() {
        "_exit" => calls::exit_now(code),
        "thread" => {
            let _ = std::thread::spawn(move || std::process::exit(code)).join();
            Err("still here after exit in a thread".to_string())
        }
        "" | "return" | "exit" => std::process::exit(code),
        other => Err(format!("--how {other}: use return, exit, _exit or thread")),
    }
}

/// As a daemon does at its start, or a careless program before `exec`.
pub fn close_all(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    for fd in 3..4096 {
        calls::close(fd);
    }
    span.verify(1)?;
    span.write(2);
    // New ones get the numbers that were closed.
    let ends = calls::pipe()?;
    calls::signal_byte(ends.1)?;
    calls::wait_byte(ends.0)?;
    for fd in 3..4096 {
        calls::close(fd);
    }
    span.verify_random(2, &mut Dice::new(args.seed))?;
    let child = calls::fork_doing(move || span.verify(2))?;
    calls::wait_good(child, "a child after closing everything")?;
    ok(format!("{} pages before and after", span.pages()))
}

/// Forks twice and leaves; the result goes to a file, by a rename, so that it is there or not.
pub fn daemon(args: &Args) -> Outcome {
    let file = args.file.clone().ok_or("daemon wants --file PATH")?;
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    if calls::fork()? != 0 {
        return ok("the first process ends");
    }
    // SAFETY: makes this process the leader of a session of its own.
    unsafe { libc::setsid() };
    if calls::fork()? != 0 {
        calls::exit_now(0);
    }
    for fd in 0..3 {
        calls::close(fd);
    }
    let checked = span
        .verify_random(1, &mut Dice::new(args.seed))
        .and_then(|()| {
            span.write(2);
            span.verify(2)
        });
    let line = match &checked {
        Ok(()) => format!("ok daemon: {} pages\n", span.pages()),
        Err(wrong) => format!("wrong daemon: {wrong}\n"),
    };
    let part = file.with_extension("part");
    let written = std::fs::write(&part, line).and_then(|()| std::fs::rename(&part, &file));
    calls::exit_now(i32::from(checked.is_err() || written.is_err()));
}

/// Little memory, and how much of it is resident.
pub fn idle(args: &Args) -> Outcome {
    let span = Span::map(args.size.min(4 << 20), args.seed)?;
    span.write(1);
    if args.how == "quiet" {
        span.verify(1)?;
        std::process::exit(0);
    }
    if args.how == "wait" {
        // Until standard input ends.
        let mut byte = 0u8;
        let _ = calls::read_to(0, &raw mut byte as usize, 1);
    }
    span.verify(1)?;
    ok(format!("{} pages resident", calls::resident_pages()))
}
