//! Wishes about a connection: marks of its packets, buffers, busy polling.
//!
//! Glitter lets switches schedule by class, so a socket carries the class as a DSCP mark (class
//! selector CSn for priority n) and as `SO_PRIORITY` for the host's own queues. Invariant: a wish
//! that is refused changes nothing but the answer. Known limit: priority 7 needs CAP_NET_ADMIN;
//! without it the socket gets 6.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use muninn_types::{Bytes, Class};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Stream;
use crate::signal::last_errno;

/// Highest `SO_PRIORITY` that needs no permission.
const PRIORITY_FREE_MAX: i32 = 6;

/// What was granted of the marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The DSCP in the packets; `None` where it could not be set, as on Unix sockets.
    pub dscp: Option<u8>,
    /// `SO_PRIORITY` as set.
    pub priority: Option<u8>,
}

/// Buffers of the kernel for a connection, as granted (the kernel doubles and bounds them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    pub send: Bytes,
    pub receive: Bytes,
}

impl Stream {
    /// Marks the packets of this connection with the class of their requests.
    pub fn set_class(&self, class: Class) -> Marks {
        let priority = class.priority();
        let dscp = priority << 3;
        let tos = dscp << 2;
        let marked = !self.is_unix() && {
            let v4 = sockopt::set_ip_tos(self.as_fd(), tos);
            // A v6 socket may carry v4 too: both are tried, and either counts.
            let v6 = sockopt::set_ipv6_tclass(self.as_fd(), u32::from(tos));
            v4.is_ok() || v6.is_ok()
        };
        // After the mark, because setting it changes the priority as well.
        let wanted = i32::from(priority);
        let granted = [wanted, wanted.min(PRIORITY_FREE_MAX)]
            .into_iter()
            .find(|&value| self.set(libc::SOL_SOCKET, libc::SO_PRIORITY, value).is_ok());
        Marks {
            dscp: marked.then_some(dscp),
            priority: granted.map(|value| value as u8),
        }
    }

    /// The marks that packets of this connection carry now.
    pub fn marks(&self) -> Marks {
        let tos = || {
            let v4 = sockopt::ip_tos(self.as_fd()).map(u32::from);
            v4.or_else(|_| sockopt::ipv6_tclass(self.as_fd())).ok()
        };
        Marks {
            dscp: (!self.is_unix())
                .then(tos)
                .flatten()
                .map(|tos| (tos >> 2) as u8),
            priority: self.get(libc::SOL_SOCKET, libc::SO_PRIORITY).ok(),
        }
    }

    fn get(&self, level: i32, name: i32) -> Result<u8, Errno> {
        let mut value = 0i32;
        let mut len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: value and length live across the call, and the length is that of the value.
        let got = unsafe {
            libc::getsockopt(
                self.as_fd().as_raw_fd(),
                level,
                name,
                (&raw mut value).cast(),
                &mut len,
            )
        };
        match got {
            0 => Ok(value as u8),
            _ => Err(last_errno()),
        }
    }

    /// Lets the kernel poll the network card for this long before it blocks; false if not granted.
    pub fn set_busy_poll(&self, time: Duration) -> bool {
        let us = i32::try_from(time.as_micros()).unwrap_or(i32::MAX);
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, us).is_ok()
    }

    /// Asks for buffers of these sizes and says what was granted.
    pub fn set_buffers(&self, send: Bytes, receive: Bytes) -> Result<BufferSizes, Errno> {
        let size = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX).min(1 << 30);
        let fd = self.as_fd();
        // As root beyond the limit of the machine, else up to it.
        sockopt::set_socket_send_buffer_size_force(fd, size(send))
            .or_else(|_| sockopt::set_socket_send_buffer_size(fd, size(send)))?;
        sockopt::set_socket_recv_buffer_size_force(fd, size(receive))
            .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, size(receive)))?;
        Ok(BufferSizes {
            send: Bytes(sockopt::socket_send_buffer_size(fd)? as u64),
            receive: Bytes(sockopt::socket_recv_buffer_size(fd)? as u64),
        })
    }

    /// Bounds what the kernel keeps for us unread; the peer is told to send no more than that.
    pub fn set_receive_buffer(&self, receive: Bytes) -> Result<(), Errno> {
        let size = usize::try_from(receive.0)
            .unwrap_or(usize::MAX)
            .min(1 << 30);
        sockopt::set_socket_recv_buffer_size(self.as_fd(), size)
    }

    pub fn set_nodelay(&self, on: bool) -> Result<(), Errno> {
        if self.is_unix() {
            return Ok(());
        }
        sockopt::set_tcp_nodelay(self.as_fd(), on)
    }

    /// Ends a TCP connection whose peer has not acknowledged anything for this long.
    pub fn set_dead_after(&self, time: Duration) -> Result<(), Errno> {
        if self.is_unix() {
            return Ok(());
        }
        let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(self.as_fd(), ms)
    }

    fn set(&self, level: i32, name: i32, value: i32) -> Result<(), Errno> {
        // SAFETY: the value is an int that lives across the call, and its size is passed with it.
        let set = unsafe {
            libc::setsockopt(
                self.as_fd().as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if set == 0 { Ok(()) } else { Err(last_errno()) }
    }
}
