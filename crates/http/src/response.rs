//! An answer, and its bytes.

use std::borrow::Cow;
use std::fmt::Write;

/// Part of every answer: nothing here is for other sites, and nothing is to be kept.
const ALWAYS: &str = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
                      Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    kind: &'static str,
    /// Further lines of the head, each with its end.
    lines: &'static str,
    body: Cow<'static, [u8]>,
}

impl Response {
    /// `kind` is that of the contents, such as `text/plain`.
    pub fn new(status: u16, kind: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Response {
        Response {
            status,
            kind,
            lines: "",
            body: body.into(),
        }
    }

    pub fn text(status: u16, text: impl Into<String>) -> Response {
        let text: String = text.into();
        Response::new(status, "text/plain; charset=utf-8", text.into_bytes())
    }

    /// With these lines in its head, each of which ends with CR and LF.
    pub fn with(mut self, lines: &'static str) -> Response {
        self.lines = lines;
        self
    }

    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = String::with_capacity(512);
        let _ = write!(
            head,
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{ALWAYS}{}\r\n",
            self.status,
            reason(self.status),
            self.kind,
            self.body.len(),
            self.lines
        );
        head.into_bytes()
    }

    pub(crate) fn into_body(self) -> Cow<'static, [u8]> {
        self.body
    }
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}
