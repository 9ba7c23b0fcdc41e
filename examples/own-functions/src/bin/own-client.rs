//! Votes, at the place that is named: `own-client SERVER client|server|nic|auto [NIC]`.

use muninn_wic::{Place, Service, ServiceOptions};
use own_functions::{vote, winner};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().ok_or("which server? unix:PATH or HOST:PORT")?;
    let place: Place = args.next().as_deref().unwrap_or("auto").parse()?;
    let mut options = ServiceOptions::new(&server, "election", "1MiB".parse()?)
        .place(place)
        .uses(vote)
        .uses(winner);
    options.nic = args.next();
    let election = Service::open(options)?;
    for n in 0..10u64 {
        election.run(vote, n % 3)?;
    }
    let (candidate, votes) = election.run(winner, 3)?;
    println!("candidate {candidate} has {votes} votes");
    Ok(())
}
