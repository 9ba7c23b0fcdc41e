//! What can go wrong with a heap, and what to do about it.

use muninn_net::NetError;
use muninn_types::Bytes;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    #[error(
        "the heap is full: {asked} were asked for, {live} of {heap} were still in use after a full \
         collection; drop references, or make the heap larger"
    )]
    Full {
        asked: Bytes,
        live: Bytes,
        heap: Bytes,
    },
    #[error(
        "an object of {asked} does not fit a heap of {most} in one piece; make the heap larger"
    )]
    TooLarge { asked: Bytes, most: Bytes },
    #[error("an array of {0} elements is longer than the {max} that an array can have", max = muninn_heap_agent::layout::MAX_LEN)]
    TooLong(u64),
    #[error("the heap of {heap} does not fit the pool: {why}; make it smaller, or add a server")]
    PoolTooSmall { heap: Bytes, why: String },
    #[error("a heap of {heap} with regions of {region} cannot be: {why}")]
    BadSize {
        heap: Bytes,
        region: Bytes,
        why: &'static str,
    },
    #[error("the heap is lost, because a part of it is: {0}")]
    Lost(String),
    #[error(
        "this thread is inside of a heap already, and a collection would wait for it: end the scope \
         first, or use Scope::collect or Scope::blocking"
    )]
    Inside,
    #[error(
        "a heap kept as {0} is collected at this machine, as agents of servers would change one copy \
         alone: use the plan 'local' instead of '{1}', or the layout single"
    )]
    BadLayout(muninn_policy::layout::Layout, crate::plan::Plan),
    #[error("the root belongs to another heap")]
    Foreign,
    #[error("'{name}' is a {found}, not a {asked}")]
    TypeMismatch {
        name: String,
        found: String,
        asked: String,
    },
    #[error("there is no root named '{0}'")]
    NoRoot(String),
    #[error("{0}")]
    BadField(String),
    #[error("a heap has at most {max} types", max = muninn_heap_agent::layout::MAX_TYPES)]
    TooManyTypes,
    #[error(
        "type '{0}' makes no sense: references lie at multiples of 8 inside of the fields, in order"
    )]
    BadType(String),
    #[error(
        "the server at {0} runs no agents, so the heap cannot be collected there: start it with \
         agents (the default; --no-agents turns them off), or use the plan 'local'"
    )]
    NoAgent(String),
    #[error("the agent at {0} gave up: {1}")]
    Agent(String, String),
    #[error("{0}")]
    Net(#[from] NetError),
    #[error("this machine cannot run a heap: {0}")]
    Machine(String),
}
