//! Asking the server that runs for all that it has.

use crate::failure::{Exit, Failure};
use muninn_net::{Key, NetError, Observer, ServerUser, SessionOptions};
use muninn_sys::socket::{Address, ConnectError, Stream};
use std::time::Duration;

/// How long a server may take to say whether it may be.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection on which it hands over; None where nobody listens.
pub(super) fn ask(socket: &Address, key: &Key) -> Result<Option<Stream>, Failure> {
    let options = SessionOptions {
        key: key.clone(),
        deadline: PATIENCE,
        connect_timeout: PATIENCE,
        // What it hands over is believed.
        server: ServerUser::OwnOrRoot,
        ..SessionOptions::default()
    };
    let failed = |error: NetError| {
        let text = format!("cannot take the place of the server that runs: {error}; it goes on");
        Failure::new(Exit::Failed, text)
    };
    match Observer::connect(socket, &options) {
        Ok(old) => old.take_over().map(Some).map_err(failed),
        Err(NetError::Connect(ConnectError::Refused(_))) => {
            eprintln!("muninn: no server runs at {socket}: nothing is taken over");
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}
