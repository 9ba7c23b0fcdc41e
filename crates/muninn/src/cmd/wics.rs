//! `muninn wics`: functions that are given to a running server, as modules of WebAssembly.

use crate::client::ClientArgs;
use crate::config::Config;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui;
use muninn_net::Observer;
use muninn_types::{Bytes, parse_duration};
use muninn_wic::{CallError, Module, Place, PushError, Service, ServiceOptions, list_pushed};
use muninn_wire::{MAX_MODULE, ModuleHash, PushedInfo, WicsRequest};
use serde::Serialize;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Subcommand)]
pub enum Wics {
    /// Give a server a module; its functions can be called from then on
    Push(PushArgs),
    /// List the functions that were pushed to a server
    List(ListArgs),
    /// Remove a module from a server, and all of its functions
    Remove(RemoveArgs),
    /// Call a function that was pushed
    Call(CallArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn wics push list.wasm --pool unix:/run/muninn.sock
  muninn wics push apps.wasm --pool 10.0.0.5:7000 --key-file /etc/muninn.key --json

What operators push is there for everybody; what clients push (where serve --wic-push clients lets
them), for their identity. Exit code 1 if it is no module that can be run, 3 if the server is not
reached or refuses.")]
pub struct PushArgs {
    /// The module: a file of WebAssembly
    #[arg(value_name = "FILE")]
    pub module: PathBuf,

    #[command(flatten)]
    pub client: ClientArgs,

    /// How long the server may take
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = parse_duration)]
    pub within: Duration,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  muninn wics list --pool unix:/run/muninn.sock")]
pub struct ListArgs {
    #[command(flatten)]
    pub client: ClientArgs,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn wics remove list.walk@1 --pool unix:/run/muninn.sock
  muninn wics remove 6f0c31a2 --pool unix:/run/muninn.sock")]
pub struct RemoveArgs {
    /// One of its functions, such as list.walk@1, or how its hash begins
    #[arg(value_name = "NAME@VERSION|HASH")]
    pub what: String,

    #[command(flatten)]
    pub client: ClientArgs,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn wics call wasm-apps.append@1 u64=1 u64=42 --reply u64 --service log
  muninn wics call wat.walk@1 le64=4096 le32=0 --place client --service list --size 1MiB

Arguments: u64=N and u32=N as Rust's postcard has them, le64=N and le32=N as plain little-endian
bytes, hex=BYTES. Exit code 1 if the function failed, 3 if it is not there or the server is lost.")]
pub struct CallArgs {
    /// The function, such as list.walk@1
    #[arg(value_name = "NAME@VERSION")]
    pub function: String,

    /// Its arguments, one after the other
    #[arg(value_name = "TYPE=VALUE")]
    pub args: Vec<String>,

    #[command(flatten)]
    pub client: ClientArgs,

    /// Where it runs: client, server, nic or auto
    #[arg(long, default_value = "server", value_name = "PLACE")]
    pub place: Place,

    /// Where 'muninn nic' listens
    #[arg(long, value_name = "ADDR")]
    pub nic: Option<String>,

    /// The service that it runs on, made if there is none; it ends with the last who has it open
    #[arg(long, default_value = "scratch", value_name = "NAME")]
    pub service: String,

    /// Memory of the service
    #[arg(long, default_value = "1MiB", value_name = "SIZE")]
    pub size: Bytes,

    /// Locks of the service
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub locks: u32,

    /// What the reply is: u64, u32, le64, le32 or hex
    #[arg(long, default_value = "hex", value_name = "TYPE")]
    pub reply: String,

    /// Call it so many times
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub repeat: u32,

