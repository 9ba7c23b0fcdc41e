//! The same applications as a module that is pushed, beside those that are built in; and what pushing takes.

use super::super::{Measurement, median};
use super::Case;
use super::load::{App, AppName};
use super::stage::{Over, Spot, Stage, failed};
use super::targets::{ROUNDS, base_case, in_turn, rates};
use crate::failure::Failure;
use muninn_types::Bytes;
use muninn_wic::{Function, Reply, Service};
use serde::Serialize;
use std::time::{Duration, Instant};

/// `examples/wasm-apps`, as its script builds it.
const MODULE: &[u8] = include_bytes!("../../../../../../examples/wasm-apps/apps.wasm");
const PATIENCE: Duration = Duration::from_secs(30);

/// The functions of the module.
#[derive(Debug)]
pub struct Functions {
    pub traverse: Function,
    pub append: Function,
    pub read_tail: Function,
    pub query: Function,
    pub update: Function,
}

impl Functions {
    /// Pushes the module, if it is not there yet, and finds its functions.
    pub fn push(stage: &Stage, service: &Service) -> Result<Functions, Failure> {
        muninn_wic::push(&mut stage.observer()?, MODULE, PATIENCE).map_err(failed)?;
        Functions::find(service)
    }
    fn find(service: &Service) -> Result<Functions, Failure> {
        let find = |name: &str| {
            let found = service.function::<(), ()>(&format!("wasm-apps.{name}"), 1);
            found
                .map(|remote| remote.function().clone())
                .map_err(failed)
        };
        Ok(Functions {
            traverse: find("traverse")?,
            append: find("append")?,
            read_tail: find("read_tail")?,
            query: find("query")?,
            update: find("update")?,
        })
    }
}

/// Arguments as functions have them.
pub fn encoded(args: &impl Serialize) -> Vec<u8> {
    Reply::encode(args).map_or_else(|_| Vec::new(), |args| args.bytes().to_vec())
}

/// Pushed beside built in, at every place.
pub fn against_built_in() -> Result<Vec<Measurement>, Failure> {
    let stage = Stage::usual(Bytes::mib(64), Spot::Auto, 8)?;
    let sync = Stage::usual(Bytes::mib(64), Spot::ServerSync, 8)?;
    let mut all = Vec::new();
    for (name, place, over, stage, wanted) in [
        ("wasm.server", Spot::ServerSync, Over::Tcp, &sync, ">= 0.5"),
        ("wasm.client", Spot::Client, Over::Tcp, &stage, ">= 0.8"),
        ("wasm.client.mapped", Spot::Client, Over::Shm, &stage, ""),
        ("wasm.nic", Spot::Nic, Over::Tcp, &stage, ""),
    ] {
        let built_in = Case {
            place,
            over,
            ..base_case()
        };
        let pushed = Case {
            wasm: true,
            ..built_in
        };
        let found = in_turn(&[(stage, pushed), (stage, built_in)], ROUNDS)?;
        let (rate, own) = (rates(&found[0]), rates(&found[1]));
        all.push(Measurement::new(
            name,
            (rate, "calls/s"),
            (own, "built in"),
            wanted,
        ));
    }
    Ok(all)
}

/// From the first byte pushed to the first reply, at a server that never had the module.
pub fn cold() -> Result<Vec<Measurement>, Failure> {
    let (mut pushes, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let stage = Stage::usual(Bytes::mib(16), Spot::ServerSync, 8)?;
        let case = Case {
            memory: Bytes::mib(16),
            ..base_case()
        };
        let service = case.open(&stage)?;
        let App::List { ring, nodes } = App::fill(AppName::List, &service, 4, case.place.place())?
        else {
            unreachable!("a list was asked for");
        };
        let mut observer = stage.observer()?;
        let begin = Instant::now();
        muninn_wic::push(&mut observer, MODULE, PATIENCE).map_err(failed)?;
        pushes.push(begin.elapsed().as_secs_f64() * 1e3);
        let traverse = service.function::<(u64, u32), u64>("wasm-apps.traverse", 1);
        let args = (ring.address(0).0, nodes);
        let value = service
            .run_pushed(&traverse.map_err(failed)?, &args)
            .map_err(failed)?;
        firsts.push(begin.elapsed().as_secs_f64() * 1e3);
        if value != ring.walk(0, nodes) {
            return Err(failed("the pushed function found another value"));
        }
    }
    let (push, first) = (median(&mut pushes), median(&mut firsts));
    Ok(vec![
        Measurement::new("wasm.push", (push, "ms"), (20.0, "ms, what may be"), "<= 1"),
        Measurement::new(
            "wasm.first-call",
            (first, "ms"),
            (20.0, "ms, what may be"),
            "<= 1",
        ),
    ])
}
