//! The programs that are measured: each the same in Rust and in Java (`bench/java/HeapBench.java`),
//! down to the random numbers, so that checksums can be compared.

use muninn_heap::*;
use muninn_types::{Bytes, SplitMix64};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// PageRank over edge lists, with a tuple for each contribution (Spark's SPR).
    PageRank,
    /// Transitive closure: a sea of pairs in a hash table (Spark's STC).
    Closure,
    /// A key-value store, 60 % inserts, 20 % updates, 20 % reads (Cassandra's CII).
    KvInsert,
    /// A key-value store, 60 % updates, 40 % inserts (Cassandra's CUI).
    KvUpdate,
    /// A table with a B-tree: inserts, updates, lookups (H2).
    Table,
}

impl Workload {
    pub const ALL: [Workload; 5] = [
        Workload::PageRank,
        Workload::Closure,
        Workload::KvInsert,
        Workload::KvUpdate,
        Workload::Table,
    ];
    pub const fn name(self) -> &'static str {
        match self {
            Workload::PageRank => "pagerank",
            Workload::Closure => "closure",
            Workload::KvInsert => "kv-insert",
            Workload::KvUpdate => "kv-update",
            Workload::Table => "table",
        }
    }

    /// A heap in which a collector has something to do and room to do it in: about twice what lives.
    pub const fn heap(self) -> Bytes {
        match self {
            Workload::PageRank | Workload::KvInsert | Workload::KvUpdate => Bytes::mib(160),
            Workload::Closure => Bytes::mib(96),
            Workload::Table => Bytes::mib(64),
        }
    }
}

impl FromStr for Workload {
    type Err = String;
    fn from_str(text: &str) -> Result<Workload, String> {
        let known = Workload::ALL.into_iter().find(|w| w.name() == text);
        known.ok_or_else(|| {
            format!(
                "'{text}' is not a workload: use pagerank, closure, kv-insert, kv-update or table"
            )
        })
    }
}

#[derive(Managed)]
struct Edge {
    target: u32,
    next: Ref<Edge>,
}

#[derive(Managed)]
struct Vertex {
    id: u32,
    degree: u32,
    edges: Ref<Edge>,
}

#[derive(Managed)]
struct Rank {
    value: f64,
}

#[derive(Managed)]
struct Contribution {
    target: u32,
    value: f64,
}

#[derive(Managed)]
struct Pair {
    from: u32,
    to: u32,
    next: Ref<Pair>,
}

#[derive(Managed)]
struct Entry {
    key: u64,
    version: u64,
    value: Ref<[u8]>,
    next: Ref<Entry>,
}

#[derive(Managed)]
struct Row {
    key: u64,
    balance: u64,
    name: Ref<str>,
}

#[derive(Managed)]
struct Page {
    count: u32,
    is_leaf: bool,
    keys: Ref<[u64]>,
    pages: Ref<[Ref<Page>]>,
    rows: Ref<[Ref<Row>]>,
}

/// Runs a workload; its checksum. `scale` 1 is about 60 MiB of live objects.
pub fn run(
    workload: Workload,
    scale: f64,
    mutator: &mut Mutator,
    tick: &dyn Fn(),
) -> Result<u64, HeapError> {
    let scaled = |n: u64| ((n as f64 * scale) as u64).max(16);
    match workload {
        Workload::PageRank => page_rank(mutator, scaled(150_000) as usize, tick),
        Workload::Closure => closure(mutator, scaled(40_000) as u32, scaled(1_200_000), tick),
        Workload::KvInsert => store(mutator, scaled(400_000), (60, 20), scaled(1_600_000), tick),
        Workload::KvUpdate => store(mutator, scaled(400_000), (40, 60), scaled(1_600_000), tick),
        Workload::Table => table(mutator, scaled(300_000), scaled(2_400_000), tick),
    }
}

const DEGREE: u64 = 16;
const ROUNDS: usize = 8;

