//! Modules on their way between two sides: pushed to a server, and fetched from it.
//!
//! Whoever fetches one checks that its bytes have the hash that its function was said to have; what it then
//! may do is bounded wherever it runs.

use crate::pushed::hash_of;
use muninn_net::{NetError, Observer};
use muninn_wire::{
    ErrorCode, MAX_MODULE, MAX_NAME, MAX_WIC_NAME, MODULE_PART, ModuleState, PushedInfo, ShortText,
    WicsReply, WicsRequest,
};
use std::time::{Duration, Instant};

/// Why a function is not to be had, or could not be pushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("{0}")]
    Net(#[from] NetError),
    #[error("the module cannot be used: {0}")]
    Module(String),
    #[error("a module has 1 to {MAX_MODULE} bytes, and this one has {0}")]
    Length(usize),
    #[error("the server answered what was not asked")]
    Unasked,
    #[error("the server has not translated the module within {0:?}")]
    Slow(Duration),
}

type Ask<'a> = dyn FnMut(WicsRequest) -> Result<WicsReply, NetError> + 'a;

/// What a server says about a function, and its module's bytes.
pub(crate) fn fetch(
    ask: &mut Ask<'_>,
    owner: &str,
    name: &str,
    version: u32,
) -> Result<(PushedInfo, Vec<u8>), FetchError> {
    let find = WicsRequest::Find {
        owner: ShortText::lossy(owner, MAX_NAME),
        name: ShortText::lossy(name, MAX_WIC_NAME),
        version,
    };
    let WicsReply::Found(info) = ask(find)? else {
        return Err(FetchError::Unasked);
    };
    let hash = info.hash;
    let len = info.module_len as usize;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let offset = bytes.len() as u32;
        match ask(WicsRequest::Fetch { hash, offset })? {
            WicsReply::Part(part) if !part.is_empty() && bytes.len() + part.len() <= len => {
                bytes.extend_from_slice(&part);
            }
            _ => return Err(FetchError::Unasked),
        }
    }
    match hash_of(&bytes) == hash {
        true => Ok((info, bytes)),
        false => Err(FetchError::Module(
            "its bytes do not have its hash".to_string(),
        )),
    }
}

/// Gives a server a module, and waits until its functions can be called; how many there are.
pub fn push(server: &mut Observer, bytes: &[u8], patience: Duration) -> Result<u32, FetchError> {
    push_by(&mut |request| server.wics(request), bytes, patience)
}

pub(crate) fn push_by(
    ask: &mut Ask<'_>,
    bytes: &[u8],
    patience: Duration,
) -> Result<u32, FetchError> {
    if bytes.is_empty() || bytes.len() > MAX_MODULE {
        return Err(FetchError::Length(bytes.len()));
    }
    let hash = hash_of(bytes);
    let started = Instant::now();
    let mut sent = 0;
    let mut pause = Duration::from_micros(100);
    loop {
        let end = (sent + MODULE_PART).min(bytes.len());
        let request = match sent < bytes.len() {
            true => WicsRequest::Part {
                hash,
                len: bytes.len() as u32,
                offset: sent as u32,
                bytes: bytes[sent..end].to_vec(),
            },
            false => WicsRequest::State { hash },
        };
        match ask(request) {
            Ok(WicsReply::State(ModuleState::Ready(functions))) => return Ok(functions),
            Ok(WicsReply::State(ModuleState::Receiving(have))) => sent = have as usize,
            Ok(WicsReply::State(ModuleState::Refused(why))) => {
                return Err(FetchError::Module(why.to_string()));
            }
            Ok(WicsReply::State(ModuleState::Translating)) => {
                sent = bytes.len();
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            Ok(WicsReply::State(ModuleState::Missing)) => sent = 0,
            Ok(_) => return Err(FetchError::Unasked),
            // Others push too; soon there is room.
            Err(error)
                if error.is_refusal(ErrorCode::TooManyModules) && started.elapsed() < patience =>
            {
                sent = 0;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
        if started.elapsed() > patience {
            return Err(FetchError::Slow(patience));
        }
    }
}

/// All functions that were pushed to a server and that one may see.
pub fn list(server: &mut Observer) -> Result<Vec<PushedInfo>, FetchError> {
    let mut all: Vec<PushedInfo> = Vec::new();
    loop {
        let after = all.last().map_or(0, |last| last.number);
        match server.wics(WicsRequest::List { after })? {
            WicsReply::List(more) if more.is_empty() => return Ok(all),
            // One that never comes to an end is not listened to for ever.
            WicsReply::List(more) if all.len() < 1 << 16 && more[0].number > after => {
                all.extend(more)
            }
            _ => return Err(FetchError::Unasked),
        }
    }
}
