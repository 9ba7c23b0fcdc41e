//! Which servers hold the copies of each extent, or the pieces of its rows.
//!
//! Known to one thread, so without locks. An id is the place in a list, so that finding an extent is one
//! step; ids are used again.
//! Invariants: members of an extent are at different servers; `by_server` names exactly the extents
//! that have a member there.

use crate::sums::Sums;
use muninn_net::Mapped;
use muninn_policy::stripe::Pieces;
pub use muninn_types::{Extent, ExtentId};
use muninn_types::{GrantId, PAGE_SIZE, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::clerk::EXTENT_PAGES;
use crate::lock;
use crate::volume::Page;

pub(crate) const WORDS: usize = EXTENT_PAGES as usize / 64;

/// A mark for each page of an extent, or for each row with parity.
pub(crate) type Marks = [u64; WORDS];

/// A grant of one session at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    pub server: ServerId,
    /// Which session with the server: a server that was started anew counts its grants anew.
    pub generation: u32,
    pub grant: GrantId,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub at: Holding,
    /// Which piece of each row it holds; with whole copies nothing is made of this.
    pub piece: u8,
    /// Its memory, where the transport maps it.
    pub mapped: Option<Box<Mapped>>,
    /// Its pages that are older than those of others: it did not answer when they were written.
    pub lag: Option<Box<Marks>>,
}

impl Member {
    /// Whether it has every page as it was last written.
    pub(crate) fn is_whole(&self) -> bool {
        self.lag.is_none()
    }
    /// Whether it has a page of its own as it was last written.
    pub(crate) fn has(&self, place: u32) -> bool {
        let lag = self.lag.as_ref();
        lag.is_none_or(|lag| lag[place as usize / 64] >> (place % 64) & 1 == 0)
    }

    /// Where a page of it is, if it is mapped; counted from the start of the member.
    pub(crate) fn place(&self, place: u32) -> Option<*mut Page> {
        let mapped = self.mapped.as_ref()?;
        let offset = place as usize * PAGE_SIZE;
        assert!(offset + PAGE_SIZE <= mapped.bytes.0 as usize);
        let start = mapped.offset as usize + offset;
        // SAFETY: inside of the grant, which lies inside of the mapping.
        Some(unsafe { mapped.map.as_ptr().add(start).cast() })
    }
}

/// Pages that a member still lacks: a new one, or one that fell behind. The mover takes marks off *before*
/// it reads a page, and the writer puts them back *after* its write is done: what was read too early is
/// read again.
#[derive(Debug)]
pub(crate) struct Fill {
    lacking: [AtomicU64; WORDS],
    /// A member that fell behind, if it is not for a new one. Nobody else writes to it meanwhile.
    pub(crate) behind: Option<Holding>,
    /// Servers whose member missed a write, or is none any more: it is not read from.
    gone: Mutex<Vec<ServerId>>,
}

impl Fill {
    pub(crate) fn of(written: &Marks) -> Fill {
        Fill {
            lacking: written.map(AtomicU64::new),
            behind: None,
            gone: Mutex::default(),
        }
    }

    /// It is for a member that fell behind, if not for a new one.
    pub(crate) fn for_member(self, behind: Option<Holding>) -> Fill {
        Fill { behind, ..self }
    }

    /// What is still lacking.
    pub(crate) fn rest(&self) -> Marks {
        std::array::from_fn(|at| self.lacking[at].load(SeqCst))
    }

    pub(crate) fn note_written(&self, place: u32) {
        self.lacking[place as usize / 64].fetch_or(1 << (place % 64), SeqCst);
    }

    /// Noted *before* what was missed is marked as lacking.
    pub(crate) fn note_gone(&self, server: ServerId) {
        lock(&self.gone).push(server);
    }
    pub(crate) fn is_gone(&self, server: ServerId) -> bool {
        lock(&self.gone).contains(&server)
    }

    pub(crate) fn count(&self) -> u32 {
        let words = self.lacking.iter();
        words.map(|word| word.load(SeqCst).count_ones()).sum()
    }

    /// The next run of pages that lack, from a place on, without its marks. Runs end at multiples of 64.
    pub(crate) fn take_run(&self, from: u32) -> Option<(u32, u32)> {
        for at in from as usize / 64..WORDS {
            let mut bits = self.lacking[at].load(SeqCst);
            if at == from as usize / 64 {
                bits &= u64::MAX << (from % 64);
            }
            if bits != 0 {
                let first = bits.trailing_zeros();
                let len = (bits >> first).trailing_ones();
                let run = (u64::MAX >> (64 - len)) << first;
                self.lacking[at].fetch_and(!run, SeqCst);
                return Some((at as u32 * 64 + first, len));
            }
        }
        None
    }

