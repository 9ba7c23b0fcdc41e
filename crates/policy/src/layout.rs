//! How an extent of far memory lies over servers, and which servers get its members.
//!
//! `single` keeps one copy: the program is lost with the server. `mirror` keeps two or three whole
//! copies on as many servers: any of them can go. `parity` keeps each page once and a sum of every few
//! pages ([`stripe`](crate::stripe)): it costs less memory, and more when a server is gone. Members of one
//! extent never share a server, and share a failure domain (a host, a rack) only when there are not
//! enough domains.

use crate::stripe::{PIECES_MAX, Stripes};
use muninn_types::ServerId;
use std::fmt;
use std::str::FromStr;

/// The most members that an extent may have.
pub const MEMBERS_MAX: usize = PIECES_MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    #[default]
    Single,
    /// So many whole copies: 2 or 3.
    Mirror(u8),
    Parity(Stripes),
}

impl Layout {
    /// What is used when nobody says: copies where servers may go one by one, none where they could
    /// only go together with the program.
    pub fn default_for(servers_elsewhere: usize) -> Layout {
        match servers_elsewhere {
            0 | 1 => Layout::Single,
            _ => Layout::Mirror(2),
        }
    }

    /// Members of an extent that lacks nothing.
    pub fn members(self) -> usize {
        match self {
            Layout::Single => 1,
            Layout::Mirror(copies) => usize::from(copies),
            Layout::Parity(stripes) => stripes.pieces(),
        }
    }

    /// Members without which an extent is lost.
    pub fn needed(self) -> usize {
        match self {
            Layout::Single | Layout::Mirror(_) => 1,
            Layout::Parity(stripes) => stripes.data(),
        }
    }

    /// Servers that may go at the same time without loss.
    pub fn spare(self) -> usize {
        self.members() - self.needed()
    }

    pub fn stripes(self) -> Option<Stripes> {
        match self {
            Layout::Parity(stripes) => Some(stripes),
            Layout::Single | Layout::Mirror(_) => None,
        }
    }

    /// Pages of an extent for each page of a member.
    pub fn breadth(self) -> u32 {
        self.stripes().map_or(1, |stripes| stripes.data() as u32)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Single => f.pad("single"),
            Layout::Mirror(2) => f.pad("mirror"),
            Layout::Mirror(copies) => f.pad(&format!("mirror:{copies}")),
            Layout::Parity(stripes) => f.pad(&format!("parity:{stripes}")),
        }
    }
}

/// A text that names no layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError(String);

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(
            f,
            "'{name}' is not a layout: use single, mirror (two copies), mirror:3, or parity:K+M with K of 2 \
             to 8 and M of 1 or 2, such as parity:4+1"
        )
    }
}

impl std::error::Error for LayoutError {}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Layout, LayoutError> {
        match text {
            "single" => Ok(Layout::Single),
            "mirror" | "mirror:2" => Ok(Layout::Mirror(2)),
            "mirror:3" => Ok(Layout::Mirror(3)),
            _ => parity(text).ok_or_else(|| LayoutError(text.to_string())),
        }
    }
}

fn parity(text: &str) -> Option<Layout> {
    let (data, parity) = text.strip_prefix("parity:")?.split_once('+')?;
    let digits = |text: &str| match text.as_bytes() {
        [digit @ b'1'..=b'9'] => Some(digit - b'0'),
        _ => None,
    };
    let stripes = Stripes::new(digits(data)?, digits(parity)?)?;
    Some(Layout::Parity(stripes))
}

/// Whom to ask for the members of an extent, in the order of asking: never one that is `taken`
/// already, and one in the domain of a member only after all others. `domain` says what fails together.
pub fn candidates(
    sequence: impl Iterator<Item = ServerId>,
    taken: &[ServerId],
    domain: impl Fn(ServerId) -> u64,
) -> Vec<ServerId> {
    let used: Vec<u64> = taken.iter().map(|server| domain(*server)).collect();
    let free = sequence.filter(|server| !taken.contains(server));
    let (apart, beside): (Vec<_>, Vec<_>) =
        free.partition(|server| !used.contains(&domain(*server)));
    [apart, beside].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layouts_read_and_print() {
        for text in ["single", "mirror", "mirror:3", "parity:2+1", "parity:4+2"] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
        assert_eq!("mirror:2".parse(), Ok(Layout::Mirror(2)));
        for text in [
            "",
            "mirror:1",
            "mirror:4",
            "mirror:",
            "raid",
            "Single",
            "parity",
            "parity:1+1",
            "parity:4+3",
            "parity:+4+1",
            "parity:4+01",
        ] {
            let refusal = text.parse::<Layout>().unwrap_err().to_string();
            assert_eq!(
                refusal,
                format!(
                    "'{text}' is not a layout: use single, mirror (two copies), mirror:3, or parity:K+M with \
                     K of 2 to 8 and M of 1 or 2, such as parity:4+1"
                )
            );
        }
        assert_eq!(Layout::default_for(1), Layout::Single);
        assert_eq!(Layout::default_for(2).spare(), 1);
        assert!(Layout::Mirror(3).members() <= MEMBERS_MAX);
        let parity: Layout = "parity:4+2".parse().unwrap();
        assert_eq!(
            (parity.members(), parity.needed(), parity.spare()),
            (6, 4, 2)
        );
        assert_eq!((parity.breadth(), Layout::Mirror(2).breadth()), (4, 1));
    }

    proptest! {
        #[test]
        fn members_are_apart_as_far_as_there_are_domains(
            servers in 1u32..12,
            domains in 1u64..5,
            wanted in 1usize..=MEMBERS_MAX,
        ) {
            let domain = |server: ServerId| u64::from(server.0) % domains;
            let mut taken: Vec<ServerId> = Vec::new();
            while taken.len() < wanted {
                let all = (0..servers).map(ServerId);
                let Some(next) = candidates(all, &taken, domain).first().copied() else { break };
                prop_assert!(!taken.contains(&next));
                taken.push(next);
            }
            prop_assert_eq!(taken.len(), wanted.min(servers as usize));
            let mut used: Vec<u64> = taken.iter().map(|server| domain(*server)).collect();
            used.sort_unstable();
            used.dedup();
            let there = domains.min(u64::from(servers)) as usize;
            prop_assert_eq!(used.len(), taken.len().min(there));
        }
    }
}