fn page_rank(m: &mut Mutator, vertices: usize, tick: &dyn Fn()) -> Result<u64, HeapError> {
    let mut rng = SplitMix64::new(42);
    let graph = m.enter(|s| {
        let list = s.alloc_refs::<Vertex>(vertices)?;
        for id in 0..vertices {
            // A few vertices have many edges, most have few.
            let degree = 1 + rng.below(DEGREE) as u32;
            let vertex = s.alloc(VertexInit {
                id: id as u32,
                degree,
                edges: None,
            })?;
            for _ in 0..degree {
                let x = rng.unit();
                let target = (x * x * vertices as f64) as u32;
                let edge = s.alloc(EdgeInit {
                    target,
                    next: vertex.edges(),
                })?;
                vertex.set_edges(Some(&edge));
            }
            list.set(id, Some(&vertex));
        }
        Ok(s.root(&list))
    })?;
    let mut ranks = m.enter(|s| {
        let ranks = s.alloc_refs::<Rank>(vertices)?;
        for id in 0..vertices {
            ranks.set(id, Some(&s.alloc(RankInit { value: 1.0 })?));
        }
        Ok(s.root(&ranks))
    })?;
    for _ in 0..ROUNDS {
        tick();
        let next = m.enter(|s| {
            let list = s.open(&graph)?;
            let old = s.open(&ranks)?;
            let sums = s.alloc_filled(vertices, 0f64)?;
            for id in 0..vertices {
                let (Some(vertex), Some(rank)) = (list.get(id), old.get(id)) else {
                    continue;
                };
                let share = rank.value() / f64::from(vertex.degree());
                let mut edge = vertex.edges();
                while let Some(here) = edge {
                    let part = s.alloc(ContributionInit {
                        target: here.target(),
                        value: share,
                    })?;
                    let at = part.target() as usize;
                    sums.set(at, sums.get(at) + part.value());
                    edge = here.next();
                }
            }
            let new = s.alloc_refs::<Rank>(vertices)?;
            for id in 0..vertices {
                let value = 0.15 + 0.85 * sums.get(id);
                new.set(id, Some(&s.alloc(RankInit { value })?));
            }
            Ok(s.root(&new))
        })?;
        ranks = next;
    }
    m.enter(|s| {
        let ranks = s.open(&ranks)?;
        let mut sum = 0u64;
        for id in 0..vertices {
            let value = ranks.get(id).map_or(0.0, |rank| rank.value());
            sum = sum.wrapping_mul(31).wrapping_add(value.to_bits());
        }
        Ok(sum)
    })
}

fn hash(from: u32, to: u32) -> u64 {
    let word = u64::from(from) << 32 | u64::from(to);
    word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
}

/// All pairs that a walk along edges connects, found in rounds, up to a bound.
fn closure(m: &mut Mutator, vertices: u32, most: u64, tick: &dyn Fn()) -> Result<u64, HeapError> {
    let mut rng = SplitMix64::new(7);
    // Edges lead a little further on, so that paths are long and the result is large.
    let edges: Vec<[u32; 2]> = (0..vertices)
        .map(|v| {
            let mut hop = || (v + 1 + rng.below(20) as u32).min(vertices - 1);
            [hop(), hop()]
        })
        .collect();
    let buckets = (most / 2).next_power_of_two() as usize;
    let (table, mut front) = m.enter(|s| {
        let table = s.alloc_refs::<Pair>(buckets)?;
        let mut front: Option<Local<'_, Pair>> = None;
        for from in 0..vertices {
            front = Some(s.alloc(PairInit {
                from,
                to: from,
                next: front,
            })?);
        }
        Ok((s.root(&table), front.map(|f| s.root(&f))))
    })?;
    let (mut count, mut sum) = (0u64, 0u64);
    while let Some(pairs) = front {
        tick();
        front = m.enter(|s| {
            let table = s.open(&table)?;
            let mut next: Option<Local<'_, Pair>> = None;
            let mut pair = Some(s.open(&pairs)?);
            while let Some(here) = pair {
                let (from, through) = (here.from(), here.to());
                for to in edges[through as usize] {
                    let at = (hash(from, to) as usize) & (buckets - 1);
                    let head = table.get(at);
                    let mut known = head.clone();
                    while let Some(other) = &known {
                        if (other.from(), other.to()) == (from, to) {
                            break;
                        }
                        known = other.next();
                    }
                    if known.is_none() && count < most {
                        let kept = s.alloc(PairInit {
                            from,
                            to,
                            next: head,
                        })?;
                        table.set(at, Some(&kept));
                        next = Some(s.alloc(PairInit { from, to, next })?);
                        count += 1;
                        sum = sum.wrapping_add(hash(from, to));
                    }
                }
                pair = here.next();
            }
            Ok(next.map(|n| s.root(&n)))
        })?;
    }
    Ok(sum ^ count)
}

/// Small values more often: three quarters lie below a tenth.
fn skewed(x: f64) -> f64 {
    let x = x * x;
    let x = x * x;
    x * x
}

