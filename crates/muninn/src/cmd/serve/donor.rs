//! Keeps the machine healthy that the server runs on: when memory gets short, nothing more is granted, and
//! clients are asked to move some of what they have elsewhere.

use super::ceiling::Ceiling;
use muninn_policy::donor::{Donor, Look, Short};
use muninn_server::Server;
use muninn_sys::cgroup::Hierarchy;
use muninn_sys::proc::{self, RealProc};
use muninn_types::Bytes;

/// Clients lose memory with the server: others are to be ended before it when memory runs out.
const OOM_SCORE: i32 = -500;

/// The machine, as its server sees it.
pub struct Host {
    donor: Option<Donor>,
    short: bool,
    ceiling: Option<Ceiling>,
}

impl Host {
    /// Also asks the kernel to spare this process, where that is permitted.
    pub fn new(reserve: Option<Bytes>, ceiling: Option<Ceiling>) -> Host {
        let _ = proc::set_oom_score(OOM_SCORE);
        Host {
            donor: reserve.map(Donor::new),
            short: false,
            ceiling,
        }
    }

    /// Looks at the machine, and lets the server grant or not. A change is told.
    pub fn look_after(&mut self, server: &Server) {
        if let Some(ceiling) = &mut self.ceiling {
            ceiling.look_after(server);
        }
        let (Some(donor), Some(look)) = (&mut self.donor, look()) else {
            return;
        };
        let short = donor.handle_look(look);
        let asked = donor.asks_back(short, server.pool().granted);
        server.ask_back(asked);
        if short.is_some() == self.short {
            return;
        }
        self.short = short.is_some();
        server.set_short(self.short);
        let text = match short {
            Some(Short::Memory(left)) => format!(
                "this machine has {} left, less than --reserve: nothing more is granted, and clients are \
                 asked to move {} elsewhere",
                left.rounded(),
                asked.rounded()
            ),
            Some(Short::Stalled(share)) => {
                format!(
                    "this machine waits for memory {share:.0} % of the time: nothing more is granted"
                )
            }
            None => "this machine has memory again: more is granted".to_string(),
        };
        eprintln!("muninn: {text}");
    }
}

/// `None` where the kernel does not say.
fn look() -> Option<Look> {
    let below_limit = || Hierarchy::find().ok()?.own().left().ok()?;
    Some(Look {
        available: proc::meminfo(&RealProc).ok()?.available,
        below_limit: below_limit(),
        stalled: proc::memory_stall(&RealProc).ok(),
    })
}
