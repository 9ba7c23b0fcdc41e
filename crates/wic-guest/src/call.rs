//! One call: arguments in, the function run to its end, its reply or its error out.

use crate::error::WicError;
use crate::host;
use crate::memory::{Guest, Memory};
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of arguments, and of a reply.
pub const MAX_ARGS: usize = 1007;

/// A where-independent function. Made by `#[wic]`.
pub trait Wic {
    const NAME: &'static str;
    const VERSION: u32;
    /// Doing it twice is the same as doing it once: it is tried again after a failure.
    const IDEMPOTENT: bool;
    /// It takes locks of its service.
    const LOCKS: bool = false;
    type Args: Serialize + DeserializeOwned;
    type Reply: Serialize + DeserializeOwned;
    fn run<M: Memory>(
        mem: &M,
        args: Self::Args,
    ) -> impl Future<Output = Result<Self::Reply, WicError>>;
}

/// What an exported function does.
#[inline(always)]
pub fn call<W: Wic>(_len: i32) -> i64 {
    let mut buffer = [0; MAX_ARGS];
    let len = host::args(&mut buffer);
    let Ok(args) = postcard::from_bytes(&buffer[..len.min(MAX_ARGS)]) else {
        return WicError::Args.code();
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut running = pin!(W::run(&Guest, args));
    let ended = loop {
        match running.as_mut().poll(&mut context) {
            Poll::Ready(ended) => break ended,
            Poll::Pending => {
                host::pause();
            }
        }
    };
    let ended = ended.and_then(|reply| match postcard::to_slice(&reply, &mut buffer) {
        Ok(reply) => {
            host::reply(reply);
            Ok(())
        }
        Err(_) => Err(WicError::Reply),
    });
    match ended {
        Ok(()) => 0,
        Err(error) => error.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::nobody_tests::FAKE;
    use crate::{Addr, WicLock};

    /// Adds to a word under a lock, after it has waited once.
    struct Add;
    impl Wic for Add {
        const NAME: &'static str = "add";
        const VERSION: u32 = 1;
        const IDEMPOTENT: bool = false;
        type Args = (u64, u64);
        type Reply = (u64, bool);
        async fn run<M: Memory>(mem: &M, (at, add): (u64, u64)) -> Result<(u64, bool), WicError> {
            let guard = WicLock::new(1).lock(mem).await?;
            mem.pause().await?;
            let old = mem.read::<u64>(Addr(at)).await?;
            mem.write(Addr(at), &(old + add)).await?;
            let found = mem.compare_swap(Addr(at), old + add, old + add + 1).await?;
            let found = mem.fetch_add(Addr(at), found).await?;
            let orphaned = guard.is_orphaned();
            guard.unlock().await?;
            Ok((found, orphaned))
        }
    }

    fn called(args: &[u8]) -> i64 {
        FAKE.with_borrow_mut(|fake| fake.args = args.to_vec());
        call::<Add>(args.len() as i32)
    }

    #[test]
    fn a_call_reads_its_arguments_and_gives_its_reply() {
        FAKE.with_borrow_mut(|fake| fake.orphaned = true);
        let args = postcard::to_slice(&(72u64, 5u64), &mut [0; 32])
            .unwrap()
            .to_vec();
        assert_eq!(called(&args), 0);
        FAKE.with_borrow(|fake| {
            assert_eq!(fake.words, [0, 11, 0, 0]);
            assert_eq!(postcard::from_bytes(&fake.reply), Ok((6u64, true)));
            assert_eq!((fake.pauses, fake.held.len()), (1, 0));
        });
    }

    #[test]
    fn errors_are_given_back_as_the_host_has_them() {
        let args = |at: u64| {
            postcard::to_slice(&(at, 1u64), &mut [0; 32])
                .unwrap()
                .to_vec()
        };
        assert_eq!(called(&[]), 7, "no arguments");
        assert_eq!(called(&args(1024)), 1, "out of bounds");
        FAKE.with_borrow_mut(|fake| fake.held.clear());
        assert_eq!(WicError::App(77).code(), 9 | 77 << 32);
        for (code, error) in [
            (1, WicError::Bounds),
            (2, WicError::Misaligned),
            (3, WicError::NoLock),
        ] {
            assert_eq!(WicError::check(code), Err(error.clone()));
            assert_eq!(error.code(), i64::from(code));
        }
    }
}