/// A hash table of chains; keys are skewed; the oldest part is dropped when there are too many.
fn store(
    m: &mut Mutator,
    most: u64,
    (inserts, updates): (u64, u64),
    operations: u64,
    tick: &dyn Fn(),
) -> Result<u64, HeapError> {
    let mut rng = SplitMix64::new(99);
    let buckets = (most / 2).next_power_of_two();
    let root = m.enter(|s| Ok(s.root(&s.alloc_refs::<Entry>(buckets as usize)?)))?;
    let sizes = m.enter(|s| Ok(s.root(&s.alloc_filled(buckets as usize, 0u32)?)))?;
    let (mut next_key, mut count, mut sweep, mut sum) = (0u64, 0u64, 0u64, 0u64);
    let bucket = |key: u64| (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24) & (buckets - 1);
    let mut done = 0;
    while done < operations {
        tick();
        m.enter(|s| {
            let (table, sizes) = (s.open(&root)?, s.open(&sizes)?);
            for _ in 0..10_000.min(operations - done) {
                done += 1;
                let what = rng.below(100);
                let is_insert = what < inserts || next_key == 0;
                let key = if is_insert {
                    next_key += 1;
                    next_key - 1
                } else {
                    // Recent keys more often.
                    let x = skewed(rng.unit());
                    next_key - 1 - ((x * most.min(next_key) as f64) as u64).min(next_key - 1)
                };
                let at = bucket(key) as usize;
                if is_insert {
                    let value = s.alloc_filled(32 + (key % 64) as usize, key as u8)?;
                    let head = table.get(at);
                    let entry = s.alloc(EntryInit {
                        key,
                        version: 0,
                        value: Some(value),
                        next: head,
                    })?;
                    table.set(at, Some(&entry));
                    sizes.set(at, sizes.get(at) + 1);
                    count += 1;
                    while count > most {
                        // A bucket at a time, as a store drops its oldest files.
                        count -= u64::from(sizes.get(sweep as usize));
                        sizes.set(sweep as usize, 0);
                        table.set(sweep as usize, None);
                        sweep = (sweep + 1) & (buckets - 1);
                    }
                    continue;
                }
                let mut chain = table.get(at);
                while let Some(entry) = chain {
                    if entry.key() == key {
                        if what < inserts + updates {
                            let version = entry.version() + 1;
                            let len = 32 + ((key + version) % 64) as usize;
                            let value = s.alloc_filled(len, version as u8)?;
                            entry.set_value(Some(&value));
                            entry.set_version(version);
                        } else if let Some(value) = entry.value() {
                            let byte = value.get(value.len() - 1);
                            sum = sum
                                .wrapping_mul(31)
                                .wrapping_add(u64::from(byte) + entry.version());
                        }
                        break;
                    }
                    chain = entry.next();
                }
            }
            Ok(())
        })?;
    }
    m.enter(|s| {
        let table = s.open(&root)?;
        for at in 0..buckets as usize {
            let mut chain = table.get(at);
            while let Some(entry) = chain {
                sum = sum.wrapping_add(entry.key().wrapping_mul(entry.version() + 1));
                chain = entry.next();
            }
        }
        Ok(sum ^ count)
    })
}

const FAN: usize = 32;

fn new_page<'s>(s: &Scope<'s>, is_leaf: bool) -> Result<Local<'s, Page>, HeapError> {
    let keys = s.alloc_filled(FAN, 0u64)?;
    let (pages, rows) = if is_leaf {
        (None, Some(s.alloc_refs::<Row>(FAN)?))
    } else {
        (Some(s.alloc_refs::<Page>(FAN + 1)?), None)
    };
    s.alloc(PageInit {
        count: 0,
        is_leaf,
        keys: Some(keys),
        pages,
        rows,
    })
}

/// First place whose key is not below `key`.
fn place(keys: &Local<'_, [u64]>, count: usize, key: u64) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if keys.get(middle) < key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Cuts the full child at `at` in two; its middle key goes up.
fn split<'s>(s: &Scope<'s>, parent: &Local<'s, Page>, at: usize) -> Result<(), HeapError> {
    let all = (parent.pages(), parent.keys());
    let (Some(pages), Some(parent_keys)) = all else {
        return Ok(());
    };
    let Some(left) = pages.get(at) else {
        return Ok(());
    };
    let right = new_page(s, left.is_leaf())?;
    let half = FAN / 2;
    let (Some(left_keys), Some(right_keys)) = (left.keys(), right.keys()) else {
        return Ok(());
    };
    let middle = left_keys.get(half - 1);
    for i in half..FAN {
        right_keys.set(i - half, left_keys.get(i));
    }
    if let (Some(from), Some(to)) = (left.rows(), right.rows()) {
        for i in half..FAN {
            to.set(i - half, from.get(i).as_ref());
            from.set(i, None);
        }
        // A leaf keeps the middle key: it is the largest of the left one.
        left.set_count(half as u32);
    }
    if let (Some(from), Some(to)) = (left.pages(), right.pages()) {
        for i in half..=FAN {
            to.set(i - half, from.get(i).as_ref());
            from.set(i, None);
        }
        left.set_count(half as u32 - 1);
    }
    right.set_count((FAN - half) as u32);
    let count = parent.count() as usize;
    for i in (at..count).rev() {
        parent_keys.set(i + 1, parent_keys.get(i));
        pages.set(i + 2, pages.get(i + 1).as_ref());
    }
    parent_keys.set(at, middle);
    pages.set(at + 1, Some(&right));
    parent.set_count(count as u32 + 1);
    Ok(())
}

