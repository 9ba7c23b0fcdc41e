//! Servers for tests, and a program that does random things and knows what it should find.
#![allow(dead_code)]

use muninn_heap::*;
use muninn_net::{Pool, PoolOptions};
use muninn_server::{Server, ServerConfig};
use muninn_types::{Bytes, SplitMix64};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Servers of this process, and a pool of them.
pub struct Servers {
    pub servers: Vec<Server>,
    pub pool: Arc<Pool>,
    _dir: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Over {
    Shm,
    Tcp,
}

pub fn options() -> PoolOptions {
    PoolOptions {
        name: "heap-test".to_string(),
        deadline: Duration::from_secs(60),
        ..PoolOptions::default()
    }
}

pub fn server_config(memory: Bytes) -> ServerConfig {
    ServerConfig {
        memory,
        segment: Some(Bytes::mib(8)),
        lease: Duration::from_secs(120),
        spin: Duration::ZERO,
        keep_awake: false,
        ..ServerConfig::default()
    }
}

pub fn servers(count: usize, memory: Bytes, over: Over) -> Servers {
    servers_with(count, over, server_config(memory))
}

pub fn servers_with(count: usize, over: Over, config: ServerConfig) -> Servers {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = Vec::new();
    for n in 0..count {
        let listen = match over {
            Over::Shm => format!("unix:{}", dir.path().join(format!("{n}.sock")).display()),
            Over::Tcp => "127.0.0.1:0".to_string(),
        };
        let config = ServerConfig {
            name: format!("server-{n}"),
            listen: vec![listen.parse().unwrap()],
            ..config.clone()
        };
        servers.push(Server::start(config).unwrap());
    }
    let names: Vec<String> = servers
        .iter()
        .map(|s| s.addresses()[0].to_string())
        .collect();
    let pool = Arc::new(Pool::connect(&names.join(","), options()).unwrap());
    Servers {
        servers,
        pool,
        _dir: dir,
    }
}

#[derive(Managed)]
pub struct Node {
    pub id: u64,
    pub value: u64,
    pub left: Ref<Node>,
    pub flag: u8,
    pub right: Ref<Node>,
    pub kids: Ref<[Ref<Node>]>,
    pub bytes: Ref<[u8]>,
    pub text: Ref<str>,
}

/// What a node should be.
#[derive(Clone, Debug, Default)]
struct Shadow {
    value: u64,
    flag: u8,
    left: Option<u64>,
    right: Option<u64>,
    kids: Option<Vec<Option<u64>>>,
    bytes: Option<Vec<u8>>,
    text: Option<String>,
}

/// A program that changes a graph at random and knows what it should look like.
pub struct Actor {
    pub mutator: Mutator,
    rng: SplitMix64,
    roots: Vec<(Root<Node>, u64)>,
    shadow: HashMap<u64, Shadow>,
    next_id: u64,
    pub most_nodes: usize,
}

const ROOTS_MAX: usize = 24;

impl Actor {
    pub fn new(heap: &Heap, seed: u64, most_nodes: usize) -> Actor {
        Actor {
            mutator: heap.mutator().unwrap(),
            rng: SplitMix64::new(seed),
            roots: Vec::new(),
            shadow: HashMap::new(),
            next_id: seed << 32 | 1,
            most_nodes,
        }
    }

