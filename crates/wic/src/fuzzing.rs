//! What fuzzers do with modules: load any bytes, and run a module that calls the host in any way.
//!
//! A run of calls is made from bytes, so that most of what a fuzzer thinks of is a valid module: each call takes
//! its arguments from a few that are often at an edge. Checked afterwards: nothing outside of the service's memory
//! was touched, and no lock is held any more.

use crate::local::{Chunks, Limits, LocalMemory, Outcome, Style, Window};
use crate::memory::Layout;
use crate::pushed::{Module, Pushed};
use muninn_sys::clock;
use muninn_types::Nanos;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of the service, and of what lies behind it and is nobody's.
const SERVICE: usize = 8192;
const BEHIND: usize = 4096;
const BASE: u64 = 64;
const LOCKS: u32 = 2;
const CANARY: u8 = 0xa5;

/// Imports, with the types of their parameters: 7f is an i32, 7e an i64; and of what they give back.
const IMPORTS: [(&str, &[u8], &[u8]); 12] = [
    ("args", &[0x7f, 0x7f], &[0x7f]),
    ("reply", &[0x7f, 0x7f], &[]),
    ("base", &[], &[0x7e]),
    ("end", &[], &[0x7e]),
    ("locks", &[], &[0x7f]),
    ("read", &[0x7e, 0x7f, 0x7f], &[0x7f]),
    ("write", &[0x7e, 0x7f, 0x7f], &[0x7f]),
    ("cas", &[0x7e, 0x7e, 0x7e, 0x7f], &[0x7f]),
    ("fetch_add", &[0x7e, 0x7e, 0x7f], &[0x7f]),
    ("lock", &[0x7f, 0x7f], &[0x7f]),
    ("unlock", &[0x7f], &[0x7f]),
    ("pause", &[], &[0x7f]),
];

/// Values that are at some edge.
const EDGES: [i64; 16] = [
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    1007,
    4096,
    8184,
    8192,
    65_528,
    65_535,
    -1,
    -8,
    i64::MIN,
];

/// Any bytes are loaded or refused.
pub fn module(bytes: &[u8]) -> bool {
    match Module::load(bytes.to_vec()) {
        Ok(module) => {
            let module = Arc::new(module);
            Pushed::all(&module).for_each(|function| run(&function, bytes));
            true
        }
        Err(_) => false,
    }
}

/// A run of calls that the bytes say.
pub fn body(bytes: &[u8]) {
    let mut code = vec![0]; // no locals
    for choice in bytes.chunks(5).take(200) {
        let pick = |n: usize| EDGES[usize::from(choice.get(n).copied().unwrap_or(0)) % EDGES.len()];
        match choice[0] {
            n if usize::from(n) % 16 < IMPORTS.len() => {
                let which = usize::from(n) % 16;
                let (_, takes, gives) = IMPORTS[which];
                for (at, ty) in takes.iter().enumerate() {
                    match ty {
                        0x7f => push_signed(0x41, pick(at + 1) as i32 as i64, &mut code),
                        _ => push_signed(0x42, pick(at + 1), &mut code),
                    }
                }
                code.extend_from_slice(&[0x10, which as u8]);
                code.extend(gives.iter().map(|_| 0x1a)); // drop
            }
            // Memory grows; a loop without end; a trap.
            n if n < 128 => {
                push_signed(0x41, pick(1) as i32 as i64, &mut code);
                code.extend_from_slice(&[0x40, 0, 0x1a]);
            }
            255 => code.extend_from_slice(&[0x03, 0x40, 0x0c, 0, 0x0b]),
            254 => code.push(0x00),
            _ => code.push(0x01), // nothing
        }
    }
    push_signed(0x42, 0, &mut code);
    code.push(0x0b);
    let module = Module::load(around(&code)).expect("what is made here is a module");
    let module = Arc::new(module);
    Pushed::all(&module).for_each(|function| run(&function, bytes));
}

