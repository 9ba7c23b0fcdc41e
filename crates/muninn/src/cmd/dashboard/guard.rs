//! Who may see and who may change something.
//!
//! A browser does what any page in it wants, so it is not enough that a request comes from a browser that has been
//! let in. The token is in no cookie: a page of another site cannot have it sent. A page whose name was made to point
//! here (DNS rebinding) is told by the name in `Host`: only addresses, `localhost` and the names that were given are
//! answered. What changes something must also come from our own page (`Origin`, `Sec-Fetch-Site`) and be JSON, which
//! no form sends.

use muninn_http::{Request, Token};
use std::net::{IpAddr, Ipv6Addr};

/// What a token permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    See,
    Act,
}

#[derive(Debug)]
pub struct Guard {
    pub act: Token,
    pub see: Option<Token>,
    /// Names by which people reach it, beside addresses and `localhost`.
    pub names: Vec<String>,
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // `[::1]` ends with a bracket, and its colons are not before a port.
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_address(name: &str) -> bool {
    let six = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    match six {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()),
    }
}

impl Guard {
    /// Whether it is us who the browser thinks it talks to.
    pub fn knows_host(&self, request: &Request<'_>) -> bool {
        let Some(host) = request.field("host") else {
            return false;
        };
        let name = without_port(host);
        let same = |known: &str| name.eq_ignore_ascii_case(known);
        is_address(name) || same("localhost") || self.names.iter().any(|known| same(known))
    }

    /// Whether a page of ours has it asked, as far as the browser says.
    pub fn is_own_page(&self, request: &Request<'_>) -> bool {
        let host = request.field("host").unwrap_or_default();
        let of_us = |origin: &str| {
            let schemes = ["http://", "https://"];
            let name = schemes
                .iter()
                .find_map(|scheme| origin.strip_prefix(scheme));
            name.is_some_and(|name| name.eq_ignore_ascii_case(host))
        };
        let site = request.field("sec-fetch-site").unwrap_or("none");
        request.field("origin").is_none_or(of_us) && ["same-origin", "none"].contains(&site)
    }

    pub fn right(&self, request: &Request<'_>) -> Option<Right> {
        let sees = self.see.as_ref().is_some_and(|see| see.is_in(request));
        match self.act.is_in(request) {
            true => Some(Right::Act),
            false => sees.then_some(Right::See),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        let token = |text| Token::from_file_contents(text);
        Guard {
            act: token("operator-operator").unwrap(),
            see: token("onlooker-onlooker"),
            names: vec!["board.example".to_string()],
        }
    }

    fn with<T>(fields: &str, look: impl FnOnce(&Request<'_>) -> T) -> T {
        let text = format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n");
        look(&Request::read(text.as_bytes(), 4096, 0).unwrap().unwrap())
    }

    #[test]
    fn only_names_that_cannot_be_bent_are_answered() {
        let knows = |host: &str| with(&format!("Host: {host}"), |r| guard().knows_host(r));
        for good in [
            "127.0.0.1:7180",
            "10.0.0.5",
            "[::1]:7180",
            "[fe80::1]",
            "localhost:1",
            "LOCALHOST",
            "Board.Example:443",
        ] {
            assert!(knows(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:7180",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "board.example.evil",
            "::1",
            "[::1",
            "127.0.0.1:80:80",
            "",
            "user@127.0.0.1",
        ] {
            assert!(!knows(bad), "{bad}");
        }
        assert!(!with("A: b", |r| guard().knows_host(r)));
    }

    #[test]
    fn pages_of_others_are_told_apart() {
        let own = |fields: &str| {
            let fields = format!("Host: 127.0.0.1:7180\r\n{fields}");
            with(&fields, |r| guard().is_own_page(r))
        };
        assert!(own("Origin: http://127.0.0.1:7180"));
        assert!(own(
            "Origin: https://127.0.0.1:7180\r\nSec-Fetch-Site: same-origin"
        ));
        assert!(own("A: b"), "curl");
        for bad in [
            "Origin: http://127.0.0.1",
            "Origin: http://evil.example",
            "Origin: null",
            "Origin: ",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            assert!(!own(bad), "{bad}");
        }
    }

    #[test]
    fn tokens_give_the_right_that_is_theirs() {
        let right = |token: &str| {
            with(&format!("Authorization: Bearer {token}"), |r| {
                guard().right(r)
            })
        };
        assert_eq!(right("operator-operator"), Some(Right::Act));
        assert_eq!(right("onlooker-onlooker"), Some(Right::See));
        assert_eq!(right("somebody-somebody"), None);
    }
}