    /// Does this many things; an error only if the heap is lost.
    pub fn act(&mut self, steps: usize) -> Result<(), HeapError> {
        for _ in 0..steps {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), HeapError> {
        let Actor {
            mutator,
            rng,
            roots,
            shadow,
            next_id,
            most_nodes,
        } = self;
        if roots.is_empty() || (rng.chance(0.1) && roots.len() < ROOTS_MAX) {
            let id = *next_id;
            *next_id += 1;
            let value = rng.next_u64();
            let root = mutator.enter(|s| {
                let init = NodeInit {
                    id,
                    value,
                    left: None,
                    flag: value as u8,
                    right: None,
                    kids: None,
                    bytes: None,
                    text: None,
                };
                Ok(s.root(&s.alloc(init)?))
            })?;
            shadow.insert(
                id,
                Shadow {
                    value,
                    flag: value as u8,
                    ..Shadow::default()
                },
            );
            roots.push((root, id));
            return Ok(());
        }
        if rng.chance(0.001) || shadow.len() > *most_nodes {
            let at = rng.below(roots.len() as u64) as usize;
            roots.swap_remove(at);
            if shadow.len() > *most_nodes {
                prune(roots, shadow);
            }
            return Ok(());
        }
        let (a, b) = (
            rng.below(roots.len() as u64) as usize,
            rng.below(roots.len() as u64) as usize,
        );
        let new_root = mutator.enter(|s| {
            // What nobody keeps, so that there is something to collect.
            let junk = s.alloc_filled(rng.below(8000) as usize, 0xA5u8)?;
            let (node, id) = walk(s, rng, shadow, &roots[a])?;
            assert!(junk.is_empty() || junk.get(junk.len() - 1) == 0xA5);
            let (other, other_id) = walk(s, rng, shadow, &roots[b])?;
            match rng.below(12) {
                0..=3 => {
                    // A new node in the graph, in a small tree of its own.
                    let new = *next_id;
                    *next_id += 2;
                    let value = rng.next_u64();
                    let len = match rng.below(200) {
                        0 => 40_000 + rng.below(40_000),
                        1..=10 => rng.below(4000),
                        _ => rng.below(100),
                    };
                    let mut data = vec![0; len as usize];
                    rng.fill(&mut data);
                    let bytes = s.alloc_values(&data)?;
                    let leaf = s.alloc(NodeInit {
                        id: new + 1,
                        value: !value,
                        left: None,
                        flag: 7,
                        right: Some(node.clone()),
                        kids: None,
                        bytes: None,
                        text: None,
                    })?;
                    let made = s.alloc(NodeInit {
                        id: new,
                        value,
                        left: Some(leaf),
                        flag: 9,
                        right: Some(other),
                        kids: None,
                        bytes: Some(bytes),
                        text: None,
                    })?;
                    shadow.insert(
                        new + 1,
                        Shadow {
                            value: !value,
                            flag: 7,
                            right: Some(id),
                            ..Shadow::default()
                        },
                    );
                    shadow.insert(
                        new,
                        Shadow {
                            value,
                            flag: 9,
                            left: Some(new + 1),
                            right: Some(other_id),
                            bytes: Some(data),
                            ..Shadow::default()
                        },
                    );
                    let want = shadow.get_mut(&id).unwrap();
                    match (node.kids(), &mut want.kids) {
                        (Some(kids), Some(wanted)) => {
                            let at = rng.below(wanted.len() as u64) as usize;
                            kids.set(at, Some(&made));
                            wanted[at] = Some(new);
                        }
                        _ => {
                            node.set_left(Some(&made));
                            want.left = Some(new);
                        }
                    }
                }
                4 => {
                    node.set_right(Some(&other));
                    shadow.get_mut(&id).unwrap().right = Some(other_id);
                }
                5 if rng.chance(0.1) => {
                    node.set_left(None);
                    shadow.get_mut(&id).unwrap().left = None;
                }
                6 => {
                    let value = rng.next_u64();
                    node.set_value(value);
                    shadow.get_mut(&id).unwrap().value = value;
                }
                7 if shadow[&id].kids.is_none() || rng.chance(0.05) => {
                    let most = if rng.chance(0.01) { 9000 } else { 40 };
                    let len = 1 + rng.below(most);
                    let kids = s.alloc_refs::<Node>(len as usize)?;
                    node.set_kids(Some(&kids));
                    shadow.get_mut(&id).unwrap().kids = Some(vec![None; len as usize]);
                }
                8 | 9 => {
                    if let Some(kids) = node.kids() {
                        let at = rng.below(kids.len() as u64) as usize;
                        kids.set(at, Some(&other));
                        shadow.get_mut(&id).unwrap().kids.as_mut().unwrap()[at] = Some(other_id);
                    }
                }
                10 => {
                    let text = format!("node {id} of {other_id} — é");
                    let string = s.alloc_str(&text)?;
                    node.set_text(Some(&string));
                    shadow.get_mut(&id).unwrap().text = Some(text);
                }
                _ if rng.chance(0.2) => return Ok(Some((s.root(&node), id))),
                _ => {}
            }
            Ok(None)
        })?;
        if let Some(root) = new_root {
            if self.roots.len() >= ROOTS_MAX {
                let at = self.rng.below(ROOTS_MAX as u64) as usize;
                self.roots.swap_remove(at);
            }
            self.roots.push(root);
        }
        Ok(())
    }

    /// Compares everything that can be reached with the shadow; how many objects there are.
    pub fn check(&mut self) -> Result<u64, HeapError> {
        let (roots, shadow) = (&self.roots, &self.shadow);
        let mut objects = 0;
        let mut seen = HashSet::new();
        let mut queue: VecDeque<(Root<Node>, u64)> = roots.iter().cloned().collect();
        while let Some((root, id)) = queue.pop_front() {
            if !seen.insert(id) {
                continue;
            }
            let found = self.mutator.enter(|s| {
                let node = s.open(&root)?;
                let want = &shadow[&id];
                assert_eq!(
                    (node.id(), node.value(), node.flag()),
                    (id, want.value, want.flag)
                );
                objects += 1;
                let mut next = Vec::new();
                same(s, (node.left(), want.left), (&seen, id), &mut next);
                same(s, (node.right(), want.right), (&seen, id), &mut next);
                let kids = node.kids();
                assert_eq!(
                    kids.as_ref().map(|k| k.len()),
                    want.kids.as_ref().map(Vec::len)
                );
                if let (Some(kids), Some(wanted)) = (kids, &want.kids) {
                    objects += 1;
                    for (at, want) in wanted.iter().enumerate() {
                        same(s, (kids.get(at), *want), (&seen, id), &mut next);
                    }
                }
                let bytes = node.bytes().map(|b| b.to_vec());
                objects += u64::from(bytes.is_some());
                assert!(bytes == want.bytes, "the bytes of {id} are wrong");
                let text = node.text().map(|t| t.text());
                objects += u64::from(text.is_some());
                assert_eq!(text, want.text);
                Ok(next)
            })?;
            queue.extend(found);
        }
        Ok(objects)
    }

    pub fn drop_roots(&mut self) {
        self.roots.clear();
        self.shadow.clear();
    }
}

/// A reference leads where it should; what has not been looked at yet is noted.
fn same<'s>(
    s: &Scope<'s>,
    (local, want): (Option<Local<'s, Node>>, Option<u64>),
    (seen, id): (&HashSet<u64>, u64),
    next: &mut Vec<(Root<Node>, u64)>,
) {
    assert_eq!(local.as_ref().map(|l| l.id()), want, "a reference of {id}");
    if let (Some(local), Some(want)) = (local, want)
        && !seen.contains(&want)
    {
        next.push((s.root(&local), want));
    }
}

/// Forgets what cannot be reached any more.
fn prune(roots: &[(Root<Node>, u64)], shadow: &mut HashMap<u64, Shadow>) {
    let mut live = HashSet::new();
    let mut list: Vec<u64> = roots.iter().map(|(_, id)| *id).collect();
    while let Some(id) = list.pop() {
        if live.insert(id) {
            let node = &shadow[&id];
            list.extend(node.left.iter().chain(&node.right));
            list.extend(node.kids.iter().flatten().flatten());
        }
    }
    shadow.retain(|id, _| live.contains(id));
}

/// A few random steps from a root, with a look at each node on the way.
fn walk<'s>(
    s: &Scope<'s>,
    rng: &mut SplitMix64,
    shadow: &HashMap<u64, Shadow>,
    (root, id): &(Root<Node>, u64),
) -> Result<(Local<'s, Node>, u64), HeapError> {
    let mut node = s.open(root)?;
    let mut id = *id;
    for _ in 0..rng.below(12) {
        let want = &shadow[&id];
        assert_eq!((node.id(), node.value()), (id, want.value));
        let (next, next_id) = match rng.below(3) {
            0 => (node.left(), want.left),
            1 => (node.right(), want.right),
            _ => match (node.kids(), &want.kids) {
                (Some(kids), Some(wanted)) => {
                    let at = rng.below(wanted.len() as u64) as usize;
                    (kids.get(at), wanted[at])
                }
                (None, None) => (None, None),
                other => panic!("the array of {id} is wrong: {other:?}"),
            },
        };
        match (next, next_id) {
            (Some(next), Some(next_id)) => (node, id) = (next, next_id),
            (None, None) => break,
            other => panic!("a reference of {id} is wrong: {other:?}"),
        }
    }
    assert_eq!(node.id(), id);
    Ok((node, id))
}
