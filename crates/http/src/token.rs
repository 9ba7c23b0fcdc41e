//! A word that who asks has to know.

use crate::Request;
use std::fmt;

const MIN: usize = 16;
const MAX: usize = 256;
const BEARER: &str = "Bearer";

/// Who may ask. It comes in a field of its own (`Authorization: Bearer TOKEN`), which a browser adds to no request
/// that another site has it make.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The contents of a file, without white space at its ends.
    pub fn from_file_contents(contents: &str) -> Option<Token> {
        let token = contents.trim();
        let fits = (MIN..=MAX).contains(&token.len());
        (fits && token.bytes().all(|b| b.is_ascii_graphic())).then(|| Token(token.to_string()))
    }

    /// Made of random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Token {
        Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// For the one who is to know it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether the request has it.
    pub fn is_in(&self, request: &Request<'_>) -> bool {
        let given = request.field("authorization").unwrap_or_default();
        match given.split_once(' ') {
            Some((scheme, token)) => {
                scheme.eq_ignore_ascii_case(BEARER) && self.is(token.trim_ascii().as_bytes())
            }
            None => false,
        }
    }

    /// Takes the same time wherever the first difference is.
    fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let pairs = own.iter().zip(given);
        let differ = pairs.fold(0, |differ, (a, b)| differ | (a ^ b));
        own.len() == given.len() && differ == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_good() {
        let token = Token::from_file_contents("  0123456789abcdef\n").unwrap();
        let asks = |given: &str| {
            let text = format!("GET / HTTP/1.1\r\n{given}\r\n\r\n");
            token.is_in(&Request::read(text.as_bytes(), 1000, 0).unwrap().unwrap())
        };
        assert!(asks("Authorization: Bearer 0123456789abcdef"));
        assert!(asks("authorization:bearer  0123456789abcdef "));
        for bad in [
            "A: b",
            "Authorization: Bearer",
            "Authorization: Bearer 0123456789abcde",
            "Authorization: Bearer 0123456789abcdeff",
            "Authorization: Basic 0123456789abcdef",
            "X-Authorization: Bearer 0123456789abcdef",
        ] {
            assert!(!asks(bad), "{bad}");
        }
        assert_eq!(Token::from_file_contents("short"), None);
        assert_eq!(
            Token::from_file_contents("with a space in the middle"),
            None
        );
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_eq!(Token::from_random([7; 32]).reveal().len(), 64);
    }
}