    /// A run was not copied after all.
    pub(crate) fn put_back(&self, first: u32, len: u32) {
        for place in first..first + len {
            self.note_written(place);
        }
    }
}

/// What is known of an extent.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Of the extent; with parity a member has fewer.
    pub pages: u32,
    pub members: Vec<Member>,
    /// Pages that hold anything: the others are zeros in every copy. With sums, these say it.
    written: Option<Box<Marks>>,
    /// Of all pieces, or of the pages where there are several copies.
    pub sums: Option<Arc<Sums>>,
    /// A member is being filled.
    pub fill: Option<Arc<Fill>>,
    /// It was said that too few of its members are left.
    pub lost: bool,
    /// One of its members is to go elsewhere, though its server keeps others.
    pub leave: Option<Leave>,
}

/// A member that is to go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    pub from: ServerId,
    /// Where to; anywhere if its server only wants to be rid of it.
    pub to: Option<ServerId>,
}

impl Entry {
    /// Members that lack nothing.
    pub(crate) fn whole(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_whole())
    }
    /// Whether the mover is giving a member what it missed.
    pub(crate) fn is_filling(&self, server: ServerId) -> bool {
        let behind = self.fill.as_ref().and_then(|fill| fill.behind);
        behind.is_some_and(|at| at.server == server)
    }
    pub(crate) fn member(&self, server: ServerId) -> Option<&Member> {
        self.members
            .iter()
            .find(|member| member.at.server == server)
    }
    /// Who holds a piece of each row.
    pub(crate) fn holder(&self, piece: usize) -> Option<&Member> {
        let mut members = self.members.iter();
        members.find(|member| usize::from(member.piece) == piece)
    }
    pub(crate) fn pieces(&self) -> Pieces {
        let members = self.members.iter();
        members.map(|member| usize::from(member.piece)).collect()
    }
    /// Some pieces of a row were written. A member that fell behind and lacks none of these is left alone:
    /// it is read from, and what the mover makes of a row that is being written may be nonsense.
    pub(crate) fn note_row(&mut self, row: u32, touched: Pieces) {
        let Some(fill) = &self.fill else { return };
        let concerned = fill.behind.is_none_or(|at| {
            let member = self.member(at.server);
            member.is_some_and(|member| touched.has(usize::from(member.piece)))
        });
        if concerned {
            fill.note_written(row);
        }
    }
    /// What a new member has to be given: pages, or rows with parity.
    pub(crate) fn to_fill(&self) -> Fill {
        let fill = match &self.written {
            Some(written) => Fill::of(written),
            None => Fill::of(&[0; WORDS]),
        };
        let Some(sums) = &self.sums else {
            return fill;
        };
        let all = Pieces::first(self.row_pieces());
        let rows = (0..sums.rows()).filter(|row| sums.zeros(*row) != all);
        rows.for_each(|row| fill.note_written(row));
        fill
    }
    fn row_pieces(&self) -> usize {
        self.sums.as_ref().map_or(0, |sums| sums.pieces())
    }
    /// A page was written to all copies.
    pub(crate) fn note_page(&mut self, place: u32, page: &Page) {
        if let Some(sums) = &self.sums {
            sums.note(place, 0, page);
        }
        self.note_written(place);
    }
    /// The same of a page whose sum was made before.
    pub(crate) fn note_page_with(&mut self, place: u32, sum: u32) {
        if let Some(sums) = &self.sums {
            sums.note_sum(place, 0, sum);
        }
        self.note_written(place);
    }
    fn note_written(&mut self, place: u32) {
        if let Some(written) = &mut self.written {
            written[place as usize / 64] |= 1 << (place % 64);
        }
        if let Some(fill) = &self.fill {
            fill.note_written(place);
        }
    }
}

/// All extents of a volume.
#[derive(Debug, Default)]
pub(crate) struct ExtentMap {
    entries: Vec<Option<Entry>>,
    free: BTreeSet<u32>,
    by_server: BTreeMap<ServerId, BTreeSet<u32>>,
    /// Extents that were looked at: what grows with all there are is found by counting.
    #[cfg(test)]
    pub(crate) looked: std::cell::Cell<usize>,
}

impl ExtentMap {
    pub(crate) fn insert(
        &mut self,
        pages: u32,
        members: Vec<Member>,
        sums: Option<Arc<Sums>>,
    ) -> ExtentId {
        let id = self.free.first().copied();
        let id = ExtentId(id.unwrap_or(self.entries.len() as u32));
        self.insert_as(id, pages, members, false, sums);
        id
    }