fn push_signed(op: u8, mut value: i64, to: &mut Vec<u8>) {
    to.push(op);
    loop {
        let byte = value as u8 & 0x7f;
        value >>= 7;
        let done = (value == 0 && byte & 0x40 == 0) || (value == -1 && byte & 0x40 != 0);
        to.push(if done { byte } else { byte | 0x80 });
        if done {
            return;
        }
    }
}

fn push_len(mut len: usize, to: &mut Vec<u8>) {
    while len >= 0x80 {
        to.push(len as u8 | 0x80);
        len >>= 7;
    }
    to.push(len as u8);
}

fn push_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    push_len(bytes.len(), to);
    to.extend_from_slice(bytes);
}

/// A module with all imports and one function, of which this is the code.
fn around(code: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    let mut imports = Vec::new();
    push_len(IMPORTS.len() + 1, &mut types);
    push_len(IMPORTS.len(), &mut imports);
    for (number, (name, takes, gives)) in IMPORTS.iter().enumerate() {
        types.push(0x60);
        push_bytes(takes, &mut types);
        push_bytes(gives, &mut types);
        push_bytes(b"muninn", &mut imports);
        push_bytes(name.as_bytes(), &mut imports);
        imports.extend_from_slice(&[0, number as u8]);
    }
    types.extend_from_slice(&[0x60, 1, 0x7f, 1, 0x7e]);
    let own = IMPORTS.len() as u8;
    let mut exports = vec![2];
    push_bytes(b"memory", &mut exports);
    exports.extend_from_slice(&[2, 0]);
    push_bytes(b"fuzz.run@1", &mut exports);
    exports.extend_from_slice(&[0, own]);
    let mut codes = vec![1];
    push_bytes(code, &mut codes);
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    for (id, section) in [
        (1, types),
        (2, imports),
        (3, vec![1, own]),
        (5, vec![1, 0, 1]),
        (7, exports),
        (10, codes),
    ] {
        module.push(id);
        push_bytes(&section, &mut module);
    }
    module
}

/// Runs a function to its end on a small service, once in each style.
fn run(function: &Pushed, args: &[u8]) {
    for style in [Style::Sync, Style::Prefetch] {
        let words = (SERVICE + BEHIND) / 8;
        let filled = u64::from_le_bytes([CANARY; 8]);
        let mut memory: Vec<u64> = vec![0; words];
        memory[SERVICE / 8..].fill(filled);
        let start = memory.as_mut_ptr().cast::<u8>();
        let layout = Layout {
            base: BASE,
            bytes: SERVICE as u64,
            locks: LOCKS,
            shift: 13,
        };
        // SAFETY: the one chunk is the first 2^13 bytes of `memory`, which outlives all that is done here and is
        // not used by its own name any more; it is aligned to a word, which is all that accesses need.
        let chunks = unsafe { Chunks::new(layout, vec![start], Box::new(())) };
        let limits = Limits {
            steps: 2048,
            slice: 256,
            ..Limits::default()
        };
        let mem = LocalMemory::new(Rc::new(chunks), style, 77, limits);
        let args = &args[..args.len().min(muninn_wire::MAX_ARGS)];
        let mut window: Window<()> = Window::new(1, limits.allocated);
        if let Ok(running) = function.start(mem, args) {
            // One that waits for its own lock waits for that long.
            window.push(running, (), clock::now() + Nanos::millis(2));
        }
        while !window.is_empty() {
            window.run(clock::now(), |(), outcome| {
                assert!(!matches!(outcome, Outcome::Panicked), "the host panicked");
            });
        }
        // SAFETY: inside of `memory`, which nobody else touches any more.
        let byte = |at: usize| unsafe { start.add(at).read() };
        assert!(
            (SERVICE..SERVICE + BEHIND).all(|at| byte(at) == CANARY),
            "beyond the service"
        );
        for lock in 0..LOCKS as usize {
            assert!(byte(lock * 8) <= 1, "a lock is held after the call");
        }
        assert!(
            (LOCKS as usize * 8..BASE as usize).all(|at| byte(at) == 0),
            "below its base"
        );
    }
}
