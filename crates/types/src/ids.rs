//! Identifiers. None of them can be used in the place of another. Those that people compare between
//! two lists are printed with all their digits: one is never the beginning of another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        id!($(#[$doc])* $name($inner), $prefix, "{:x}");
    };
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal, $digits:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, $digits), self.0))
            }
        }
    };
}

id!(/** A memory server, numbered by the client in the order of its pool. */ ServerId(u32), "server-");
id!(/** One client at one server. Unique for the life of the server. */ SessionId(u64), "s", "{:016x}");
id!(/** An extent of server memory owned by one session. Never used twice by a server. */ GrantId(u64), "g", "{:016x}");
id!(/** A piece of the server's pool, one memory file each. */ SegmentId(u32), "seg-");
id!(/** One page inside a grant, counted from its start. */ Slot(u32), "slot-");
id!(/** A connection as its server numbers it. */ ConnId(u64), "c");
id!(/** A connection of a session as its client numbers it; 0 carries control. */ LaneId(u8), "lane-");
id!(/** A request of a session; never used twice, so a repeated request is recognised. */ Tag(u64), "t");
id!(/** Memory of a server that several sessions share, and the functions that run on it. */ ServiceId(u64), "svc-");
id!(/** A page of a program, counted from address 0. */ PageNo(u64), "page-0x");

impl PageNo {
    pub const fn of_addr(addr: u64) -> PageNo {
        PageNo(addr >> crate::PAGE_SHIFT)
    }
    pub const fn addr(self) -> u64 {
        self.0 << crate::PAGE_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_and_grants_have_all_their_digits() {
        assert_eq!(SessionId(0x12).to_string(), "s0000000000000012");
        assert_eq!(GrantId(u64::MAX).to_string(), "gffffffffffffffff");
        assert_eq!(format!("{:20}|", SessionId(1)), "s0000000000000001   |");
        assert_eq!(Slot(0x1f).to_string(), "slot-1f");
    }
}