    /// Print JSON, one object for each call
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Pushed {
    hash: String,
    bytes: usize,
    functions: Vec<String>,
    /// Until its functions could be called.
    took_us: u64,
}

#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    version: u32,
    idempotent: bool,
    owner: Option<String>,
    calls: u64,
    module: String,
    module_bytes: u32,
}

#[derive(Debug, Serialize)]
struct Called {
    reply: String,
    took_us: u64,
}

pub fn run(wics: &Wics, config: &Config) -> Outcome {
    match wics {
        Wics::Push(args) => push(args, config),
        Wics::List(args) => list(args, config),
        Wics::Remove(args) => remove(args, config),
        Wics::Call(args) => call(args, config),
    }
}

fn unreachable(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Unreachable, error)
}

fn pushing(error: PushError) -> Failure {
    match error {
        PushError::Net(error) => unreachable(error),
        other => Failure::failed(other),
    }
}

fn connect(args: &ClientArgs, config: &Config) -> Result<Observer, Failure> {
    let client = args.resolve(&config.client)?;
    let [address] = &client.pool[..] else {
        return Err(Failure::usage(format!(
            "functions are one server's, and the pool has {}: name the one with --pool",
            client.pool.len()
        )));
    };
    Observer::connect(address, &client.options()).map_err(unreachable)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn load(path: &PathBuf) -> Result<Module, Failure> {
    let failed = |error: std::io::Error| {
        Failure::usage(format!(
            "the module {} cannot be read: {error}",
            path.display()
        ))
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One byte more than may be is enough to know that it is too many.
    let most = MAX_MODULE as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Module::load(bytes)
        .map_err(|error| Failure::failed(format!("{} cannot be used: {error}", path.display())))
}

fn push(args: &PushArgs, config: &Config) -> Outcome {
    // What no server would take is said here, with the file's name.
    let module = load(&args.module)?;
    let mut server = connect(&args.client, config)?;
    let started = Instant::now();
    muninn_wic::push(&mut server, module.bytes(), args.within).map_err(pushing)?;
    let took_us = started.elapsed().as_micros() as u64;
    let functions = module.functions().iter();
    let functions: Vec<String> = functions
        .map(|function| format!("{}@{}", function.name, function.version))
        .collect();
    let pushed = Pushed {
        hash: hex(module.hash()),
        bytes: module.bytes().len(),
        functions,
        took_us,
    };
    match args.json {
        true => ui::print_json(&pushed),
        false => ui::print_out(&format!(
            "{} ({} bytes): {}",
            &pushed.hash[..8],
            pushed.bytes,
            pushed.functions.join(", ")
        )),
    }
    Ok(())
}

fn list(args: &ListArgs, config: &Config) -> Outcome {
    let mut server = connect(&args.client, config)?;
    let all = list_pushed(&mut server).map_err(pushing)?;
    let all: Vec<Listed> = all.iter().map(Listed::from).collect();
    if args.json {
        #[derive(Serialize)]
        struct Report {
            functions: Vec<Listed>,
        }
        ui::print_json(&Report { functions: all });
        return Ok(());
    }
    if all.is_empty() {
        ui::print_out("no functions were pushed");
    }
    for listed in all {
        let owner = listed
            .owner
            .map_or("everybody".to_string(), |owner| match &owner[..] {
                "" => "clients".to_string(),
                _ => owner,
            });
        let calls = listed.calls;
        ui::print_out(&format!(
            "{}@{}{} for {owner}, {calls} call{}, module {} ({} bytes)",
            listed.name,
            listed.version,
            if listed.idempotent { " idempotent" } else { "" },
            if calls == 1 { "" } else { "s" },
            &listed.module[..8],
            listed.module_bytes,
        ));
    }
    Ok(())
}

impl From<&PushedInfo> for Listed {
    fn from(info: &PushedInfo) -> Listed {
        Listed {
            name: info.name.to_string(),
            version: info.version,
            idempotent: info.idempotent,
            owner: (!info.common).then(|| info.owner.to_string()),
            calls: info.calls,
            module: hex(&info.hash),
            module_bytes: info.module_len,
        }
    }
}

/// A name and a version.
fn parse_function(text: &str) -> Option<(&str, u32)> {
    let (name, version) = text.split_once('@')?;
    Some((name, version.parse().ok()?))
}

fn remove(args: &RemoveArgs, config: &Config) -> Outcome {
    let mut server = connect(&args.client, config)?;
    let all = list_pushed(&mut server).map_err(pushing)?;
    let is_meant = |info: &&PushedInfo| match parse_function(&args.what) {
        Some((name, version)) => info.name.as_str() == name && info.version == version,
        None => args.what.len() >= 4 && hex(&info.hash).starts_with(&args.what),
    };
    let mut hashes: Vec<ModuleHash> = all.iter().filter(is_meant).map(|i| i.hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    let [hash] = hashes[..] else {
        return Err(Failure::usage(match hashes.len() {
            0 => format!(
                "there is no function or module '{}': 'muninn wics list' shows those there are",
                args.what
            ),
            n => format!(
                "'{}' is how {n} modules begin: say more of the hash",
                args.what
            ),
        }));
    };
    server
        .wics(WicsRequest::Remove { hash })
        .map_err(unreachable)?;
    let gone = all.iter().filter(|info| info.hash == hash);
    let gone: Vec<String> = gone.map(|i| format!("{}@{}", i.name, i.version)).collect();
    match args.json {
        true => ui::print_json(&serde_json::json!({ "removed": gone })),
        false => ui::print_out(&format!("removed {}", gone.join(", "))),
    }
    Ok(())
}

/// Appends an argument as its function reads it.
fn encode(arg: &str, to: &mut Vec<u8>) -> Result<(), Failure> {
    let bad = || {
        Failure::usage(format!(
            "'{arg}' is no argument: use u64=N, u32=N, le64=N, le32=N or hex=BYTES"
        ))
    };
    let (kind, value) = arg.split_once('=').ok_or_else(bad)?;
    let number = || value.parse::<u64>().map_err(|_| bad());
    let short = || value.parse::<u32>().map_err(|_| bad());
    match kind {
        "u64" => varint(number()?, to),
        "u32" => varint(u64::from(short()?), to),
        "le64" => to.extend_from_slice(&number()?.to_le_bytes()),
        "le32" => to.extend_from_slice(&short()?.to_le_bytes()),
        "hex" if value.len().is_multiple_of(2) && value.is_ascii() => {
            for at in (0..value.len()).step_by(2) {
                let byte = u8::from_str_radix(&value[at..at + 2], 16);
                to.push(byte.map_err(|_| bad())?);
            }
        }
        _ => return Err(bad()),
    }
    Ok(())
}

/// Seven bits a byte, the lowest first: numbers as postcard has them.
fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn decode(kind: &str, reply: &[u8]) -> Result<String, Failure> {
    let unlike = || {
        Failure::failed(format!(
            "the reply is no {kind}: {}; try --reply hex",
            hex(reply)
        ))
    };
    Ok(match kind {
        "u64" | "u32" => {
            let short = reply.len() <= 10 && reply.last().is_some_and(|last| *last < 0x80);
            if !short {
                return Err(unlike());
            }
            let number = reply
                .iter()
                .rev()
                .fold(0u64, |sum, byte| sum << 7 | u64::from(byte & 0x7f));
            number.to_string()
        }
        "le64" => u64::from_le_bytes(reply.try_into().map_err(|_| unlike())?).to_string(),
        "le32" => u32::from_le_bytes(reply.try_into().map_err(|_| unlike())?).to_string(),
        "hex" => hex(reply),
        _ => {
            return Err(Failure::usage(format!(
                "a reply is u64, u32, le64, le32 or hex, not '{kind}'"
            )));
        }
    })
}

fn call(args: &CallArgs, config: &Config) -> Outcome {
    let Some((name, version)) = parse_function(&args.function) else {
        return Err(Failure::usage(format!(
            "'{}' names no function: write its version too, such as list.walk@1",
            args.function
        )));
    };
    let mut bytes = Vec::new();
    for arg in &args.args {
        encode(arg, &mut bytes)?;
    }
    let client = args.client.resolve(&config.client)?;
    let [address] = &client.pool[..] else {
        return Err(Failure::usage(
            "a service lies at one server: name the one with --pool",
        ));
    };
    let mut options = ServiceOptions::new(&address.to_string(), &args.service, args.size)
        .place(args.place)
        .locks(args.locks);
    options.nic.clone_from(&args.nic);
    options.session = client.options();
    let service = Service::open(options).map_err(unreachable)?;
    let remote = service
        .function::<(), ()>(name, version)
        .map_err(unreachable)?;
    for _ in 0..args.repeat {
        let started = Instant::now();
        let reply = service.block_on(service.call_bytes(remote.function(), &bytes));
        let reply = reply.map_err(|error| match error {
            CallError::Failed(_) => Failure::failed(error),
            error => unreachable(error),
        })?;
        let called = Called {
            reply: decode(&args.reply, reply.bytes())?,
            took_us: started.elapsed().as_micros() as u64,
        };
        match args.json {
            true => ui::print_out(&serde_json::to_string(&called).expect("plain data")),
            false => ui::print_out(&called.reply),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_replies_are_as_functions_have_them() {
        let mut bytes = Vec::new();
        for arg in ["u64=300", "u32=7", "le32=258", "le64=1", "hex=0aff"] {
            encode(arg, &mut bytes).unwrap();
        }
        let wanted = [0xac, 2, 7, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0xff];
        assert_eq!(bytes, wanted);
        for bad in ["7", "u64=x", "u32=4294967296", "hex=0", "hex=zz", "f32=1"] {
            assert!(encode(bad, &mut Vec::new()).is_err(), "{bad}");
        }
        for number in [0, 127, 128, 300, u64::MAX] {
            let mut bytes = Vec::new();
            varint(number, &mut bytes);
            assert_eq!(decode("u64", &bytes).unwrap(), number.to_string());
        }
        assert_eq!(decode("le32", &[2, 1, 0, 0]).unwrap(), "258");
        assert_eq!(decode("hex", &[2, 255]).unwrap(), "02ff");
        assert!(decode("u64", &[0x80]).is_err() && decode("le64", &[1]).is_err());
    }

    #[test]
    fn functions_are_named_with_their_version() {
        assert_eq!(parse_function("list.walk@12"), Some(("list.walk", 12)));
        assert_eq!(parse_function("list.walk"), None);
        assert_eq!(parse_function("list.walk@x"), None);
    }
}
