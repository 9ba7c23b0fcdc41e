//! A request, read from bytes. Nothing is allocated beyond a short list of where its fields are.

use std::fmt;

/// Fields of a request at most.
const FIELDS_MAX: usize = 64;
/// Those that are believed only when they are there once.
const ONCE: [&str; 6] = [
    "host",
    "authorization",
    "origin",
    "content-length",
    "content-type",
    "sec-fetch-site",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    /// As [`Method::Get`]; of the answer only the head is sent.
    Head,
    Post,
    Other,
}

/// Why a request is not answered as it wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no request, or one that can be understood in two ways.
    Malformed,
    HeadTooLong,
    BodyTooLong,
    /// Its body comes in a way that is not read here.
    Encoding,
}

impl Refused {
    pub const fn status(self) -> u16 {
        match self {
            Refused::Malformed => 400,
            Refused::BodyTooLong => 413,
            Refused::HeadTooLong => 431,
            Refused::Encoding => 501,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Malformed => "this is no request",
            Refused::BodyTooLong => "the body is too long",
            Refused::HeadTooLong => "the head is too long",
            Refused::Encoding => "bodies are to come whole, with Content-Length",
        })
    }
}

/// A whole request, in the bytes it came in.
#[derive(Debug)]
pub struct Request<'a> {
    pub method: Method,
    /// Before the question mark; begins with a slash.
    pub path: &'a str,
    /// Behind the question mark.
    pub query: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    pub body: &'a [u8],
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Letters that are seen, and spaces: no controls, and nothing beyond ASCII.
fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|b| b == b' ' || b == b'\t' || b.is_ascii_graphic())
}

impl<'a> Request<'a> {
    /// The request at the beginning of these bytes; None if more has to come.
    pub fn read(
        bytes: &'a [u8],
        head_max: usize,
        body_max: usize,
    ) -> Result<Option<Request<'a>>, Refused> {
        let end = bytes.windows(4).position(|end| end == b"\r\n\r\n");
        let Some(end) = end.filter(|end| *end <= head_max) else {
            return match bytes.len() > head_max {
                true => Err(Refused::HeadTooLong),
                false => Ok(None),
            };
        };
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Refused::Malformed)?;
        let (method, target, fields) = read_head(head)?;
        let length = body_length(&fields)?;
        if length > body_max {
            return Err(Refused::BodyTooLong);
        }
        let Some(body) = bytes[end + 4..].get(..length) else {
            return Ok(None);
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ok(Some(Request {
            method,
            path,
            query,
            fields,
            body,
        }))
    }

    /// A field by its name in small letters.
    pub fn field(&self, name: &str) -> Option<&'a str> {
        find(&self.fields, name)
    }

    /// A value of the query by its name, as it stands there.
    pub fn asked(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

type Fields<'a> = Vec<(&'a str, &'a str)>;

fn find<'a>(fields: &Fields<'a>, name: &str) -> Option<&'a str> {
    let found = fields
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, value)| *value)
}

fn read_head(head: &str) -> Result<(Method, &str, Fields<'_>), Refused> {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let words: Vec<&str> = first.splitn(4, ' ').collect();
    let [method, target, version] = words[..] else {
        return Err(Refused::Malformed);
    };
    let target_ok = target.starts_with('/') && target.bytes().all(|b| b.is_ascii_graphic());
    if !is_token(method) || !target_ok || !["HTTP/1.1", "HTTP/1.0"].contains(&version) {
        return Err(Refused::Malformed);
    }
    let mut fields: Fields<'_> = Vec::new();
    for line in lines {
        // A line that goes on the one before has no name of its own, and is refused by that.
        let (name, value) = line.split_once(':').ok_or(Refused::Malformed)?;
        if !is_token(name) || !is_plain(value) {
            return Err(Refused::Malformed);
        }
        if fields.len() >= FIELDS_MAX {
            return Err(Refused::HeadTooLong);
        }
        let once = ONCE.iter().any(|one| name.eq_ignore_ascii_case(one));
        if once && find(&fields, name).is_some() {
            return Err(Refused::Malformed);
        }
        fields.push((name, value.trim_ascii()));
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => Method::Other,
    };
    Ok((method, target, fields))
}

fn body_length(fields: &Fields<'_>) -> Result<usize, Refused> {
    if find(fields, "transfer-encoding").is_some() {
        return Err(Refused::Encoding);
    }
    let Some(length) = find(fields, "content-length") else {
        return Ok(0);
    };
    // No sign, no spaces: what `parse` would let pass.
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Refused::Malformed);
    }
    length.parse().map_err(|_| Refused::BodyTooLong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Option<Request<'_>>, Refused> {
        Request::read(text.as_bytes(), 1024, 64)
    }

    #[test]
    fn a_request_is_taken_apart() {
        let text = "POST /api/drain?a=1&since=7.9 HTTP/1.1\r\nHost: h:1\r\nX-Y:  z \r\ncontent-length: 3\r\n\r\nabcGET";
        let request = read(text).unwrap().unwrap();
        assert_eq!(request.method, Method::Post);
        assert_eq!((request.path, request.body), ("/api/drain", &b"abc"[..]));
        assert_eq!(request.asked("since"), Some("7.9"));
        assert_eq!(request.asked("sinc"), None);
        assert_eq!(
            (request.field("host"), request.field("x-y")),
            (Some("h:1"), Some("z"))
        );
    }

    #[test]
    fn what_has_two_meanings_is_refused() {
        let bad = [
            "GET  / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1 \r\n\r\n",
            "GET http://other/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "GET /\u{e9} HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nhOST: i\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nA: \0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            "\r\n\r\n",
            "\u{16}\u{3}\u{1} \r\n\r\n",
        ];
        for text in bad {
            assert_eq!(read(text).unwrap_err(), Refused::Malformed, "{text:?}");
        }
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert_eq!(read(chunked).unwrap_err(), Refused::Encoding);
        for length in ["65", "99999999999999999999999999"] {
            let text = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(read(&text).unwrap_err(), Refused::BodyTooLong);
        }
    }

    #[test]
    fn a_head_is_as_long_as_it_may_and_no_longer() {
        let long = format!("GET / HTTP/1.1\r\nA: {}", "b".repeat(2000));
        assert_eq!(read(&long).unwrap_err(), Refused::HeadTooLong);
        assert_eq!(
            read(&(long + "\r\n\r\n")).unwrap_err(),
            Refused::HeadTooLong
        );
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a:b\r\n".repeat(65));
        assert_eq!(read(&many).unwrap_err(), Refused::HeadTooLong);
    }

    proptest! {
        /// However it is cut, a request is not there until it is whole, and then the same.
        #[test]
        fn pieces_make_no_difference(cut in 0usize..60, body in "[ -~]{0,20}") {
            let text = format!("POST /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let cut = cut.min(text.len());
            let part = read(&text[..cut]).unwrap();
            prop_assert_eq!(part.is_some(), cut == text.len());
            let whole = read(&text).unwrap().unwrap();
            prop_assert_eq!(whole.body, body.as_bytes());
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::read(&bytes, 128, 32);
        }
    }
}