fn leaf_of<'s>(mut page: Local<'s, Page>, key: u64) -> Local<'s, Page> {
    while !page.is_leaf() {
        let at = page
            .keys()
            .map_or(0, |keys| place(&keys, page.count() as usize, key));
        match page.pages().and_then(|pages| pages.get(at)) {
            Some(next) => page = next,
            None => break,
        }
    }
    page
}

fn table(m: &mut Mutator, rows: u64, operations: u64, tick: &dyn Fn()) -> Result<u64, HeapError> {
    let mut rng = SplitMix64::new(5);
    let mut root = m.enter(|s| Ok(s.root(&new_page(s, true)?)))?;
    // Keys are given in order, as a database numbers its rows.
    let key_of = |n: u64| n * 3;
    let (mut inserted, mut sum, mut done) = (0u64, 0u64, 0);
    while done < operations {
        tick();
        root = m.enter(|s| {
            let mut top = s.open(&root)?;
            for _ in 0..5_000.min(operations - done) {
                done += 1;
                if inserted < rows && (inserted == 0 || rng.below(100) < 40) {
                    let key = key_of(inserted);
                    inserted += 1;
                    let name = s.alloc_str(&format!("row {key}"))?;
                    let row = s.alloc(RowInit {
                        key,
                        balance: key & 0xff,
                        name: Some(name),
                    })?;
                    if top.count() as usize == FAN {
                        let above = new_page(s, false)?;
                        if let Some(pages) = above.pages() {
                            pages.set(0, Some(&top));
                        }
                        split(s, &above, 0)?;
                        top = above;
                    }
                    insert(s, top.clone(), key, &row)?;
                } else {
                    // Recent rows more often.
                    let x = skewed(rng.unit());
                    let key =
                        key_of(inserted - 1 - ((x * inserted as f64) as u64).min(inserted - 1));
                    let leaf = leaf_of(top.clone(), key);
                    let (Some(keys), Some(rows)) = (leaf.keys(), leaf.rows()) else {
                        continue;
                    };
                    let at = place(&keys, leaf.count() as usize, key);
                    let Some(row) = rows.get(at) else { continue };
                    if rng.below(2) == 0 {
                        let balance = row.balance() + 1;
                        let new = s.alloc(RowInit {
                            key,
                            balance,
                            name: row.name(),
                        })?;
                        rows.set(at, Some(&new));
                    } else {
                        sum = sum.wrapping_mul(31).wrapping_add(row.balance() ^ row.key());
                    }
                }
            }
            Ok(s.root(&top))
        })?;
    }
    Ok(sum)
}

fn insert<'s>(
    s: &Scope<'s>,
    mut page: Local<'s, Page>,
    key: u64,
    row: &Local<'s, Row>,
) -> Result<(), HeapError> {
    loop {
        let count = page.count() as usize;
        let Some(keys) = page.keys() else {
            return Ok(());
        };
        let at = place(&keys, count, key);
        if page.is_leaf() {
            let Some(rows) = page.rows() else {
                return Ok(());
            };
            for i in (at..count).rev() {
                keys.set(i + 1, keys.get(i));
                rows.set(i + 1, rows.get(i).as_ref());
            }
            keys.set(at, key);
            rows.set(at, Some(row));
            page.set_count(count as u32 + 1);
            return Ok(());
        }
        let Some(pages) = page.pages() else {
            return Ok(());
        };
        let Some(mut next) = pages.get(at) else {
            return Ok(());
        };
        if next.count() as usize == FAN {
            split(s, &page, at)?;
            if keys.get(at) < key {
                match pages.get(at + 1) {
                    Some(right) => next = right,
                    None => return Ok(()),
                }
            }
        }
        page = next;
    }
}
