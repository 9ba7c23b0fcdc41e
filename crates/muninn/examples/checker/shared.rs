//! Memory that is shared, or that belongs to a file, beside private memory under pressure.

use crate::args::Args;
use crate::calls::{self, RW};
use crate::maps::tempfile_of;
use crate::span::{Span, whole};
use crate::{Outcome, ok};
use std::os::fd::AsRawFd;

pub fn shared(args: &Args) -> Outcome {
    let len = whole(args.size / 8);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let common = Span::new(calls::map_at(0, len, RW, flags, -1)?, len, args.seed);
    let private = Span::map(args.size, args.seed + 1)?;
    common.write(1);
    private.write(1);
    let (asked, ask) = calls::pipe()?;
    let (answered, answer) = calls::pipe()?;
    let child = calls::fork_doing(move || {
        common.verify(1)?;
        common.write(2);
        calls::signal_byte(answer)?;
        calls::wait_byte(asked)?;
        // What the parent wrote since is seen in the shared part, and not in the private one.
        common.verify(3)?;
        private.part(0, len).verify(1)
    })?;
    calls::wait_byte(answered)?;
    common.verify(2)?;
    common.write(3);
    private.write(2);
    calls::signal_byte(ask)?;
    calls::wait_good(child, "the child")?;
    common.verify(3)?;
    private.verify(2)?;
    for fd in [asked, ask, answered, answer] {
        calls::close(fd);
    }
    // One file, mapped shared twice and privately once.
    let file = tempfile_of(len)?;
    file.set_len(len as u64)
        .map_err(|error| error.to_string())?;
    let fd = file.as_raw_fd();
    let one = Span::new(
        calls::map_at(0, len, RW, libc::MAP_SHARED, fd)?,
        len,
        args.seed,
    );
    let two = one.moved(calls::map_at(0, len, RW, libc::MAP_SHARED, fd)?);
    one.write(4);
    two.verify(4)?;
    let own = one.moved(calls::map_at(0, len, RW, libc::MAP_PRIVATE, fd)?);
    own.verify(4)?;
    let half = own.part(0, whole(len / 2));
    half.write(5);
    private.write(3);
    private.verify(3)?;
    half.verify(5)?;
    two.verify(4)?;
    own.part(half.len, own.len - half.len).verify(4)?;
    ok(format!(
        "{} pages shared with a child and through a file",
        common.pages()
    ))
}
