//! Classes of traffic, from Fastswap's two queues and Glitter's seven priorities.
//!
//! `Control` > `UrgentEviction` (P7) ≥ `Demand` > `Eviction(6…2)` > `Prefetch`. The class of a
//! request sets the connection it travels on, the mark of its packets and the server's own order.

use std::fmt;

/// What a request is for, and so how urgent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sessions, grants, heartbeats.
    Control,
    /// A thread waits because there is no free local page (Glitter's UEF, P7).
    UrgentEviction,
    /// A thread waits for this page.
    Demand,
    /// Reclaim ahead of need (Glitter's REF), P6 down to P2.
    Eviction(u8),
    /// Nobody waits for this page yet.
    Prefetch,
}

/// A priority outside of 2…6, or a byte that names no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} names no class of traffic")]
pub struct ClassError(pub u8);

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Class; 9] = [
        Class::Control,
        Class::UrgentEviction,
        Class::Demand,
        Class::Eviction(6),
        Class::Eviction(5),
        Class::Eviction(4),
        Class::Eviction(3),
        Class::Eviction(2),
        Class::Prefetch,
    ];
    pub const COUNT: usize = Class::ALL.len();

    pub fn eviction(priority: u8) -> Result<Class, ClassError> {
        if (2..=6).contains(&priority) {
            Ok(Class::Eviction(priority))
        } else {
            Err(ClassError(priority))
        }
    }

    /// Position in [`Class::ALL`]; also the byte on the wire.
    pub const fn index(self) -> usize {
        match self {
            Class::Control => 0,
            Class::UrgentEviction => 1,
            Class::Demand => 2,
            // Saturating: a priority built by hand outside of 2…6 is treated as the nearest one.
            Class::Eviction(priority) => match priority {
                0..=2 => 7,
                3 => 6,
                4 => 5,
                5 => 4,
                _ => 3,
            },
            Class::Prefetch => 8,
        }
    }

    pub const fn from_byte(byte: u8) -> Result<Class, ClassError> {
        if (byte as usize) < Class::COUNT {
            Ok(Class::ALL[byte as usize])
        } else {
            Err(ClassError(byte))
        }
    }

    pub const fn to_byte(self) -> u8 {
        self.index() as u8
    }

    /// Glitter's priority, 1 (lowest) to 7; control traffic counts as 7.
    pub const fn priority(self) -> u8 {
        match self {
            Class::Control | Class::UrgentEviction => 7,
            Class::Demand => 7,
            Class::Eviction(_) => (9 - self.index()) as u8,
            Class::Prefetch => 1,
        }
    }

    /// The connection this class travels on.
    pub const fn lane(self) -> LaneKind {
        match self {
            Class::Control => LaneKind::Control,
            Class::UrgentEviction | Class::Demand => LaneKind::Critical,
            Class::Eviction(_) | Class::Prefetch => LaneKind::Bulk,
        }
    }

    /// A name for tables, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Control => "control",
            Class::UrgentEviction => "urgent-eviction",
            Class::Demand => "demand",
            Class::Eviction(_) => match self.index() {
                3 => "eviction-6",
                4 => "eviction-5",
                5 => "eviction-4",
                6 => "eviction-3",
                _ => "eviction-2",
            },
            Class::Prefetch => "prefetch",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The kinds of connection of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneKind {
    Control,
    Critical,
    Bulk,
}

impl LaneKind {
    pub const ALL: [LaneKind; 3] = [LaneKind::Control, LaneKind::Critical, LaneKind::Bulk];

    /// The class whose marks the lane's packets carry: that of the bulk's middle, and that of the
    /// most urgent elsewhere.
    pub const fn mark(self) -> Class {
        match self {
            LaneKind::Control => Class::Control,
            LaneKind::Critical => Class::Demand,
            LaneKind::Bulk => Class::Eviction(4),
        }
    }

    pub const fn to_byte(self) -> u8 {
        match self {
            LaneKind::Control => 0,
            LaneKind::Critical => 1,
            LaneKind::Bulk => 2,
        }
    }
    pub const fn from_byte(byte: u8) -> Option<LaneKind> {
        match byte {
            0 => Some(LaneKind::Control),
            1 => Some(LaneKind::Critical),
            2 => Some(LaneKind::Bulk),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_classes_agree() {
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), index);
            assert_eq!(Class::from_byte(class.to_byte()), Ok(class));
        }
        assert_eq!(Class::from_byte(9), Err(ClassError(9)));
        assert_eq!(Class::eviction(7), Err(ClassError(7)));
        let priorities: Vec<u8> = Class::ALL.iter().map(|c| c.priority()).collect();
        assert_eq!(priorities, [7, 7, 7, 6, 5, 4, 3, 2, 1]);
    }
}
