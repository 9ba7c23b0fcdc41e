//! The little HTTP that scrapers and a browser need: one request, one answer, and the connection ends.
//!
//! Everything has a bound: how many are served side by side, how long each may take, how long a request may be.
//! Nobody waits for one that says nothing. Requests are read strictly ([`Request::read`]): what two readers could
//! understand in two ways is refused. Invariant: what visitors send costs no more memory than [`Limits`] say,
//! and no other visitor's answer for longer than they say.
//!
//! Known limits: no encryption, no compression, no connection that is used twice. Beyond the own machine something
//! that encrypts belongs in front.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod prometheus;
mod request;
mod response;
mod serve;
mod token;

pub use prometheus::{METRICS_TEXT, Page, labels, seconds};
pub use request::{Method, Refused, Request};
pub use response::Response;
pub use serve::{Limits, Site, serve};
pub use token::Token;
