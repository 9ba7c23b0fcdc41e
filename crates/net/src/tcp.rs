//! The tcp transport: every access is a message, on the lane of its class.

use crate::error::NetError;
use crate::lane::Lane;
use crate::session::{Session, SessionOptions};
use crate::transport::{Beat, Kind, Transport};
use muninn_proto::client::{Answer, Control};
use muninn_sys::socket::{Address, Stream};
use muninn_types::{Bytes, LaneKind, SessionId};
use muninn_wire::Transport as Wire;
use std::time::Duration;

#[derive(Debug)]
pub struct TcpSession {
    session: Session,
}

impl TcpSession {
    pub fn open(address: &Address, options: &SessionOptions) -> Result<TcpSession, NetError> {
        TcpSession::open_over(None, address, options)
    }

    /// The same over a connection that is there already, if there is one.
    pub fn open_over(
        connected: Option<Stream>,
        address: &Address,
        options: &SessionOptions,
    ) -> Result<TcpSession, NetError> {
        Ok(TcpSession {
            session: Session::open(address, Wire::Tcp, options, connected)?,
        })
    }

    /// Breaks the control connection, as a fault would.
    pub fn cut(&self) {
        self.session.cut();
    }
}

impl Transport for TcpSession {
    fn kind(&self) -> Kind {
        Kind::Tcp
    }
    fn address(&self) -> &Address {
        &self.session.core.address
    }
    fn server_name(&self) -> &str {
        self.session.core.server.as_str()
    }
    fn max_grant(&self) -> Bytes {
        self.session.core.max_grant
    }
    fn lease(&self) -> Duration {
        self.session.core.lease
    }
    fn lane(&self, kind: LaneKind) -> Result<Box<dyn Lane>, NetError> {
        Ok(Box::new(self.session.lane(kind)?))
    }
    fn session(&self) -> SessionId {
        self.session.core.id
    }
    fn call(&self, control: Control, deadline: Duration) -> Result<Answer, NetError> {
        let answered = self
            .session
            .call_with(control, deadline, &mut |_, _, _| Ok(()));
        self.session
            .release_strays(|strays| self.call(Control::Release(strays), deadline));
        answered
    }
    fn heartbeat(&self) -> bool {
        self.session.heartbeat()
    }
    fn beat(&self, patience: Duration) -> Beat {
        self.session.beat(patience)
    }
    fn lost(&self) -> Option<String> {
        self.session.core.lost()
    }
    fn asked_back(&self) -> Bytes {
        self.session.core.asked_back()
    }
    fn drain_left(&self) -> Option<Duration> {
        self.session.core.drain_left()
    }
    fn resumes(&self) -> u64 {
        self.session.core.resumes()
    }
}