    /// Inserts one under a number that is not in use; `full` if any of its pages may hold something.
    pub(crate) fn insert_as(
        &mut self,
        id: ExtentId,
        pages: u32,
        members: Vec<Member>,
        full: bool,
        sums: Option<Arc<Sums>>,
    ) {
        let at = id.0 as usize;
        while self.entries.len() <= at {
            self.free.insert(self.entries.len() as u32);
            self.entries.push(None);
        }
        self.free.remove(&id.0);
        assert!(self.entries[at].is_none(), "{id} is there twice");
        for member in &members {
            let there = self.by_server.entry(member.at.server).or_default();
            there.insert(id.0);
        }
        self.entries[at] = Some(Entry {
            pages,
            members,
            written: sums.is_none().then(|| Box::new([0; WORDS])),
            sums,
            fill: None,
            lost: false,
            leave: None,
        });
        // What lies beyond its end is in no member.
        if let Some(entry) = self.entries[at].as_mut().filter(|_| full) {
            for place in 0..pages {
                entry.note_written(place);
            }
        }
    }

    fn count_look(&self) {
        #[cfg(test)]
        self.looked.set(self.looked.get() + 1);
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<&Entry> {
        self.count_look();
        self.entries.get(id.0 as usize)?.as_ref()
    }
    pub(crate) fn get_mut(&mut self, id: ExtentId) -> Option<&mut Entry> {
        self.count_look();
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, id: ExtentId) -> Option<Entry> {
        let entry = self.entries.get_mut(id.0 as usize)?.take()?;
        self.free.insert(id.0);
        for member in &entry.members {
            self.take_from(member.at.server, id);
        }
        Some(entry)
    }

    /// A member is one no more.
    pub(crate) fn drop_member(&mut self, id: ExtentId, server: ServerId) -> Option<Holding> {
        let entry = self.get_mut(id)?;
        let at = entry.members.iter().position(|m| m.at.server == server)?;
        let member = entry.members.remove(at);
        if let Some(fill) = &entry.fill {
            fill.note_gone(server);
        }
        self.take_from(server, id);
        Some(member.at)
    }

    /// A member did not get a page that was written.
    pub(crate) fn fall_behind(&mut self, id: ExtentId, server: ServerId, place: u32) {
        let Some(entry) = self.get_mut(id) else {
            return;
        };
        if let Some(fill) = &entry.fill {
            fill.note_gone(server);
        }
        let mut members = entry.members.iter_mut();
        if let Some(member) = members.find(|member| member.at.server == server) {
            let lag = member.lag.get_or_insert_with(|| Box::new([0; WORDS]));
            lag[place as usize / 64] |= 1 << (place % 64);
        }
    }

    /// A member has got a page. Whether it lacks nothing any more, and did before.
    pub(crate) fn catch_up(&mut self, id: ExtentId, at: &Holding, place: u32) -> bool {
        let Some(entry) = self.get_mut(id) else {
            return false;
        };
        let member = entry.members.iter_mut().find(|member| member.at == *at);
        let Some(member) = member else { return false };
        let Some(lag) = &mut member.lag else {
            return false;
        };
        lag[place as usize / 64] &= !(1 << (place % 64));
        let whole = lag.iter().all(|marks| *marks == 0);
        if whole {
            member.lag = None;
        }
        whole
    }

    /// What a member lacks, all of it.
    pub(crate) fn set_lag(&mut self, id: ExtentId, at: &Holding, lag: Marks) {
        let members = self.get_mut(id).map(|entry| entry.members.iter_mut());
        let member = members.and_then(|mut members| members.find(|member| member.at == *at));
        if let Some(member) = member {
            let lacks = lag.iter().any(|marks| *marks != 0);
            member.lag = lacks.then(|| Box::new(lag));
        }
    }

    pub(crate) fn add_member(&mut self, id: ExtentId, member: Member) {
        let server = member.at.server;
        if let Some(entry) = self.get_mut(id) {
            assert!(entry.member(server).is_none(), "two members at one server");
            entry.members.push(member);
            self.by_server.entry(server).or_default().insert(id.0);
        }
    }

    /// Extents with a member at a server.
    pub(crate) fn at_server(&self, server: ServerId) -> Vec<ExtentId> {
        self.ids_at(server).collect()
    }
    pub(crate) fn ids_at(&self, server: ServerId) -> impl Iterator<Item = ExtentId> {
        let ids = self.by_server.get(&server).into_iter().flatten();
        ids.map(|id| {
            self.count_look();
            ExtentId(*id)
        })
    }
    pub(crate) fn count_at(&self, server: ServerId) -> usize {
        self.by_server.get(&server).map_or(0, BTreeSet::len)
    }
    pub(crate) fn holds_nothing(&self, server: ServerId) -> bool {
        !self.by_server.contains_key(&server)
    }

    fn take_from(&mut self, server: ServerId, id: ExtentId) {
        if let Some(there) = self.by_server.get_mut(&server) {
            there.remove(&id.0);
            if there.is_empty() {
                self.by_server.remove(&server);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, &Entry)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(at, entry)| {
            self.count_look();
            Some((ExtentId(at as u32), entry.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(server: u32) -> Member {
        Member {
            at: Holding {
                server: ServerId(server),
                generation: 1,
                grant: GrantId(7),
            },
            piece: 0,
            mapped: None,
            lag: None,
        }
    }

    #[test]
    fn an_extent_of_which_all_may_be_written_ends_where_it_ends() {
        for pages in [16, 64, 100, EXTENT_PAGES] {
            let mut map = ExtentMap::default();
            map.insert_as(ExtentId(3), pages, vec![member(0)], true, None);
            let entry = map.get(ExtentId(3)).unwrap();
            let fill = entry.to_fill();
            assert_eq!(fill.count(), pages);
            let mut end = 0;
            while let Some((first, len)) = fill.take_run(end) {
                assert_eq!(first, end);
                end = first + len;
                if end >= EXTENT_PAGES {
                    break;
                }
            }
            assert_eq!(end, pages);
        }
    }

    /// The mover must not copy from one that missed a write since it was told whom to copy from.
    #[test]
    fn who_is_no_member_any_more_is_known_to_the_mover() {
        let mut map = ExtentMap::default();
        let id = map.insert(16, vec![member(0), member(1)], None);
        let fill = Arc::new(map.get(id).unwrap().to_fill());
        map.get_mut(id).unwrap().fill = Some(Arc::clone(&fill));
        assert!(!fill.is_gone(ServerId(1)));
        map.drop_member(id, ServerId(1));
        assert!(fill.is_gone(ServerId(1)) && !fill.is_gone(ServerId(0)));
    }

    proptest! {
        #[test]
        fn extents_are_found_by_their_servers(steps in prop::collection::vec((0u8..4, 0u32..8, 0u32..4), 1..200)) {
            let mut map = ExtentMap::default();
            let mut model: BTreeMap<ExtentId, BTreeSet<u32>> = Default::default();
            for (what, extent, server) in steps {
                let id = ExtentId(extent);
                match what {
                    0 => {
                        let id = map.insert(16, vec![member(server)], None);
                        prop_assert!(model.insert(id, [server].into()).is_none());
                    }
                    1 => {
                        prop_assert_eq!(map.remove(id).is_some(), model.remove(&id).is_some());
                    }
                    2 => {
                        let known = model.get_mut(&id).is_some_and(|servers| servers.remove(&server));
                        prop_assert_eq!(map.drop_member(id, ServerId(server)).is_some(), known);
                    }
                    _ => {
                        if let Some(servers) = model.get_mut(&id) && servers.insert(server) {
                            map.add_member(id, member(server));
                        }
                    }
                }
                for server in 0..4 {
                    let there = model.iter().filter(|(_, servers)| servers.contains(&server));
                    let there: Vec<ExtentId> = there.map(|(id, _)| *id).collect();
                    prop_assert_eq!(map.at_server(ServerId(server)), there);
                }
                prop_assert_eq!(map.iter().count(), model.len());
            }
        }

        #[test]
        fn runs_cover_all_that_lacks(places in prop::collection::btree_set(0u32..4096, 0..300)) {
            let mut written = [0; WORDS];
            for place in &places {
                written[*place as usize / 64] |= 1 << (place % 64);
            }
            let fill = Fill::of(&written);
            prop_assert_eq!(fill.count() as usize, places.len());
            let (mut found, mut from) = (BTreeSet::new(), 0);
            while let Some((first, len)) = fill.take_run(from) {
                prop_assert!((1..=64).contains(&len) && first >= from);
                for place in first..first + len {
                    prop_assert!(found.insert(place));
                }
                from = first + len;
                if from >= 4096 { break; }
            }
            prop_assert_eq!(found, places);
            prop_assert_eq!(fill.count(), 0);
        }
    }
}
